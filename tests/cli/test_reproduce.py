"""`fsvi-bench reproduce`: the paper's settings, files whose numbers are the records', resume, refusals."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from fsvi_bench.cli.reproduce import _show
from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.papers import experiment
from fsvi_bench.papers.burt2020.toy import _nats
from fsvi_bench.papers.claims import Verdict
from fsvi_bench.papers.experiment import Experiment, Outcome
from fsvi_bench.papers.parts import PartFailed
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.running import plan as planning
from fsvi_bench.running import runner
from fsvi_bench.running.cell import Record
from fsvi_bench.running.plan import Protocol, Request, make_plan
from fsvi_bench.tasks.build import load_cached
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import bind_task
from tests.conftest import shorten_scores

TINY = {
    "burt2020-fig1": {"max_steps": 3},
    "burt2020-fig2": {"datasets": ["toy"], "splits": "0-1", "max_steps": 3, "measurement_points": [10]},
}


@pytest.fixture
def tiny(monkeypatch):
    """`--quick` takes a few steps; returns a function that changes what it takes further."""
    small, read = dict(TINY), experiment.read_file

    def shrunk(name, model):
        file = read(name, model)
        return file.model_copy(update={"quick": small.get(name, file.quick)})

    shorten_scores(monkeypatch)
    monkeypatch.setattr(experiment, "read_file", shrunk)
    return lambda name, **changes: small.update({name: {**TINY[name], **changes}})


def records_of(folder):
    paths = sorted(folder.rglob("record.json"))
    return {record.cell: record for record in (Record.model_validate_json(path.read_bytes()) for path in paths)}


def figure_files(folder, name):
    return [folder / f"{name}-quick.{kind}" for kind in ("png", "svg", "json")]


@pytest.fixture
def quick(cli, tiny, tmp_path):
    """Makes a preview; returns what the command returns."""
    return lambda name, *flags: cli("reproduce", name, "--quick", "--out", tmp_path, "--workers", "1", *flags)


def test_figure_1_writes_its_records_numbers_and_a_second_run_computes_nothing(quick, tmp_path):
    status, out, err = quick("burt2020-fig1")
    assert status == 0
    files = figure_files(tmp_path, "burt2020-fig1")
    assert out.split()[-3:] == [str(path) for path in files]
    assert "rand-a full kl_jitter=1e-06" in out
    assert "7 computed, 0 reused" in err

    document, records = json.loads(files[2].read_text()), records_of(tmp_path)
    cells, curves, data = (pd.DataFrame(document["frames"][name]) for name in ("cells", "curves", "data"))
    problem = bind_task(load_cached(load_card("toy"), 0).task)
    order = problem.X_test[:, 0].argsort()
    assert len(records) == len(cells) == 7
    assert {*cells["task_sha256"]} == {problem.frozen.sha256}
    data = data.drop_duplicates(["x", "y"])
    assert (data["x"].tolist(), data["y"].tolist()) == (problem.X[:, 0].tolist(), problem.y.tolist())
    for cell in cells.itertuples():
        record, drawn = records[cell.cell], curves[curves["cell"] == cell.cell]
        assert (cell.kl, cell.nlpd) == (record.scores.kl, record.scores.nlpd)
        assert (cell.method, json.loads(cell.settings)) == (record.method, record.hyperparameters)
        (path,) = tmp_path.rglob(f"*{record.cell[:12]}/posterior.safetensors")
        q, Phi = read_posterior(path), problem.Phi_test[order].numpy()
        variances = np.square(Phi @ q.covariance_tril().numpy()).sum(1)
        assert drawn["x"].tolist() == problem.X_test[order, 0].tolist()
        np.testing.assert_allclose(drawn["mean"], Phi @ q.mean.numpy(), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(np.square(drawn["sd"]), variances, rtol=1e-10)

    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    status, _, err = quick("burt2020-fig1")
    assert status == 0
    assert "0 computed, 7 reused" in err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_two_runs_give_the_same_figure(quick, tmp_path):
    """Byte for byte, in two folders: nothing in it depends on when or where it was made."""
    folders = tmp_path / "a", tmp_path / "b"
    assert [quick("burt2020-fig1", "--out", folder)[0] for folder in folders] == [0, 0]
    for paths in zip(*(figure_files(folder, "burt2020-fig1") for folder in folders), strict=True):
        assert len({path.read_bytes() for path in paths}) == 1


@pytest.mark.slow
def test_figure_2_writes_means_over_splits(quick, tmp_path):
    status, out, _ = quick("burt2020-fig2", "--json")
    document, files = json.loads(out), figure_files(tmp_path, "burt2020-fig2")
    assert (status, document["name"], document["scale"]) == (0, "burt2020-fig2", "quick")
    assert document["files"] == [str(path) for path in files]
    records = records_of(tmp_path)
    assert {record["cell"] for record in document["records"]} == set(records)
    lines, cells = (pd.DataFrame(json.loads(files[2].read_text())["frames"][name]) for name in ("scores", "cells"))
    assert len(lines) == 2 * (2 + 3 * 2 * 2)  # of KL and NLPD: EXACT, and three methods with two jitters; full and ffg
    assert {*cells["cell"]} == set(records)
    for cell in cells.itertuples():
        assert (cell.kl, cell.nlpd) == (records[cell.cell].scores.kl, records[cell.cell].scores.nlpd)
    for line in lines.itertuples():
        alike = (cells["method"] == line.method) & (cells["family"] == line.family)
        values = cells.loc[alike & (cells["kl_jitter"].eq(line.kl_jitter) | (line.method == "exact")), line.score]
        assert line.planned == line.finished == len(values) == 2
        assert line.mean == pytest.approx(statistics.mean(values), rel=1e-12, abs=1e-13)
        assert line.error == pytest.approx(statistics.stdev(values) / math.sqrt(2), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("name", TINY)
def test_a_figure_is_legible_in_print_and_says_what_it_shows(quick, tiny, tmp_path, monkeypatch, name):
    if name == "burt2020-fig2":
        tiny(name, splits="0", families=["full"])
    figures = []
    monkeypatch.setattr(experiment, "write_figure", lambda figure, stem: figures.append(figure) or [])
    assert quick(name)[0] == 0
    (figure,) = figures
    figure.draw_without_rendering()
    texts = [t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]
    assert figure.get_size_inches()[0] == 7.0
    assert min(text.get_fontsize() for text in texts) >= 8
    said = "\n".join(text.get_text() for text in texts)
    expected = ["EXACT", "FIXEDA", "RANDA", "SSGE", "up to 3 steps", "M = 10", "preview: 7 cells", "KL jitter 1e-6"]
    if name == "burt2020-fig2":
        expected += ["|A| = minibatch = M = 10 (FIXEDA: all rows)", "NLPD", "nats per test point"]
        assert "0" in [text.get_text().strip() for text in texts]  # EXACT full
    else:
        titles = [axes.get_title(loc="left") for axes in figure.axes]
        assert [title.split(":")[0] for title in titles] == expected[:4]
        assert all("nats (jitter 1e-6: " in title for title in titles[1:])
        assert [_nats(kl) for kl in (1e-12, 0.1234, 4931.2)] == ["0", "0.123", "4,930"]
        expected += [_nats(r.scores.kl) for r in records_of(tmp_path).values() if r.method != "exact"]
    assert [words for words in expected if words not in said] == []


@pytest.mark.parametrize("name", TINY)
def test_diverged_cells_are_listed_and_noted_in_the_figure(quick, tiny, tmp_path, name):
    tiny(name, options={"lr": 1e308, "optimizer": "adam", "kl_jitter": 0.0}, splits="0")
    status, out, err = quick(name)
    assert status == 1
    assert "ssge full seed 0: diverged" in err
    assert "Traceback" not in err
    assert "(1 not ok)" in out
    frames = json.loads((tmp_path / f"{name}-quick.json").read_text())["frames"]
    svg = (tmp_path / f"{name}-quick.svg").read_text()
    cell = next(cell for cell in pd.DataFrame(frames["cells"]).itertuples() if cell.method == "ssge")
    assert (cell.status, cell.kl) == ("diverged", "NaN")
    if name == "burt2020-fig1":
        assert cell.cell not in frames["curves"]["cell"]
        assert "KL diverged" in svg
    else:
        line = next(line for line in pd.DataFrame(frames["scores"]).itertuples() if line.method == "ssge")
        assert (line.finished, line.planned, line.mean) == (0, 1, "NaN")
        assert "<!-- 0/1 -->" in svg  # beneath its column
        assert "<!-- 2 ✗ -->" in svg  # full and ffg


def test_without_a_certified_task_nothing_is_drawn(quick, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise TaskRefused("planted")

    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runner, "build_task", refuse)
    status, out, err = quick("burt2020-fig1", "--json")
    assert (status, json.loads(out)["files"]) == (1, [])
    assert "no figure was drawn" in err
    assert not list(tmp_path.rglob("burt2020*"))


def test_an_experiment_reports_the_verdicts_on_its_claims(quick, cli, tmp_path):
    status, out, err = quick("ksw2015-fig2")
    assert status == 0  # a claim that does not hold is a finding
    assert "cannot confirm or refute a claim" in out
    assert "did not hold: figure 2's caption" in out
    assert "undecided" not in out
    assert out.split()[-4:] == [str(tmp_path / f"ksw2015-fig2-quick.{kind}") for kind in ("png", "svg", "json", "csv")]
    assert err.strip() == f"results are in {tmp_path}"  # no parts, nothing to count
    claims = json.loads(cli("reproduce", "ksw2015-fig2", "--out", tmp_path, "--json")[1])["claims"]
    assert [claim["holds"] for claim in claims] == [True, False, True]
    out = cli("reproduce", "ksw2015-fig2", "--out", tmp_path)[1]
    assert "At full scale:" in out
    assert "cannot confirm or refute a claim" not in out


def test_undecided_and_refuted_claims_are_distinguished(capsys):
    claim = {"says": "it is", "side": "above", "threshold": 0.5, "value": 0.6, "holds": False}
    cases = ("", 0.4, 0.9), ("nats", 0.6, math.inf)
    claims = [Verdict(statistic=f"s{low}", unit=unit, low=low, high=high, **claim) for unit, low, high in cases]
    _show(Outcome(name="x", scale="paper", files=[], computed=0, reused=0, claims=claims))
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "At full scale:",
        "undecided: it is", "s0.4: 0.6 (0.4 to 0.9), claimed above 0.5",
        "did not hold: it is", "s0.6: 0.6 nats (0.6 to ∞), claimed above 0.5",
    ]  # fmt: skip


def test_medium_scale_says_what_it_changes_and_has_files_of_its_own(cli, tmp_path, monkeypatch):
    name, read = "gal2016-elbo", experiment.read_yaml
    small = {"hidden_layers": 1, "steps": 2, "minibatch": 9, "lr": 0.001, "draws": 4, "seed": 0, "length_scale": 0.01}
    changes = {"repeats": 2, "N": 30, "N_test": 20, "network": {"width": 6, **small}}
    monkeypatch.setattr(experiment, "read_yaml", lambda path: {**read(path), "medium": changes})
    monkeypatch.setitem(REPRODUCTIONS, name, replace(REPRODUCTIONS[name], takes_days=True))
    status, out, err = cli("reproduce", name, "--medium", "--out", tmp_path, "--workers", "1")
    assert status == 0
    assert "36 computed" in err  # although full scale takes days: that alone needs --compute
    assert "At medium scale: repeats 2 (full scale: 3); N 30 (full scale: 5000); " in out
    assert "cannot confirm or refute" not in out
    files = {f"{name}-medium.{kind}" for kind in ("png", "svg", "json", "csv")}
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == files
    document = json.loads((tmp_path / f"{name}-medium.json").read_text())
    assert (document["scale"], document["settings"]["N"]) == ("medium", 30)


def test_a_part_that_fails_is_one_sentence_and_status_1(cli, tmp_path, monkeypatch):
    def investigate(settings, context):
        raise PartFailed("1 of 2 parts failed; the first: value 1.0: ArithmeticError: planted")

    settings = REPRODUCTIONS["ksw2015-fig2"].settings
    monkeypatch.setitem(REPRODUCTIONS, "ksw2015-fig2", Experiment("ksw2015-fig2", settings, investigate))
    status, out, err = cli("reproduce", "ksw2015-fig2", "--out", tmp_path)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("1 of 2 parts failed")
    assert list(tmp_path.iterdir()) == []


def test_without_a_name_it_lists_what_there_is(cli):
    status, out, err = cli("reproduce")
    assert (status, err) == (0, "")
    assert "burt2020-fig1" in out
    assert "toy problem" in out
    status, out, _ = cli("reproduce", "--json")
    assert [entry["name"] for entry in json.loads(out)] == list(REPRODUCTIONS)


def variants_of(method, request):
    """The settings, family by family, with which a plan runs a method."""
    return [v for v in make_plan(request).variants if v.method == method]


#: Constant, in all entries of a covariance's root, and without averages: whatever the methods' own defaults are.
PAPERS_ADAM = {"lr": 0.01, "lr_schedule": "constant", "averaging": 0.0, "off_diagonal_lr": 1.0}


@pytest.mark.parametrize(
    ("name", "families", "common", "own", "splits"),
    [
        (
            "burt2020-fig1",
            ["full"],
            {**PAPERS_ADAM, "max_steps": 5000, "M": 10, "kl_weight": 1.0},
            {"fixed-a": {"minibatch": "full", "optimizer": "adam"}, "rand-a": {"minibatch": "full"}, "ssge": {"minibatch": "full"}},
            [("toy", 0)],
        ),
        (
            "burt2020-fig2",
            ["full", "ffg"],
            {**PAPERS_ADAM, "max_steps": 15000, "M": 80},
            {"fixed-a": {"minibatch": "full", "optimizer": "lbfgs"}, "rand-a": {"minibatch": "M"}, "ssge": {"minibatch": "M"}},
            [(dataset, split) for dataset in ("boston", "concrete", "energy") for split in range(20)],
        ),
    ],
)  # fmt: skip
def test_figures_have_the_papers_settings(name, families, common, own, splits):
    request = REPRODUCTIONS[name]._settings("paper")
    assert make_plan(request).splits == list(splits)
    for method, expected in own.items():
        variants = variants_of(method, request)
        jitters = [(variant.family, variant.hyperparameters["kl_jitter"]) for variant in variants]
        assert jitters == [(family, jitter) for family in families for jitter in (0, 1e-6)]
        assert all((common | expected).items() <= variant.hyperparameters.items() for variant in variants)


@pytest.mark.parametrize(
    ("method", "steps"), [("fixed-a", 15000), ("rand-a", 15000), ("ssge", 15000), ("rand-a-ngd", 500)]
)
def test_the_study_states_its_settings_and_a_preview_overrides_its_steps(method, steps):
    study = REPRODUCTIONS["burt2020-study"]._settings("paper")
    variants = [each.hyperparameters for each in variants_of(method, study)]
    assert {each["max_steps"] for each in variants} == {steps}
    if method in ("rand-a", "ssge"):
        assert all(PAPERS_ADAM.items() <= each.items() for each in variants)
    preview = REPRODUCTIONS["burt2020-study"]._settings("quick")
    assert {each.hyperparameters["max_steps"] for each in variants_of(method, preview)} == {300}


@pytest.mark.parametrize(
    ("method", "asked", "planned"),
    [
        ("fixed-a", {}, [{"kl_jitter": 0.0, "optimizer": "adam"}, {"kl_jitter": 1e-6, "optimizer": "adam"}]),
        (
            "fixed-a",
            {"options": {"kl_jitter": 1e-4, "optimizer": "lbfgs"}},
            [{"kl_jitter": 1e-4, "optimizer": "lbfgs"}],
        ),
        (
            "rand-a",
            {"measurement_points": [5, 6]},
            [{"M": M, "kl_jitter": jitter} for M in (5, 6) for jitter in (0, 1e-6)],
        ),
        ("rand-a", {"options": {"max_steps": 7, "kl_jitter": 0}}, [{"max_steps": 7}]),
        ("rand-a", {"max_steps": 8, "options": {"kl_jitter": 0}}, [{"max_steps": 8}]),
        ("exact", {"methods": ["exact"]}, [{}]),  # which has none of the protocol's options
    ],
)
def test_the_command_line_overrides_a_protocols_grid_and_method_options(method, asked, planned):
    variants = variants_of(method, Request(protocol="burt2020-fig1", **asked))
    assert len(variants) == len(planned)
    assert all(some.items() <= v.hyperparameters.items() for v, some in zip(variants, planned, strict=True))


def test_an_option_that_no_chosen_method_has_is_refused_with_a_protocol_too():
    with pytest.raises(InputError, match="--set lr: none of the chosen methods"):
        make_plan(Request(protocol="burt2020-fig1", methods=["exact"], options={"lr": 0.1}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"method_options": {"ssge": {}}}, "method_options has 'ssge', which is not among the methods"),
        ({"grid": {"M": [1]}}, "set measurement_points and max_steps"),
        ({"method_options": {"rand-a": {"M": 1}}}, "set measurement_points and max_steps"),
        ({"grid": {"kl_jitter": []}}, "grid has no values for 'kl_jitter'"),
    ],
)
def test_protocols_that_contradict_themselves_are_refused(content, message):
    with pytest.raises(ValueError, match=message):
        Protocol(summary="s", methods=["rand-a"], **content)


@pytest.mark.parametrize("content", [{"grid": {"kl_jiter": (0,)}}, {"method_options": {"rand-a": {"kl_jiter": 0}}}])
def test_a_misspelt_option_of_a_protocol_is_refused(monkeypatch, content):
    monkeypatch.setattr(planning, "load_protocol", lambda _: Protocol(summary="s", methods=["rand-a"], **content))
    with pytest.raises(InputError, match=r"kl_jiter.*did you mean 'kl_jitter'"):
        make_plan(Request(protocol="any"))
