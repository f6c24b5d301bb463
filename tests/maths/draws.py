"""Random Gaussians and settings that the tests of `maths/` share."""

import math

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

from tests.reference import random_tril

PROPERTY = settings(deadline=None, derandomize=True, max_examples=50, database=None)
sizes = st.integers(1, 6)
seeds = st.integers(0, 2**32 - 1)
log_scales = st.floats(-3, 3)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def draw(rng, *shape, log_scale=0.0):
    """Mean and lower factor of a Gaussian whose standard deviations are about exp(log_scale); shape is (*B, k)."""
    mean = math.exp(log_scale) * rng.standard_normal(shape)
    return torch.from_numpy(mean), torch.from_numpy(random_tril(rng, *shape, shape[-1], log_scale=log_scale))


def draw_pair(seed, k, log_scale=0.0):
    """(mean_q, tril_q, mean_p, tril_p), p on the unit scale."""
    rng = np.random.default_rng(seed)
    return *draw(rng, k, log_scale=log_scale), *draw(rng, k)


def dense(tril):
    return (tril @ tril.mT).numpy()


def precision_tril(tril):
    """C of (LLᵀ)⁻¹ = CCᵀ."""
    return torch.linalg.cholesky(torch.linalg.inv(tril @ tril.mT))


def close(actual, expected, rtol=1e-11, atol=1e-11):
    """By default what eps · cond(Σ) leaves: cond(Σ) of the draws is 1e2 to 1e4, their KLs are 1e-1 to 1e5."""
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=rtol, atol=atol)
