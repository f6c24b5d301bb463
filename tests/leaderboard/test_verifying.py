"""Which verification stays: of these files, this version, and no less strictly made; and what a refusal costs others."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from fsvi_bench.cli.app import main
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard import rescoring, verifying
from fsvi_bench.leaderboard.rerun import RerunSettings
from fsvi_bench.leaderboard.rerun.jail import Jail
from fsvi_bench.leaderboard.verification import (
    TOLERANCE,
    OfficialRerun,
    Rerun,
    WithheldRerun,
    read_verification,
    verification_path,
)
from fsvi_bench.leaderboard.verifying import (
    Refused,
    Unverified,
    keep,
    require_isolation_works,
    verify_all,
    verify_submission,
)
from fsvi_bench.running.progress import Silent
from tests.leaderboard.planted import edit_claim, plant_submission, planted_manifest

ASKED = {"count": 2, "seed": 1, "require_isolation": True}
STRICT = RerunSettings(**ASKED)


def ran(submission, tasks, cells, settings, progress, hidden=()):
    """A re-run that nothing ran: as strict as its settings say."""
    official = [
        OfficialRerun(dataset=cell.dataset, split=cell.split, score="kl", submitted=1.0, rerun=1.0, waypoints=())
        for cell in cells[: settings.count]
    ]
    withheld = WithheldRerun(
        dataset="boston", split=0, draw=0, status="failed", reason="x", scores=None, ffg_floor=0.0, seconds=1.0
    )
    return Rerun(
        seed=settings.seed,
        isolated=settings.require_isolation,
        isolation=f"hidden: {', '.join(map(str, hidden))}",
        tolerance=settings.tolerance,
        hardware="none",
        official=tuple(official),
        withheld=(withheld,) * settings.count,
    )


@pytest.fixture
def board(tmp_path, planted_set, monkeypatch):
    """A leaderboard with one submission that has a source."""
    monkeypatch.setattr(verifying, "_rerun", ran)
    manifest = planted_manifest("mine", source={"file": "mine.py", "class": "Mine"})
    plant_submission(tmp_path / "submissions", planted_set, manifest, source=b"x")
    return tmp_path


def verify(board, tasks, settings, **more):
    (found,) = verify_all(board, tasks, settings, 1, Silent(), **more)
    assert read_verification(verification_path(board, "mine")) == found.verification
    return found


WEAKER = [
    {"tolerance": 2 * TOLERANCE},
    {"require_isolation": False},
    {"count": 1},
]


@pytest.mark.parametrize("change", WEAKER)
def test_a_weaker_rerun_is_not_taken_for_the_one_that_is_asked_for(change, board, planted_set):
    weak = verify(board, planted_set, RerunSettings(**{**ASKED, **change}))
    again = verify(board, planted_set, RerunSettings(**{**ASKED, "seed": 2}))
    assert (weak.kept, again.kept, again.verification.rerun.seed) == (False, False, 2)
    once_more = verify(board, planted_set, RerunSettings(**{**ASKED, **change, "seed": 3}))
    assert once_more.kept
    assert once_more.verification == again.verification


@pytest.mark.parametrize("change", [*WEAKER, None])
def test_nothing_weaker_replaces_a_verification_of_the_same_files(change, board, planted_set):
    first = verify(board, planted_set, STRICT).verification
    settings = None if change is None else RerunSettings(**{**ASKED, "seed": 3, **change})
    assert verify(board, planted_set, settings, again=True).verification == first
    place = verification_path(board, "mine")
    submission = verifying.read_submission(board / "submissions" / "mine", planted_set)
    stands, said = keep(verify_submission(submission, planted_set, settings, 1, Silent()), place)
    assert stands == first == read_verification(place)
    assert "stays as it is: it is of the same files" in said


def test_what_is_as_strict_replaces_it_and_what_is_of_other_files_too(board, planted_set):
    verify(board, planted_set, STRICT)
    assert verify(board, planted_set, RerunSettings(**{**ASKED, "seed": 9}), again=True).verification.rerun.seed == 9
    source = board / "submissions" / "mine" / "mine.py"
    source.write_bytes(b"y")
    assert verify(board, planted_set, None).verification.rerun is None


def test_fewer_cells_than_asked_for_are_enough_where_there_are_no_more(board, planted_set):
    many = RerunSettings(count=7, seed=1)
    assert len(verify(board, planted_set, many).verification.rerun.official) == 3
    assert verify(board, planted_set, many).kept


def test_what_this_machine_cannot_verify_keeps_its_verification(board, planted_set, monkeypatch, capsys):
    """Raw data that are gone, say: hours of re-runs are not lost to that."""
    first = verify(board, planted_set, STRICT).verification

    def without_data(submission, *rest):
        raise InputError("the boston data are not on this machine; give --data-dir")

    with monkeypatch.context() as patch:
        patch.setattr(verifying, "rescore", without_data)
        (found,) = verify_all(board, planted_set, STRICT, 1, Silent(), again=True)
        assert (type(found), found.reason[:15]) == (Unverified, "the boston data")
        assert read_verification(verification_path(board, "mine")) == first
        patch.setattr("fsvi_bench.leaderboard.protocol.protocol_tasks", lambda data_dir: planted_set)
        with pytest.raises(SystemExit) as ended:
            main(["verify", "--all", str(board), "--workers", "1", "--again"])
    assert ended.value.code == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "mine is not verified: the boston data are not on this machine" in said
    assert "0 of 1 submissions hold" in said
    edit_claim(board / "submissions" / "mine", kl=1.0)
    (found,) = verify_all(board, planted_set, STRICT, 1, Silent())
    assert type(found) is Refused
    assert not verification_path(board, "mine").exists()


def test_a_file_that_the_system_does_not_give_out_is_not_the_submissions_fault(board, planted_set, monkeypatch):
    first = verify(board, planted_set, STRICT).verification
    real = os.open

    def broken(path, *rest, **more):
        if Path(path).name == "cells.json":
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", broken)
    (found,) = verify_all(board, planted_set, STRICT, 1, Silent())
    assert type(found) is Unverified
    assert found.reason.endswith("cells.json: Input/output error")
    assert read_verification(verification_path(board, "mine")) == first


def test_scores_that_cannot_be_computed_are_the_posteriors_fault(board, planted_set, monkeypatch):
    def singular(q, problem):
        raise torch.linalg.LinAlgError("no factor")

    monkeypatch.setattr(rescoring, "score", singular)
    (found,) = verify_all(board, planted_set, None, 1, Silent())
    assert type(found) is Refused
    assert "split-00.safetensors: its scores cannot be computed (no factor)" in found.reason


def test_a_submission_none_of_whose_cells_is_ok_is_scored_alone(tmp_path, planted_set, monkeypatch):
    monkeypatch.setattr(verifying, "_rerun", lambda *given: pytest.fail("nothing to compare it with"))
    manifest = planted_manifest("mine", source={"file": "mine.py", "class": "Mine"})
    plant_submission(tmp_path / "submissions", planted_set, manifest, source=b"x", posteriors={})
    assert verify(tmp_path, planted_set, STRICT).verification.rerun is None


def test_where_nothing_can_be_written_nothing_is_verified(board, planted_set, monkeypatch, capsys):
    monkeypatch.setattr(verifying, "rescore", lambda *given: pytest.fail("it began"))
    monkeypatch.setattr("fsvi_bench.leaderboard.protocol.protocol_tasks", lambda data_dir: planted_set)
    (board / "file").touch()
    (board / "verified").touch()
    elsewhere = "choose another with --save, or mend its permissions"
    for words, mend in (
        (["--all", board], "mend its permissions, or name another leaderboard"),
        ([board / "submissions" / "mine"], elsewhere),
        ([board / "submissions" / "mine", "--save", board / "file"], elsewhere),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["verify", *map(str, words), "--workers", "1"])
        assert ended.value.code == 2
        assert mend in " ".join(capsys.readouterr().err.split())


def test_folders_to_be_hidden_reach_the_rerun(board, planted_set, tmp_path):
    found = verify(board, planted_set, STRICT, hidden=[tmp_path / "raw"])
    assert found.verification.rerun.isolation == f"hidden: {tmp_path / 'raw'}"


def test_without_a_jail_nothing_is_looked_at(monkeypatch):
    monkeypatch.setattr("fsvi_bench.leaderboard.rerun.jail.find_jail", lambda hidden=(): Jail(None))
    with pytest.raises(InputError, match=r"apt-get install bubblewrap.*--without-isolation.*has no rank"):
        require_isolation_works(STRICT)
    require_isolation_works(RerunSettings(count=1, seed=0, require_isolation=False))


# ------------------------------------------------------------------------------------------------ by command


@pytest.fixture
def official(planted_set, monkeypatch):
    monkeypatch.setattr("fsvi_bench.leaderboard.protocol.protocol_tasks", lambda data_dir=None: planted_set)


def command(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


@pytest.mark.usefixtures("official")
def test_of_several_folders_one_that_is_refused_costs_the_others_nothing(board, planted_set, capsys):
    good = board / "submissions" / "mine"
    bad = plant_submission(board / "submissions", planted_set, planted_manifest("bad"))
    edit_claim(bad, kl=1.0)
    assert command(["verify", str(bad), str(good), "--json", "--workers", "1"]) == 1
    said = capsys.readouterr()
    assert [each["submission"] for each in json.loads(said.out)] == ["mine"]
    assert "refused: " in said.err
    assert "cells.0.kl" in said.err
    assert "verification written to" in said.err


@pytest.mark.usefixtures("official")
def test_names_of_folders_reach_no_terminal_as_they_are(board, capsys):
    submissions = board / "submissions"
    for name in ("two\nlines", os.fsdecode(b"\xff\x1b[31m")):
        shutil.copytree(submissions / "mine", submissions / name)
    assert command(["verify", "--all", str(board), "--workers", "1"]) == 1
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert r"refused: 'two\nlines' is no name of a submission's folder" in said
    assert r"refused: '\udcff\x1b[31m' is no name" in said
    assert "1 of 3 submissions hold" in said
