"""The project's own leaderboard: its submissions are what was verified, on the tasks that travel with the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsvi_bench.leaderboard.entries import read_entries
from fsvi_bench.leaderboard.protocol import protocol_datasets, protocol_tasks
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.references import freeze, read_references
from fsvi_bench.leaderboard.rescoring import rescore
from fsvi_bench.tasks.official import TaskSet

ROOT = Path(__file__).parents[2] / "leaderboard"
NAMES = sorted(path.name for path in (ROOT / "submissions").iterdir())


def test_every_submission_is_verified_as_it_lies_there_and_was_run_again():
    board = read_entries(ROOT)
    assert [entry.name for entry in board.entries] == NAMES
    assert list(board.unreadable) == []
    for entry in board.entries:
        assert (entry.note, entry.verification.shortfall) == (None, None)
        assert len(entry.verification.rerun.official) == len(entry.verification.rerun.withheld) >= 5


@pytest.mark.parametrize("name", NAMES)
def test_every_submission_is_one(name):
    submission = read_submission(ROOT / "submissions" / name, protocol_tasks())
    assert submission.source == (ROOT / "submissions" / name / submission.manifest.source.file).read_bytes()


def test_references_are_of_all_official_tasks_and_every_entry_has_them():
    references, official = read_references(ROOT / "reference.json"), protocol_tasks().tasks
    assert list(references.datasets) == list(protocol_datasets())
    assert {task.place: task.task_sha256 for task in references.tasks} == {
        place: task.sha256 for place, task in official.items()
    }
    for entry in read_entries(ROOT).entries:
        assert {(cell.dataset, cell.split) for cell in entry.verification.cells} == set(official), entry.name


@pytest.mark.slow
@pytest.mark.data
def test_references_and_scores_come_out_again():
    """Of one data set: another machine's rounding is some 1e-12 of them; verification allows a claim 1e-6."""
    everything, board = protocol_tasks(), {entry.name: entry for entry in read_entries(ROOT).entries}
    wine = TaskSet({place: task for place, task in everything.tasks.items() if place[0] == "wine"}, everything.load)
    stored = {task.place: task for task in read_references(ROOT / "reference.json").tasks}
    for found in freeze(wine, []).tasks:
        for name, value in found.model_dump(exclude={"coverage_exact"}).items():
            if isinstance(value, float):
                assert getattr(stored[found.place], name) == pytest.approx(value, rel=1e-8), name
    submission = read_submission(ROOT / "submissions" / "rand-a-ngd-ffg", everything)
    verified = {(cell.dataset, cell.split): cell for cell in board["rand-a-ngd-ffg"].verification.cells}
    for cell in rescore(submission, everything):
        assert cell.scores.kl == pytest.approx(verified[cell.dataset, cell.split].scores.kl, rel=1e-8)
