"""Anyone can make the numbers again: each verification here is a process of its own, by the command line."""

import shutil
import subprocess
import sys

import pytest

from fsvi_bench.leaderboard import ranked_tasks
from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.entry import BuiltIn, Entry
from fsvi_bench.leaderboard.jailed.messages import MAX_POSTERIORS
from fsvi_bench.leaderboard.result import result_path
from tests.leaderboard.boards import manifest, read_result, write_entry
from tests.leaderboard.jailing import working_jail

#: One task of each kind: with real targets, with targets of the model, and an official one.
FEWER = {"TASKS": 2, "WITH_REAL_TARGETS": 1, "OFFICIAL_SPLITS": range(1)}
PROGRAM = f"""
from fsvi_bench.arithmetic import use_kernels
use_kernels("portable")  # before torch is imported
from fsvi_bench.leaderboard import ranked_tasks
vars(ranked_tasks).update({FEWER})
from fsvi_bench.cli.app import main
main()
"""


def verified(root, *words):
    given = [root / "entries" / "mine", "--workers", 1, "--json", *words]
    command = [sys.executable, "-c", PROGRAM, "verify", *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return read_result(result_path(root, "v1", "mine"))


def copy(folder, name):
    """The board without results and without unfinished verifications, as another machine would have it."""
    ignored = shutil.ignore_patterns("results", ".verifying")
    return shutil.copytree(folder / "maintainer", folder / name, ignore=ignored)


def numbers(result):
    """Everything that decides a rank: tasks, scores and what was reached on the way; not the seconds."""
    return [
        (cell.place, cell.seed, cell.task, cell.status, cell.scores, [(each.steps, each.kl) for each in cell.waypoints])
        for cell in result.cells
    ]


@pytest.mark.slow
def test_with_the_published_secret_anyone_gets_the_maintainers_tasks_and_numbers(tmp_path, cli, monkeypatch):
    working_jail()
    for name, value in FEWER.items():
        monkeypatch.setattr(ranked_tasks, name, value)
    root, secret = tmp_path / "maintainer", tmp_path / "secret"
    assert cli("leaderboard", "init", "--root", root, "--secret", secret, "--dataset", "diabetes")[0] == 0
    trained = manifest(method=BuiltIn(name="rand-a", version="0.2.0"), settings={"max_steps": 300, "M": 10}, steps=300)
    write_entry(root, Entry("mine", trained, None))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    found = verified(root, "--secret", secret, "--key", tmp_path / "key")

    # The maintainer's result is signed and has every waypoint.
    (root / "allowed_signers").write_text(f'lab namespaces="fsvi-bench-result" {(tmp_path / "key.pub").read_text()}')
    (standing,) = read_board(root).standings
    assert (standing.stale, standing.signer) == (None, "lab")
    assert [cell.status for cell in found.cells] == ["ok"] * 3
    assert cli("submit", "--check", root / "entries" / "mine")[0] == 0
    status, _, err = cli("verify", root / "entries" / "mine")
    assert (status, "is open and needs its secret; give the file with --secret FILE" in err) == (2, True)
    for cell in found.cells:
        assert len(cell.waypoints) == MAX_POSTERIORS  # every look on the way, the last of them the end
        assert cell.waypoints[-1].kl == pytest.approx(cell.scores.kl)

    (root / "allowed_signers").unlink()
    published = copy(tmp_path, "published")
    assert cli("leaderboard", "close", "--root", published, "--secret", secret)[0] == 0
    secret.unlink()
    theirs = verified(published)
    assert numbers(theirs) == numbers(found)
    assert (found.edition_status, theirs.edition_status) == ("open", "closed")
    assert theirs.edition_sha256 == found.edition_sha256
    assert read_board(published).standings[0].stale is None


def test_a_check_may_choose_a_network(cli, tmp_path):
    """Whether there is such a data set depends on the edition."""
    status, _, error = cli("verify", "--check", "--dataset", "toy-collapsed-2", tmp_path / "entries" / "none")
    assert status == 2
    assert "none" in error
    assert "toy-collapsed-2" not in error
