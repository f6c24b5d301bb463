"""Anyone can make the numbers again: each verification here is a process of its own, by the command line."""

import shutil
import subprocess
import sys

import pytest

from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.entry import BuiltIn, Entry
from fsvi_bench.leaderboard.jailed.messages import MAX_POSTERIORS
from fsvi_bench.leaderboard.result import result_path
from tests.leaderboard.boards import manifest, read_result, write_entry
from tests.leaderboard.jailing import working_jail

pytestmark = pytest.mark.slow


def command(*words):
    done = subprocess.run(
        [sys.executable, "-m", "fsvi_bench", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def verified(root, *words):
    command("verify", root / "entries" / "mine", "--workers", 2, "--json", *words)
    return read_result(result_path(root, "v1", "mine"))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A board with an open edition, its secret, and the result that its maintainer made of an entry that trains."""
    working_jail()
    folder = tmp_path_factory.mktemp("boards")
    root = folder / "maintainer"
    command("leaderboard", "init", "--root", root, "--secret", folder / "secret", "--dataset", "diabetes")
    trained = manifest(method=BuiltIn(name="rand-a", version="0.2.0"), settings={"max_steps": 300, "M": 10}, steps=300)
    write_entry(root, Entry("mine", trained, None))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
    return folder, verified(root, "--secret", folder / "secret", "--key", folder / "key")


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


def test_the_maintainers_result_is_signed_and_has_every_waypoint(first):
    folder, found = first
    signed = shutil.copytree(folder / "maintainer", folder / "signed")
    (signed / "allowed_signers").write_text(f'lab namespaces="fsvi-bench-result" {(folder / "key.pub").read_text()}')
    (standing,) = read_board(signed).standings
    assert (standing.stale, standing.signer) == (None, "lab")
    assert [cell.status for cell in found.cells] == ["ok"] * 10
    command("submit", "--check", signed / "entries" / "mine")
    with pytest.raises(AssertionError, match="is open and needs its secret; give the file with --secret FILE"):
        command("verify", signed / "entries" / "mine")
    for cell in found.cells:
        assert len(cell.waypoints) == MAX_POSTERIORS  # every look on the way, the last of them the end
        assert cell.waypoints[-1].kl == pytest.approx(cell.scores.kl)


def test_with_the_published_secret_anyone_gets_the_same_tasks_and_numbers(first):
    folder, found = first
    published = copy(folder, "published")
    command("leaderboard", "close", "--root", published, "--secret", folder / "secret")
    (folder / "secret").rename(folder / "gone")
    try:
        theirs = verified(published)
    finally:
        (folder / "gone").rename(folder / "secret")
    assert numbers(theirs) == numbers(found)
    assert (found.edition_status, theirs.edition_status) == ("open", "closed")
    assert theirs.edition_sha256 == found.edition_sha256
    assert read_board(published).standings[0].stale is None
