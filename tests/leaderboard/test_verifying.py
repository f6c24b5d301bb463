"""From code to results: runs in the jail on every task of an edition, resumed, repeated, and never trusted."""

import errno
import fcntl
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.files import locked_directory
from fsvi_bench.leaderboard import board as boards
from fsvi_bench.leaderboard import verifying
from fsvi_bench.leaderboard.agreement import facts
from fsvi_bench.leaderboard.edition import Place, Secret, write_edition
from fsvi_bench.leaderboard.entry import BuiltIn, Entry, read_entry
from fsvi_bench.leaderboard.jailed.jail import Jail
from fsvi_bench.leaderboard.jailed.run import Limits, Run, Snapshot, find_method, require_conformance
from fsvi_bench.leaderboard.signing import ALLOWED_SIGNERS
from fsvi_bench.leaderboard.verifying import VERIFYING, Verification, verify
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.running.executors import LocalExecutor, WorkerDied
from fsvi_bench.running.progress import Silent
from tests.leaderboard.boards import SECRET, edition, entry, make_board, manifest, write_entry
from tests.leaderboard.jailing import shared, source, working_jail  # noqa: F401 -- a fixture of every test

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


@pytest.mark.slow
def test_the_exact_posterior_is_exact_on_every_kind_of_task(tmp_path):
    found = run(built_in(), tmp_path)
    assert [cell.status for cell in found.cells] == ["ok"] * 3
    for cell in found.cells:
        scores = cell.scores
        assert max(map(abs, (scores.kl, scores.joint_predictive_kl_test, scores.joint_predictive_kl_box))) < 1e-9
        assert abs(scores.objective_gap) < 1e-9
    assert [cell.place for cell in found.cells] == SOME
    factorised = run(built_in(family="ffg"), tmp_path, SOME[1:2])
    assert factorised.cells[0].scores.kl == pytest.approx(factorised.cells[0].task.ffg_floor, abs=1e-9)


def test_runs_of_several_machines_name_them_all():
    facts = [{"hardware": "EPYC", "threads": 1, "started": "b"}, {"hardware": "Xeon", "threads": 1, "started": "a"}]
    assert verifying._of_all(facts) == {"hardware": "EPYC and Xeon", "threads": 1, "started": "a"}


def prior_of(each, task, seed, jail, limits):
    """Stands in for `run_entry`: what is kept does not depend on where it was made."""
    q = FactorisedGaussian(torch.zeros(task.k, dtype=torch.float64), torch.ones(task.k, dtype=torch.float64))
    return Run("ok", None, 1.0, (Snapshot(1, 1.0, q),), "none")


def test_facts_of_a_task_are_its_sizes_its_floor_and_the_scores_of_the_map(tmp_path, monkeypatch):
    """The MAP's predictive has no covariance beyond the noise, so its KL is ½(tr R − ln|I + R|), with R the exact
    covariance of f in units of the noise."""
    tasks = []

    def noted(each, task, *arguments):
        tasks.append(task)
        return prior_of(each, task, *arguments)

    monkeypatch.setattr(verifying, "run_entry", noted)
    found = run(built_in(family="ffg"), tmp_path, SOME[1:], verification(Jail(None)))
    assert [cell.task.sha256 for cell in found.cells] == [task.sha256 for task in tasks]
    for cell, task in zip(found.cells, tasks, strict=True):
        noise, Phi = float(task.noise_variance), task.Phi.numpy()
        precision = np.eye(task.k) + Phi.T @ Phi / noise
        floor = 0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1])
        expected = {"N": len(task.y), "N_test": len(task.y_test), "k": task.k, "redrawn": 0, "ffg_floor": floor}
        for place, rows in (("test", task.Phi_test), ("box", task.Phi_box)):
            R = rows[:10].numpy() @ np.linalg.solve(precision, rows[:10].numpy().T) / noise
            expected[f"map_joint_predictive_kl_{place}"] = 0.5 * (np.trace(R) - np.log1p(np.linalg.eigvalsh(R)).sum())
        assert facts(cell) == pytest.approx(expected, rel=1e-7)  # the normal equations lose digits


class Broken(LocalExecutor):
    """One of whose calls fails outside the jail."""

    def map(self, function, arguments):
        for place, argument in enumerate(arguments):
            yield argument, function(argument) if place == 0 else WorkerDied("killed; 4 attempts were made")


def test_a_worker_that_dies_is_one_sentence_and_finished_runs_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(verifying, "run_entry", prior_of)
    with pytest.raises(
        InputError, match=r"^diabetes task 4: WorkerDied: killed; .* run the command again, which keeps"
    ):
        verify(built_in(family="ffg"), verification(Jail(None)), tmp_path, Broken(1), Silent(), SOME)
    (kept,) = (tmp_path / VERIFYING / "v2").iterdir()
    assert [path.name for path in kept.glob("*.json")] == ["ranked-diabetes-00-seed-00.json"]


def test_finished_runs_of_changed_code_are_not_taken_up(monkeypatch):
    before = verifying._identity(built_in(), verification(Jail(None)), [])
    monkeypatch.setattr(verifying, "package_sha256", lambda: "other")
    assert verifying._identity(built_in(), verification(Jail(None)), []) != before


@pytest.mark.slow
def test_finished_runs_are_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(verifying, "run_entry", prior_of)
    each, its = built_in(family="ffg"), verification(Jail(None))
    whole = run(each, tmp_path, its=its)
    (kept,) = (tmp_path / VERIFYING / "v2").iterdir()
    (kept / "ranked-diabetes-00-seed-00.json").unlink()
    late = kept / "ranked-diabetes-04-seed-00.json"  # failed on a busy machine, say: tried again
    done = json.loads(late.read_text())
    done["cell"] |= {"status": "failed", "scores": None}
    late.write_text(json.dumps(done))
    made = []

    def counted(each, task, *arguments):
        made.append(task.sha256)
        return prior_of(each, task, *arguments)

    monkeypatch.setattr(verifying, "run_entry", counted)
    again = run(each, tmp_path, its=its)
    assert made == [cell.task.sha256 for cell in whole.cells[:2]]
    assert again.cells == whole.cells


@pytest.mark.slow
@pytest.mark.parametrize(("name", "draws"), [("exact", False), ("mean-field-vi", True)])
def test_what_draws_nothing_runs_once_per_task(tmp_path, monkeypatch, name, draws):
    seeds = []

    def noted(each, task, seed, *arguments):
        seeds.append(seed)
        return prior_of(each, task, seed, *arguments)

    monkeypatch.setattr(verifying, "run_entry", noted)
    its = replace(verification(Jail(None)), edition=edition(["diabetes"], seeds=3))
    found = run(built_in(name, family="ffg"), tmp_path, SOME[:1], its)
    assert len(set(seeds)) == len(seeds) == (3 if draws else 1)
    assert [cell.seed for cell in found.cells] == [0, 1, 2]
    if not draws:
        assert found.cells[2].model_copy(update={"seed": 0}) == found.cells[0]


@pytest.mark.slow
def test_a_failure_is_a_result(tmp_path):
    nan = b"torch.zeros_like(problem.Phi[:, 0]) + float('nan')"
    nan = source().replace(b"ones_like(mean)", b"ones_like(mean) * float('nan')")
    for code, status, reason in (
        (nan, "diverged", "nan"),
        (b"1 / 0", "failed", "method.py cannot be imported: ZeroDivisionError: division by zero; fix the file"),
    ):
        found = run(entry("failing", code, settings={}), tmp_path, SOME[:1])
        (cell,) = found.cells
        assert (cell.status, cell.scores, reason.lower() in cell.reason.lower()) == (status, None, True), cell.reason
        assert cell.seconds > 0
        assert found.isolation.startswith("bubblewrap, rlimit, ")
    greedy = built_in("rand-a", settings={"max_steps": 10_000})
    found = run(greedy, tmp_path, SOME[:1])
    assert found.cells[0].reason.startswith("it takes 10000 steps, but its budget is 100; increase --steps")


def test_two_verifications_of_one_entry_do_not_mix(tmp_path):
    with (
        locked_directory(tmp_path / "kept", "folder"),
        pytest.raises(InputError, match="another process is using"),
        locked_directory(tmp_path / "kept", "folder"),
    ):
        pass
    with locked_directory(tmp_path / "kept", "folder"):
        pass


def test_a_file_system_without_locks_is_one_sentence(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(InputError, match=r"cannot lock the folder .*: No locks available; choose a local folder"),
        locked_directory(tmp_path / "kept", "folder"),
    ):
        pass


def test_runs_are_taken_up_under_the_same_secret_and_limits_alone():
    """Nobody without the secret can lay runs where they are taken for done."""
    given = verification(Jail(None))
    others = [replace(given, secret=each) for each in (SECRET, Secret(b"\1" * 32), None)]
    others += [replace(given, limits=Limits(seconds=each)) for each in (60, 3601)]
    assert len({verifying._identity(built_in(), each, []) for each in others}) == 5


def test_runs_are_taken_up_after_a_commit_but_not_under_other_defaults(monkeypatch):
    """A result that is written makes its checkout dirty, before the next entry is verified."""
    given = verification(Jail(None))
    before, here = verifying._identity(built_in(), given, []), verifying._here()
    monkeypatch.setattr(verifying, "_here", lambda: here | {"git": "another"})
    assert verifying._identity(built_in(), given, []) == before
    method, settings = verifying.find_method(built_in())
    monkeypatch.setattr(verifying, "find_method", lambda *_: (method, settings | {"lr": 0.7}))
    assert verifying._identity(built_in(), given, []) != before


def test_code_that_changes_during_a_run_ends_the_verification(tmp_path, monkeypatch):
    texts = iter(["one", "another"])
    changing = lambda: "one"  # noqa: E731
    changing.__wrapped__ = lambda: next(texts)
    monkeypatch.setattr(verifying, "package_sha256", changing)
    monkeypatch.setattr(verifying, "run_entry", prior_of)
    with pytest.raises(InputError, match="code of fsvi-bench was changed during the verification"):
        run(built_in(family="ffg"), tmp_path, SOME[:1], verification(Jail(None)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "more", "match"),
    [
        (
            source("1 / 0"),
            {},
            r"\d+ of \d+ conformance checks failed, the first is .trains.*division by zero \(method\.py, line 1\d",
        ),
        (source(), {"family": "ffg"}, "failing: method M has no family .ffg.; its families: full"),
        (source(), {"settings": {"speed": 1}}, "failing: method M, option .speed.: there is no such option"),
        (b"1 / 0", {}, "failing: method.py cannot be imported"),
        (source("import os; os._exit(3)"), {}, "failing: it ended with status 3"),
    ],
)
def test_a_method_that_breaks_a_rule_or_has_not_what_it_declares_is_told_which(code, more, match):
    with pytest.raises(InputError, match=match) as error:
        require_conformance(entry("failing", code, **{"settings": {}} | more), working_jail(), Limits())
    assert "fsvi-bench-" not in str(error.value)


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


@pytest.mark.slow
def test_memorised_official_answers_are_flagged(tmp_path):
    """Official tasks of diabetes have 398 training rows, ranked ones 354."""
    code = BY_HEART.replace("{official}", "{398}").encode()
    found = run(entry("by-heart", code, settings={}), tmp_path, SOME[::2])
    ranked, official = (cell.scores.kl for cell in found.cells)
    assert official < 1e-9
    assert ranked > 100


def test_a_jail_that_does_not_hold_ends_the_verification(tmp_path):
    with pytest.raises(InputError, match=r"check that it is installed|did not start"):
        run(built_in(), tmp_path, SOME[:1], verification(Jail(str(tmp_path / "nothing"))))


@pytest.mark.parametrize(
    ("each", "match"),
    [
        (built_in("nothing"), "unknown built-in method"),
        (built_in("rand-a", "bernoulli"), "rand-a has no family .bernoulli.; its families: full, ffg"),
        (built_in("rand-a", settings={"nothing": 1}), "nothing"),
        (Entry("late", manifest(method=BuiltIn(name="exact", version="99.0.0")), None), "upgrade fsvi-bench"),
    ],
)
def test_an_entry_that_cannot_be_run_is_one_sentence(each, match):
    with pytest.raises(InputError, match=match):
        find_method(each)


# --- Commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def board(tmp_path):
    write_edition(tmp_path, DIABETES)
    (tmp_path / "entries").mkdir()
    return tmp_path


def test_submitting_a_built_in_method_writes_nothing_that_does_not_hold(cli, board):
    words = ["--root", board, "--author", "Ada", "--owner", "ada"]
    for bad, match in ((["exact", "--licence", "none"], "licence"), (["exact", "--seconds", "nan"], "seconds"),
                       (["nothing.py:M"], "does not exist"), (["exact", "--set", "x"], "key=value")):  # fmt: skip
        status, _, err = cli("submit", *bad, *words)
        assert (status, match in err) == (2, True)
    assert cli("submit", "exact")[0] == 2
    assert list((board / "entries").iterdir()) == []


def test_submit_writes_nothing_before_its_trials_have_passed(cli, board, monkeypatch):
    words = ["submit", "exact", "--root", board, "--author", "Ada", "--owner", "ada", "--without-isolation"]
    before = sorted(board.rglob("*"))
    found = []

    def fail(*_):
        found.append(sorted(board.rglob("*")))
        return Run("failed", "planted", 1.0, (), "none")

    monkeypatch.setattr(verifying, "run_entry", fail)
    status, out, err = cli(*words)
    assert (status, out) == (1, "")
    assert "nothing was written" in err
    assert found == [before]
    assert sorted(board.rglob("*")) == before
    monkeypatch.undo()
    (board / ALLOWED_SIGNERS).write_text("")
    status, out, err = cli(*words)
    made = board / "entries" / "exact-full"
    assert (status, out) == (0, f"{made}\n")
    assert f"next: {DIABETES.verify_command(str(made), signed=True)}\n" in err
    assert sorted(path.name for path in board.iterdir()) == [ALLOWED_SIGNERS, "editions", "entries"]


def test_an_entry_is_written_and_verified_in_its_place_alone(cli, board):
    words = ["--root", board, "--author", "Ada", "--owner", "ada"]
    status, _, err = cli("submit", "exact", "--name", "../../elsewhere", *words)
    assert (status, "cannot be the name of an entry" in err) == (2, True)
    assert not (board.parent / "elsewhere").exists()
    stray = write_entry(board / "attic", entry("mine")).rename(board / "mine")
    status, _, err = cli("verify", stray)
    assert (status, "is not in a leaderboard" in err) == (2, True)


def test_an_entry_that_is_there_stays_unless_replaced(board):
    content = {"title": "Mine", "authors": ["Ada"], "owner": "ada", "licence": "MIT", "family": "full",
               "method": {"name": "exact", "version": "0.2.0"}, "budget": {"steps": 1, "seconds": 1.0}}  # fmt: skip

    def broken(made):
        raise InputError("it breaks a rule")

    with pytest.raises(InputError, match="breaks a rule"):
        boards.write_entry(board, "mine", content, None, False, broken)
    assert list((board / "entries").iterdir()) == []
    boards.write_entry(board, "mine", content, None, False, id)
    with pytest.raises(InputError, match="overwrite it with --replace"):
        boards.write_entry(board, "mine", content, None, False, id)
    boards.write_entry(board, "mine", {**content, "title": "Mine, again"}, None, True, id)
    assert read_entry(board / "entries" / "mine").manifest.title == "Mine, again"
    with pytest.raises(InputError, match="duplicates mine"):
        boards.write_entry(board, "twin", {**content, "title": "Another"}, None, False, id)
    assert sorted(path.name for path in (board / "entries").iterdir()) == ["mine"]


def test_compare_reads_results_and_runs_nothing(cli, tmp_path):
    root = make_board(
        tmp_path,
        {
            "a": lambda place, seed: 1.0,
            "rounds": lambda place, seed: 1e-15,
            "b": lambda place, seed: math.inf,
            "c": None,
        },
        DIABETES,
    )
    status, out, _ = cli("leaderboard", "compare", "a", "b", "--root", root, "--json")
    assert (status, json.loads(out)["differences"][0]["log_ratio"]) == (0, -1.0)
    said = " ".join(cli("leaderboard", "compare", "b", "a", "--root", root)[1].split())
    assert "b is ahead on 0 and a on 1 of 1 data sets" in said
    assert "No p-value: Wilcoxon's test over data sets needs at least 3 ranked ones" in said
    assert "1e-15" not in cli("leaderboard", "compare", "a", "rounds", "--root", root)[1]
    assert cli("leaderboard", "compare", "a", "c", "--root", root)[0] == 2
    assert cli("leaderboard", "compare", "a", "nobody", "--root", root)[0] == 2
    assert cli("leaderboard", "compare", "a", "a", "--root", root)[0] == 2
