"""Gaussian dropout against the reference values and its identities."""

import math

import pytest
import torch

from fsvi_bench.maths.bernoulli_dropout import optimal_m
from fsvi_bench.maths.blr import blr_posterior, expected_log_likelihood
from fsvi_bench.maths.gaussian_dropout import gaussian_dropout_kl, gaussian_dropout_optimum, gaussian_dropout_scale
from tests import reference
from tests.maths.draws import EXPECTED, PUBLISHED, close, f64, published
from tests.maths.test_bernoulli_dropout import draw


@pytest.mark.data
@PUBLISHED
@pytest.mark.parametrize("alpha", ["0.05", "0.5"])
def test_reference_values(name, alpha):
    exact = published(name).truth.posterior
    kl = gaussian_dropout_kl(exact.mean, f64([float(alpha)]), *exact)
    assert float(kl.total) == pytest.approx(EXPECTED[name]["gaussian_dropout"][alpha]["kl"], rel=1e-11)
    assert float(kl.mean) == 0


def test_kl_equals_the_dense_formula():
    Phi, y, noise, theta, alpha = draw(0)
    mean, covariance = reference.blr_posterior(Phi.numpy(), y.numpy(), float(noise))
    expected = reference.gaussian_kl(theta.numpy(), torch.diag(alpha * theta**2).numpy(), mean, covariance)
    close(gaussian_dropout_kl(theta, alpha, *blr_posterior(Phi, y, noise)).total, expected)


def test_a_weight_of_zero_makes_q_singular():
    Phi, y, noise, theta, alpha = draw(1)
    theta[1] = 0.0
    assert float(gaussian_dropout_kl(theta, alpha, *blr_posterior(Phi, y, noise)).total) == math.inf


def test_optimum_has_no_gradient_and_depends_on_no_noise():
    Phi, y, noise, _, alpha = draw(2)
    theta = gaussian_dropout_optimum(Phi, y, alpha).requires_grad_()
    factor = torch.diag(gaussian_dropout_scale(theta, alpha))
    expected_log_likelihood(Phi, y, noise, theta, factor).backward()
    assert theta.grad.abs().max() < 1e-11
    close(theta, torch.linalg.solve(Phi.mT @ Phi + torch.diag(alpha * Phi.square().sum(0)), Phi.mT @ y), rtol=1e-11)


def test_optimum_is_that_of_bernoulli_dropout_of_equal_variance_without_a_prior():
    # p m ε' with ε' = ε/p has mean θ and variance (1−p)/p θ², and l → 0 takes the prior away.
    Phi, y, noise, _, p = draw(3)
    close(gaussian_dropout_optimum(Phi, y, (1 - p) / p), p * optimal_m(Phi, y, noise, p, 1e-9), rtol=1e-11)


def test_a_column_of_zeros_has_weight_zero():
    Phi, y, _, _, alpha = draw(4)
    Phi[:, 1] = 0.0
    theta = gaussian_dropout_optimum(Phi, y, alpha)
    rest = [0, 2, 3]
    assert theta[1] == 0
    close(theta[rest], gaussian_dropout_optimum(Phi[:, rest], y, alpha[rest]), rtol=1e-12)
