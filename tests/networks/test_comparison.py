"""`networks.comparison` against closed forms of Gaussians, slow twins, and repeated draws."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from fsvi_bench.maths.gaussian import gaussian_w2, normal_kl
from fsvi_bench.networks.comparison import (
    Groups,
    joint_distances,
    predictive_distances,
    rank_agreement,
    wasserstein_distances,
)

NOISE_VARIANCE = torch.tensor(0.09, dtype=torch.float64)


def quantiles(mean: float, scale: float, n: int) -> torch.Tensor:
    """n equally likely points that stand for N(mean, scale²), at two inputs."""
    f = torch.from_numpy(stats.norm.ppf((np.arange(n) + 0.5) / n, mean, scale))
    return torch.stack([f, f], 1)


def draws(seed: int, S: int, P: int = 3, scale: float = 1.0, mean: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return mean + scale * torch.randn(S, P, generator=generator, dtype=torch.float64)


def test_predictive_distances_of_gaussians() -> None:
    """The mixtures over quantiles are nearly the Gaussians with the noise added to their variances."""
    q, reference = Groups.split(quantiles(0.3, 1.2, 4001)), Groups.split(quantiles(0.0, 1.0, 4000))
    kl, variation = predictive_distances(q, reference, NOISE_VARIANCE)
    m, p = (torch.tensor(x, dtype=torch.float64) for x in (0.3, 0.0))
    v, w = (torch.tensor(x, dtype=torch.float64) for x in (1.2**2 + 0.09, 1.09))
    # Quantiles lack the last 1/4,000 of the tails' variance: 4e-4 of it.
    assert kl.value == pytest.approx(float(normal_kl(p, w, m, v)), rel=2e-3)
    a, b = stats.norm(0.3, float(v) ** 0.5), stats.norm(0.0, float(w) ** 0.5)
    expected = 0.5 * quad(lambda y: abs(a.pdf(y) - b.pdf(y)), -9, 9, limit=200)[0]
    assert variation.value == pytest.approx(expected, rel=2e-3)


def test_predictive_distances_against_a_slow_twin() -> None:
    """The definition, input by input, with SciPy's adaptive quadrature, for q with a few far functions."""
    f, g = draws(0, 7, scale=0.5) + torch.tensor([0.0, 1.0, 6.0]), draws(1, 40)
    kl, variation = predictive_distances(Groups.split(f), Groups.split(g), NOISE_VARIANCE)

    def log_density(y: float, points: np.ndarray) -> float:
        return float(np.logaddexp.reduce(stats.norm.logpdf(y, points, 0.3)) - math.log(len(points)))

    expected = np.zeros(2)
    for a, b in zip(f.mT.numpy(), g.mT.numpy(), strict=True):

        def integrand(y: float, a: np.ndarray = a, b: np.ndarray = b) -> float:
            log_p = log_density(y, b)
            return math.exp(log_p) * (log_p - log_density(y, a))

        def difference(y: float, a: np.ndarray = a, b: np.ndarray = b) -> float:
            return 0.5 * abs(math.exp(log_density(y, a)) - math.exp(log_density(y, b)))

        ends = np.linspace(-8, 12, 21)
        for place, function in enumerate((integrand, difference)):
            expected[place] += sum(quad(function, *pair, epsabs=1e-10)[0] for pair in itertools.pairwise(ends))
    assert kl.value == pytest.approx(expected[0] / 3, rel=1e-6)
    assert variation.value == pytest.approx(expected[1] / 3, rel=1e-3)  # |p − q| has kinks


def test_predictive_distances_of_targets_of_0_and_1() -> None:
    """Of the probabilities' means, and errors by leaving out groups, which are single draws of q and tens of g."""
    f, g = draws(8, 20, scale=2.0).numpy(), draws(9, 200, mean=0.5).numpy()

    def distances(f: np.ndarray, g: np.ndarray) -> np.ndarray:
        q, p = ((1 / (1 + np.exp(-each))).mean(0) for each in (f, g))
        kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
        return np.array([kl.mean(), np.abs(p - q).mean()])

    got = predictive_distances(Groups.split(torch.from_numpy(f)), Groups.split(torch.from_numpy(g)), None)
    np.testing.assert_allclose([each.value for each in got], distances(f, g), rtol=1e-12)
    left_out = (
        [distances(np.delete(f, i, 0), g) for i in range(20)],
        [distances(f, np.delete(g, slice(10 * i, 10 * i + 10), 0)) for i in range(20)],
    )
    expected = np.sqrt(sum(19 * np.var(each, axis=0) for each in left_out))
    np.testing.assert_allclose([each.error for each in got], expected, rtol=1e-9)
    same = predictive_distances(*[Groups.split(torch.from_numpy(g))] * 2, None)
    assert [each.value for each in same] == pytest.approx([0, 0], abs=1e-15)
    sure = predictive_distances(
        Groups.split(torch.full((5, 3), 50.0, dtype=torch.float64)), Groups.split(draws(9, 200)), None
    )
    assert math.isfinite(sure[0].value)  # 1 − p rounds to 0
    assert sure[0].value > 10


def test_wasserstein_distances_of_gaussians() -> None:
    q, reference = Groups.split(quantiles(0.3, 1.2, 6000)), Groups.split(quantiles(0.0, 1.0, 4000))
    w1, w2 = wasserstein_distances(q, reference)
    one = torch.eye(1, dtype=torch.float64)
    expected = float(gaussian_w2(0.3 * one[0], 1.2 * one, 0 * one[0], one))
    assert w2.value == pytest.approx(expected, rel=2e-3)  # of the tails, as above
    z = stats.norm.ppf((np.arange(10**5) + 0.5) / 10**5)
    assert w1.value == pytest.approx(np.abs(0.3 + 0.2 * z).mean(), rel=1e-3)


def test_wasserstein_distances_against_scipy() -> None:
    f, g = draws(2, 11), draws(3, 17)
    w1, w2 = wasserstein_distances(Groups.split(f), Groups.split(g))
    assert w1.value == pytest.approx(
        np.mean([stats.wasserstein_distance(a, b) for a, b in zip(f.mT.numpy(), g.mT.numpy(), strict=True)]), rel=1e-12
    )
    # Both sets repeated to 187 points, where quantiles are matched one by one.
    matched = f.repeat_interleave(17, 0).sort(0).values - g.repeat_interleave(11, 0).sort(0).values
    assert w2.value == pytest.approx(float(matched.square().mean(0).sqrt().mean()), rel=1e-12)


def test_joint_distances_against_loops() -> None:
    f, g = draws(4, 9).numpy(), draws(5, 12, mean=0.4).numpy()
    energy, mmd2 = joint_distances(Groups.split(torch.from_numpy(f)), Groups.split(torch.from_numpy(g)), 2)
    f, g = f[:, :2], g[:, :2]
    length = g.var(0, ddof=1).sum()
    kernel = [lambda a, b: float(np.linalg.norm(a - b)), lambda a, b: math.exp(-((a - b) ** 2).sum() / (2 * length))]
    means = np.array(
        [
            [
                np.mean([k(a, b) for a in f for b in g]),
                np.mean([k(a, b) for i, a in enumerate(f) for j, b in enumerate(f) if i != j]),
                np.mean([k(a, b) for i, a in enumerate(g) for j, b in enumerate(g) if i != j]),
            ]
            for k in kernel
        ]
    )
    assert energy.value == pytest.approx(2 * means[0, 0] - means[0, 1] - means[0, 2], rel=1e-10)
    assert mmd2.value == pytest.approx(means[1, 1] + means[1, 2] - 2 * means[1, 0], rel=1e-10)


def test_joint_distances_of_one_distribution_are_zero_on_average() -> None:
    """Unbiased, and with errors of the right size: standardised values of 60 repeats have mean 0 and variance 1."""
    found = [
        joint_distances(Groups.split(draws(10 + 2 * i, 200)), Groups.split(draws(11 + 2 * i, 200)), 3)
        for i in range(60)
    ]
    for estimates in zip(*found, strict=True):
        values = np.array([estimate.value for estimate in estimates])
        errors = np.array([estimate.error for estimate in estimates])
        assert abs(values.mean()) < 4 * values.std() / math.sqrt(60)
        # Under equality these are degenerate U-statistics, for which a jackknife is too large, never too small.
        assert 0.7 * values.std() < errors.mean() < 3 * values.std()


def test_errors_are_the_spread_over_repeats() -> None:
    """KL, total variation, W₁ and W₂ of different distributions: jackknife errors against the spread of 60 repeats."""
    pairs = [
        (Groups.split(draws(200 + 2 * i, 200, scale=0.9)), Groups.split(draws(201 + 2 * i, 300, mean=0.3)))
        for i in range(60)
    ]
    found = np.array([predictive_distances(*pair, NOISE_VARIANCE) + wasserstein_distances(*pair) for pair in pairs])
    spread, errors = found[..., 0].std(0, ddof=1), found[..., 1].mean(0)
    # The spread of 60 values is known to 9 %, a mean of 60 jackknife errors with 20 groups to 2 %.
    np.testing.assert_allclose(errors / spread, 1, atol=0.3)


def test_rank_agreement() -> None:
    scales = torch.tensor([0.5, 1.0, 2.0, 4.0])
    f = draws(6, 400, P=4) * scales
    assert rank_agreement(Groups.split(f), Groups.split(draws(7, 400, P=4) * scales)).value == pytest.approx(1)
    assert rank_agreement(Groups.split(f), Groups.split(draws(7, 400, P=4) / scales)).value == pytest.approx(-1)
    swapped = draws(7, 400, P=4) * scales[[1, 0, 2, 3]]
    assert rank_agreement(Groups.split(f), Groups.split(swapped)).value == pytest.approx(0.8)  # 1 − 6·2/(4·15)
