"""Dawson's function against mpmath, SciPy's and torch's alike."""

import math

import numpy as np
import pytest
import torch

from fsvi_bench.maths.dawson import dawson, dawson_derivative, dawson_torch
from tests.maths import many_digits
from tests.maths.draws import close, f64
from tests.maths.many_digits import largest_relative_error

#: Every scale, the pieces' ends at 0.5 and 10 closely.
POINTS = np.concatenate(
    [
        np.logspace(-300, 300, 61),
        np.logspace(-8, 8, 161),
        np.linspace(0.01, 15, 300),
        np.linspace(0.49, 0.51, 21),
        np.linspace(9.9, 10.1, 21),
    ]
)


@pytest.mark.parametrize(("function", "limit"), [(dawson_torch, 1e-15), (dawson, 2e-14)], ids=["torch", "scipy"])
def test_dawson_equals_mpmath(function, limit):
    expected = [many_digits.dawson(x) for x in POINTS]
    assert largest_relative_error(function(f64(POINTS)), expected) < limit  # measured: 4.1e-16 and 1.4e-14


def test_derivative_equals_mpmath():
    """Also at large x, where 1 − 2x D₊ would have an absolute error of eps on 1/(2x²)."""
    points = POINTS[(POINTS < 1e100)]
    # D₊' has a zero at 0.9241: a relative error of eps·|1/D₊'| is all that can be had next to it.
    points = points[np.abs(points - 0.9241) > 0.01]
    expected = [many_digits.dawson_derivative(x) for x in points]
    assert largest_relative_error(dawson_derivative(f64(points)), expected) < 2e-12  # 2·10² eps just below x = 10


def test_dawson_is_odd_and_keeps_special_values():
    x = f64([0.1, 2.0, 50.0])
    for function in (dawson, dawson_torch):
        assert torch.equal(function(-x), -function(x))
        special = function(f64([0.0, math.inf, -math.inf, math.nan]))
        assert special[:3].tolist() == [0.0, 0.0, 0.0]
        assert special[3].isnan()


def test_dawson_keeps_shapes():
    assert dawson(f64(0.3)).shape == ()
    assert dawson(torch.ones(2, 3, dtype=torch.float64)).shape == (2, 3)
    close(dawson_torch(torch.full((2, 3), 0.3, dtype=torch.float64)), dawson(f64(0.3)).expand(2, 3), rtol=1e-14)


@pytest.mark.parametrize("function", [dawson, dawson_derivative])
def test_gradients(function):
    x = f64([-3.0, -0.2, 0.0, 0.4, 0.9241, 2.0, 9.0, 12.0]).requires_grad_()
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)
