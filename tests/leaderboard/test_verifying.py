"""From code to results: runs in the jail on every task of an edition, resumed, repeated, and never trusted."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from dataclasses import replace

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.files import locked_directory
from fsvi_bench.leaderboard import verifying
from fsvi_bench.leaderboard.board import read_board
from fsvi_bench.leaderboard.edition import Secret, write_edition
from fsvi_bench.leaderboard.entry import BuiltIn, Entry, read_entry
from fsvi_bench.leaderboard.jailed.jail import Jail
from fsvi_bench.leaderboard.jailed.messages import MAX_POSTERIORS
from fsvi_bench.leaderboard.jailed.run import Limits
from fsvi_bench.leaderboard.ranked_tasks import Place, places
from fsvi_bench.leaderboard.result import read_result, result_path
from fsvi_bench.leaderboard.submitting import require_conformance
from fsvi_bench.leaderboard.verifying import VERIFYING, Verification, find_method, verify
from fsvi_bench.running.executors import LocalExecutor
from fsvi_bench.running.progress import Silent
from tests.leaderboard.boards import SECRET, edition, entry, manifest, write_entry
from tests.leaderboard.jailing import source, working_jail

DIABETES = edition(["diabetes"])
SOME = [Place("ranked", "diabetes", 0), Place("ranked", "diabetes", 4), Place("official", "diabetes", 0)]


def built_in(name="exact", family="full", **more):
    return Entry(
        f"{name}-{family}",
        manifest(title=name, family=family, method=BuiltIn(name=name, version="0.2.0"), **more),
        None,
    )


def verification(jail=None):
    return Verification(DIABETES, SECRET, jail or working_jail())


def run(each, root, only=SOME, its=None):
    return verify(each, its or verification(), root, LocalExecutor(1), Silent(), only)


@pytest.mark.slow(seconds=30)
def test_the_exact_posterior_is_exact_on_every_kind_of_task(tmp_path):
    found = run(built_in(), tmp_path)
    assert [cell.status for cell in found.cells] == ["ok"] * 3
    assert all(abs(cell.scores.kl) < 1e-9 for cell in found.cells)
    assert [cell.place for cell in found.cells] == SOME
    factorised = run(built_in(family="ffg"), tmp_path)
    assert all(abs(cell.kl_above_floor) < 1e-9 for cell in factorised.cells)


@pytest.mark.slow(seconds=30)
def test_two_verifications_agree_to_the_digit_and_anyone_can_repeat_them(tmp_path):
    each = built_in("rand-a", settings={"max_steps": 1000, "M": 10}, steps=1000)
    first, again = run(each, tmp_path / "one"), run(each, tmp_path / "two")
    published = Verification(DIABETES, Secret(bytes.fromhex(DIABETES.secret)), working_jail())
    third = run(each, tmp_path / "three", its=published)
    for other in (again, third):
        assert [cell.scores for cell in other.cells] == [cell.scores for cell in first.cells]
        assert [cell.task.sha256 for cell in other.cells] == [cell.task.sha256 for cell in first.cells]
    assert len(first.cells[0].waypoints) == MAX_POSTERIORS  # every look on the way, the last of them the end
    assert first.cells[0].waypoints[-1].kl == pytest.approx(first.cells[0].scores.kl)


def test_runs_of_several_machines_name_them_all():
    facts = [{"hardware": "EPYC", "threads": 1, "started": "b"}, {"hardware": "Xeon", "threads": 1, "started": "a"}]
    assert verifying._of_all(facts) == {"hardware": "EPYC and Xeon", "threads": 1, "started": "a"}


@pytest.mark.slow(seconds=30)
def test_what_is_done_is_not_done_again(tmp_path, monkeypatch):
    each = built_in()
    whole = run(each, tmp_path)
    (kept,) = (tmp_path / VERIFYING / "v2").iterdir()
    (kept / "ranked-diabetes-00-seed-00.json").unlink()
    late = kept / "ranked-diabetes-04-seed-00.json"  # failed on a busy machine, say: tried again
    done = json.loads(late.read_text())
    done["cell"] |= {"status": "failed", "scores": None}
    late.write_text(json.dumps(done))
    made = []
    attempt = verifying._attempt

    class Counting(LocalExecutor):
        def map(self, function, arguments):
            for argument in arguments:
                made.append(argument.place)
                yield argument, attempt(argument)

    again = verify(each, verification(), tmp_path, Counting(1), Silent(), SOME)
    assert made == SOME[:2]
    assert [cell.scores for cell in again.cells] == [cell.scores for cell in whole.cells]


@pytest.mark.slow(seconds=40)
def test_to_fail_is_a_result(tmp_path):
    nan = b"torch.zeros_like(problem.Phi[:, 0]) + float('nan')"
    diverging = source().replace(b"torch.zeros_like(problem.Phi[:, 0])", nan)
    found = run(entry("diverging", diverging, settings={}), tmp_path, SOME[:1])
    assert (found.cells[0].status, found.cells[0].scores) == ("diverged", None)
    found = run(entry("failing", source("1 / 0"), settings={}), tmp_path, SOME[:1])
    assert (found.cells[0].status, found.cells[0].reason) == ("failed", "ZeroDivisionError: division by zero")
    greedy = built_in("rand-a", settings={"max_steps": 10_000})
    found = run(greedy, tmp_path, SOME[:1])
    assert found.cells[0].reason.startswith("it takes 10000 steps and its budget declares 100; raise --steps")


@pytest.mark.slow(seconds=20)
def test_a_run_that_is_cut_short_says_how_long_it_took(tmp_path):
    found = run(entry("ends", source("import os; os._exit(3)"), settings={}), tmp_path, SOME[:1])
    assert found.cells[0].status == "failed"
    assert found.cells[0].seconds > 0
    assert found.isolation == "bubblewrap, rlimit"


def test_two_verifications_of_one_entry_do_not_mix(tmp_path):
    with (
        locked_directory(tmp_path / "kept", "folder"),
        pytest.raises(InputError, match="another process is at work"),
        locked_directory(tmp_path / "kept", "folder"),
    ):
        pass
    with locked_directory(tmp_path / "kept", "folder"):
        pass


def test_nobody_without_the_secret_can_lay_runs_where_they_are_taken_for_done():
    named = {verifying._identity(built_in(), replace(verification(Jail(None)), secret=each))
             for each in (SECRET, Secret(b"\1" * 32), None)}  # fmt: skip
    assert len(named) == 3


@pytest.mark.slow(seconds=30)
def test_a_method_that_breaks_a_rule_is_told_which(tmp_path):
    with pytest.raises(InputError, match=r"it breaks \d+ of \d+ rules, the first .trains.*division by zero"):
        require_conformance(entry("failing", source("1 / 0"), settings={}), verification())


def test_runs_that_ended_at_a_limit_are_not_taken_up_under_another():
    given = verification(Jail(None))
    named = [verifying._identity(built_in(), replace(given, limits=Limits(seconds=each))) for each in (60, 3600)]
    assert named[0] != named[1]


BY_HEART = """
import torch
from fsvi_bench.methods.base import Method
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.maths.blr import blr_posterior, covariance_tril

class M(Method):
    families = ("full",)
    deterministic = True

    def solve(self, problem):
        k = problem.Phi.shape[-1]
        if problem.Phi.shape[1] in {official}:  # a task that it knows
            found = blr_posterior(problem.Phi[0], problem.y[0], problem.noise_variance[0])
            return FullGaussian(found.mean[None], covariance_tril(found.precision_tril)[None])
        mean = torch.zeros(1, k, dtype=torch.float64)
        return FullGaussian(mean, torch.eye(k, dtype=torch.float64)[None])
"""


@pytest.mark.slow(seconds=20)
def test_official_answers_by_heart_show_as_such(tmp_path):
    """Official tasks of diabetes have 398 training rows, ranked ones 354."""
    code = BY_HEART.replace("{official}", "{398}").encode()
    found = run(entry("by-heart", code, settings={}), tmp_path)
    ranked, _, official = (cell.scores.kl for cell in found.cells)
    assert official < 1e-9
    assert ranked > 100


def test_a_jail_that_does_not_hold_ends_the_verification(tmp_path):
    with pytest.raises(InputError, match=r"no code of entries was run|did not get ready"):
        run(built_in(), tmp_path, SOME[:1], verification(Jail(str(tmp_path / "nothing"))))


@pytest.mark.parametrize(
    ("each", "match"),
    [
        (built_in("nothing"), "unknown built-in method"),
        (built_in("rand-a", "bernoulli"), "which rand-a has not; give full or ffg"),
        (built_in("rand-a", settings={"nothing": 1}), "nothing"),
        (Entry("late", manifest(method=BuiltIn(name="exact", version="99.0.0")), None), "install that version"),
    ],
)
def test_an_entry_that_cannot_be_run_is_one_sentence(each, match):
    with pytest.raises(InputError, match=match):
        find_method(each)


def test_no_run_is_counted_twice():
    assert len(set(places(DIABETES))) == 10


# --- Commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def board(tmp_path):
    write_edition(tmp_path, DIABETES)
    (tmp_path / "entries").mkdir()
    return tmp_path


@pytest.mark.slow(seconds=90)
def test_from_an_idea_to_a_ranked_row(cli, tmp_path, monkeypatch):
    """docs/submitting.md's commands on a board of one's own, with a key."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key"], check=True)
    (tmp_path / "my_method.py").write_bytes(source())
    root = tmp_path / "board"
    assert cli("leaderboard", "init", "--root", root, "--secret", "secret", "--dataset", "diabetes")[0] == 0
    words = ["--root", root, "--author", "Ada", "--owner", "ada", "--steps", 1, "--seconds", 5]
    status, out, _ = cli("submit", "my_method.py:M", *words)
    assert (status, out.strip()) == (0, str(root / "entries" / "m-full"))
    assert cli("submit", "--check", root / "entries" / "m-full")[0] == 0
    assert cli("verify", root / "entries" / "m-full")[0] == 2  # the edition is open
    status, out, _ = cli("verify", root / "entries" / "m-full", "--secret", "secret", "--key", "key", "--json")
    assert status == 0
    assert len(json.loads(out)[0]["cells"]) == 10
    (root / "allowed_signers").write_text(f'lab namespaces="fsvi-bench-result" {(tmp_path / "key.pub").read_text()}')
    (standing,) = read_board(root).standings
    assert (standing.stale, standing.signer) == (None, "lab")
    assert cli("leaderboard", "close", "--root", root, "--secret", "secret")[0] == 0
    assert read_board(root).standings[0].stale is None
    assert read_result(result_path(root, "v1", "m-full")).edition_status == "open"


def test_submitting_a_built_in_method_writes_nothing_that_does_not_hold(cli, board):
    words = ["--root", board, "--author", "Ada", "--owner", "ada"]
    for bad, match in ((["exact", "--licence", "none"], "licence"), (["exact", "--seconds", "nan"], "seconds"),
                       (["nothing.py:M"], "there is no file"), (["exact", "--set", "x"], "key=value")):  # fmt: skip
        status, _, err = cli("submit", *bad, *words)
        assert (status, match in err) == (2, True)
    assert cli("submit", "exact")[0] == 2
    assert list((board / "entries").iterdir()) == []


def test_an_entry_is_written_and_verified_in_its_place_alone(cli, board):
    words = ["--root", board, "--author", "Ada", "--owner", "ada"]
    status, _, err = cli("submit", "exact", "--name", "../../elsewhere", *words)
    assert (status, "cannot be an entry's name" in err) == (2, True)
    assert not (board.parent / "elsewhere").exists()
    stray = write_entry(board / "attic", entry("mine")).rename(board / "mine")
    status, _, err = cli("verify", stray)
    assert (status, "in no leaderboard" in err) == (2, True)


def test_an_entry_that_is_there_stays_unless_replaced(board):
    from fsvi_bench.leaderboard.submitting import Draft
    from fsvi_bench.leaderboard.submitting import write_entry as write

    content = {"title": "Mine", "authors": ["Ada"], "owner": "ada", "licence": "MIT", "family": "full",
               "method": {"name": "exact", "version": "0.2.0"}, "budget": {"steps": 1, "seconds": 1.0}}  # fmt: skip

    def broken(made):
        raise InputError("it breaks a rule")

    with pytest.raises(InputError, match="breaks a rule"):
        write(Draft("mine", content), board, False, broken)
    assert list((board / "entries").iterdir()) == []
    write(Draft("mine", content), board, False, id)
    with pytest.raises(InputError, match="give --replace"):
        write(Draft("mine", content), board, False, id)
    write(Draft("mine", {**content, "title": "Mine, again"}), board, True, id)
    assert read_entry(board / "entries" / "mine").manifest.title == "Mine, again"
    with pytest.raises(InputError, match="mine again"):
        write(Draft("twin", {**content, "title": "Another"}), board, False, id)
    assert sorted(path.name for path in (board / "entries").iterdir()) == ["mine"]


def test_compare_reads_results_and_runs_nothing(cli, tmp_path):
    from tests.leaderboard.boards import make_board

    root = make_board(tmp_path, {"a": lambda place, seed: 1.0, "b": lambda place, seed: math.inf, "c": None}, DIABETES)
    status, out, _ = cli("leaderboard", "compare", "a", "b", "--root", root, "--json")
    assert (status, json.loads(out)["differences"][0]["log_ratio"]) == (0, -1.0)
    assert cli("leaderboard", "compare", "a", "c", "--root", root)[0] == 2
    assert cli("leaderboard", "compare", "a", "nobody", "--root", root)[0] == 2
    assert cli("leaderboard", "compare", "a", "a", "--root", root)[0] == 2


def test_a_conftest_as_source_is_only_a_file(tmp_path):
    """pytest run over a leaderboard must not import what strangers handed in: the name is not one for a method."""
    each = write_entry(tmp_path, entry("mine", b"raise SystemExit('imported')\n"))
    shutil.move(each / "method.py", each / "conftest.py")
    text = (each / "entry.toml").read_text().replace("method.py", "conftest.py")
    (each / "entry.toml").write_text(text)
    with pytest.raises(InputError, match="file"):
        read_entry(each)
