"""Experiments: parts that are kept and found, claims judged by intervals, files, and settings from YAML."""

import inspect
import json
import math
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.papers import experiment
from fsvi_bench.papers.claims import Claim, Statistic
from fsvi_bench.papers.experiment import Experiment
from fsvi_bench.papers.gal2016.section_6_3 import compare_masks
from fsvi_bench.papers.ksw2015 import fig2
from fsvi_bench.papers.parts import ExperimentContext, PartFailed, _attempt, _deciding
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.papers.workspace import Workspace
from fsvi_bench.presenting.tables import Table
from fsvi_bench.running.executors import LocalExecutor
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources
from fsvi_bench.strict import Plain


class Number(Plain):
    value: float


def reciprocal(x, number=None):
    return {"value": math.inf if x == 0 else 1 / x, "of": [x]}


def rows(x):
    return {"rows": [{"name": "1", "count": 2, "value": value} for value in (x, -x, x - x)]}


def broken(x):
    """NumPy's errors are ValueErrors, which an executor would take for bugs."""
    if x < 0:
        raise np.linalg.LinAlgError("planted\nin two lines")
    return {"value": x}


def workspace(root, scale="paper", workers=1):
    return Workspace(root, scale, Resources(executor=LocalExecutor(workers)), Silent())


#: Reproductions that train networks, which take days at the paper's scale without a GPU.
OF_NETWORKS = {"gal2016-elbo", "gal2016-uncertainty", "ksw2015-fig1", "ksw2015-variance"}


# --- Parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_parts_are_computed_once_and_found_again_in_order(tmp_path, workers):
    first, second = (
        ExperimentContext("x", workspace(tmp_path, workers=workers)),
        ExperimentContext("x", workspace(tmp_path)),
    )
    found = first.table(reciprocal, {"x": [4.0, 0.0, math.inf]})
    assert found.to_dict("list") == {
        "x": [4, 0, math.inf],
        "value": [0.25, math.inf, 0.0],
        "of": [[4.0], [0.0], [math.inf]],
    }
    assert (first.computed, first.reused) == (3, 0)
    again = second.table(reciprocal, {"x": [2.0, 4.0, 0.0, math.inf]})
    assert again["value"].tolist() == [0.5, 0.25, math.inf, 0.0]
    assert (second.computed, second.reused) == (1, 3)
    second.table(broken, {"x": [4.0]})  # another function is another part, and so is another model
    second.table(reciprocal, {"x": [4.0]}, number=Number(value=math.inf))
    assert second.computed == 3


def test_rows_within_a_part_keep_words_and_numbers_that_are_not_finite(tmp_path):
    ((first, second, third),) = ExperimentContext("x", workspace(tmp_path)).table(rows, {"x": [math.inf]})["rows"]
    assert (first, second) == tuple({"name": "1", "count": 2, "value": value} for value in (math.inf, -math.inf))
    assert math.isnan(third["value"])


def test_a_part_that_fails_costs_no_other(tmp_path):
    notes, progress = [], Silent()
    progress.note = notes.append
    parts = ExperimentContext("x", replace(workspace(tmp_path), progress=progress))
    with pytest.raises(PartFailed, match=r"1 of 3 parts failed; the first: x -1\.0: LinAlgError: planted in two"):
        parts.table(broken, {"x": [1.0, -1.0, math.inf]})
    assert len(list(tmp_path.rglob("*.json"))) == 2
    assert notes == ["failed: x -1.0: LinAlgError: planted in two lines"]
    # Between processes the call travels as bytes.
    assert pickle.loads(pickle.dumps(partial(_attempt, broken)))({"x": -1.0}).startswith("LinAlgError: planted")


def test_what_a_part_imports_decides_it_and_what_draws_it_does_not():
    """A part's helpers may lie beside it: a change there must not find the old results."""
    # Tests wrap functions whose shapes they check in functions of jaxtyping's.
    masks, other = (_deciding(inspect.unwrap(each)) for each in (compare_masks, fig2.investigate))
    assert {"fsvi_bench.papers.gal2016.linear_model", "fsvi_bench.maths.bernoulli_optimum"} <= set(masks)
    assert not any(name.startswith(("fsvi_bench.presenting", "fsvi_bench.papers.experiment")) for name in masks)
    assert len({masks["<0>"], other["<0>"], _deciding(reciprocal)["<0>"]}) == 3


def test_a_file_that_is_no_part_is_not_overwritten(tmp_path):
    def compute():
        ExperimentContext("x", workspace(tmp_path)).table(reciprocal, {"x": [2.0]})

    compute()
    (path,) = tmp_path.rglob("*.json")
    path.write_text("{}")
    with pytest.raises(InputError, match="is not a finished part"):
        compute()
    assert path.read_text() == "{}"


# --- Claims -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "statistic", "holds"),
    [
        ("above", Statistic(1.0, 0.6, 1.4), True),
        ("above", Statistic(1.0, 0.5, 1.5), False),  # the threshold itself is not beyond it
        ("below", Statistic(0.3, 0.1, 0.49), True),
        ("below", Statistic(0.3, 0.1, 0.51), False),
        ("below", Statistic.exact(0.4), True),
        ("above", Statistic.exact(math.nan), False),
        ("below", Statistic.exact(math.nan), False),
    ],
)
def test_a_claim_holds_if_the_whole_interval_is_on_its_side(side, statistic, holds):
    assert Claim(statistic="s", says="it is", side=side, threshold=0.5).judge(statistic).holds is holds


@pytest.mark.parametrize("threshold", [math.nan, math.inf])
def test_a_threshold_that_nothing_can_pass_is_refused(threshold):
    with pytest.raises(ValidationError, match="finite number"):
        Claim(statistic="s", says="it is", side="above", threshold=threshold)


# --- The whole --------------------------------------------------------------------------------------------------------

YAML = """
summary: a test
paper: {value: 4.0}
quick: {value: 2.0}
medium: {value: 3.125}
claims:
  - {statistic: reciprocal, says: "it is small", at: {frame: numbers, column: y, where: {x: 1}}, side: below, threshold: 0.3}
tables: [{title: t, frame: numbers, where: {x: 1}, columns: {a: x, b: y}}]
figure: {height: 2, panels: [{layers: [{frame: numbers, x: x, y: y, by: form}]}]}
"""


def investigate(settings, context):
    (value,) = context.table(reciprocal, {"x": [settings.value]})["value"]
    frame = pd.DataFrame({"x": [1, 2], "y": [value, math.inf], "form": ["f", "g"]})
    return {"numbers": frame}


@pytest.fixture
def made(tmp_path, monkeypatch):
    (tmp_path / "conf" / "reproductions").mkdir(parents=True)
    (tmp_path / "conf" / "reproductions" / "made.yaml").write_text(YAML)
    monkeypatch.setattr(experiment, "resource_dir", lambda name: tmp_path / name)
    return Experiment("made", Number, investigate)


def test_each_scale_of_an_experiment_writes_files_of_its_own(made, tmp_path):
    for scale, value, holds in (("paper", 4.0, True), ("medium", 3.125, False), ("quick", 2.0, False)):
        outcome = made.make(workspace(tmp_path / "out", scale))
        stem = "made" if scale == "paper" else f"made-{scale}"
        assert outcome.scale == scale
        assert [path.name for path in outcome.files] == [f"{stem}.{kind}" for kind in ("png", "svg", "json", "csv")]
        assert [claim.holds for claim in outcome.claims] == [holds]
        numbers = json.loads((tmp_path / "out" / f"{stem}.json").read_text())
        assert (numbers["format"], numbers["scale"]) == ("fsvi-reproduction/3", scale)
        assert "quick" not in numbers
        assert numbers["settings"] == {"value": value}
        assert numbers["claims"][0]["holds"] is holds
        small = 1 / value
        assert numbers["frames"] == {"numbers": {"x": [1, 2], "y": [small, "Infinity"], "form": ["f", "g"]}}
        assert outcome.tables == (Table(title="t", columns=("a", "b"), rows=((1, small),)),)
    assert made.make(workspace(tmp_path / "out")).computed == 0


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("where: {x: 1}}, side", "where: {x: 3}}, side", "no row has {'x': 3}"),
        ("column: y, where: {x: 1}", "column: y", "size 1"),
        ("column: y, where: {x: 1}", "column: form", "fix the file's claims"),
        ("at: {frame: numbers, column: y, where: {x: 1}}, ", "", "at.* is missing"),
        (
            "\ntables",
            "\n  - {statistic: reciprocal, says: so, at: {frame: numbers, column: y}, side: above, threshold: 0}\ntables",
            "two claims",
        ),
    ],
)
def test_a_claim_on_what_is_not_found_is_the_files_mistake(made, tmp_path, right, wrong, said):
    path = tmp_path / "conf" / "reproductions" / "made.yaml"
    path.write_text(path.read_text().replace(right, wrong))
    with pytest.raises(InputError, match=rf"made\.yaml: .*{said}"):
        made.make(workspace(tmp_path / "out"))


@pytest.mark.parametrize(
    ("right", "wrong", "name"),
    [
        ("t, frame: numbers", "t, frame: digits", "digits"),
        ("numbers, where: {x: 1}", "numbers, where: {q: 1}", "q"),
        ("{a: x, b: y}", "{a: x, b: z}", "z"),
        ("column: y", "column: z", "z"),
        ("[{frame: numbers", "[{frame: digits", "digits"),
        ("y: y, by: form", "y: z, by: form", "z"),
        ("y: y, by: form", "y: z, by: form, take: max", "z"),
    ],
)
def test_a_name_that_nothing_has_is_the_files_mistake(made, tmp_path, right, wrong, name):
    path = tmp_path / "conf" / "reproductions" / "made.yaml"
    path.write_text(path.read_text().replace(right, wrong))
    with pytest.raises(InputError, match=rf"made\.yaml names '{name}'.*numbers \(x, y, form\)"):
        made.make(workspace(tmp_path / "out"))


def test_numbers_are_kept_though_the_figure_cannot_be_drawn(made, tmp_path, monkeypatch):
    def fail(figure, stem):
        raise RuntimeError("planted")

    monkeypatch.setattr(experiment, "write_figure", fail)
    with pytest.raises(RuntimeError, match="planted"):
        made.make(workspace(tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").glob("made*")} == {"made.json", "made.csv"}


@pytest.mark.parametrize(
    ("scale", "change"),
    [
        ("paper", ("value: 4.0", "value: many")),
        ("medium", ("value: 3.125", "value: many")),
        ("medium", ("{value: 3.125}", "3.125")),
        ("paper", ("side: below", "side: beside")),
        ("paper", ("a test", "[")),
    ],
)
def test_a_file_that_does_not_validate_is_refused_by_name(made, tmp_path, scale, change):
    path = tmp_path / "conf" / "reproductions" / "made.yaml"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match=r"made\.yaml"):
        made.check(scale, None)


def test_what_a_scale_changes_is_said_in_words(made):
    assert made.changes("medium") == "value 3.125 (full scale: 4.0)"
    assert made.changes("paper") == ""


def test_nested_settings_and_lists_are_said_in_words():
    said = REPRODUCTIONS["gal2016-uncertainty"].changes("quick").split("; ")
    assert said[0].startswith("sizes 10, 30, 100, 300, 1000 (full scale: 10, 25, 50,")
    assert said[1] == "network.width 128 (full scale: 1024)"
    assert "splits 0-1 (full scale: as in the protocol)" in REPRODUCTIONS["numerics"].changes("quick")


def test_a_scale_that_the_file_does_not_declare_is_refused(made, tmp_path):
    path = tmp_path / "conf" / "reproductions" / "made.yaml"
    path.with_name("other.yaml").write_text(YAML)
    path.write_text(path.read_text().replace("medium: {value: 3.125}\n", ""))
    for refuse in (made.require, made._settings):
        with pytest.raises(InputError, match=r"^made has no medium scale, expected one of other; drop --medium$"):
            refuse("medium")
    made.require("quick")


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_all_scales_of_every_reproduction_validate(name):
    reproduction = REPRODUCTIONS[name]
    assert reproduction.summary
    if isinstance(reproduction, Experiment):
        for scale in ("paper", "quick", *(["medium"] if name in OF_NETWORKS else [])):
            reproduction._settings(scale)


def test_what_trains_networks_has_a_medium_scale():
    assert {name for name in REPRODUCTIONS if REPRODUCTIONS[name].file.medium is not None} == OF_NETWORKS
