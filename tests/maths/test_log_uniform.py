"""The KL to the log-uniform prior against independent values, and the published approximations against it."""

import json
import math

import mpmath as mp
import numpy as np
import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.maths.log_uniform import (
    SMALL_ALPHA_CONSTANT,
    _slope_by_torch,
    gaussian_dropout_kl,
    ksw_cubic_kl,
    ksw_lower_bound_kl,
    log_uniform_kl,
    molchanov_kl,
    molchanov_kl_of_u,
)
from tests.maths import many_digits
from tests.maths.draws import close, f64
from tests.maths.many_digits import largest_relative_error

#: Every scale, the pieces' ends at 1 and 49 closely.
POINTS = np.concatenate(
    [
        [0.0],
        np.logspace(-300, -10, 11),
        np.logspace(-10, 8, 181),
        np.linspace(0.95, 1.05, 11),
        np.linspace(48, 50, 21),
        np.linspace(1, 60, 119),
        [1e30, 1e300],
    ]
)

# --- The exact divergence ---------------------------------------------------------------------------------------------


def test_kl_and_gradient_equal_the_reference(reference):
    expected = json.loads((reference / "expected.json").read_text())["log_uniform"]
    u = f64([float(key) for key in expected["kl"]]).requires_grad_()
    kl = log_uniform_kl(u)
    (gradient,) = torch.autograd.grad(kl.sum(), u)
    # The file's own values at 1e4 and 1e8 are good to 5e-13.
    close(kl, f64(list(expected["kl"].values())), rtol=1e-12, atol=0)
    close(gradient, f64([expected["gradient"][key] for key in expected["kl"]]), rtol=1e-13, atol=0)


def test_kl_equals_mpmath():
    expected = [many_digits.log_uniform_kl(u) for u in POINTS]
    assert largest_relative_error(log_uniform_kl(f64(POINTS)), expected) < 2e-15  # measured 4e-16


def test_the_slope_by_torch_operations_equals_mpmath():
    """As it is computed off the CPU; each piece rounds a few dozen times."""
    found = _slope_by_torch(f64(POINTS))
    assert largest_relative_error(found, [many_digits.log_uniform_slope(x) for x in POINTS]) < 1e-14
    assert _slope_by_torch(f64([math.nan, -1.0, math.inf])).nan_to_num(-1).tolist() == [-1, -1, 0]


def test_derivatives_equal_mpmath():
    u = f64(POINTS[:-1]).requires_grad_()
    (slope,) = torch.autograd.grad(log_uniform_kl(u).sum(), u, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), u)
    assert largest_relative_error(slope, [many_digits.log_uniform_slope(x) for x in POINTS[:-1]]) < 2e-14
    points = POINTS[:-2]  # at 1e30 the curvature is 5e-61, and so on
    expected = [many_digits.log_uniform_curvature(x) for x in points]
    # The middle piece cancels up to 49-fold on SciPy's 1e-14.
    assert largest_relative_error(curvature[:-1], expected) < 1e-12


def test_kl_equals_the_integral_of_the_log_density_ratio():
    """E_q[log q + log|w|] minus the same at mean 0: the divergence itself, not the paper's series for it."""
    mean, sd = 1.7, 0.9

    def ratio(w, m):
        q = mp.npdf(w, m, sd)
        return q * (mp.log(q) + mp.log(abs(w)))

    shift = [mp.quad(lambda w, m=m: ratio(w, m), [-9, -3, -1, 0, 1, 3, 6, 12]) for m in (mean, 0)]
    close(log_uniform_kl(f64(mean**2 / (2 * sd**2))), float(shift[0] - shift[1]), rtol=1e-10)


def test_nan_stays_where_it_is():
    value = log_uniform_kl(f64([math.nan, -1.0, 2.0, math.inf]))
    assert value[:2].isnan().all()
    assert value[2] == log_uniform_kl(f64(2.0))
    assert value[3] == math.inf
    for function in (gaussian_dropout_kl, ksw_cubic_kl, ksw_lower_bound_kl, molchanov_kl):
        assert function(f64([math.nan, 1.0])).isnan().tolist() == [True, False]


# --- Approximations ---------------------------------------------------------------------------------------------------

UNIT_INTERVAL = np.concatenate([np.logspace(-6, -2, 50), np.linspace(0.01, 1, 2000)])
POSITIVE = np.exp(np.linspace(-30, 30, 6000))


@pytest.mark.parametrize(
    ("approximation", "domain", "stated"),
    [
        (ksw_cubic_kl, UNIT_INTERVAL, 0.0403),
        (ksw_lower_bound_kl, UNIT_INTERVAL, 0.2454),
        (molchanov_kl, POSITIVE, 0.0094),
    ],
)
def test_largest_error_is_the_stated_one(approximation, domain, stated):
    alpha = f64(domain)
    largest = float((approximation(alpha) - gaussian_dropout_kl(alpha)).abs().max())
    assert largest == pytest.approx(stated, abs=5e-5)


def test_signs_and_limits_of_the_approximations():
    alpha = f64(UNIT_INTERVAL)
    exact = gaussian_dropout_kl(alpha)
    cubic_error, bound_error = ksw_cubic_kl(alpha) - exact, ksw_lower_bound_kl(alpha) - exact
    assert bool((cubic_error < 0).all())
    assert float(cubic_error.max() - cubic_error.min()) / 2 > 0.0200  # whatever the constant
    assert bool((bound_error > 0).all())
    tiny = f64(1e-9)
    for approximation in (ksw_cubic_kl, ksw_lower_bound_kl):
        close(approximation(tiny), gaussian_dropout_kl(tiny), rtol=0, atol=2e-9)
    close(molchanov_kl(tiny) - gaussian_dropout_kl(tiny), 0.63576 - SMALL_ALPHA_CONSTANT, rtol=0, atol=1e-8)
    assert float(molchanov_kl(f64(1e300))) < 1e-300
    assert float(molchanov_kl(f64(1e-305))) == pytest.approx(0.63576 + 0.5 * 305 * math.log(10), rel=1e-14)


def test_lower_bound_fails_beyond_its_stated_alpha():
    """−E log|ε| = ½(γ + log 2) − ½ log α − KL changes sign at α = 2.42; the paper has it positive everywhere."""
    alpha = f64([2.41, 2.43])
    minus_expected_log = SMALL_ALPHA_CONSTANT - 0.5 * alpha.log() - gaussian_dropout_kl(alpha)
    assert minus_expected_log[0] > 0 > minus_expected_log[1]


@pytest.mark.parametrize("approximation", [ksw_cubic_kl, ksw_lower_bound_kl])
def test_alpha_above_one_is_refused(approximation):
    assert approximation(f64([1.0, 1e-300])).isfinite().all()
    with pytest.raises(InputError, match=r"alpha = 1\.5, expected 0 < alpha <= 1"):
        approximation(f64([0.5, 1.5]))


@pytest.mark.parametrize("function", [gaussian_dropout_kl, ksw_cubic_kl, ksw_lower_bound_kl, molchanov_kl])
@pytest.mark.parametrize("alpha", [0.0, -0.1])
def test_alpha_not_positive_is_refused(function, alpha):
    with pytest.raises(InputError, match=rf"alpha = {alpha:g}, expected alpha > 0"):
        function(f64([0.5, alpha]))


def test_molchanovs_form_in_u_has_its_value_and_passes_gradcheck():
    """At u = 0 too, where α is infinite: its value is 0 and its slope 1, from the right."""
    u = f64([1e-3, 0.02, 0.5, 3.0, 200.0]).requires_grad_()
    close(molchanov_kl_of_u(u).detach(), molchanov_kl(0.5 / u.detach()), rtol=1e-15, atol=0)
    assert torch.autograd.gradcheck(molchanov_kl_of_u, u)
    zero = f64([0.0]).requires_grad_()
    value = molchanov_kl_of_u(zero)
    assert float(value.detach()) == 0.0
    assert float(torch.autograd.grad(value.sum(), zero)[0]) == 1.0
    assert float(molchanov_kl_of_u(f64([1e-9]))) == pytest.approx(1e-9, rel=1e-6)
