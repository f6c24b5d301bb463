"""Submissions trained again: what agrees, what is refused and in which words, what is drawn and recorded."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.rerun import RerunSettings, comparison, rerun
from fsvi_bench.leaderboard.rerun.child import Limits, RunFailed, Trained
from fsvi_bench.leaderboard.rerun.comparison import draw_cells
from fsvi_bench.leaderboard.rerun.jail import Jail
from fsvi_bench.leaderboard.rerun.worker import waypoint_steps
from fsvi_bench.leaderboard.verification import Rerun
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.provenance import machine_words, provenance
from fsvi_bench.scoring.scores import score
from tests.leaderboard.planted import planted_posteriors, planted_tasks
from tests.leaderboard.rerunning import jail, source_of, submission, trained_here, trained_until
from tests.leaderboard.stubbed import (
    DIVERGED,
    FAILED,
    SETTINGS,
    ends_as_submitted,
    ends_with,
    plant,
    prior,
    refusal,
    run,
)

RAND_A = {"M": 5, "max_steps": 40, "minibatch": "full", "lr": 0.05}
LIMIT = "the verifier's limit for one run"
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
    problem = tasks.problem((official.dataset, official.split))
    *on_the_way, last = trained_until(name, family, hyperparameters, problem, [] if name == "exact" else steps)
    expected = [score(q, problem) for q in on_the_way or [last]]
    got = [(waypoint.kl, waypoint.predictive_kl_box) for waypoint in official.waypoints]
    assert got == [(scores.kl, scores.predictive_kl_box) for scores in expected]
    assert len(set(got)) == len(got)  # each step its own
    assert getattr(official.waypoints[-1], official.score) == official.rerun
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
    assert found.hardware == machine_words(provenance("cpu", 0, datetime.now(UTC)))
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


@pytest.fixture
def planted(tmp_path):
    return plant(tmp_path)


def test_folders_that_are_named_are_hidden_too(monkeypatch, planted, tmp_path):
    """Beside all that is hidden anyway."""
    tasks, posteriors, make = planted
    whole, cells = make()
    seen = []
    monkeypatch.setattr(comparison, "find_jail", lambda hidden: seen.append(list(hidden)) or Jail(None))
    agree = ends_as_submitted(tasks, posteriors)
    for hidden in ((), (tmp_path / "data",)):
        run(monkeypatch, agree, whole, tasks, cells, hidden=hidden)
    assert seen == [own := [tmp_path, tmp_path.parent / "verified"], [*own, tmp_path / "data"]]


def test_a_cell_that_is_ok_must_not_come_to_nothing(monkeypatch, planted):
    tasks, _, make = planted
    whole, cells = make()
    machine = machine_words(provenance("cpu", 0, datetime.now(UTC)))
    hint = (
        f" (it is said to have run on '{whole.manifest.hardware}', and here is '{machine}': where these differ, a last "
        "digit that is rounded otherwise may grow to more than the tolerance in 15,000 steps; docs/submitting.md says how "
        "to choose kernels)"
    )
    for ends, words in (
        (DIVERGED, f"but its code run again diverged (the loss was not finite at step 3){hint}"),
        (FAILED, "but its code run again failed (ValueError: no)"),
        (RunFailed("it was not done within 9 s"), "the submitted code was run again, and it was not done within 9 s"),
    ):
        said = refusal(monkeypatch, lambda problem, ends=ends: ends, whole, tasks, cells)
        (drawn, *_) = draw_cells(cells, whole.sha256, SETTINGS)
        assert said.startswith(f"submission planted, {drawn.dataset} split {drawn.split}: ")
        assert said.endswith(words)
        if isinstance(ends, Trained):
            assert f"the submitted cell stands with kl {drawn.scores.kl:.6g}, " in said


def test_nothing_but_cells_that_are_ok_is_run_again(monkeypatch, planted):
    """Of a cell that failed there is nothing to compare, and a source that only fails must not pass by it."""
    tasks, posteriors, make = planted
    for status in ("diverged", "failed"):
        whole, cells = make(without=[("boston", 0), ("boston", 1)])
        cells = [cell if cell.scores else cell.model_copy(update={"status": status}) for cell in cells]
        for seed in range(5):
            settings = replace(SETTINGS, seed=seed)
            found, _ = run(monkeypatch, ends_as_submitted(tasks, posteriors), whole, tasks, cells, settings)
            assert [(each.dataset, each.split) for each in found.official] == [("energy", 0)]
            assert {each.dataset for each in found.withheld} == {"energy"}
            assert refusal(monkeypatch, lambda problem: RunFailed("no"), whole, tasks, cells, settings)
        nothing, none_ok = make(without=list(tasks.tasks))
        none_ok = [cell.model_copy(update={"status": status}) for cell in none_ok]
        words = refusal(monkeypatch, ends_as_submitted(tasks, posteriors), nothing, tasks, none_ok)
        assert words == (
            "submission planted has no cell that is 'ok', so a re-run has nothing to be compared with; verify it "
            "without --rerun"
        )


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
        known = lambda problem, ends=ends: agree(problem) if problem.frozen.sha256 in by_heart else ends  # noqa: E731
        found, _ = run(monkeypatch, known, whole, tasks, cells)
        assert [(each.status, each.reason, each.scores) for each in found.withheld] == [(status, reason, None)] * 2


def test_withheld_tasks_go_round_the_data_sets_and_share_no_draw(monkeypatch, planted):
    tasks, posteriors, make = planted
    whole, cells = make()
    agree = ends_as_submitted(tasks, posteriors)
    found, stub = run(monkeypatch, agree, whole, tasks, cells, replace(SETTINGS, count=5))
    names = [each.dataset for each in found.withheld]
    assert sorted(names[:2]) == ["boston", "energy"]
    assert names[2:] == (names * 2)[: len(names) - 2]
    assert [each.draw for each in found.withheld] == [0, 1, 2, 3, 4]
    assert all(each.scores is not None for each in found.withheld)
    official = {task.sha256 for task in tasks.tasks.values()}
    fresh = [problem.frozen.sha256 for problem in stub.problems if problem.frozen.sha256 not in official]
    assert len(set(fresh)) == 5
    again, _ = run(monkeypatch, agree, whole, tasks, cells, replace(SETTINGS, count=5))
    assert again == found
    other, _ = run(monkeypatch, agree, whole, tasks, cells, replace(SETTINGS, count=5, seed=4))
    assert [each.scores for each in other.withheld] != [each.scores for each in found.withheld]


@pytest.mark.parametrize(
    ("patience", "max_seconds", "seconds", "words"),
    [
        (2.5, 3600.0, 155.0, "2.5 times the declared 60 s, and 5 s"),
        (2.5, 155.0, 155.0, "2.5 times the declared 60 s, and 5 s"),
        (2.5, 154.0, 154.0, LIMIT),
        (1000.0, 3600.0, 3600.0, LIMIT),
    ],
)
def test_the_clock_and_the_steps_are_those_of_the_budget(monkeypatch, planted, patience, max_seconds, seconds, words):
    tasks, posteriors, make = planted
    whole, cells = make()
    settings = replace(SETTINGS, patience=patience, memory=10**9, max_seconds=max_seconds)
    _, stub = run(monkeypatch, ends_as_submitted(tasks, posteriors), whole, tasks, cells, settings)
    assert set(stub.limits) == {Limits(10, seconds, 10**9, words, within_budget=words == LIMIT)}


def test_cells_are_drawn_by_the_hash_and_the_verifiers_seed(planted):
    _, _, make = planted
    _, cells = make()
    several = {"boston": 3, "energy": 20, "yacht": 20}
    cells = [
        cells[0].model_copy(update={"dataset": dataset, "split": split})
        for dataset, splits in several.items()
        for split in range(splits)
    ]

    def drawn(sha256, seed, count=5):
        return [(cell.dataset, cell.split) for cell in draw_cells(cells, sha256, RerunSettings(count, seed))]

    assert drawn("a" * 64, 1) == drawn("a" * 64, 1)
    assert drawn("a" * 64, 1) != drawn("b" * 64, 1)
    assert drawn("a" * 64, 1) != drawn("a" * 64, 2)
    assert drawn("a" * 64, 1, 7)[:5] == drawn("a" * 64, 1)
    assert sorted(drawn("a" * 64, 1, 1000)) == sorted((cell.dataset, cell.split) for cell in cells)
    first = {drawn("a" * 64, seed, 1)[0] for seed in range(300)}
    assert len(first) > 35  # of 43 places: nobody is out of its reach
    assert {dataset for dataset, _ in first} == set(several)


def test_the_data_sets_take_turns(planted):
    """As many data sets as there are runs; a small one, once used up, is passed over."""
    _, _, make = planted
    _, cells = make()
    several = {"boston": 1, "energy": 3, "yacht": 5}
    cells = [
        cells[0].model_copy(update={"dataset": dataset, "split": split})
        for dataset, splits in several.items()
        for split in range(splits)
    ]
    for seed in range(20):
        names = [cell.dataset for cell in draw_cells(cells, "a" * 64, RerunSettings(9, seed))]
        assert set(names[:3]) == set(several)
        assert set(names[3:5]) == {"energy", "yacht"} == set(names[5:7])
        assert names[7:] == ["yacht", "yacht"]


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
    assert (
        refusal(monkeypatch, agree, whole, tasks, cells, RerunSettings(count=2, seed=3)) == words
    )  # it is the default
    found, _ = run(monkeypatch, agree, whole, tasks, cells, replace(SETTINGS, require_isolation=False))
    assert not found.isolated
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
        ({"max_seconds": 0.0}, "max_seconds of a re-run is 0"),
        ({"max_seconds": float("inf")}, "max_seconds of a re-run is inf"),
        ({"memory": -1}, "memory of a re-run is -1"),
        ({"tolerance": 1.0}, "tolerance of a re-run is 1.0"),
        ({"tolerance": float("nan")}, "tolerance of a re-run is nan"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        RerunSettings(**{"count": 1, "seed": 0, **settings})
