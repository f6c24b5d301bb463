"""Submissions that gain data sets."""

from __future__ import annotations

import dataclasses

import pytest

import fsvi_bench
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
def test_a_submission_in_two_parts_is_that_made_at_once_but_for_a_note(tmp_path, first):
    folder, then = begin(tmp_path, first), "energy" if first == "boston" else "boston"
    second = draft_of(tmp_path, only(then))
    assert second.left_out == (first,)
    draft, words = extend(second, SILENT, TASKS, tmp_path / "out")
    assert draft.left_out == ()
    write_submission(draft, words, TASKS, tmp_path / "out", replace=True)
    since = f"{WORDS.notes}\n{then}: added to the others with version {fsvi_bench.__version__}."
    at_once = dataclasses.replace(WORDS, notes=since)
    write_submission(draft_of(tmp_path, TASKS), at_once, TASKS, tmp_path / "at once")
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


def test_a_data_set_that_is_there_is_replaced_only_where_that_is_asked_for(tmp_path):
    begin(tmp_path)
    other = planted_posteriors(only("boston"), distance=0.1)
    again = draft_of(tmp_path, only("boston"))
    cells = {place: dataclasses.replace(cell, posterior=other[place]) for place, cell in again.cells.items()}
    again = dataclasses.replace(again, cells=cells)
    with pytest.raises(InputError, match="has boston already, expected other data sets; give --replace too"):
        extend(again, SILENT, TASKS, tmp_path / "out")
    draft, _ = extend(again, SILENT, TASKS, tmp_path / "out", replace=True)
    assert draft.cells == cells
    assert draft.left_out == ("energy",)


def test_the_larger_budget_counts_and_what_only_one_knows_does_not(tmp_path):
    begin(tmp_path)
    second = draft_of(
        tmp_path, only("energy"), {"steps": 5, "seconds": 9.0, "likelihood_rows": 60, "measurement_rows": 4}
    )
    draft, _ = extend(second, SILENT, TASKS, tmp_path / "out")
    assert draft.budget == {"steps": 7, "seconds": 9.0, "likelihood_rows": 60}


def test_words_that_are_given_take_the_place_of_earlier_ones_but_notes_join_them(tmp_path):
    begin(tmp_path, remark="Run elsewhere.")
    second = draft_of(tmp_path, only("energy"), remark="Run elsewhere.")
    given = Words(("C",), "Apache-2.0", title="Another", hardware="a cluster", notes="energy came later.")
    draft, words = extend(second, given, TASKS, tmp_path / "out")
    submission = write_submission(draft, words, TASKS, tmp_path / "out", replace=True)
    said = submission.manifest
    assert (said.authors, said.licence, said.title, said.link) == (
        ["C"],
        "Apache-2.0",
        "Another",
        "https://example.org/",
    )
    since = f"energy: added to the others with version {fsvi_bench.__version__}."
    assert said.notes.splitlines() == ["Tuned on boston.", "Run elsewhere.", "energy came later.", since]
    assert said.hardware == "a cluster"
    # The same again says nothing twice.
    _, words = extend(second, given, TASKS, tmp_path / "out", replace=True)
    assert (words.notes, words.hardware) == (said.notes, said.hardware)


def test_both_machines_are_named_unless_words_are_given_for_them(tmp_path):
    begin(tmp_path)
    second = draft_of(tmp_path, only("energy"), hardware="a cluster")
    assert extend(second, SILENT, TASKS, tmp_path / "out")[1].hardware == "a desk; a cluster"
    again = draft_of(tmp_path, only("energy"), hardware="a desk")
    assert extend(again, SILENT, TASKS, tmp_path / "out")[1].hardware == "a desk"
    long = draft_of(tmp_path, only("energy"), hardware="x" * 195)
    with pytest.raises(
        InputError, match=r"hardware: its words are 203 characters, expected at most 200; give --hardware"
    ):
        write_submission(*extend(long, SILENT, TASKS, tmp_path / "out"), TASKS, tmp_path / "out", replace=True)
    assert extend(long, Words((), "", hardware="two"), TASKS, tmp_path / "out")[1].hardware == "two"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "Rule"}, "is of another method (got Rule, expected Tool)"),
        ({"family": "ffg"}, "is of another family (got ffg, expected full)"),
        ({"hyperparameters": {"a": 2}}, 'is of other settings (got {"a":2}, expected {"a":1})'),
        ({"source": MethodSource("tool.py", "Saw", SOURCE.text)}, "is of another class (got Saw, expected Tool)"),
        ({"source": MethodSource("tool.py", "Tool", b"")}, "is of another source file (the texts differ)"),
        ({"source": None}, "is of another class (got None, expected Tool)"),
    ],
)
def test_a_submission_of_something_else_is_not_extended(tmp_path, change, said):
    begin(tmp_path)
    second = dataclasses.replace(draft_of(tmp_path, only("energy")), **change)
    with pytest.raises(InputError) as caught:
        extend(second, Words((), "", name="tool-full"), TASKS, tmp_path / "out")
    assert said in str(caught.value)


def test_there_must_be_something_to_extend(tmp_path):
    second = draft_of(tmp_path, only("energy"))
    with pytest.raises(InputError, match=r"there is no submission .*tool-full to extend; submit without --extend"):
        extend(second, SILENT, TASKS, tmp_path / "out")
    for name in ("a" * 300, ".", "..", "/etc"):
        with pytest.raises(InputError, match=r"--name: got .*, expected lower-case letters, digits and hyphens"):
            extend(second, dataclasses.replace(SILENT, name=name), TASKS, tmp_path / "out")


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """`submit` of a data set's posterior files, as a command; its exit status."""
    monkeypatch.setattr("fsvi_bench.leaderboard.protocol.protocol_tasks", lambda data_dir=None: TASKS)

    def run(dataset, *more):
        draft_of(tmp_path, only(dataset))
        made = ["--method", "Tool", "--family", "full", "--steps", "7", "--seconds", "2", "--hardware", "a desk"]
        asked = ["submit", "--posteriors", str(tmp_path / dataset), *made, *more, "--out", str(tmp_path / "out")]
        with pytest.raises(SystemExit) as ended:
            main([*asked, "--workers", "1"])
        return ended.value.code

    return run


def test_extend_by_command(tmp_path, submit, capsys):
    assert submit("boston", "--author", "A", "--licence", "MIT") == 0
    assert submit("energy", "--extend") == 0
    assert "track full, 3 cells\n" in capsys.readouterr().out
    folder = tmp_path / "out" / "tool-full"
    assert read_submission(folder, TASKS).manifest.authors == ["A"]
    before = contents(folder)
    assert submit("energy", "--extend") == 2
    assert "has energy already" in " ".join(capsys.readouterr().err.split())
    assert submit("energy", "--extend", "--replace") == 0
    assert contents(folder) == before


def test_a_submission_that_does_not_hold_is_not_extended(tmp_path, submit, capsys):
    assert submit("boston", "--author", "A", "--licence", "MIT") == 0
    damaged = tmp_path / "out" / "tool-full" / "posteriors" / "boston" / "split-01.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-8])
    before = contents(tmp_path / "out")
    assert submit("energy", "--extend") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the submission that is there cannot be read: " in said
    assert said.endswith("submit all data sets anew with --replace and without --extend")
    assert contents(tmp_path / "out") == before
