"""Sigmoid and softplus against mpmath, far out too, and the same bits wherever a number stands."""

import mpmath
import pytest
import torch

from fsvi_bench.maths.elementwise import on_and_off, sigmoid, softplus
from tests.maths.draws import close, f64

PLACES = [-800.0, -745.0, -40.0, -1.0, -1e-9, 0.0, 1e-9, 1.0, 40.0, 745.0, 800.0]


def test_values_to_the_last_digits():
    """Relative to their own size, but where that is below the smallest normal double."""
    with mpmath.workdps(40):
        on = [float(1 / (1 + mpmath.exp(-x))) for x in map(mpmath.mpf, PLACES)]
        off = [float(1 / (1 + mpmath.exp(x))) for x in map(mpmath.mpf, PLACES)]
        soft = [float(mpmath.log1p(mpmath.exp(x))) for x in map(mpmath.mpf, PLACES)]
    x = f64(PLACES)
    for got, expected in ((sigmoid(x), on), (on_and_off(x)[1], off), (softplus(x), soft)):
        close(got, f64(expected), rtol=4e-16, atol=1e-320)


@pytest.mark.parametrize("function", [sigmoid, softplus, lambda x: on_and_off(x)[1]])
def test_a_number_has_the_same_bits_in_any_place(function):
    x = 5 * torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = function(x)
    for width in (1, 3, 7):
        assert torch.equal(torch.cat([function(part.clone()) for part in x.split(width)]), together)


@pytest.mark.parametrize("function", [sigmoid, softplus])
def test_slopes_are_exact(function):
    """At 0 too, where |x| has a corner."""
    x = f64([*PLACES]).requires_grad_()
    (slope,) = torch.autograd.grad(function(x).sum(), x)
    with mpmath.workdps(40):
        on = [1 / (1 + mpmath.exp(-each)) for each in map(mpmath.mpf, PLACES)]
        off = [1 / (1 + mpmath.exp(each)) for each in map(mpmath.mpf, PLACES)]
        of_sigmoid = [float(one * other) for one, other in zip(on, off, strict=True)]
    expected = of_sigmoid if function is sigmoid else [float(each) for each in on]
    close(slope, f64(expected), rtol=1e-15, atol=1e-320)
