import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fsvi_bench.maths.blr import (
    blr_posterior,
    blr_posterior_cholesky,
    blr_posterior_woodbury,
    covariance_tril,
    expected_log_likelihood,
    log_evidence,
    mean_field_optimum_kl,
    mean_field_optimum_scale,
    negative_log_predictive_density,
    predictive_variance,
)
from fsvi_bench.maths.gaussian import (
    gaussian_kl,
    gaussian_kl_standard_normal,
    gaussian_kl_to_precision,
)
from fsvi_bench.maths.linalg import logdet_of_tril
from tests import reference
from tests.maths.draws import PROPERTY, f64, seeds
from tests.reference import random_orthogonal, random_tril

rows = st.integers(1, 12)
sizes = st.integers(1, 5)
log_noises = st.floats(-4, 1)


def draw_problem(seed, N, k, log_noise=-1.0):
    """(Phi, y, noise_variance)."""
    rng = np.random.default_rng(seed)
    Phi, y = rng.standard_normal((N, k)), rng.standard_normal(N)
    return torch.from_numpy(Phi), torch.from_numpy(y), f64(math.exp(log_noise))


def draw_q(seed, *shape):
    """Mean and lower factor; shape is (*B, k)."""
    rng = np.random.default_rng([seed, 1])
    return torch.from_numpy(rng.standard_normal(shape)), torch.from_numpy(random_tril(rng, *shape, shape[-1]))


def as_numpy(Phi, y, noise_variance):
    return Phi.numpy(), y.numpy(), noise_variance.item()


def close(actual, expected, rtol=1e-11, atol=1e-11):
    """By default a little above eps · cond(Λ), which is below 1e4 for the well-conditioned draws."""
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=rtol, atol=atol)


# --- The posterior ----------------------------------------------------------------------------------------------------


@PROPERTY
@given(seed=seeds, N=rows, k=sizes, log_noise=log_noises)
def test_three_routes_to_the_posterior_agree_with_the_dense_inverse(seed, N, k, log_noise):
    Phi, y, noise = draw_problem(seed, N, k, log_noise)
    mean, covariance = reference.blr_posterior(*as_numpy(Phi, y, noise))
    for route in (
        blr_posterior(Phi, y, noise),
        blr_posterior_cholesky(Phi, y, noise),
    ):
        close(route.mean, mean)
        close(torch.cholesky_inverse(route.precision_tril), covariance)
        assert torch.equal(route.precision_tril, route.precision_tril.tril())
        assert (route.precision_tril.diagonal() > 0).all()
    woodbury = blr_posterior_woodbury(Phi, y, noise)
    close(woodbury.mean, mean)
    close(woodbury.covariance, covariance)


def ill_conditioned_problem():
    """Singular values from 1 to 1e-4 at noise 1e-8: cond(Λ) is 1e8, and the targets are not in the features' span."""
    rng = np.random.default_rng(2)
    Phi = random_orthogonal(rng, 6)[:, :3] @ np.diag([1.0, 1e-2, 1e-4]) @ random_orthogonal(rng, 3)
    return torch.from_numpy(Phi), torch.from_numpy(rng.standard_normal(6)), f64(1e-8)


def test_qr_keeps_digits_that_the_cholesky_factor_of_the_precision_loses():
    Phi, y, noise = ill_conditioned_problem()
    mean, logdet = reference.blr_posterior_many_digits(*as_numpy(Phi, y, noise))
    qr, cholesky = blr_posterior(Phi, y, noise), blr_posterior_cholesky(Phi, y, noise)
    logdets = [logdet_of_tril(route.precision_tril) for route in (qr, cholesky)]
    means = [route.mean for route in (qr, cholesky)]
    logdet_errors = [abs(value.item() / logdet - 1) for value in logdets]
    mean_errors = [((value - f64(mean)).norm() / np.linalg.norm(mean)).item() for value in means]
    # eps · √cond(Λ) = 2e-12 against eps · cond(Λ) = 2e-8, times luck: ΦᵀΦ has already rounded the digits away.
    for error_qr, error_cholesky in (logdet_errors, mean_errors):
        assert error_qr < 1e-11
        assert error_qr < 0.1 * error_cholesky


# --- Covariance factor, mean-field optimum, entropy -------------------------------------------------------------------


def test_covariance_tril_is_the_cholesky_factor_of_the_inverse():
    C = random_tril(np.random.default_rng(4), 2, 3, 5, 5)
    expected = np.linalg.cholesky(np.linalg.inv(C @ C.mT))
    close(covariance_tril(torch.from_numpy(C)), expected)


def test_mean_field_optimum_is_one_over_the_root_of_the_precisions_diagonal():
    C = random_tril(np.random.default_rng(6), 2, 4, 4)
    expected = 1 / np.sqrt(np.diagonal(C @ C.mT, axis1=-2, axis2=-1))
    close(mean_field_optimum_scale(torch.from_numpy(C)), expected, rtol=1e-14)


def mean_field_kl(scale, mean, C):
    return gaussian_kl_to_precision(mean, torch.diag(scale), mean, C).total


def test_the_kl_at_the_mean_field_optimum():
    """½(Σ log Λ_ii − log det Λ) is the KL of the factorised q with those scales; two terms of some nats cancel."""
    problems = [draw_problem(seed, 9, 4) for seed in (7, 8)]
    posteriors = [blr_posterior(*each) for each in problems]
    expected = [mean_field_kl(mean_field_optimum_scale(C), mean, C) for mean, C in posteriors]
    assert min(expected) > 1e-3
    close(mean_field_optimum_kl(torch.stack([C for _, C in posteriors])), torch.stack(expected), atol=1e-12)


def test_the_gradient_vanishes_at_the_mean_field_optimum():
    Phi, y, noise = draw_problem(8, 9, 4)
    mean, C = blr_posterior(Phi, y, noise)
    scale = mean_field_optimum_scale(C).requires_grad_()
    centre = mean.clone().requires_grad_()
    kl = gaussian_kl(centre, scale.diag(), mean, covariance_tril(C))
    for gradient in torch.autograd.grad(kl, (centre, scale)):
        close(gradient, torch.zeros(4), atol=1e-11)  # two terms of size 10 cancel


# --- Evidence and expected log likelihood -----------------------------------------------------------------------------


@PROPERTY
@given(seed=seeds, N=rows, k=sizes, log_noise=log_noises)
def test_log_evidence_equals_the_density_of_the_marginal(seed, N, k, log_noise):
    Phi, y, noise = draw_problem(seed, N, k, log_noise)
    expected = reference.blr_log_evidence(*as_numpy(Phi, y, noise))
    close(log_evidence(Phi, y, noise, blr_posterior(Phi, y, noise)), expected)


@PROPERTY
@given(seed=seeds, N=rows, k=sizes, log_noise=log_noises)
def test_expected_log_likelihood_equals_quadrature(seed, N, k, log_noise):
    Phi, y, noise = draw_problem(seed, N, k, log_noise)
    mean, tril = draw_q(seed, k)
    expected = reference.expected_log_likelihood(*as_numpy(Phi, y, noise), mean.numpy(), (tril @ tril.mT).numpy())
    close(expected_log_likelihood(Phi, y, noise, mean, tril), expected)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 12])
def test_the_minibatch_estimate_is_unbiased(n):
    # The mean over a partition into minibatches of equal size is the expectation of a minibatch drawn from it.
    Phi, y, noise = draw_problem(12, 12, 3)
    mean, tril = draw_q(12, 3)
    order = torch.from_numpy(np.random.default_rng(12).permutation(12))
    estimates = [
        expected_log_likelihood(Phi[batch], y[batch], noise, mean, tril, N=12) for batch in order.reshape(-1, n)
    ]
    expected = expected_log_likelihood(Phi, y, noise, mean, tril)
    close(torch.stack(estimates).mean(), expected, rtol=1e-12, atol=0)  # one sum in two orders


@PROPERTY
@given(seed=seeds, N=rows, k=sizes, log_noise=log_noises)
def test_elbo_plus_the_kl_to_the_posterior_is_the_log_evidence(seed, N, k, log_noise):
    Phi, y, noise = draw_problem(seed, N, k, log_noise)
    posterior = blr_posterior(Phi, y, noise)
    mean, tril = draw_q(seed, k)
    likelihood = expected_log_likelihood(Phi, y, noise, mean, tril)
    elbo = likelihood - gaussian_kl_standard_normal(mean, tril)
    kl = gaussian_kl_to_precision(mean, tril, posterior.mean, posterior.precision_tril).total
    # The terms reach 1e4 in size where the noise is small, so 1e-9 is thirteen of their digits.
    close(elbo + kl, log_evidence(Phi, y, noise, posterior), rtol=0, atol=1e-9)


# --- Predictions ------------------------------------------------------------------------------------------------------


def test_predictive_variance_is_the_diagonal_of_the_dense_covariance_plus_noise():
    Phi, _, noise = draw_problem(16, 7, 3)
    _, tril = draw_q(16, 3)
    expected = np.diag((Phi @ tril @ tril.mT @ Phi.mT).numpy()) + noise.item()
    close(predictive_variance(Phi, tril, noise), expected, rtol=1e-13)


def test_nlpd_is_in_the_targets_original_unit():
    rng = np.random.default_rng(17)
    y, mean, variance = rng.standard_normal(6), rng.standard_normal(6), rng.uniform(0.1, 2, 6)
    target_mean, target_std = 22.5, 9.2
    raw = norm.logpdf(target_std * y + target_mean, target_std * mean + target_mean, target_std * np.sqrt(variance))
    arguments = *map(torch.from_numpy, (y, mean, variance)), f64(target_std)
    close(negative_log_predictive_density(*arguments), -raw.mean(), rtol=1e-13)
