"""Natural gradients: their formula, closed-form optima, halving, averaging and independence."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from fsvi_bench.maths.measurement import measure
from fsvi_bench.variational.likelihood import FullBatch
from fsvi_bench.variational.measurement import MeasurementDesign, MeasurementStream, align
from fsvi_bench.variational.natural import NaturalDescent, StepSize, tril_of_inverse

from fsvi_bench.maths.blr import covariance_tril, mean_field_optimum_scale
from tests import reference
from tests.maths.draws import close, draw
from tests.variational import FAMILIES, exact, features, kl_to, synthetic


def natural_on(problems, next_measurement, family, step_size, total, **options):
    return NaturalDescent(family, FullBatch(problems), next_measurement, step_size, total, **options)


@FAMILIES
@pytest.mark.parametrize(("kl_weight", "size"), [(1.0, 1.0), (2.0, 0.5)])
@pytest.mark.parametrize(("k", "M"), [(8, 8), (8, 13), (10, 17)])
def test_one_natural_step_solves_the_problem_where_a_sees_every_weight(k, M, kl_weight, size, family):
    """Λ ← Λ + ρ[ΦᵀΦ/σ² + c(I − Λ)] is ΦᵀΦ/(cσ²) + I for ρ = 1/c: the posterior under the noise variance cσ²."""
    problems, measurement = synthetic(3, k=k), measure(align(features(8, 3, M, k)))
    descent = natural_on(problems, lambda: measurement, family, StepSize(size, 0.0), 1, kl_weight=kl_weight)
    descent.run(range(1))
    q, p = descent.posterior(k), exact(problems, kl_weight)
    assert q.family == family
    if family == "full":
        kl = kl_to(q, p)
        assert kl.abs().max() < 1e-9
        close(q.covariance_tril(), covariance_tril(p.precision_tril), rtol=1e-9, atol=1e-12)
    else:
        close(q.scale, mean_field_optimum_scale(p.precision_tril), rtol=1e-12)
    assert descent.diverged_at.tolist() == [-1, -1, -1]


def test_natural_steps_of_a_factorised_q_find_the_mean():
    """The direction ∇/Λ_ii is preconditioned steepest descent with its best step: the mean comes, step by step."""
    problems, measurement = synthetic(3), measure(features(9, 3, 9))
    descent = natural_on(problems, lambda: measurement, "ffg", StepSize(1.0, 0.0), 400)
    p = exact(problems)

    def error():
        return float((descent.posterior(8).mean - p.mean).abs().max())

    errors = [error()]
    for start in range(0, 400, 40):
        descent.run(range(start, start + 40))
        errors.append(error())
    assert errors[-1] < 1e-6
    assert all(later < max(sooner, 1e-9) for sooner, later in pairwise(errors))


def test_step_sizes():
    sizes = StepSize(0.5, 0.6)
    assert [sizes(t) for t in (0, 1, 31)] == pytest.approx([0.5, 0.5 * 2**-0.6, 0.5 / 8], rel=1e-14)
    assert StepSize(1.0, 0.0)(1000) == 1.0


@FAMILIES
def test_a_natural_step_is_the_formula_of_its_docstring(family):
    """Second step of a run at a set of rank 5, with dense inverses; problem by problem."""
    problems, Phi_A = synthetic(2), features(10, 2, 5)
    measurement = measure(Phi_A)
    descent = natural_on(problems, lambda: measurement, family, StepSize(0.3, 0.5), 2, kl_weight=1.5)
    descent.run(range(1))
    before = [descent.mean.clone(), descent.precision.clone()]
    descent.run(range(1, 2))
    rho = 0.3 / np.sqrt(2)
    for b in range(2):
        Phi, y, variance = problems.Phi[b].numpy(), problems.y[b].numpy(), float(problems.noise_variance[b])
        gram, mean, precision = Phi.T @ Phi / variance, before[0][b].numpy(), before[1][b].numpy()
        dense = np.diag(precision) if family == "ffg" else precision
        projector = reference.measured_precision(Phi_A[b].numpy(), np.eye(8))
        change = gram + 1.5 * (projector - reference.measured_precision(Phi_A[b].numpy(), np.linalg.inv(dense)))
        gradient = gram @ mean - Phi.T @ y / variance + 1.5 * projector @ mean
        if family == "ffg":
            after = dense + rho * np.diag(np.diag(change))
            direction = np.linalg.solve(after, gradient)
            best = gradient @ direction / (direction @ (gram + 1.5 * projector) @ direction)
            size = min(rho, best)
            close(descent.precision[b], np.diag(after).copy(), rtol=1e-11)
        else:
            after, size = dense + rho * change, rho
            direction = np.linalg.solve(after, gradient)
            close(descent.precision[b], after, rtol=1e-10, atol=1e-10)
        close(descent.mean[b], mean - size * direction, rtol=1e-10, atol=1e-10)


@FAMILIES
def test_a_step_that_loses_positive_definiteness_is_halved_for_that_problem_alone(family):
    """kl_weight 3 and ρ = 1 at full rank: Λ₁ = I + G, and Λ₂ = Λ₁ + G − 3G = I − G, in which problem 1's G is tiny."""
    problems, measurement = synthetic(3), measure(features(11, 3, 9))
    problems.Phi[1] *= 1e-3
    descent = natural_on(problems, lambda: measurement, family, StepSize(1.0, 0.0), 2, kl_weight=3.0)
    descent.run(range(2))
    gram = FullBatch(problems).precision
    for b in range(3):
        G = gram[b] if family == "full" else gram[b].diagonal().diag()
        one = torch.eye(8, dtype=torch.float64)
        halvings = 0
        while torch.linalg.eigvalsh(one + G - 0.5**halvings * 2 * G).min() <= 0:
            halvings += 1
        assert (halvings > 0) == (b != 1)
        expected = one + G - 0.5**halvings * 2 * G
        actual = descent.precision[b] if family == "full" else descent.precision[b].diag()
        close(actual, expected, rtol=1e-9, atol=1e-9)
    assert descent.posterior(8).covariance_tril().isfinite().all()
    assert descent.diverged_at.tolist() == [-1, -1, -1]


@FAMILIES
def test_natural_descent_averages_precisions_and_means_of_the_tail(family):
    problems, seeds = synthetic(2), [1, 2]

    def stream():
        sets = iter(MeasurementStream(problems, MeasurementDesign(6), seeds))
        return lambda: next(sets).measurement

    descent = natural_on(problems, stream(), family, StepSize(), 10, averaging=0.4)
    plain = natural_on(problems, stream(), family, StepSize(), 10)
    means, precisions = [], []
    for step in range(10):
        for run in (descent, plain):
            run.run(range(step, step + 1))
        means.append(plain.mean.clone())
        precisions.append(plain.precision.clone())
        if step == 5:
            assert torch.equal(descent.posterior(8).mean, plain.posterior(8).mean)
            assert descent.evaluations == [6, 6]
    q, mean, precision = descent.posterior(8), torch.stack(means[6:]).mean(0), torch.stack(precisions[6:]).mean(0)
    close(q.mean, mean, rtol=1e-12)
    if family == "ffg":
        close(q.scale, precision.rsqrt(), rtol=1e-13)
    else:
        L = q.covariance_tril()
        close(L @ L.mT, torch.linalg.inv(precision), rtol=1e-10)
    assert not torch.equal(q.mean, plain.posterior(8).mean)


@FAMILIES
def test_a_natural_run_does_not_depend_on_how_it_is_cut_nor_on_the_batch(family):
    problems, design = synthetic(5, k=12, N=31), MeasurementDesign(7)

    def run(some, seeds, pieces):
        sets = iter(MeasurementStream(some, design, seeds))
        descent = natural_on(some, lambda: next(sets).measurement, family, StepSize(), 24, averaging=0.5)
        for start in range(0, 24, 24 // pieces):
            descent.run(range(start, start + 24 // pieces))
        return descent.posterior(12)

    whole = run(problems, range(5), 1)
    for b in range(5):
        alone = run(problems.only(b), [b], 4)
        assert torch.equal(alone.mean[0], whole.mean[b])
        assert torch.equal(alone.covariance_tril()[0], whole.covariance_tril()[b])


def test_natural_descent_notes_a_set_that_is_not_finite_for_its_problem_alone():
    problems, Phi_A = synthetic(3), features(12, 3, 6)
    sound = measure(Phi_A)
    Phi_A[2, 1, 1] = float("nan")
    broken = measure(Phi_A)
    for family in ("full", "ffg"):
        steps = iter([sound, broken, sound])
        descent = natural_on(problems, lambda steps=steps: next(steps), family, StepSize(), 3)
        healthy = natural_on(problems, lambda: sound, family, StepSize(), 3)
        descent.run(range(3))
        healthy.run(range(3))
        assert descent.diverged_at.tolist() == [-1, -1, 1]
        assert torch.equal(descent.mean[:2], healthy.mean[:2])
        assert torch.equal(descent.precision[:2], healthy.precision[:2])
        assert descent.stopped_after == [None, None, 2]
        assert descent.evaluations == [3, 3, 2]


def test_the_factor_of_an_inverse():
    _, L = draw(np.random.default_rng(13), 4, 6)
    precision = torch.linalg.inv(L @ L.mT)
    # L is unique: lower triangular with a positive diagonal. cond(Σ) of the draws is up to 1e4.
    close(tril_of_inverse(precision), L, rtol=1e-9, atol=1e-10)


def test_a_precision_without_a_factor_gives_no_factor_of_its_inverse_and_spares_the_others():
    precision = torch.stack([torch.eye(4), torch.eye(4), torch.eye(4)]).double()
    precision[1, 2, 2], precision[2, 0, 0] = -1.0, math.nan
    factors = tril_of_inverse(precision)
    assert torch.equal(factors[0], torch.eye(4, dtype=torch.float64))
    assert factors[1:].isnan().any(-1).any(-1).all()
