"""Gaussian divergences and densities against independent values and their identities."""

import numpy as np
import pytest
import torch
from hypothesis import given

from fsvi_bench.maths.gaussian import (
    gaussian_kl,
    gaussian_kl_from_precision,
    gaussian_kl_standard_normal,
    gaussian_kl_to_precision,
    gaussian_log_density,
    normal_kl,
    normal_log_density,
)
from tests import reference
from tests.maths.draws import PROPERTY, close, dense, draw, draw_pair, f64, log_scales, precision_tril, seeds, sizes

# --- The KL against independent values --------------------------------------------------------------------------------


@PROPERTY
@given(seed=seeds, k=sizes, log_scale=log_scales)
def test_kl_equals_the_dense_formula(seed, k, log_scale):
    mean_q, tril_q, mean_p, tril_p = draw_pair(seed, k, log_scale)
    expected = reference.gaussian_kl(mean_q.numpy(), dense(tril_q), mean_p.numpy(), dense(tril_p))
    close(gaussian_kl(mean_q, tril_q, mean_p, tril_p), expected)


# --- The KL's identities ----------------------------------------------------------------------------------------------


@PROPERTY
@given(seed=seeds, k=sizes, log_scale=log_scales)
def test_kl_of_a_gaussian_to_itself_is_zero(seed, k, log_scale):
    mean, tril = draw(np.random.default_rng(seed), k, log_scale=log_scale)
    C, zero = precision_tril(tril), 0.0
    close(gaussian_kl(mean, tril, mean, tril), zero, atol=1e-13)  # k units of rounding
    # C comes from an inverse: its error is eps · cond(Σ).
    close(gaussian_kl_to_precision(mean, tril, mean, C).total, zero)
    close(gaussian_kl_from_precision(mean, C, mean, tril).total, zero)


@PROPERTY
@given(seed=seeds, k=sizes, log_scale=log_scales)
def test_standard_normal_kl_equals_the_dense_one(seed, k, log_scale):
    mean, tril = draw(np.random.default_rng(seed), k, log_scale=log_scale)
    expected = gaussian_kl(mean, tril, torch.zeros_like(mean), torch.eye(k, dtype=torch.float64))
    close(gaussian_kl_standard_normal(mean, tril), expected, rtol=1e-12, atol=1e-12)


@PROPERTY
@given(seed=seeds, k=sizes, log_scale=log_scales)
def test_mean_and_covariance_terms_equal_their_dense_formulas(seed, k, log_scale):
    mean_q, tril_q, mean_p, tril_p = draw_pair(seed, k, log_scale)
    C = precision_tril(tril_p)
    to_p = gaussian_kl_to_precision(mean_q, tril_q, mean_p, C)
    close(to_p.mean, reference.kl_mean_term(mean_q.numpy(), mean_p.numpy(), dense(tril_p)))
    close(to_p.covariance, reference.kl_covariance_term(dense(tril_q), dense(tril_p)))
    from_p = gaussian_kl_from_precision(mean_p, C, mean_q, tril_q)
    close(from_p.mean, reference.kl_mean_term(mean_p.numpy(), mean_q.numpy(), dense(tril_q)))
    close(from_p.covariance, reference.kl_covariance_term(dense(tril_p), dense(tril_q)))


@PROPERTY
@given(seed=seeds, first=sizes, second=sizes)
def test_chain_rule(seed, first, second):
    # KL(q ‖ p) = KL(q(a) ‖ p(a)) + E_q(a) KL(q(b|a) ‖ p(b|a)). In a lower factor the marginal of a is the leading
    # block, and b|a has mean m_b + G(a − m_a), G = L_ba L_aa⁻¹, and factor L_bb.
    mean_q, tril_q, mean_p, tril_p = draw_pair(seed, first + second)
    a, b = slice(None, first), slice(first, None)
    marginal = gaussian_kl(mean_q[a], tril_q[a, a], mean_p[a], tril_p[a, a])
    slope_q = tril_q[b, a] @ torch.linalg.inv(tril_q[a, a])
    slope_p = tril_p[b, a] @ torch.linalg.inv(tril_p[a, a])
    conditional_mean_p = mean_p[b] + slope_p @ (mean_q[a] - mean_p[a])
    at_the_mean = gaussian_kl(mean_q[b], tril_q[b, b], conditional_mean_p, tril_p[b, b])
    spread = torch.linalg.inv(tril_p[b, b]) @ (slope_q - slope_p) @ tril_q[a, a]
    expected = marginal + at_the_mean + 0.5 * spread.square().sum()
    close(gaussian_kl(mean_q, tril_q, mean_p, tril_p), expected)


# --- Nearly singular q ------------------------------------------------------------------------------------------------


@pytest.fixture
def nearly_singular_pair():
    """q has a standard deviation of about 1e-150 in one direction: its covariance, rebuilt, is singular."""
    mean_q, tril_q, mean_p, tril_p = draw_pair(3, 4)
    return mean_q, tril_q * f64([1.0, 1e-150, 1.0, 1.0]), mean_p, tril_p


def test_kl_of_a_nearly_singular_q_keeps_its_digits(nearly_singular_pair):
    mean_q, tril_q, mean_p, tril_p = nearly_singular_pair
    expected = reference.gaussian_kl_many_digits(*nearly_singular_pair)
    assert expected > 345  # −log 1e-150
    close(gaussian_kl(*nearly_singular_pair), expected, rtol=1e-13)
    close(gaussian_kl_to_precision(mean_q, tril_q, mean_p, precision_tril(tril_p)).total, expected, rtol=1e-13)


def test_kl_to_a_nearly_singular_q_keeps_its_digits(nearly_singular_pair):
    mean_q, tril_q, mean_p, tril_p = nearly_singular_pair
    expected = reference.gaussian_kl_many_digits(mean_p, tril_p, mean_q, tril_q)
    assert 1e290 < expected < 1e305
    close(gaussian_kl(mean_p, tril_p, mean_q, tril_q), expected, rtol=1e-12)
    close(gaussian_kl_from_precision(mean_p, precision_tril(tril_p), mean_q, tril_q).total, expected, rtol=1e-12)


def test_factorised_kls_of_a_nearly_singular_q_keep_their_digits(nearly_singular_pair):
    mean_q, tril_q, mean_p, tril_p = nearly_singular_pair
    scale_q, scale_p = f64([1.0, 0.5, 1e-150, 2.0]), tril_p.diagonal()
    for pair in ((scale_q.diag(), scale_p.diag()), (scale_q.diag(), tril_p), (tril_q, scale_p.diag())):
        expected = reference.gaussian_kl_many_digits(mean_q, pair[0], mean_p, pair[1])
        close(gaussian_kl(mean_q, pair[0], mean_p, pair[1]), expected, rtol=1e-13)
    expected = reference.gaussian_kl_many_digits(mean_q, tril_q, torch.zeros(4), torch.eye(4))
    close(gaussian_kl_standard_normal(mean_q, tril_q), expected, rtol=1e-13)


# --- Gradients --------------------------------------------------------------------------------------------------------


def test_gradient_of_the_kl():
    arguments = [argument.requires_grad_() for argument in draw_pair(4, 3)]
    assert torch.autograd.gradcheck(gaussian_kl, arguments)


def test_gradient_of_the_kl_to_a_precision():
    arguments = [argument.requires_grad_() for argument in draw_pair(6, 3)]  # any lower factor serves as C
    assert torch.autograd.gradcheck(lambda *a: tuple(gaussian_kl_to_precision(*a)), arguments)


# --- Densities --------------------------------------------------------------------------------------------------------


@PROPERTY
@given(seed=seeds, k=sizes, log_scale=log_scales)
def test_log_densities_equal_those_of_scipy(seed, k, log_scale):
    mean, tril, x, _ = draw_pair(seed, k, log_scale)
    expected = reference.gaussian_log_density(x.numpy(), mean.numpy(), dense(tril))
    close(gaussian_log_density(x, mean, tril), expected)
    scale = tril.diagonal()
    expected = reference.norm.logpdf(x.numpy(), mean.numpy(), scale.numpy())
    close(normal_log_density(x, mean, scale.square()), expected, rtol=1e-12, atol=1e-12)


def test_the_density_in_one_dimension_integrates_to_one():
    x = torch.linspace(-12, 12, 401, dtype=torch.float64)  # the trapezoid rule converges exponentially on a Gaussian
    mean, variance = f64(0.4), f64(1.7)
    density = normal_log_density(x, mean.expand_as(x), variance.expand_as(x)).exp()
    close(torch.trapezoid(density, x), 1.0, rtol=1e-13, atol=0)  # the tails beyond ±12 hold 1e-19


# --- The KL in one dimension ------------------------------------------------------------------------------------------


def test_normal_kl_equals_the_general_one():
    mean_q, tril_q, mean_p, tril_p = draw_pair(10, 5)
    scale_q, scale_p = tril_q.diagonal(), tril_p.diagonal()
    elementwise = normal_kl(mean_q, scale_q.square(), mean_p, scale_p.square())
    for i in range(5):
        column = slice(i, i + 1)
        expected = gaussian_kl(mean_q[column], scale_q[column, None], mean_p[column], scale_p[column, None])
        close(elementwise[i], expected, rtol=1e-13, atol=1e-13)


# --- Batches ----------------------------------------------------------------------------------------------------------


def apart(*excesses):
    return [((0.2, 1.3 * (1 + excess), 0.2, 1.3), 0.0, 1e-16 * abs(excess)) for excess in excesses]


@pytest.mark.parametrize(
    ("arguments", "rtol", "atol"),
    [
        # Variances nearly equal: about (r − 1)²/4 and known to eps·|r − 1|; a difference of logarithms is known to eps.
        *apart(1e-2, -1e-4, 1e-6, -1e-9),
        # The excess of a ratio r « 1 is r − 1 rounded, so that log r is known to eps/r only: 1e-12 for 1e-3/4.
        ((0.3, 1e-3, -2.0, 4.0), 1e-12, 0.0),
        ((0.3, 1e12, -2.0, 4.0), 1e-12, 0.0),
        ((1e6, 1.0, 0.0, 1e-6), 1e-12, 0.0),
        *(((0.3, tiny, -2.0, 4.0), 1e-14, 0.0) for tiny in (1e-6, 1e-12, 1e-20)),
    ],
)
def test_normal_kl_keeps_its_digits(arguments, rtol, atol):
    close(normal_kl(*map(f64, arguments)), reference.normal_kl_many_digits(*arguments), rtol=rtol, atol=atol)
