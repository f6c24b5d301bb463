"""Gaussians on subspaces with and without noise, against other formulas, integrals and limits."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import stats

from fsvi_bench.papers.burt2020.theory.f_divergence import Flat, kl, relative, reverse_kl, total_variation
from tests.maths.draws import close, draw, f64

NOISE = [1.0, 1e-3, 1e-8]


def subspace(M=6, k=2, seed=0):
    """A flat Gaussian in R^M whose mean is off p's and off the subspace through p's mean; and p's mean."""
    rng = np.random.default_rng(seed)
    mean_p, tril_p = draw(rng, M)
    mean_q, factor = torch.from_numpy(rng.standard_normal(M)), torch.from_numpy(rng.standard_normal((M, k)))
    return Flat(mean_q - mean_p, factor, tril_p)


def kls(flat, noise_variance):
    """KL(Q_ε‖P) and KL(P‖Q_ε)."""
    seen = flat.seen(noise_variance)
    return torch.stack([kl(seen), reverse_kl(seen)])


@mp.workdps(60)
def many_digits(flat, noise_variance):
    """KL(Q_ε‖P) and KL(P‖Q_ε) from dense covariances, determinants and inverses with 60 digits."""
    F, L, e = mp.matrix(flat.factor.tolist()), mp.matrix(flat.tril.tolist()), mp.mpf(noise_variance)
    S, K, shift = F * F.T + e * mp.eye(F.rows), L * L.T, mp.matrix(flat.shift.tolist())

    def one_way(a, b):
        inverse = b**-1
        trace = mp.fsum((inverse * a)[i, i] for i in range(a.rows))
        return float((trace + (shift.T * inverse * shift)[0] - a.rows + mp.log(mp.det(b) / mp.det(a))) / 2)

    return one_way(S, K), one_way(K, S)


@pytest.mark.parametrize(
    ("k", "noise_variance"), [(k, noise) for k in (2, 6, 9) for noise in (*NOISE, 1e-14, 0.0) if noise or k > 2]
)
def test_smoothed_kls_with_many_digits(k, noise_variance):
    """Without noise they are finite where parameters are as many as points: proposition 4 needs more points."""
    flat = subspace(k=k)
    close(kls(flat, noise_variance), f64(many_digits(flat, noise_variance)), rtol=1e-9)


@pytest.mark.parametrize("columns", [4, 6, 9])
def test_without_noise_it_is_the_rank_that_counts_not_the_columns(columns):
    """Rank 2 in as many columns as points, or more: rounding in the other singular values is not taken for a density."""
    flat = subspace(k=2)
    many = flat.factor @ torch.from_numpy(np.random.default_rng(1).standard_normal((2, columns)))
    for seen in (relative(flat.shift, many, flat.tril), flat._replace(factor=many).seen(0.0)):
        assert int((seen.variance == 0).sum()) == 4
        assert kl(seen) == reverse_kl(seen) == math.inf
        assert total_variation(seen) == 1.0


@pytest.mark.parametrize("k", [1, 3])
def test_asymptotics_are_what_is_left_at_small_noise(k):
    """What is left of KL(Q_ε‖P) is O(ε²): a tenth of ε² leaves a tenth."""
    flat = subspace(k=k)
    leading = flat.asymptotics()
    assert leading.slope == 0.5 * (6 - k)
    left = [
        float(kls(flat, noise)[0]) - leading.slope * math.log(1 / noise) - leading.constant for noise in (1e-5, 1e-6)
    ]
    assert abs(left[1]) < 1e-3
    assert left[0] / left[1] == pytest.approx(10, rel=1e-2)
    assert 1e-12 * float(kls(flat, 1e-12)[1]) == pytest.approx(leading.reverse, rel=1e-9)


@pytest.mark.parametrize("noise_variance", [1e-1, 1e-3, 1e-6])
def test_the_revealing_event_by_integration_and_from_below(noise_variance):
    """One direction out of reach: E is an interval. Under P its probability is less, and TV is more, than what is said."""
    flat = subspace(k=5)
    event = flat.revealing_event(noise_variance)
    normal = torch.linalg.svd(flat.factor, full_matrices=True)[0][:, 5]
    p, r = stats.norm(-float(normal @ flat.shift), float((normal @ flat.tril).norm())), event.radius
    assert event.under_q == pytest.approx(math.erf(r / math.sqrt(2 * noise_variance)), rel=1e-12)
    at_most = 2 * r * p.pdf(p.mean())
    assert p.cdf(r) - p.cdf(-r) <= at_most
    assert event.under_p == pytest.approx(min(at_most, 1), rel=1e-12)
    assert event.under_q - event.under_p <= float(total_variation(flat.seen(noise_variance)))
