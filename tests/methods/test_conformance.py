"""What every method must do, whatever it computes. A new method adds a row to `TABLE` and nothing else."""

from __future__ import annotations

import math

import pytest
import torch

from fsvi_bench.conformance import Subject, parametrize_with_checks
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import default_names, load_method, method_names
from fsvi_bench.posteriors.base import unstack
from fsvi_bench.running.job import _score_cell, _unfit
from fsvi_bench.training.trace import Tracer, trace_steps
from fsvi_bench.training.trainer import train
from tests import reference as twin
from tests.maths.draws import dense, eye
from tests.methods.table import (
    SEES_ALL,
    STEPS,
    TABLE,
    Row,
    from_the_prior,
    label,
    take,
    toys,
    trained_variants,
    twenty_targets,
    variants,
)

DEFAULTS = default_names()


def subject(row: Row, settings: dict, steps: int = STEPS) -> Subject:
    entry = load_method(row.method)
    budget = {"max_steps": steps} if "max_steps" in entry.cls.Options.model_fields else {}
    return Subject(entry, row.family, {**from_the_prior(row.method, settings), **budget})


def make(row, settings, data, places=None, seed=0, steps=STEPS):
    """Not as the suite makes it, which takes smaller minibatches and measurement sets than the defaults."""
    of, places = subject(row, settings, steps), range(len(data)) if places is None else places
    return of.entry.cls(take(data, places), row.family, of.seeds(places, seed), of.entry.options(of.settings))


def trained(row, settings, data, places=None, seed=0, steps=STEPS):
    """Mean and covariance factor of the problems at these places of the full batch, trained together."""
    method = make(row, settings, data, places, seed, steps)
    train(method, "cpu")
    return bits(method)


def bits(method):
    q = method.posterior()
    return q.mean, q.covariance_tril()


def same(ones, others):
    return all(map(torch.equal, ones, others))


def boston_sized():
    """Rows of methods that run by default with each of three settings as far as they have it, and no pair twice.

    Without closed forms, which problems never share; spike-and-slab's takes longest.
    """
    cases = {}
    for row in (row for row in TABLE if row.method in DEFAULTS and row.method != "spike-and-slab"):
        fields = load_method(row.method).cls.Options.model_fields
        for wanted in ({"M": 80}, {"M": 20}, {"M": 120, "minibatch": "full", "S": 32}):
            settings = {name: value for name, value in wanted.items() if name in fields}
            cases.setdefault(f"{row.method}-{row.family}-{settings}", (row, settings))
    return list(cases.values())


# --- The suite that third parties run ---------------------------------------------------------------------------------


def subjects(marked=variants, **options):
    return [subject(row, settings, **options) for row, settings in marked.args[1]]


#: All variants of methods that run by default, and one of each other row: for rules that hold apart from the arithmetic.
SOME = [(row, settings) for row in TABLE for settings in row.variants[: None if row.method in DEFAULTS else 1]]
some = pytest.mark.parametrize(("row", "settings"), SOME, ids=label)
some_trained = pytest.mark.parametrize(("row", "settings"), [each for each in SOME if each[0].trains], ids=label)


@parametrize_with_checks(subjects(), ("the same in any batch, odd shapes",))
def test_every_variant_rounds_the_same_in_any_batch(subject, check):
    check(subject)


SUBJECTS = subjects(some)  #: each is trained once for all rules that only look at what was trained


@parametrize_with_checks(SUBJECTS, ("posterior after training", "one entry per problem", "the same with the same seed"))
def test_it_keeps_the_rules(subject, check):
    check(subject)


@parametrize_with_checks(
    [each for each, (row, _) in zip(SUBJECTS, SOME, strict=True) if row.trains],
    ("observation does not change training",),
)
def test_observation_does_not_change_training(subject, check):
    check(subject)


@pytest.mark.slow
@parametrize_with_checks([each for each in subjects(some, steps=5) if "M" in each.settings], ("the same in any batch",))
def test_measurement_sets_of_lower_rank_are_bitwise_the_same_in_any_batch(subject, check):
    """At k = 7, every set above has full rank."""
    check(subject)


# --- And more ---------------------------------------------------------------------------------------------------------


def test_every_method_and_family_has_a_row():
    expected = [(name, family) for name in method_names() for family in load_method(name).cls.families]
    assert sorted({(row.method, row.family) for row in TABLE}) == sorted(expected)
    for row, settings in variants.args[1]:
        assert subject(row, settings).deterministic or row.drawn or not row.closed_form


@pytest.mark.parametrize(
    ("row", "settings"), [case for case in trained_variants.args[1] if case[0].starts_at_prior], ids=label
)
def test_it_starts_at_the_prior(row, settings):
    problems = toys()[:2]
    method, starts = make(row, settings, TrainingData.of(problems)), []
    tracer = Tracer(method, problems)

    def observe(steps, seconds):
        tracer(steps, seconds)
        starts.append(bits(method))

    train(method, "cpu", observe, [0])
    prior = torch.zeros(2, 20).double(), eye(20).repeat(2, 1, 1)
    if "parametrisation" in settings:  # a basis is orthonormal up to rounding
        assert torch.equal(starts[0][0], prior[0])
        torch.testing.assert_close(starts[0][1], prior[1], rtol=0, atol=1e-14)
    else:
        assert same(starts[0], prior)
    for problem, trace in zip(problems, tracer.traces, strict=True):
        exact = problem.truth.posterior.mean.numpy(), dense(problem.truth.covariance_tril)
        # The twin inverts a covariance whose condition number is about 1e3.
        expected = twin.gaussian_kl(torch.zeros(20).numpy(), torch.eye(20).numpy(), *exact)
        point = trace.points[0]
        assert (point.steps, point.seconds, point.kl) == (0, 0, pytest.approx(expected, rel=1e-10))
    # It moves, so the start was not the end.
    assert not same(bits(method), starts[0])


@some
def test_another_seed_gives_other_numbers_where_they_matter(row, settings):
    data = TrainingData.of(toys()[:2])
    first, other = (trained(row, settings, data, seed=seed, steps=5)[0] for seed in (2, 3))
    # With all training rows and an A that sees every weight, the objective is that of weight space, whatever A is.
    alike = subject(row, settings).deterministic or ("S" not in settings and settings.get("M") == SEES_ALL)
    assert [torch.equal(one, two) for one, two in zip(first, other, strict=True)] == [alike] * 2


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(("row", "settings"), boston_sized(), ids=label)
def test_boston_sized_problems_are_bitwise_the_same_in_any_batch(row, settings, boston):
    """k = 100, N = 455: other kernels of BLAS and LAPACK than at k = 20. Alone, and among others in other places."""
    data = twenty_targets(boston)
    together = trained(row, settings, data)
    assert all(each.isfinite().all() for each in together)
    for places in ([0], [19], [1, 4, 7, 10, 13, 16, 19]):
        assert same(trained(row, settings, data, places), [each[places] for each in together])


@some_trained
def test_a_longer_run_begins_with_the_shorter_one(row, settings):
    fields = load_method(row.method).cls.Options.model_fields
    of_the_whole_run = {"lr_schedule": "constant", "averaging": 0.0, "burn_in": 0.0}
    settings = settings | {name: value for name, value in of_the_whole_run.items() if name in fields}
    data, seen = TrainingData.of(toys()[:2]), []
    longer = make(row, settings, data)
    train(longer, "cpu", lambda steps, seconds: seen.append(bits(longer)), [7])
    assert make(row, settings, data, steps=7).num_steps == 7
    assert same(trained(row, settings, data, steps=7), seen[0])


@some
def test_a_nan_in_one_problems_targets_does_not_affect_the_others(row, settings):
    problems = toys()[:3]
    data = TrainingData.of(problems)
    healthy = trained(row, settings, data)
    data.y[1] = math.nan
    method = make(row, settings, data)
    if row.trains:
        train(method, "cpu", Tracer(method, problems), trace_steps(STEPS))
    else:
        train(method, "cpu")
    reasons = method.divergences()
    assert (reasons[0], reasons[2]) == (None, None)
    q = unstack(method.posterior())[1]
    status = _unfit(q, row.family, data.k, reasons[1]) or _score_cell(q, problems[1])
    assert status["status"] == "diverged"
    # Every target is NaN, so that the first loss, that of step 0, is.
    assert not row.trains or status["reason"].endswith("at step 0")
    assert same([each[::2] for each in bits(method)], [each[::2] for each in healthy])
