"""What every method must do, whatever it computes. A new method adds a row to `TABLE` and nothing else."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from fsvi_bench.conformance import Subject
from fsvi_bench.conformance.checks import in_any_company
from fsvi_bench.conformance.subject import numbers
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import load_method, method_names
from fsvi_bench.posteriors.base import KIND_OF, defect, divergence, unstack
from fsvi_bench.running.job import _score_cell
from fsvi_bench.training.trace import Tracer, trace_steps
from fsvi_bench.training.trainer import train
from tests import reference as twin
from tests.methods.table import (
    SEES_ALL,
    STEPS,
    TABLE,
    Row,
    Settings,
    f64,
    label,
    odd_problems,
    take,
    toys,
    trained_variants,
    twenty_targets,
    variants,
)

same = torch.equal

# --- Training ---------------------------------------------------------------------------------------------------------


def make(row: Row, settings: Settings, data: TrainingData, seeds: list[int], steps: int = STEPS) -> Method:
    """Not as the suite makes it, which takes smaller minibatches and measurement sets than the defaults."""
    entry = load_method(row.method)
    budget = {"max_steps": steps} if "max_steps" in entry.cls.Options.model_fields else {}
    return entry.cls(data, row.family, seeds, entry.options({**budget, **settings}))


def seeds_for(row: Row, places: list[int], seed: int = 0) -> list[int]:
    """As the runner derives them, with a problem's place in the full batch for its task."""
    return Subject(load_method(row.method), row.family).seeds(places, seed)


def trained(row: Row, settings: Settings, data: TrainingData, places: list[int], seed: int = 0, **options: Any):
    """Mean and covariance factor of the problems at these places of the full batch, trained together."""
    method = make(row, settings, take(data, places), seeds_for(row, places, seed), **options)
    train(method, "cpu")
    return numbers(method)


def require_the_same_in_any_company(row, settings, data, steps=5):
    """Alone, among all but one (in other places) and among all: the same bits. Returns what they are."""
    together = in_any_company(Subject(load_method(row.method), row.family, settings, steps), data)
    assert all(each.isfinite().all() for each in together)
    return together


def boston_sized():
    """Rows with each of three settings as far as their methods have it, and no pair twice."""
    cases: dict[str, tuple[Row, Settings]] = {}
    for row in TABLE:
        fields = load_method(row.method).cls.Options.model_fields
        for wanted in ({"M": 80}, {"M": 20}, {"M": 120, "minibatch": "full", "S": 32}):
            settings = {name: value for name, value in wanted.items() if name in fields}
            cases.setdefault(f"{row.method}-{row.family}-{settings}", (row, settings))
    return list(cases.values())


# --- The suite --------------------------------------------------------------------------------------------------------


def test_every_method_and_family_has_a_row():
    expected = [(name, family) for name in method_names() for family in load_method(name).cls.families]
    assert sorted({(row.method, row.family) for row in TABLE}) == sorted(expected)
    for row in TABLE:
        for settings in row.variants:
            entry = load_method(row.method)
            assert entry.cls.is_deterministic(entry.options(settings)) == row.closed_form


@variants
def test_the_posterior_is_one_of_its_family_over_the_weights(row, settings):
    data = TrainingData.of(toys()[:3])
    method = make(row, settings, data, [1, 2, 3])
    train(method, "cpu")
    q = method.posterior()
    tril = q.covariance_tril()
    assert q.kind == KIND_OF[row.family]
    assert all(defect(one, 20) is None and divergence(one) is None for one in unstack(q))
    assert tuple(q.mean.shape) == (3, 20)
    assert tuple(tril.shape) == (3, 20, 20)
    assert q.mean.dtype == tril.dtype == f64
    assert q.mean.isfinite().all()
    assert tril.isfinite().all()
    assert (tril.diagonal(dim1=-2, dim2=-1) > 0).all() or row.family == "bernoulli"
    assert not tril.triu(1).any()
    assert bool(tril.tril(-1).any()) == (row.family == "full")
    assert list(method.divergences()) == [None] * 3
    assert len(method.stopped_after()) == len(method.work()) == len(method.details()) == 3


@pytest.mark.parametrize(
    ("row", "settings"), [case for case in trained_variants.args[1] if case[0].starts_at_prior], ids=label
)
def test_it_starts_at_the_prior(row, settings):
    problems = toys()[:2]
    method = make(row, settings, TrainingData.of(problems), [1, 2])
    tracer, starts = Tracer(method, problems), []

    def observe(steps, seconds):
        tracer(steps, seconds)
        starts.append(numbers(method))

    train(method, "cpu", observe, [0])
    for start, problem, trace in zip(starts[0], problems, tracer.traces, strict=True):
        assert not start[:, 0].any()
        assert torch.equal(start[:, 1:], torch.eye(20, dtype=f64))
        exact = problem.truth.posterior.mean.numpy(), (problem.truth.covariance_tril @ problem.truth.covariance_tril.mT)
        expected = twin.gaussian_kl(torch.zeros(20).numpy(), torch.eye(20).numpy(), exact[0], exact[1].numpy())
        assert trace.points[0].steps == 0
        assert trace.points[0].seconds == 0
        # The twin inverts a covariance whose condition number is about 1e3.
        assert trace.points[0].kl == pytest.approx(expected, rel=1e-10)
    # It moves, so the start was not the end.
    assert not same(numbers(method)[0], starts[0][0])


@variants
def test_the_same_seed_gives_the_same_bits_and_another_seed_other_numbers(row, settings):
    data = TrainingData.of(toys()[:2])
    first, again, other = (trained(row, settings, data, [0, 1], seed, steps=5) for seed in (0, 0, 1))
    assert all(map(same, first, again))
    # With all training rows and an A that sees every weight, the objective is that of weight space, whatever A is.
    alike = row.closed_form or ("S" not in settings and settings.get("M") == SEES_ALL)
    alike |= (settings.get("estimator"), settings.get("minibatch")) == ("exact", "full")
    assert [same(one, two) for one, two in zip(first, other, strict=True)] == [alike] * 2


@pytest.mark.slow
@variants
def test_a_problem_is_bitwise_the_same_in_any_batch(row, settings):
    require_the_same_in_any_company(row, settings, TrainingData.of(toys()))


@variants
def test_odd_shapes_are_bitwise_the_same_in_any_batch_too(row, settings):
    for mean_and_tril in require_the_same_in_any_company(row, settings, odd_problems()):
        assert tuple(mean_and_tril.shape) == (7, 8)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(("row", "settings"), boston_sized(), ids=label)
def test_boston_sized_problems_are_bitwise_the_same_in_any_batch(row, settings, boston):
    """k = 100, N = 455: other kernels of BLAS and LAPACK than at k = 20."""
    require_the_same_in_any_company(row, settings, twenty_targets(boston), steps=25)


@trained_variants
def test_looking_moves_nothing(row, settings):
    """Where a trace wants a point, the steps are cut; what they compute must not depend on it, nor on what it looks at:
    posterior, scores, loss."""
    problems = toys()[:2]
    data = TrainingData.of(problems)
    watched, alone = (make(row, settings, data, [1, 2]) for _ in range(2))
    tracer = Tracer(watched, problems)
    train(watched, "cpu", tracer, [0, 1, 2, 5, STEPS])
    train(alone, "cpu")
    assert [len(trace.points) for trace in tracer.traces] == [5, 5]
    assert all(map(same, numbers(watched), numbers(alone)))


@trained_variants
def test_a_longer_run_begins_with_the_shorter_one(row, settings):
    settings = {name: value for name, value in settings.items() if name not in ("lr_schedule", "averaging")}
    if "averaging" in load_method(row.method).cls.Options.model_fields:
        settings["averaging"] = 0.0
    data = TrainingData.of(toys()[:2])
    longer, seen = make(row, settings, data, [1, 2]), {}
    train(longer, "cpu", lambda steps, seconds: seen.update({steps: numbers(longer)}), [7])
    for steps in (7,):
        shorter = make(row, settings, data, [1, 2], steps=steps)
        train(shorter, "cpu")
        assert shorter.num_steps == steps
        assert all(map(same, numbers(shorter), seen[steps]))


@variants
def test_a_nan_among_one_problems_targets_is_its_own_misfortune(row, settings):
    problems, planted = list(toys()[:3]), 1
    places = list(range(3))
    healthy = trained(row, settings, TrainingData.of(problems), places)
    data = TrainingData.of(problems)
    data.y[planted] = math.nan
    method = make(row, settings, data, seeds_for(row, places))
    if row.closed_form:
        train(method, "cpu")
    else:
        train(method, "cpu", Tracer(method, problems), trace_steps(STEPS))
    reasons = method.divergences()
    assert [reasons[place] for place in places if place != planted] == [None] * 2
    q = unstack(method.posterior())
    status = _score_cell(q[planted], problems[planted], reasons[planted])
    assert status["status"] == "diverged"
    if not row.closed_form:
        # Every target is NaN, so that the first loss, that of step 0, is.
        found = re.search(r"at step (\d+)$", status["reason"])
        assert found, status["reason"]
        assert int(found[1]) == 0
    for place in places:
        if place != planted:
            assert same(numbers(method)[place], healthy[place])
