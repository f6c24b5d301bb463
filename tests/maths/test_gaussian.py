"""Gaussian divergences and densities against independent values and their identities."""

import pytest
import torch
from hypothesis import given

from fsvi_bench.maths.gaussian import (
    gaussian_kl,
    gaussian_kl_from_precision,
    gaussian_kl_standard_normal,
    gaussian_kl_to_precision,
    normal_kl,
    normal_log_density,
)
from tests import reference
from tests.maths.draws import PROPERTY, close, dense, draw_pair, eye, f64, pairs, precision_tril, seeds, sizes

# --- The KL -----------------------------------------------------------------------------------------------------------


@PROPERTY
@given(pairs)
def test_kls_and_their_terms_equal_the_dense_formulas(pair):
    """Each way round, to the prior, and of q to itself."""
    q, p = pair[:2], pair[2:]
    prior = torch.zeros_like(q[0]), eye(len(q[0]))
    for one, other in ((q, p), (p, q), (q, prior), (q, q)):
        means, S, T = (one[0].numpy(), other[0].numpy()), dense(one[1]), dense(other[1])
        close(gaussian_kl(*one, *other), reference.gaussian_kl(means[0], S, means[1], T))
        to_p = gaussian_kl_to_precision(*one, other[0], precision_tril(other[1]))
        from_p = gaussian_kl_from_precision(one[0], precision_tril(one[1]), *other)
        for terms in (to_p, from_p):
            close(terms.mean, reference.kl_mean_term(*means, T))
            close(terms.covariance, reference.kl_covariance_term(S, T))
    close(gaussian_kl_standard_normal(*q), gaussian_kl(*q, *prior), rtol=1e-12, atol=1e-12)
    close(gaussian_kl(*q, *q), 0.0, atol=1e-13)  # k units of rounding


@PROPERTY
@given(seed=seeds, first=sizes, second=sizes)
def test_chain_rule(seed, first, second):
    # KL(q ‖ p) = KL(q(a) ‖ p(a)) + E_q(a) KL(q(b|a) ‖ p(b|a)). In a lower factor the marginal of a is the leading
    # block, and b|a has mean m_b + G(a − m_a), G = L_ba L_aa⁻¹, and factor L_bb.
    mean_q, tril_q, mean_p, tril_p = draw_pair(seed, first + second)
    a, b = slice(None, first), slice(first, None)
    marginal = gaussian_kl(mean_q[a], tril_q[a, a], mean_p[a], tril_p[a, a])
    slope_q, slope_p = (tril[b, a] @ torch.linalg.inv(tril[a, a]) for tril in (tril_q, tril_p))
    conditional_mean_p = mean_p[b] + slope_p @ (mean_q[a] - mean_p[a])
    at_the_mean = gaussian_kl(mean_q[b], tril_q[b, b], conditional_mean_p, tril_p[b, b])
    spread = torch.linalg.inv(tril_p[b, b]) @ (slope_q - slope_p) @ tril_q[a, a]
    expected = marginal + at_the_mean + 0.5 * spread.square().sum()
    close(gaussian_kl(mean_q, tril_q, mean_p, tril_p), expected)


def test_kls_of_a_nearly_singular_q_keep_their_digits():
    """q has a standard deviation of about 1e-150 in one direction: its covariance, rebuilt, is singular."""
    mean_q, tril_q, mean_p, tril_p = draw_pair(3, 4)
    tril_q = tril_q * f64([1.0, 1e-150, 1.0, 1.0])
    q, p, prior = (mean_q, tril_q), (mean_p, tril_p), (torch.zeros(4), torch.eye(4))
    diagonal_q, diagonal_p = (mean_q, f64([1.0, 0.5, 1e-150, 2.0]).diag()), (mean_p, tril_p.diagonal().diag())
    expected, reverse = reference.gaussian_kl_many_digits(*q, *p), reference.gaussian_kl_many_digits(*p, *q)
    assert expected > 345  # −log 1e-150
    close(gaussian_kl_to_precision(*q, mean_p, precision_tril(tril_p)).total, expected, rtol=1e-13)
    for one, other in ((q, p), (diagonal_q, diagonal_p), (diagonal_q, p), (q, diagonal_p)):
        close(gaussian_kl(*one, *other), reference.gaussian_kl_many_digits(*one, *other), rtol=1e-13)
    close(gaussian_kl_standard_normal(*q), reference.gaussian_kl_many_digits(*q, *prior), rtol=1e-13)
    assert 1e290 < reverse < 1e305
    close(gaussian_kl(*p, *q), reverse, rtol=1e-12)
    close(gaussian_kl_from_precision(mean_p, precision_tril(tril_p), *q).total, reverse, rtol=1e-12)


# --- Densities --------------------------------------------------------------------------------------------------------


@PROPERTY
@given(pairs)
def test_normal_log_density_equals_that_of_scipy(pair):
    mean, tril, x, _ = pair
    scale = tril.diagonal()
    expected = reference.norm.logpdf(x.numpy(), mean.numpy(), scale.numpy())
    close(normal_log_density(x, mean, scale.square()), expected, rtol=1e-12, atol=1e-12)


# --- The KL in one dimension ------------------------------------------------------------------------------------------


def test_normal_kl_equals_the_general_one():
    mean_q, tril_q, mean_p, tril_p = draw_pair(10, 5)
    scale_q, scale_p = tril_q.diagonal(), tril_p.diagonal()
    elementwise = normal_kl(mean_q, scale_q.square(), mean_p, scale_p.square())
    (mean_q, mean_p), (scale_q, scale_p) = (
        (mean_q[:, None], mean_p[:, None]),
        (scale_q[:, None, None], scale_p[:, None, None]),
    )
    close(elementwise, gaussian_kl(mean_q, scale_q, mean_p, scale_p), rtol=1e-13, atol=1e-13)


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
