"""Titsias's predictive variance against his own formula in dense NumPy, and the limits that he states."""

import numpy as np
import pytest
import torch

from fsvi_bench.maths.blr import blr_posterior, covariance_tril
from fsvi_bench.maths.features import inducing_tril, nystrom_features
from fsvi_bench.papers.validation.sgpr_predictive import titsias_predictive_variance

NOISE, OUTPUTSCALE, LENGTHSCALES = 0.3, 1.7, np.array([0.8, 1.4])


def kernel(a, b):
    scaled = (a[:, None, :] - b[None, :, :]) / LENGTHSCALES
    return OUTPUTSCALE * np.exp(-0.5 * (scaled**2).sum(-1))


def draw(k, jitter, seed=0):
    """Inputs, targets, inducing points, test inputs; their features; the posterior's mean and covariance factor."""
    rng = np.random.default_rng(seed)
    X, y, x = rng.normal(size=(30, 2)), rng.normal(size=30), rng.normal(size=(9, 2)) * 2
    Z = X[:k].copy()
    kernel_of = (torch.from_numpy(LENGTHSCALES), torch.tensor(OUTPUTSCALE, dtype=torch.float64))
    tril = inducing_tril(torch.from_numpy(Z), *kernel_of, torch.tensor(jitter, dtype=torch.float64))
    Phi, Phi_test = (nystrom_features(torch.from_numpy(a), torch.from_numpy(Z), *kernel_of, tril) for a in (X, x))
    posterior = blr_posterior(Phi, torch.from_numpy(y), torch.tensor(NOISE, dtype=torch.float64))
    return X, y, Z, x, Phi_test, posterior.mean, covariance_tril(posterior.precision_tril)


def variance_of(Phi_test, factor):
    return titsias_predictive_variance(
        Phi_test, factor, torch.tensor(NOISE, dtype=torch.float64), torch.tensor(OUTPUTSCALE, dtype=torch.float64)
    ).numpy()


@pytest.mark.parametrize("jitter", [1e-6, 0.1])
def test_mean_and_variance_are_titsias(jitter):
    """Eq. 6: mean k_xZ Σ⁻¹ k_ZX y/σ², variance k(x,x) − k_xZ (K⁻¹ − Σ⁻¹) k_Zx + σ², Σ = K + k_ZX k_XZ/σ².

    K has a condition number of 1e3 here: dense inverses keep 1e-11.
    """
    X, y, Z, x, Phi_test, mean, factor = draw(6, jitter)
    K, U, u = kernel(Z, Z) + jitter * np.eye(len(Z)), kernel(Z, X), kernel(Z, x)
    inverse_sigma = np.linalg.inv(K + U @ U.T / NOISE)
    reduced = np.einsum("kn,kl,ln->n", u, np.linalg.inv(K) - inverse_sigma, u)
    np.testing.assert_allclose(variance_of(Phi_test, factor), OUTPUTSCALE - reduced + NOISE, rtol=1e-10)
    np.testing.assert_allclose((Phi_test @ mean).numpy(), u.T @ inverse_sigma @ U @ y / NOISE, rtol=1e-9, atol=1e-11)
