"""Submissions that gain data sets."""

from __future__ import annotations

import dataclasses

import pytest

from fsvi_bench.cli.app import main
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.drafting import draft_from_files
from fsvi_bench.leaderboard.extending import extend
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.submitting import MethodSource, Words, write_submission
from fsvi_bench.posteriors.io import write_posterior
from fsvi_bench.tasks.official import TaskSet
from tests.leaderboard.planted import plant_submission, planted_manifest, planted_posteriors, planted_tasks

WORDS = Words(
    ("A", "B"), "MIT", title="A tool", link="https://example.org/", hardware="a desk", notes="Tuned on boston."
)
SILENT = Words((), "")
BUDGET = {"steps": 7, "seconds": 2.0, "likelihood_rows": 50, "function_samples": 3}
TASKS = planted_tasks()
SOURCE = MethodSource("tool.py", "Tool", b"class Tool: ...\n")


def only(dataset):
    return TaskSet({place: task for place, task in TASKS.tasks.items() if place[0] == dataset}, TASKS.load)


def draft_of(tmp_path, tasks, budget=BUDGET, **changes):
    folder = tmp_path / "-".join(tasks.datasets)
    for (dataset, split), q in planted_posteriors(tasks).items():
        write_posterior(folder / dataset / f"split-{split:02d}.safetensors", q)
    draft = draft_from_files(folder, TASKS, "Tool", "full", budget, hyperparameters={"a": 1})
    return dataclasses.replace(draft, source=SOURCE, **changes)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def begin(tmp_path, dataset="boston", **changes):
    """A submission of one data set."""
    draft = draft_of(tmp_path, only(dataset), **changes)
    write_submission(draft, WORDS, TASKS, tmp_path / "out")
    return tmp_path / "out" / "tool-full"


@pytest.mark.parametrize("first", ["boston", "energy"])
def test_a_submission_in_two_parts_is_that_made_at_once(tmp_path, first):
    folder = begin(tmp_path, first)
    second = draft_of(tmp_path, only("energy" if first == "boston" else "boston"))
    assert second.left_out == (first,)
    draft, words = extend(second, SILENT, TASKS, tmp_path / "out")
    assert draft.left_out == ()
    write_submission(draft, words, TASKS, tmp_path / "out", replace=True)
    write_submission(draft_of(tmp_path, TASKS), WORDS, TASKS, tmp_path / "at once")
    assert contents(folder) == contents(tmp_path / "at once" / "tool-full")


def test_cells_without_a_posterior_stay_with_their_reasons(tmp_path):
    manifest = planted_manifest(name="tool-full", method="Tool", hyperparameters={"a": 1})
    posteriors = {place: q for place, q in planted_posteriors(only("boston")).items() if place[1] == 0}
    plant_submission(tmp_path / "out", only("boston"), manifest, posteriors, reasons={("boston", 1): "the loss is nan"})
    second = dataclasses.replace(draft_of(tmp_path, only("energy")), source=None)
    write_submission(*extend(second, SILENT, TASKS, tmp_path / "out"), TASKS, tmp_path / "out", replace=True)
    claims = read_submission(tmp_path / "out" / "tool-full", TASKS).claims.cells
    told = [(claim.dataset, claim.split, claim.status, claim.reason) for claim in claims]
    assert told == [("boston", 0, "ok", None), ("boston", 1, "diverged", "the loss is nan"), ("energy", 0, "ok", None)]


def test_what_is_drafted_takes_the_place_of_what_was_there(tmp_path):
    begin(tmp_path)
    other = planted_posteriors(only("boston"), distance=0.1)
    again = draft_of(tmp_path, only("boston"))
    cells = {place: dataclasses.replace(cell, posterior=other[place]) for place, cell in again.cells.items()}
    draft, _ = extend(dataclasses.replace(again, cells=cells), SILENT, TASKS, tmp_path / "out")
    assert draft.cells == cells
    assert draft.left_out == ("energy",)


def test_the_larger_budget_counts_and_what_only_one_knows_does_not(tmp_path):
    begin(tmp_path)
    second = draft_of(
        tmp_path, only("energy"), {"steps": 5, "seconds": 9.0, "likelihood_rows": 60, "measurement_rows": 4}
    )
    draft, _ = extend(second, SILENT, TASKS, tmp_path / "out")
    assert draft.budget == {"steps": 7, "seconds": 9.0, "likelihood_rows": 60}


def test_words_that_are_given_take_the_place_of_earlier_ones_and_notes_join_them(tmp_path):
    begin(tmp_path, remark="Run elsewhere.")
    second = draft_of(tmp_path, only("energy"), hardware="a cluster", remark="Run elsewhere.")
    given = Words(("C",), "Apache-2.0", title="Another", notes="energy came later.")
    draft, words = extend(second, given, TASKS, tmp_path / "out")
    submission, _ = write_submission(draft, words, TASKS, tmp_path / "out", replace=True)
    said = submission.manifest
    assert (said.authors, said.licence, said.title, said.link) == (
        ["C"],
        "Apache-2.0",
        "Another",
        "https://example.org/",
    )
    assert said.notes.splitlines() == ["Tuned on boston.", "Run elsewhere.", "energy came later."]
    assert said.hardware == "a desk; a cluster"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "Rule"}, "its method is another (got Rule, expected Tool)"),
        ({"family": "ffg"}, "its family is another (got ffg, expected full)"),
        ({"hyperparameters": {"a": 2}}, 'its settings is another (got {"a":2}, expected {"a":1})'),
        (
            {"source": MethodSource("tool.py", "Saw", SOURCE.text)},
            "its source's class is another (got Saw, expected Tool)",
        ),
        ({"source": MethodSource("tool.py", "Tool", b"")}, "its source's text is another (differs)"),
        ({"source": None}, "its source's class is another (got None, expected Tool)"),
    ],
)
def test_a_submission_of_something_else_is_not_extended(tmp_path, change, said):
    folder = begin(tmp_path)
    before = contents(folder)
    second = dataclasses.replace(draft_of(tmp_path, only("energy")), **change)
    with pytest.raises(InputError) as caught:
        extend(second, Words((), "", name="tool-full"), TASKS, tmp_path / "out")
    assert said in str(caught.value)
    assert contents(folder) == before


def test_there_must_be_something_to_extend(tmp_path):
    with pytest.raises(InputError, match=r"there is no submission .*tool-full to extend; submit without --extend"):
        extend(draft_of(tmp_path, only("energy")), SILENT, TASKS, tmp_path / "out")


def test_extend_by_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fsvi_bench.leaderboard.protocol.protocol_tasks", lambda data_dir=None: TASKS)
    for dataset, more in (("boston", ["--author", "A", "--licence", "MIT"]), ("energy", ["--extend"])):
        draft_of(tmp_path, only(dataset))
        made = ["--method", "Tool", "--family", "full", "--steps", "7", "--seconds", "2", "--hardware", "a desk"]
        asked = ["submit", "--posteriors", str(tmp_path / dataset), *made, *more, "--out", str(tmp_path / "out")]
        with pytest.raises(SystemExit) as ended:
            main([*asked, "--workers", "1"])
        assert ended.value.code == 0
    assert "track full, 3 cells, every claim holds" in capsys.readouterr().out
    assert read_submission(tmp_path / "out" / "tool-full", TASKS).manifest.authors == ["A"]
