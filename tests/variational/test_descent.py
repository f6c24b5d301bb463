"""Adam, L-BFGS and natural gradients: against textbook loops, closed-form optima, and each other's independence."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from fsvi_bench.maths.blr import blr_posterior, covariance_tril, mean_field_optimum_scale
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.maths.measurement import measure
from fsvi_bench.variational.descent import AdamDescent, DivergenceLog, LearningRate
from fsvi_bench.variational.gradients import set_gradient
from fsvi_bench.variational.lbfgs import LbfgsDescent
from fsvi_bench.variational.likelihood import FullBatch
from fsvi_bench.variational.measurement import MeasurementDesign, MeasurementStream, align, aligned
from fsvi_bench.variational.natural import NaturalDescent, StepSize, tril_of_inverse
from fsvi_bench.variational.parameters import make_parameters
from tests import reference
from tests.maths.draws import close, draw
from tests.variational import automatic_loss, synthetic

FAMILIES = pytest.mark.parametrize("family", ["full", "ffg"])


def features(seed, B, M, k=8):
    return torch.from_numpy(np.random.default_rng([seed, M]).standard_normal((B, M, k)))


def exact(problems, tempering=1.0):
    return blr_posterior(problems.Phi, problems.y, tempering * problems.noise_variance)


def kl_to(q, p):
    return gaussian_kl_to_precision(q.mean, q.covariance_tril(), *p).total


# --- Adam -------------------------------------------------------------------------------------------------------------


def adam_on(problems, Phi_A, family, learning_rate, **options):
    """FIXEDA by Adam."""
    q = make_parameters(family, len(problems), aligned(problems.k))
    measurement, likelihood = measure(align(Phi_A)), FullBatch(problems)
    return AdamDescent(q, lambda: set_gradient(q, measurement, likelihood, 1.0), learning_rate, **options)


def parameter_names(family):
    return ("_mean", "_log_scale") if family == "ffg" else ("_mean", "_factor", "_log_diagonal")


def automatic_gradient(problem, Phi_A, family):
    """The objective's gradient in one vector of unconstrained parameters, automatically."""
    k = problem.k
    shapes = [(1, k), (1, k)] if family == "ffg" else [(1, k), (1, k, k), (1, k)]
    sizes = [int(np.prod(shape)) for shape in shapes]

    def gradient(x):
        parts = torch.from_numpy(x).split(sizes)
        leaves = [part.reshape(shape).requires_grad_() for part, shape in zip(parts, shapes, strict=True)]
        loss, _ = automatic_loss(problem, Phi_A, 1.0, dict(zip(parameter_names(family), leaves, strict=True)))
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss.sum(), leaves)]).numpy()

    return gradient, np.zeros(sum(sizes))


def flattened(q, family, b, k):
    """One problem's unconstrained parameters as a vector, in `automatic_gradient`'s order."""
    parameters = dict(q.named_parameters())
    mean, last = parameters["_mean"][b, :k], parameters[parameter_names(family)[-1]][b, :k]
    below = [] if family == "ffg" else [parameters["_factor"][b, :k, :k].tril(-1).flatten()]
    return torch.cat([mean, *below, last]).detach().numpy()


@FAMILIES
@pytest.mark.parametrize(
    ("k", "M", "schedule"), [(8, 3, "constant"), (8, 6, "cosine"), (8, 9, "linear"), (10, 6, "constant")]
)
def test_adam_is_the_textbook_s_for_every_problem(k, M, schedule, family):
    """50 steps of each of three problems alone, with automatic gradients, against the batch: rounding only."""
    problems, Phi_A, learning_rate = synthetic(3, k=k), features(0, 3, M, k), LearningRate(0.03, schedule, 50)
    descent = adam_on(problems, Phi_A, family, learning_rate)
    descent.run(range(20))
    descent.run(range(20, 50))
    for b in range(3):
        gradient, start = automatic_gradient(problems.only(b), Phi_A[b : b + 1], family)
        expected = reference.adam(gradient, start, [learning_rate(step) for step in range(50)])[-1]
        np.testing.assert_allclose(flattened(descent.q, family, b, k), expected, rtol=0, atol=1e-10)
    assert descent.diverged_at.tolist() == [-1, -1, -1]
    assert descent.evaluations == [50, 50, 50]
    assert not descent.finished


@FAMILIES
def test_adam_averages_the_iterates_of_the_tail(family):
    """A share of 0.3 of 20 steps is the last 6 of them; parameters are averaged, not what they stand for."""
    problems, Phi_A, learning_rate = synthetic(2), features(1, 2, 5), LearningRate(0.05, "constant", 20)
    descent = adam_on(problems, Phi_A, family, learning_rate, averaging=0.3)
    plain = adam_on(problems, Phi_A, family, learning_rate)
    iterates = []
    for step in range(20):
        plain.run(range(step, step + 1))
        descent.run(range(step, step + 1))
        iterates.append([flattened(plain.q, family, b, 8) for b in range(2)])
        if step < 14:  # nothing is averaged yet: the posterior is the iterate itself
            assert torch.equal(descent.posterior(8).mean, plain.posterior(8).mean)
            assert torch.equal(descent.posterior(8).covariance_tril(), plain.posterior(8).covariance_tril())
    for b in range(2):
        expected = torch.from_numpy(np.mean(iterates[14:], axis=0)[b])
        averaged = descent.posterior(8)[b]
        close(averaged.mean, expected[:8], rtol=1e-13, atol=1e-15)
        tril = averaged.covariance_tril()
        close(tril.diagonal(), expected[-8:].exp(), rtol=1e-13)
        if family == "full":
            close(tril.tril(-1).flatten(), expected[8:72], rtol=1e-13, atol=1e-15)
    # To look at the average does not change where the descent stands.
    for one, two in zip(descent.q.parameters(), plain.q.parameters(), strict=True):
        assert torch.equal(one, two)


@FAMILIES
def test_an_adam_run_does_not_depend_on_how_it_is_cut_nor_on_the_batch(family):
    problems, Phi_A, learning_rate = synthetic(5, k=12), features(2, 5, 7, 12), LearningRate(0.03, "linear", 30)
    whole = adam_on(problems, Phi_A, family, learning_rate, averaging=0.5)
    whole.run(range(30))
    for b in range(5):
        alone = adam_on(problems.only(b), Phi_A[b : b + 1].clone(), family, learning_rate, averaging=0.5)
        for start in range(0, 30, 6):
            alone.run(range(start, start + 6))
        assert torch.equal(alone.posterior(12).mean[0], whole.posterior(12).mean[b])
        assert torch.equal(alone.posterior(12).covariance_tril()[0], whole.posterior(12).covariance_tril()[b])


def test_learning_rates():
    constant, linear, cosine = (LearningRate(0.2, schedule, 8) for schedule in ("constant", "linear", "cosine"))
    assert [constant(step) for step in (0, 4, 7)] == [0.2, 0.2, 0.2]
    assert [linear(step) for step in (0, 2, 4, 7)] == pytest.approx([0.2, 0.15, 0.1, 0.025], rel=1e-14)
    expected = [0.1 * (1 + np.cos(np.pi * step / 8)) for step in range(8)]
    assert [cosine(step) for step in range(8)] == pytest.approx(expected, rel=1e-12)
    assert cosine(0) == 0.2
    assert cosine(4) == pytest.approx(0.1, rel=1e-14)


def scripted(losses, bad_gradient):
    """An Adam run of one quadratic per problem, whose losses are as scripted: [steps][problem]."""
    q = make_parameters("ffg", len(losses[0]), 8)
    steps = iter(losses)

    def gradient():
        loss = torch.tensor(next(steps), dtype=torch.float64)
        in_mean = q.mean - 1.0
        if bad_gradient:
            in_mean = torch.where(loss.isfinite()[:, None], in_mean, torch.nan)
        q.set_gradient(in_mean, torch.zeros_like(in_mean))
        return loss

    return AdamDescent(q, gradient, LearningRate(0.1, "constant", len(losses)))


@pytest.mark.parametrize("bad_gradient", [False, True])
def test_divergence_is_noted_at_the_first_bad_step_of_that_problem(bad_gradient):
    nan, inf = float("nan"), float("inf")
    losses = [
        [1.0, 1.0, 1.0, 1.0],
        [1.0, nan, 1.0, 1.0],
        [1.0, nan, inf, 1.0],
        [1.0, 1.0, -inf, 1.0],
        [1.0, 1.0, 1.0, nan],
    ]
    descent, healthy = scripted(losses, bad_gradient), scripted([[1.0]] * 5, False)
    descent.run(range(2))
    assert descent.diverged_at.tolist() == [-1, 1, -1, -1]
    descent.run(range(2, 5))
    healthy.run(range(5))
    assert descent.diverged_at.tolist() == [-1, 1, 2, 4]
    assert not descent.finished
    assert torch.equal(descent.posterior(8).mean[0], healthy.posterior(8).mean[0])
    assert bool(descent.posterior(8).mean[1].isnan().all()) == bad_gradient


def test_a_run_is_finished_when_all_its_problems_have_diverged():
    nan = float("nan")
    descent = scripted([[1.0, nan], [1.0, 1.0], [nan, 1.0]], True)
    descent.run(range(2))
    assert not descent.finished
    descent.run(range(2, 3))
    assert descent.finished
    assert descent.diverged_at.tolist() == [2, 0]


def test_a_log_keeps_the_first_step():
    log = DivergenceLog(3, torch.device("cpu"))
    assert log.steps.tolist() == [-1, -1, -1]
    log.note(0, torch.tensor([0.0, float("nan"), 0.0]))
    log.note(5, torch.tensor([0.0, float("nan"), float("inf")]))
    assert log.steps.tolist() == [-1, 0, 5]


def test_a_set_that_is_not_finite_diverges_alone_and_at_once():
    problems, Phi_A, learning_rate = synthetic(3), features(3, 3, 6), LearningRate(0.03, "constant", 10)
    healthy = adam_on(problems, Phi_A, "full", learning_rate)
    Phi_A = Phi_A.clone()
    Phi_A[1, 0, 0] = float("nan")
    descent = adam_on(problems, Phi_A, "full", learning_rate)
    for run in (healthy, descent):
        run.run(range(10))
    assert descent.diverged_at.tolist() == [-1, 0, -1]
    assert torch.equal(descent.posterior(8).mean[::2], healthy.posterior(8).mean[::2])
    assert torch.equal(descent.posterior(8).covariance_tril()[::2], healthy.posterior(8).covariance_tril()[::2])


# --- L-BFGS -----------------------------------------------------------------------------------------------------------


def lbfgs_on(problems, Phi_A, family, kl_weight=1.0):
    """FIXEDA by L-BFGS; `calls` counts each problem's evaluations."""
    parameters, losses, calls = [], [], [0] * len(problems)

    def loss_of(b):
        q, likelihood = parameters[b], FullBatch(problems.only(b))
        measurement = measure(align(Phi_A[b : b + 1].clone()), avoid_inverse=True)

        def loss():
            calls[b] += 1
            kl = set_gradient(q, measurement, likelihood, kl_weight)
            value = (
                likelihood.value(q.mean, q.factor) if family == "full" else likelihood.value_diagonal(q.mean, q.scale)
            )
            return float(value + kl_weight * kl)

        return loss

    for b in range(len(problems)):
        parameters.append(make_parameters(family, 1, aligned(problems.k)))
        losses.append(loss_of(b))
    return LbfgsDescent(parameters, losses), calls


@pytest.mark.parametrize("kl_weight", [1.0, 2.0])
@pytest.mark.parametrize(("k", "M"), [(8, 9), (6, 7)])
def test_lbfgs_reaches_the_closed_form_optimum_where_a_sees_every_weight(k, M, kl_weight):
    """The gradient is below 1e-7 there, or the loss of order 100 no longer moves by 1e-12: KLs of 1e-10 either way."""
    problems, Phi_A = synthetic(2, k=k), features(4, 2, M, k)
    p = exact(problems, kl_weight)
    for family in ("full", "ffg"):
        descent, _ = lbfgs_on(problems, Phi_A, family, kl_weight)
        descent.run(range(2000))
        assert descent.finished
        assert descent.diverged_at.tolist() == [-1, -1]
        q = descent.posterior(k)
        assert q.family == family
        expected = torch.zeros(2, dtype=torch.float64)
        if family == "ffg":
            expected = kl_to(type(q)(p.mean, mean_field_optimum_scale(p.precision_tril)), p)
            close(q.scale, mean_field_optimum_scale(p.precision_tril), rtol=1e-5)
        close(kl_to(q, p), expected, rtol=0, atol=1e-9)
        close(q.mean, p.mean, rtol=0, atol=1e-5)


def test_lbfgs_stops_a_problem_that_has_converged_while_another_goes_on():
    """Problem 0 has no targets and a prior for its optimum, but for the covariance; problem 1 needs many more steps."""
    problems, Phi_A = synthetic(2), features(5, 2, 9)
    problems.Phi[0] = 0.0
    problems.Phi[0, 0, 0] = 0.1
    descent, calls = lbfgs_on(problems, Phi_A, "full")
    descent.run(range(40))
    assert not descent.finished
    after = list(calls)
    assert descent.evaluations == after
    assert after[0] < 40 < after[1]
    for start in range(40, 400, 40):
        descent.run(range(start, start + 40))
    assert descent.evaluations == calls
    assert calls[0] == after[0]
    assert calls[1] > after[1]
    assert descent.finished
    close(kl_to(descent.posterior(8), exact(problems)), [0.0, 0.0], atol=1e-9)


@FAMILIES
def test_an_lbfgs_run_does_not_depend_on_how_it_is_cut(family):
    problems, Phi_A = synthetic(2), features(6, 2, 9)
    whole, _ = lbfgs_on(problems, Phi_A, family)
    cut, _ = lbfgs_on(problems, Phi_A, family)
    whole.run(range(12))
    for start, stop in ((0, 5), (5, 6), (6, 12)):
        cut.run(range(start, stop))
    assert not whole.finished
    assert torch.equal(whole.posterior(8).mean, cut.posterior(8).mean)
    assert torch.equal(whole.posterior(8).covariance_tril(), cut.posterior(8).covariance_tril())


def test_lbfgs_notes_a_loss_that_is_no_number_for_that_problem_alone():
    problems, Phi_A = synthetic(3), features(7, 3, 9)
    healthy, _ = lbfgs_on(problems, Phi_A, "full")
    descent, calls = lbfgs_on(problems, Phi_A, "full")
    sound = descent.losses[1]
    descent.losses[1] = lambda: float("nan") if calls[0] > 10 else sound()  # from the second call of `run` on
    descent.run(range(1))
    healthy.run(range(1))
    assert descent.diverged_at.tolist() == [-1, -1, -1]
    for start in range(1, 300, 20):
        descent.run(range(start, start + 20))
        healthy.run(range(start, start + 20))
    assert descent.diverged_at.tolist() == [-1, 1, -1]
    assert descent.finished
    assert torch.equal(descent.posterior(8).mean[::2], healthy.posterior(8).mean[::2])


# --- Natural gradients ------------------------------------------------------------------------------------------------


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


def test_the_factor_of_an_inverse():
    _, L = draw(np.random.default_rng(13), 4, 6)
    precision = torch.linalg.inv(L @ L.mT)
    # L is unique: lower triangular with a positive diagonal. cond(Σ) of the draws is up to 1e4.
    close(tril_of_inverse(precision), L, rtol=1e-9, atol=1e-10)
