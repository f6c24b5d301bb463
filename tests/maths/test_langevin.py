"""Stationary laws of Langevin samplers: against the recursions themselves, and their noise against all minibatches."""

import itertools

import numpy as np
import pytest
import torch

from fsvi_bench.maths.blr import blr_posterior
from fsvi_bench.maths.langevin import (
    Regression,
    langevin,
    minibatch_covariance,
    moments_kl,
    stationary_kl,
    underdamped,
)
from tests import reference as twin
from tests.maths.draws import close, f64, normal

N, K, NOISE = 7, 3, 0.2


def problem(seed=0):
    """Features, targets and the posterior mean and precision of a regression."""
    Phi, y = normal([seed, 1], N, K), normal([seed, 2], N)
    posterior = blr_posterior(Phi, y, f64(NOISE))
    return Phi, y, posterior.mean, posterior.precision_tril @ posterior.precision_tril.mT


def in_weights(Phi, covariance):
    """From Λ's eigenvectors, as `Regression.of` has them, back to the weights."""
    Vh = torch.linalg.svd(Phi / NOISE**0.5).Vh
    return Vh.mT @ covariance @ Vh


@pytest.mark.parametrize("share", [0.01, 0.1, 0.9])
@pytest.mark.parametrize("friction", [None, 0.1, 1.0])
def test_with_all_rows_it_is_the_closed_form(share, friction):
    """Λ⁻¹(I − εΛ/4)⁻¹, against the recursion of the second moments iterated from 0 until they stand still."""
    Phi, y, mean, precision = problem()
    values, vectors = np.linalg.eigh(precision.numpy())
    largest = values.max()
    dynamics = langevin(largest, share) if friction is None else underdamped(largest, share, friction)
    recursion = dynamics.matrix(torch.from_numpy(values)).numpy()
    variances = []
    for A in recursion:
        kick = np.zeros_like(A)
        kick[-1, -1] = dynamics.injected
        # Doubling: X_2t = A^t X_t A^tᵀ + X_t.
        X = kick
        for _ in range(40):
            X, A = A @ X @ A.T + X, A @ A
        variances.append(X[0, 0])
    expected = 1 / (values * (1 - share * values / largest))
    np.testing.assert_allclose(variances, expected, rtol=1e-9)
    covariance = in_weights(Phi, minibatch_covariance(Regression.of(Phi, y, f64(NOISE), mean), dynamics, N))
    of_weights = (vectors * expected) @ vectors.T
    np.testing.assert_allclose(covariance, of_weights, rtol=1e-9, atol=1e-12)
    kl = twin.gaussian_kl(mean.numpy(), of_weights, mean.numpy(), np.linalg.inv(precision.numpy()))
    assert stationary_kl(torch.from_numpy(values), share) == pytest.approx(kl, rel=1e-8, abs=1e-12)
    assert stationary_kl(torch.from_numpy(values), 1.0) == np.inf


@pytest.mark.parametrize("n", [1, 3, 6])
def test_the_gradient_noise_is_that_of_all_minibatches(n):
    """E over w ~ N(m, Σ) by sigma points, since the gradient is linear in w; over S by listing every set of n rows."""
    Phi, y, mean, _ = problem()
    L = normal(3, K, K).tril()
    axes = K**0.5 * torch.cat([L.mT, -L.mT])
    total = torch.zeros(K, K).double()
    for w in mean + axes:
        per_row = Phi * ((Phi @ w - y) / NOISE)[:, None]
        sums = torch.stack([N / n * per_row[list(rows)].sum(0) for rows in itertools.combinations(range(N), n)])
        total += torch.cov(sums.mT, correction=0) / len(axes)
    regression = Regression.of(Phi, y, f64(NOISE), mean)
    Vh = torch.linalg.svd(Phi / NOISE**0.5).Vh
    close(in_weights(Phi, regression.gradient_noise(Vh @ L @ L.mT @ Vh.mT, n)), total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("friction", [None, 0.3])
def test_with_minibatches_it_is_the_fixed_point_over_all_of_them(friction):
    """The second moments of (w, v) after a step, averaged over every minibatch, are those before it."""
    Phi, y, mean, precision = problem()
    share, n = 0.05, 3
    largest = float(torch.linalg.eigvalsh(precision).max())
    dynamics = langevin(largest, share) if friction is None else underdamped(largest, share, friction)
    force, injected, _ = dynamics
    found = in_weights(Phi, minibatch_covariance(Regression.of(Phi, y, f64(NOISE), mean), dynamics, n))
    identity = np.eye(K)
    batches = [list(rows) for rows in itertools.combinations(range(N), n)]
    steps = []
    for rows in batches:
        H = (N / n * Phi[rows].mT @ Phi[rows] / NOISE).numpy() + identity
        at_mean = (N / n * Phi[rows].mT @ (Phi[rows] @ mean - y[rows]) / NOISE + mean).numpy()
        if friction is None:
            steps.append((identity - force * H, -force * at_mean))
        else:
            A = np.block([[identity, identity], [-force * H, (1 - friction) * identity - force * H]])
            steps.append((A, np.concatenate([np.zeros(K), -force * at_mean])))
    d = K if friction is None else 2 * K
    kick = np.zeros((d, d))
    kick[-K:, -K:] = injected * identity
    X = np.zeros((d, d))
    for _ in range(20_000):
        new = kick + sum(A @ X @ A.T + np.outer(b, b) for A, b in steps) / len(steps)
        still, X = np.abs(new - X).max() < 1e-14 * np.abs(new).max(), new
        if still:
            break
    np.testing.assert_allclose(found, X[:K, :K], rtol=1e-8, atol=1e-10)
    eigen = torch.linalg.eigh(precision)
    kl = moments_kl(eigen.eigenvalues, eigen.eigenvectors.mT @ found @ eigen.eigenvectors)
    expected = twin.gaussian_kl(mean.numpy(), found.numpy(), mean.numpy(), np.linalg.inv(precision.numpy()))
    assert kl == pytest.approx(expected, rel=1e-9)


def test_where_minibatches_make_it_unstable_there_is_no_covariance():
    Phi, y, mean, precision = problem()
    largest = float(torch.linalg.eigvalsh(precision).max())
    regression = Regression.of(Phi, y, f64(NOISE), mean)
    assert minibatch_covariance(regression, langevin(largest, 0.9), 1) is None


def test_memory_grows_with_the_number_of_rows_not_with_its_square():
    """A full U would have 300 GB, more than can be allocated."""
    Phi = normal(4, 200_000, K)
    mean = torch.zeros(K).double()
    regression = Regression.of(Phi, Phi[:, 0], f64(NOISE), mean)
    expected = torch.linalg.eigvalsh(Phi.mT @ Phi / NOISE + torch.eye(K).double())
    close(regression.eigenvalues.flip(0), expected, rtol=1e-12)
