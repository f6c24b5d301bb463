"""Natural gradients: their formula, closed-form optima, halving, averaging and independence."""

import math

import numpy as np
import pytest
import torch

from fsvi_bench.maths.blr import covariance_tril, mean_field_optimum_scale
from fsvi_bench.maths.functional_kl import measure
from fsvi_bench.methods.data import Batch, Rows, fill_columns
from fsvi_bench.methods.natural import NaturalGaussian, NaturalGradient, natural_step, root_of_inverse
from fsvi_bench.methods.rand_a_ngd import RandANgd
from fsvi_bench.training.trainer import train
from tests import reference
from tests.maths.draws import close, draw, eye, f64, ones
from tests.methods.synthetic import FAMILIES, exact, features, kl_to, synthetic


class Descent:
    """Natural-gradient steps on all rows, and on measurement sets as they come."""

    def __init__(self, problems, sets, family, lr, decay, kl_weight=1.0):
        self.rows, self.sets, self.kl_weight = Rows.whole(problems), sets, kl_weight
        self.q = NaturalGaussian(family, len(problems), problems.k)
        self.optimizer = NaturalGradient(self.q.parameters(), lr, decay)

    def run(self, steps):
        for _ in range(steps):
            natural_step(self.q, self.optimizer, Batch(self.rows, next(self.sets)), self.kl_weight)

    def posterior(self):
        return self.q.posterior()


def always(A):
    while True:
        yield A


@FAMILIES
@pytest.mark.parametrize(("kl_weight", "size"), [(1.0, 1.0), (2.0, 0.5)])
@pytest.mark.parametrize(("k", "M"), [(8, 8), (8, 13), (10, 17)])
def test_one_natural_step_solves_the_problem_where_a_sees_every_weight(k, M, kl_weight, size, family):
    """Λ ← Λ + ρ[ΦᵀΦ/σ² + c(I − Λ)] is ΦᵀΦ/(cσ²) + I for ρ = 1/c: the posterior under the noise variance cσ²."""
    problems, A = synthetic(3, k=k), measure(fill_columns(features(8, 3, M, k)))
    descent = Descent(problems, always(A), family, size, 0.0, kl_weight)
    descent.run(1)
    q, p = descent.posterior(), exact(problems, kl_weight)
    assert q.family == family
    if family == "full":
        kl = kl_to(q, p)
        assert kl.abs().max() < 1e-9
        close(q.covariance_tril(), covariance_tril(p.precision_tril), rtol=1e-9, atol=1e-12)
    else:
        close(q.scale, mean_field_optimum_scale(p.precision_tril), rtol=1e-12)
    assert q.mean.isfinite().all()


@pytest.mark.parametrize(("lr", "decay"), [(0.5, 0.6), (1.0, 0.0)])
def test_step_sizes(lr, decay):
    """ρ_t = lr (1 + t)^(−decay), read off a precision that moves along a constant gradient."""
    mean, precision = (torch.nn.Parameter(ones(1, 4), requires_grad=False) for _ in range(2))
    optimizer, sizes = NaturalGradient([mean, precision], lr, decay), []
    for _ in range(32):
        before = precision.clone()
        mean.grad, precision.grad = torch.zeros_like(mean), -torch.ones_like(precision)
        optimizer.step(hessian=lambda vector: vector, kl_weight=0.0)
        sizes.append(float((precision - before)[0, 0]))
    expected = [0.5, 0.5 * 2**-0.6, 0.5 / 8] if decay else [1.0, 1.0, 1.0]
    assert [sizes[t] for t in (0, 1, 31)] == pytest.approx(expected, rel=1e-13)


@FAMILIES
def test_a_natural_step_is_the_formula_of_its_docstring(family):
    """Second step of a run at a set of rank 5, with dense inverses; problem by problem."""
    problems, Phi_A = synthetic(2), features(10, 2, 5)
    descent = Descent(problems, always(measure(Phi_A)), family, 0.3, 0.5, kl_weight=1.5)
    descent.run(1)
    before = [descent.q.mean.clone(), descent.q.precision.clone()]
    descent.run(1)
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
            close(descent.q.precision[b], np.diag(after).copy(), rtol=1e-11)
        else:
            after, size = dense + rho * change, rho
            direction = np.linalg.solve(after, gradient)
            close(descent.q.precision[b], after, rtol=1e-10, atol=1e-10)
        close(descent.q.mean[b], mean - size * direction, rtol=1e-10, atol=1e-10)


@FAMILIES
def test_a_step_that_loses_positive_definiteness_is_halved_for_that_problem_alone(family):
    """kl_weight 3 and ρ = 1 at full rank: Λ₁ = I + G, and Λ₂ = Λ₁ + G − 3G = I − G, in which problem 1's G is tiny."""
    problems = synthetic(3)
    problems.Phi[1] *= 1e-3
    descent = Descent(problems, always(measure(features(11, 3, 9))), family, 1.0, 0.0, kl_weight=3.0)
    descent.run(2)
    gram = descent.rows.gram
    for b in range(3):
        G = gram[b] if family == "full" else gram[b].diagonal().diag()
        one = eye(8)
        halvings = 0
        while torch.linalg.eigvalsh(one + G - 0.5**halvings * 2 * G).min() <= 0:
            halvings += 1
        assert (halvings > 0) == (b != 1)
        expected = one + G - 0.5**halvings * 2 * G
        actual = descent.q.precision[b] if family == "full" else descent.q.precision[b].diag()
        close(actual, expected, rtol=1e-9, atol=1e-9)
    assert descent.posterior().covariance_tril().isfinite().all()
    assert descent.posterior().mean.isfinite().all()


@FAMILIES
def test_natural_descent_averages_precisions_and_means_of_the_tail(family):
    problems, means, precisions = synthetic(2), [], []
    averaged, plain = (RandANgd(problems, family, [1, 2], M=6, max_steps=10, averaging=a) for a in (0.4, 0.0))
    seen = {}

    def observe(steps, seconds):
        means.append(plain.q.mean.clone())
        precisions.append(plain.q.precision.clone())
        seen[steps] = plain.posterior()

    def compare(steps, seconds):
        assert torch.equal(averaged.posterior().mean, seen[6].mean)  # nothing is averaged yet
        assert averaged.evaluations() == [6, 6]

    train(plain, "cpu", observe, range(1, 11))
    train(averaged, "cpu", compare, [6])
    q, mean, precision = averaged.posterior(), torch.stack(means[6:]).mean(0), torch.stack(precisions[6:]).mean(0)
    close(q.mean, mean, rtol=1e-12)
    if family == "ffg":
        close(q.scale, precision.rsqrt(), rtol=1e-13)
    else:
        L = q.covariance_tril()
        close(L @ L.mT, torch.linalg.inv(precision), rtol=1e-10)
    assert not torch.equal(q.mean, plain.posterior().mean)
    # To look at the average does not change where the descent stands.
    assert torch.equal(averaged.q.mean, plain.q.mean)
    assert torch.equal(averaged.q.precision, plain.q.precision)


def test_the_factor_of_an_inverse():
    _, L = draw(np.random.default_rng(13), 4, 6)
    precision = torch.linalg.inv(L @ L.mT)
    # L is unique: lower triangular with a positive diagonal. cond(Σ) of the draws is up to 1e4.
    close(root_of_inverse(precision), L, rtol=1e-9, atol=1e-10)


def test_a_precision_without_a_factor_gives_no_factor_of_its_inverse_and_spares_the_others():
    precision = torch.stack([torch.eye(4), torch.eye(4), torch.eye(4)]).double()
    precision[1, 2, 2], precision[2, 0, 0] = -1.0, math.nan
    factors = root_of_inverse(precision)
    assert torch.equal(factors[0], eye(4))
    assert factors[1:].isnan().any(-1).any(-1).all()


def test_the_root_of_a_diagonal_inverse_is_standard_deviations():
    precision = f64([[4.0, 0.25]])
    assert torch.equal(root_of_inverse(precision), f64([[0.5, 2.0]]))
