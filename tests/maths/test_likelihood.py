"""`maths.likelihood` against SciPy and derivatives by autograd, where logits are large, too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fsvi_bench.maths.likelihood import LARGEST_CURVATURE, log_density, working
from tests.maths.draws import close, f64

LOGITS = f64([-600.0, -40.0, -3.0, 0.0, 0.7, 25.0, 600.0])


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_densities_are_scipys(y: float) -> None:
    got = log_density(f64(y), LOGITS, None)
    expected = -np.logaddexp(0, (1 - 2 * y) * LOGITS.numpy())
    close(got, torch.from_numpy(expected), rtol=1e-14, atol=0)
    moderate = LOGITS[2:5]
    close(got[2:5], f64(stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-moderate.numpy())))), rtol=1e-13, atol=0)
    close(log_density(f64(y), moderate, f64(0.3)), f64(stats.norm.logpdf(y, moderate, 0.3**0.5)), rtol=1e-13, atol=0)


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_working_rows_have_the_slope_and_the_curvature(y: float) -> None:
    f = LOGITS[1:-1].clone().requires_grad_()
    (slope,) = torch.autograd.grad(log_density(f64(y), f, None).sum(), f, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), f)
    root, residual = working(torch.full_like(f, y).detach(), f.detach())
    close(root * residual, slope.detach(), rtol=1e-9, atol=1e-15)
    close(root.square(), -second, rtol=1e-9, atol=1e-15)
    assert float(root.square().max()) == LARGEST_CURVATURE
    assert all(bool(part.isfinite().all()) for part in working(torch.full_like(LOGITS, y), LOGITS))
