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
    precision_eigenvalues,
    predictive_variance,
)
from fsvi_bench.maths.gaussian import (
    gaussian_kl,
    gaussian_kl_standard_normal,
    gaussian_kl_to_precision,
)
from fsvi_bench.maths.linalg import logdet_of_tril
from tests import reference
from tests.maths.draws import PROPERTY, close, dense, draw, eye, f64, normal, seeds
from tests.reference import random_orthogonal, random_tril


def draw_problem(seed, N, k, log_noise=-1.0):
    """(Phi, y, noise_variance)."""
    return normal(seed, N, k), normal([seed, 0], N), f64(math.exp(log_noise))


def draw_q(seed, k):
    return draw(np.random.default_rng([seed, 1]), k)


problems = st.builds(draw_problem, seeds, st.integers(1, 12), st.integers(1, 5), st.floats(-4, 1))


def as_numpy(Phi, y, noise_variance):
    return Phi.numpy(), y.numpy(), noise_variance.item()


# --- The posterior ----------------------------------------------------------------------------------------------------


@PROPERTY
@given(problems)
def test_three_routes_to_the_posterior_agree_with_the_dense_inverse(problem):
    mean, covariance = reference.blr_posterior(*as_numpy(*problem))
    for route in (blr_posterior(*problem), blr_posterior_cholesky(*problem)):
        close(route.mean, mean)
        close(torch.cholesky_inverse(route.precision_tril), covariance)
        assert torch.equal(route.precision_tril, route.precision_tril.tril())
        assert (route.precision_tril.diagonal() > 0).all()
    woodbury = blr_posterior_woodbury(*problem)
    close(woodbury.mean, mean)
    close(woodbury.covariance, covariance)


def test_qr_keeps_digits_that_the_cholesky_factor_of_the_precision_loses():
    """Singular values from 1 to 1e-4 at noise 1e-8: cond(Λ) is 1e8, and the targets are not in the features' span."""
    rng = np.random.default_rng(2)
    Phi = random_orthogonal(rng, 6)[:, :3] @ np.diag([1.0, 1e-2, 1e-4]) @ random_orthogonal(rng, 3)
    problem = torch.from_numpy(Phi), torch.from_numpy(rng.standard_normal(6)), f64(1e-8)
    mean, logdet = reference.blr_posterior_many_digits(*as_numpy(*problem))
    errors = []
    for route in (blr_posterior(*problem), blr_posterior_cholesky(*problem)):
        of_mean = float((route.mean - f64(mean)).norm()) / np.linalg.norm(mean)
        errors.append((abs(float(logdet_of_tril(route.precision_tril)) / logdet - 1), of_mean))
    # eps · √cond(Λ) = 2e-12 against eps · cond(Λ) = 2e-8, times luck: ΦᵀΦ has already rounded the digits away.
    for error_qr, error_cholesky in zip(*errors, strict=True):
        assert error_qr < 1e-11
        assert error_qr < 0.1 * error_cholesky


# --- Covariance factor, mean-field optimum, entropy -------------------------------------------------------------------


def test_covariance_tril_is_the_cholesky_factor_of_the_inverse():
    C = random_tril(np.random.default_rng(4), 2, 3, 5, 5)
    expected = np.linalg.cholesky(np.linalg.inv(C @ C.mT))
    close(covariance_tril(torch.from_numpy(C)), expected)


def test_the_kl_at_the_mean_field_optimum_and_its_gradient():
    """½(Σ log Λ_ii − log det Λ) is the KL of the factorised q with those scales; two terms of some nats cancel."""
    posteriors, expected = [blr_posterior(*draw_problem(seed, 9, 4)) for seed in (7, 8)], []
    for mean, C in posteriors:
        centre, scale = mean.clone().requires_grad_(), mean_field_optimum_scale(C).requires_grad_()
        kl = gaussian_kl(centre, scale.diag(), mean, covariance_tril(C))
        for gradient in torch.autograd.grad(kl, (centre, scale)):
            close(gradient, torch.zeros(4), atol=1e-11)  # two terms of size 10 cancel
        expected.append(gaussian_kl_to_precision(mean, scale.detach().diag(), mean, C).total)
    assert min(expected) > 1e-3
    close(mean_field_optimum_kl(torch.stack([C for _, C in posteriors])), torch.stack(expected), atol=1e-12)


# --- Evidence and expected log likelihood -----------------------------------------------------------------------------


@PROPERTY
@given(problems)
def test_evidence_and_expected_likelihood_equal_dense_ones_and_their_gap_is_the_kl(problem):
    posterior, (mean, tril) = blr_posterior(*problem), draw_q(3, problem[0].shape[1])
    evidence, likelihood = log_evidence(*problem, posterior), expected_log_likelihood(*problem, mean, tril)
    close(evidence, reference.blr_log_evidence(*as_numpy(*problem)))
    close(likelihood, reference.expected_log_likelihood(*as_numpy(*problem), mean.numpy(), dense(tril)))
    elbo = likelihood - gaussian_kl_standard_normal(mean, tril)
    # The terms reach 1e4 in size where the noise is small, so 1e-9 is thirteen of their digits.
    close(elbo + gaussian_kl_to_precision(mean, tril, *posterior).total, evidence, rtol=0, atol=1e-9)


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


# --- Predictions ------------------------------------------------------------------------------------------------------


def test_predictive_variance_is_the_diagonal_of_the_dense_covariance_plus_noise():
    Phi, _, noise = draw_problem(16, 7, 3)
    _, tril = draw_q(16, 3)
    expected = (Phi @ tril @ tril.mT @ Phi.mT).diagonal() + noise
    close(predictive_variance(Phi, tril, noise), expected, rtol=1e-13)


def test_nlpd_is_in_the_targets_original_unit():
    rng = np.random.default_rng(17)
    y, mean, variance = rng.standard_normal(6), rng.standard_normal(6), rng.uniform(0.1, 2, 6)
    target_mean, target_std = 22.5, 9.2
    raw = norm.logpdf(target_std * y + target_mean, target_std * mean + target_mean, target_std * np.sqrt(variance))
    arguments = *map(torch.from_numpy, (y, mean, variance)), f64(target_std)
    close(negative_log_predictive_density(*arguments), -raw.mean(), rtol=1e-13)


@pytest.mark.parametrize(("N", "k"), [(12, 5), (4, 9)])
def test_the_eigenvalues_of_the_precision_are_those_of_the_matrix(N, k):
    Phi, noise_variance = normal(0, 3, N, k), torch.tensor([0.1, 1.0, 7.0]).double()
    dense = Phi.mT @ Phi / noise_variance[:, None, None] + eye(k)
    expected = torch.linalg.eigvalsh(dense).flip(-1)[:, : min(N, k)]
    close(precision_eigenvalues(Phi, noise_variance), expected, rtol=1e-11)
