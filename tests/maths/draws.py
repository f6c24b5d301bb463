"""Random Gaussians, published values and settings that the tests of `maths/` and `scoring/` share."""

import json
import math
from functools import cache, partial

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st

from fsvi_bench.tasks.frozen import read_task
from fsvi_bench.tasks.task import bind_task
from tests.conftest import REFERENCE
from tests.reference import random_tril

PROPERTY = settings(deadline=None, derandomize=True, max_examples=50, database=None)
EXPECTED = json.loads((REFERENCE / "expected.json").read_text())
PUBLISHED = pytest.mark.parametrize("name", ["boston-00", "concrete-03"])
sizes = st.integers(1, 6)
seeds = st.integers(0, 2**32 - 1)


@cache
def published(name):
    """The problem of a reference task; mark the test with `data`."""
    return bind_task(read_task(REFERENCE / "tasks" / f"{name}.safetensors"))


f64, eye, zeros, ones, linspace = (
    partial(make, dtype=torch.float64) for make in (torch.tensor, torch.eye, torch.zeros, torch.ones, torch.linspace)
)


def normal(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def draw(rng, *shape, log_scale=0.0):
    """Mean and lower factor of a Gaussian whose standard deviations are about exp(log_scale); shape is (*B, k)."""
    mean = math.exp(log_scale) * rng.standard_normal(shape)
    return torch.from_numpy(mean), torch.from_numpy(random_tril(rng, *shape, shape[-1], log_scale=log_scale))


def draw_pair(seed, k, log_scale=0.0):
    """(mean_q, tril_q, mean_p, tril_p), p on the unit scale."""
    rng = np.random.default_rng(seed)
    return *draw(rng, k, log_scale=log_scale), *draw(rng, k)


pairs = st.builds(draw_pair, seeds, sizes, st.floats(-3, 3))


def dense(tril):
    return (tril @ tril.mT).numpy()


def precision_tril(tril):
    """C of (LLᵀ)⁻¹ = CCᵀ."""
    return torch.linalg.cholesky(torch.linalg.inv(tril @ tril.mT))


def close(actual, expected, rtol=1e-11, atol=1e-11):
    """By default what eps · cond(Σ) leaves: cond(Σ) of the draws is 1e2 to 1e4, their KLs are 1e-1 to 1e5."""
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=rtol, atol=atol)
