"""Made up for the tests of what methods share: problems, B at a time, of any shape, no two alike; their objective."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fsvi_bench.maths.blr import blr_posterior, expected_log_likelihood
from fsvi_bench.maths.features import inducing_tril
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.maths.projection import projected_kl, row_space
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.tasks.task import FeatureMap
from tests.maths.draws import eye, ones, zeros

FAMILIES = pytest.mark.parametrize("family", ["full", "ffg"])


def synthetic(B, N=30, D=2, k=8, seed=0):
    """Whitened Nyström features at uniform inputs, targets from a smooth function, noise variances of 0.1, 0.2, ..."""
    rng = np.random.default_rng([seed, B, N, D, k])
    X = torch.from_numpy(rng.uniform(-2, 2, (B, N, D)) * np.arange(1, D + 1))
    Z = torch.from_numpy(rng.uniform(-2, 2, (B, k, D)))
    lengthscales = torch.full((B, D), 1.3, dtype=torch.float64)
    outputscale, jitter = ones(B), torch.full((B,), 0.1, dtype=torch.float64)
    tril = inducing_tril(Z, lengthscales, outputscale, jitter)
    feature_map = FeatureMap(Z, lengthscales, outputscale, tril)
    y = X.sin().sum(-1) + torch.from_numpy(0.3 * rng.standard_normal((B, N)))
    noise_variance = 0.1 * torch.arange(1, B + 1, dtype=torch.float64)
    return TrainingData(X, y, feature_map(X), noise_variance, X.amin(1), X.amax(1), feature_map)


@dataclass
class InputsAsFeatures:
    """φ(x) = x, so that a measurement set can be read off its features; one for any number of problems."""

    def __call__(self, x):
        return x

    def __getitem__(self, problem):
        return self

    def to(self, device):
        return self


def transparent(X):
    """Problems whose features are their inputs [B,N,D]."""
    noise_variance = ones(len(X))
    return TrainingData(X, X.sum(-1), X, noise_variance, X.amin(1), X.amax(1), InputsAsFeatures())


def factor_of(leaves):
    """L of a `TrainableGaussian`'s parameters: its strict lower triangle, and the logarithm of its diagonal."""
    if "log_scale" in leaves:
        return torch.diag_embed(leaves["log_scale"].exp())
    lower = leaves["lower"]
    return lower.tril(-1) + torch.diag_embed(lower.diagonal(dim1=-2, dim2=-1).exp())


def automatic_loss(problems, Phi_A, kl_weight, leaves, rows=None):
    """The objective from the formulas of `maths/`, per problem; `rows` are a minibatch's (Phi, y)."""
    Phi, y = (problems.Phi, problems.y) if rows is None else rows
    mean, factor, k = leaves["mean"], factor_of(leaves), problems.k
    zero, identity = zeros(k), eye(k)
    fit = expected_log_likelihood(Phi, y, problems.noise_variance, mean, factor, N=problems.y.shape[1])
    kls = [projected_kl(row_space(Phi_A[b]), mean[b], factor[b], zero, identity) for b in range(len(mean))]
    return -fit + kl_weight * torch.stack(kls), torch.stack(kls)


def features(seed, B, M, k=8):
    return torch.from_numpy(np.random.default_rng([seed, M]).standard_normal((B, M, k)))


def exact(problems, tempering=1.0):
    return blr_posterior(problems.Phi, problems.y, tempering * problems.noise_variance)


def kl_to(q, p):
    return gaussian_kl_to_precision(q.mean, q.covariance_tril(), *p).total
