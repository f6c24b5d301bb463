"""Submissions trained again: what agrees, what is refused and in which words, what is drawn and recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.rerun import RerunSettings, comparison, rerun
from fsvi_bench.leaderboard.rerun.child import RunFailed, Snapshot, Trained
from fsvi_bench.leaderboard.rerun.comparison import draw_cells
from fsvi_bench.leaderboard.rerun.worker import waypoint_steps
from fsvi_bench.leaderboard.verification import Rerun
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.running.progress import Silent
from fsvi_bench.scoring.scores import score
from tests.leaderboard.planted import planted_posteriors, planted_tasks
from tests.leaderboard.rerunning import jail, source_of, submission, trained_here

SETTINGS = RerunSettings(count=2, seed=3)
RAND_A = {"M": 5, "max_steps": 40, "minibatch": "full", "lr": 0.05}
CONCRETE = {"max_steps": 30, "minibatch": 10}


def submitted(tasks, root, name, family, hyperparameters, posteriors=None):
    """A built-in method's own file, submitted with what it leaves of every task, or with other posteriors."""
    source, cls = source_of(name)
    places = tasks.tasks
    made = posteriors or {place: trained_here(name, family, hyperparameters, tasks.problem(place)) for place in places}
    steps = hyperparameters.get("max_steps", 1)
    words = {
        "source": {"file": "method.py", "class": cls},
        "hyperparameters": hyperparameters,
        "budget": {"steps": steps, "seconds": 60.0},
    }
    return submission(tasks, made, source, root, method=name, family=family, **words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "family", "hyperparameters"),
    [("rand-a", "full", RAND_A), ("exact", "ffg", {}), ("concrete-dropout", "bernoulli", CONCRETE)],
)
def test_a_faithful_submission_agrees_to_the_last_bit(tmp_path, name, family, hyperparameters):
    """On one machine; built-in methods' own files, in their own class, as a stranger would hand them in."""
    jail()
    tasks = planted_tasks()
    whole, cells = submitted(tasks, tmp_path, name, family, hyperparameters)
    found = rerun(whole, tasks, cells, RerunSettings(count=1, seed=3), Silent())
    (official,), (withheld,) = found.official, found.withheld
    by_place = {(cell.dataset, cell.split): cell for cell in cells}
    assert official.score == ("predictive_kl_box" if family == "bernoulli" else "kl")
    assert official.submitted == official.rerun
    assert official.submitted == getattr(by_place[official.dataset, official.split].scores, official.score)
    steps = [waypoint.steps for waypoint in official.waypoints]
    assert steps == ([1] if name == "exact" else waypoint_steps(hyperparameters["max_steps"]))
    seconds = [waypoint.seconds for waypoint in official.waypoints]
    assert seconds == sorted(seconds)
    assert (official.waypoints[-1].kl if family != "bernoulli" else official.waypoints[-1].predictive_kl_box) == (
        official.rerun
    )
    if name != "exact":
        assert official.waypoints[-1].work["gradients"] == hyperparameters["max_steps"]
    assert withheld.status == "ok"
    assert withheld.scores is not None
    if name == "exact":  # whose factorised posterior is the floor itself; to rounding of KLs of some nats
        assert withheld.scores.kl == pytest.approx(withheld.ffg_floor, abs=1e-9)
    assert found.isolation == (
        "bubblewrap: no network, no other processes, no files but its own and Python's; "
        "seccomp: no sockets, no forks, no programs; 4 GiB of memory"
    )
    assert found.hardware
    assert Rerun.model_validate_json(found.model_dump_json()) == found


@pytest.mark.slow
def test_posteriors_copied_from_exact_are_refused_with_both_numbers(tmp_path):
    """Every file scores as claimed, a KL of rounding; the source beside them never computed it."""
    jail()
    tasks = planted_tasks()
    copied = {place: trained_here("exact", "full", {}, tasks.problem(place)) for place in tasks.tasks}
    whole, cells = submitted(tasks, tmp_path, "rand-a", "full", RAND_A, copied)
    (drawn,) = draw_cells(cells, whole.sha256, RerunSettings(count=1, seed=3))
    problem = tasks.problem((drawn.dataset, drawn.split))
    honest = score(trained_here("rand-a", "full", RAND_A, problem), problem).kl
    with pytest.raises(InputError) as caught:
        rerun(whole, tasks, cells, RerunSettings(count=1, seed=3), Silent())
    assert str(caught.value).startswith(f"submission planted, {drawn.dataset} split {drawn.split}: kl of the submitted")
    assert f"is {drawn.scores.kl:.6g}, of its code run again {honest:.6g}," in str(caught.value)


class Stub:
    """In place of the process: ends as told, and keeps the problems that it was given."""

    def __init__(self, ends):
        self.ends, self.problems, self.limits = ends, [], []

    def __call__(self, manifest, source, problem, seed, limits, jail):
        self.problems.append(problem)
        self.limits.append(limits)
        ended = self.ends(problem)
        if isinstance(ended, Exception):
            raise ended
        return ended


def ends_with(q):
    return Trained("ok", None, 1.0, (Snapshot(1, 1.0, q, {"gradients": 1}),), True)


def prior(problem):
    zero = torch.zeros(problem.task.k, dtype=torch.float64)
    return FullGaussian(zero, torch.diag(zero + 1))


DIVERGED = Trained("diverged", "the loss was not finite at step 3", 1.0, (), True)
FAILED = Trained("failed", "ValueError: no", 1.0, (), True)


@pytest.fixture
def planted(tmp_path):
    tasks = planted_tasks()
    posteriors = planted_posteriors(tasks)
    words = {"source": {"file": "mine.py", "class": "Mine"}}

    def make(**changes):
        kept = {place: q for place, q in posteriors.items() if place not in changes.get("without", ())}
        return submission(tasks, kept, b"class Mine: ...", tmp_path, **words)

    return tasks, posteriors, make


def ends_as_submitted(tasks, posteriors):
    """Official problems end with their own files, withheld ones with the prior."""
    own = {task.sha256: posteriors[place] for place, task in tasks.tasks.items() if place in posteriors}
    return lambda problem: ends_with(own.get(problem.task.sha256) or prior(problem))


def run(monkeypatch, ends, whole, tasks, cells, settings=SETTINGS, progress=None):
    stub = Stub(ends)
    monkeypatch.setattr(comparison, "train_apart", stub)
    return rerun(whole, tasks, cells, settings, progress or Silent()), stub


def refusal(monkeypatch, ends, whole, tasks, cells, settings=SETTINGS):
    with pytest.raises(InputError) as caught:
        run(monkeypatch, ends, whole, tasks, cells, settings)
    return str(caught.value)


def test_only_what_lies_within_the_tolerance_agrees(monkeypatch, planted):
    tasks, posteriors, make = planted
    whole, cells = make()
    settings = RerunSettings(count=3, seed=3, tolerance=1e-2)

    def moved(by):
        """The files with their scales stretched until their KL has grown by this share (bisection)."""

        def ends(problem):
            for place, task in tasks.tasks.items():
                if task.sha256 == problem.task.sha256:
                    q = posteriors[place]
                    target = comparison._kl(q, problem) * (1 + by)
                    low, high = 0.0, 1.0
                    for _ in range(60):
                        middle = (low + high) / 2
                        stretched = FullGaussian(q.mean, q.scale_tril * (1 + middle))
                        low, high = (middle, high) if comparison._kl(stretched, problem) < target else (low, middle)
                    return ends_with(stretched)
            return ends_with(prior(problem))

        return ends

    found, _ = run(monkeypatch, moved(0.0099), whole, tasks, cells, settings)
    assert all(each.rerun == pytest.approx(each.submitted * 1.0099, rel=1e-9) for each in found.official)
    words = refusal(monkeypatch, moved(0.0101), whole, tasks, cells, settings)
    assert "differ by more than 0.01 relative" in words
    assert refusal(monkeypatch, moved(0.0099), whole, tasks, cells, replace(settings, tolerance=1e-3))


def test_rounding_of_a_closed_form_agrees():
    assert comparison._agree(3e-14, -2e-12, 1e-2)
    assert not comparison._agree(3e-6, 1e-9, 1e-2)
    assert comparison._agree(None, None, 1e-2)
    assert not comparison._agree(None, 1.0, 1e-2)
    assert not comparison._agree(float("nan"), 1.0, 1e-2)
    assert not comparison._agree(float("inf"), 1.0, 1e-2)


def test_a_cell_that_is_ok_must_not_come_to_nothing(monkeypatch, planted):
    tasks, _, make = planted
    whole, cells = make()
    for ends, words in (
        (DIVERGED, "but its code run again diverged (the loss was not finite at step 3)"),
        (FAILED, "but its code run again failed (ValueError: no)"),
        (RunFailed("it was not done within 9 s"), "the submitted code was run again, and it was not done within 9 s"),
    ):
        said = refusal(monkeypatch, lambda problem, ends=ends: ends, whole, tasks, cells)
        (drawn, *_) = draw_cells(cells, whole.sha256, SETTINGS)
        assert said.startswith(f"submission planted, {drawn.dataset} split {drawn.split}: ")
        assert said.endswith(words)
        if isinstance(ends, Trained):
            assert f"the submitted cell stands with kl {drawn.scores.kl:.6g}, " in said


def test_a_cell_that_diverged_must_diverge_again(monkeypatch, planted):
    tasks, posteriors, make = planted
    whole, cells = make(without=[("energy", 0)])
    everything = RerunSettings(count=3, seed=3)
    energy = tasks.tasks["energy", 0].sha256
    agree = ends_as_submitted(tasks, posteriors)
    diverges = lambda problem: DIVERGED if problem.task.sha256 == energy else agree(problem)  # noqa: E731
    found, _ = run(monkeypatch, diverges, whole, tasks, cells, everything)
    (cell,) = [each for each in found.official if each.dataset == "energy"]
    assert (cell.submitted, cell.rerun, cell.waypoints) == (None, None, ())
    words = refusal(monkeypatch, agree, whole, tasks, cells, everything)
    assert "energy split 0: the submitted cell stands as 'diverged', but its code run again ended with kl" in words


def test_a_posterior_that_overflows_has_diverged(monkeypatch, planted):
    tasks, _, make = planted
    whole, cells = make()
    huge = lambda problem: ends_with(FullGaussian(prior(problem).mean, prior(problem).scale_tril * 1e200))  # noqa: E731
    assert "its code run again diverged (the posterior's numbers reach" in refusal(
        monkeypatch, huge, whole, tasks, cells
    )


def test_to_fail_on_a_withheld_task_is_recorded(monkeypatch, planted):
    """A method that knows the official answers by heart has nothing to say about any other."""
    tasks, posteriors, make = planted
    whole, cells = make()
    by_heart = {task.sha256 for task in tasks.tasks.values()}
    agree = ends_as_submitted(tasks, posteriors)
    for ends, status, reason in (
        (FAILED, "failed", "ValueError: no"),
        (DIVERGED, "diverged", "the loss was not finite at step 3"),
        (RunFailed("it ended with status 3"), "failed", "it ended with status 3"),
    ):
        known = lambda problem, ends=ends: agree(problem) if problem.task.sha256 in by_heart else ends  # noqa: E731
        found, _ = run(monkeypatch, known, whole, tasks, cells)
        assert [(each.status, each.reason, each.scores) for each in found.withheld] == [(status, reason, None)] * 2


def test_withheld_tasks_go_round_the_data_sets_and_share_no_draw(monkeypatch, planted):
    tasks, posteriors, make = planted
    whole, cells = make()
    agree = ends_as_submitted(tasks, posteriors)
    found, stub = run(monkeypatch, agree, whole, tasks, cells, RerunSettings(count=5, seed=3))
    names = [each.dataset for each in found.withheld]
    assert sorted(names[:2]) == ["boston", "energy"]
    assert names[2:] == (names * 2)[: len(names) - 2]
    assert [each.draw for each in found.withheld] == [0, 1, 2, 3, 4]
    assert all(each.scores is not None for each in found.withheld)
    official = {task.sha256 for task in tasks.tasks.values()}
    fresh = [problem.task.sha256 for problem in stub.problems if problem.task.sha256 not in official]
    assert len(set(fresh)) == 5
    again, _ = run(monkeypatch, agree, whole, tasks, cells, RerunSettings(count=5, seed=3))
    assert again == found
    other, _ = run(monkeypatch, agree, whole, tasks, cells, RerunSettings(count=5, seed=4))
    assert [each.scores for each in other.withheld] != [each.scores for each in found.withheld]


def test_the_clock_and_the_steps_are_those_of_the_budget(monkeypatch, planted):
    tasks, posteriors, make = planted
    whole, cells = make()
    settings = RerunSettings(count=1, seed=3, patience=2.5, memory=10**9)
    _, stub = run(monkeypatch, ends_as_submitted(tasks, posteriors), whole, tasks, cells, settings)
    assert {(each.steps, each.seconds, each.memory) for each in stub.limits} == {(10, 2.5 * 60 + 120, 10**9)}


def test_cells_are_drawn_by_the_hash_and_the_verifiers_seed(planted):
    _, _, make = planted
    _, cells = make()
    cells = [cell.model_copy(update={"split": split}) for cell in cells for split in range(20)]

    def drawn(sha256, seed, count=5):
        return [(cell.dataset, cell.split) for cell in draw_cells(cells, sha256, RerunSettings(count, seed))]

    assert drawn("a" * 64, 1) == drawn("a" * 64, 1)
    assert drawn("a" * 64, 1) != drawn("b" * 64, 1)
    assert drawn("a" * 64, 1) != drawn("a" * 64, 2)
    assert drawn("a" * 64, 1, 7)[:5] == drawn("a" * 64, 1)
    assert len(drawn("a" * 64, 1, 1000)) == len(cells)
    assert sorted(drawn("a" * 64, 1, 1000)) == sorted((cell.dataset, cell.split) for cell in cells)
    first = {drawn("a" * 64, seed, 1)[0] for seed in range(300)}
    assert len(first) > 30  # of 40 places: nobody is out of its reach


def test_waypoints_are_a_dozen_and_hold_the_budgets():
    for total in (300, 500, 2000, 15000):
        steps = waypoint_steps(total)
        assert {0, total // 100, total // 10, total} <= set(steps)
        assert len(steps) == 12
        assert steps == sorted(set(steps))
    assert waypoint_steps(1) == [0, 1]
    assert waypoint_steps(0) == [0]


def test_without_a_source_nothing_is_run(tmp_path):
    tasks = planted_tasks()
    whole, cells = submission(tasks, planted_posteriors(tasks), None, tmp_path)
    with pytest.raises(InputError, match="submission planted names no source file, so nothing can be run again"):
        rerun(whole, tasks, cells, SETTINGS, Silent())


def test_without_a_jail_it_is_run_only_if_nobody_insists(monkeypatch, planted, tmp_path):
    tasks, posteriors, make = planted
    whole, cells = make()
    monkeypatch.setenv("PATH", str(tmp_path))
    agree = ends_as_submitted(tasks, posteriors)
    words = refusal(monkeypatch, agree, whole, tasks, cells, replace(SETTINGS, require_isolation=True))
    assert "submission planted is not run: bubblewrap" in words
    found, _ = run(monkeypatch, agree, whole, tasks, cells)
    assert found.isolation.startswith("no jail: this user's files were in the submitted code's reach; ")


def test_how_it_is_kept_apart_is_said_before_anything_runs(monkeypatch, planted):
    tasks, posteriors, make = planted
    whole, cells = make()

    class Notes(Silent):
        def __init__(self):
            self.notes = []

        def note(self, message):
            self.notes.append(message)

    notes = Notes()
    run(monkeypatch, ends_as_submitted(tasks, posteriors), whole, tasks, cells, progress=notes)
    assert notes.notes[0].startswith("planted is run again: ")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"count": 0}, "count of a re-run is 0"),
        ({"patience": 0.0}, "patience of a re-run is 0"),
        ({"memory": -1}, "memory of a re-run is -1"),
        ({"tolerance": 1.0}, "tolerance of a re-run is 1.0"),
        ({"tolerance": float("nan")}, "tolerance of a re-run is nan"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        RerunSettings(**{"count": 1, "seed": 0, **settings})
