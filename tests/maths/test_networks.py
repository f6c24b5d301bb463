"""`maths.networks` against dense NumPy twins, symmetries, and the distribution of its draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fsvi_bench.maths.networks import Network, draw_outputs

NETWORK = Network(D=3, H=5, output_scale=1.3, bias_scale=0.7)
NOISE_VARIANCE = torch.tensor(0.04, dtype=torch.float64)


@pytest.fixture(scope="module")
def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden weights [4, 20], inputs [30, 3] and targets [30]."""
    generator = torch.Generator().manual_seed(0)
    u, x, y = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((4, 20), (30, 3), (30,)))
    return u, x, y


def twin_features(u: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Ψ by loops, straight from the definition of f: whitened v and b have unit prior variance."""
    D, H = NETWORK.D, NETWORK.H
    Psi = np.empty((len(x), H + 1))
    for n, point in enumerate(x):
        for h in range(H):
            a, c = u[h * (D + 1) : h * (D + 1) + D] / math.sqrt(D), u[h * (D + 1) + D]
            Psi[n, h] = NETWORK.output_scale * math.tanh(sum(a * point) + c) / math.sqrt(H)
        Psi[n, H] = NETWORK.bias_scale
    return Psi


def test_the_collapsed_likelihood_is_the_dense_gaussian_density(problem: tuple[torch.Tensor, ...]) -> None:
    u, x, y = problem
    got = NETWORK.log_likelihood(u, x, y, NOISE_VARIANCE)
    for value, one in zip(got.tolist(), u.numpy(), strict=True):
        Psi = twin_features(one, x.numpy())
        covariance = Psi @ Psi.T + float(NOISE_VARIANCE) * np.eye(len(x))
        expected = stats.multivariate_normal.logpdf(y.numpy(), np.zeros(len(x)), covariance)
        assert value == pytest.approx(expected, rel=1e-9)  # the dense covariance has a condition of about 1e3


def test_the_likelihood_integrates_the_whole_networks(problem: tuple[torch.Tensor, ...]) -> None:
    """log p(y | u) = log p(y | u, v, b) + log p(v, b) − log p(v, b | u, y) at any (v, b)."""
    u, x, y = problem
    output = torch.linspace(-1, 1, 6, dtype=torch.float64).expand(4, 6)
    f = NETWORK.values(torch.cat([u, output], -1), x)
    posterior = NETWORK.output_posterior(u, x, y, NOISE_VARIANCE)
    for place, value in enumerate(NETWORK.log_likelihood(u, x, y, NOISE_VARIANCE).tolist()):
        likelihood = stats.norm.logpdf(y.numpy(), f[place].numpy(), float(NOISE_VARIANCE) ** 0.5).sum()
        prior = stats.norm.logpdf(output[place].numpy()).sum()
        tril = posterior.precision_tril[place].numpy()
        conditional = stats.multivariate_normal.logpdf(
            output[place].numpy(), posterior.mean[place].numpy(), np.linalg.inv(tril @ tril.T)
        )
        assert value == pytest.approx(likelihood + prior - conditional, rel=1e-9)


def test_gradients(problem: tuple[torch.Tensor, ...]) -> None:
    u, x, y = problem
    weights = u.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda u: NETWORK.log_likelihood(u, x, y, NOISE_VARIANCE), weights)


def test_relabelled_units_and_signs_change_nothing(problem: tuple[torch.Tensor, ...]) -> None:
    u, x, y = problem
    units = u.unflatten(-1, (5, 4))
    relabelled = units[:, [3, 1, 4, 0, 2]] * torch.tensor([1.0, -1, 1, -1, -1], dtype=torch.float64)[:, None]
    moved = relabelled.flatten(-2)
    # Sums are taken in another order.
    torch.testing.assert_close(
        NETWORK.log_likelihood(moved, x, y, NOISE_VARIANCE),
        NETWORK.log_likelihood(u, x, y, NOISE_VARIANCE),
        rtol=1e-12,
        atol=0,
    )
    means = [
        (NETWORK.features(each, x) @ NETWORK.output_posterior(each, x, y, NOISE_VARIANCE).mean[..., None])[..., 0]
        for each in (u, moved)
    ]
    torch.testing.assert_close(*means, rtol=1e-9, atol=1e-9)


def test_draws_of_the_outputs_follow_their_posterior(problem: tuple[torch.Tensor, ...]) -> None:
    """Squared Mahalanobis distances of exact draws are chi-square with H + 1 degrees of freedom."""
    u, x, y = problem
    posterior = NETWORK.output_posterior(u[0], x, y, NOISE_VARIANCE)
    noise = torch.randn(20_000, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    draws = draw_outputs(type(posterior)(*(part.expand(len(noise), *part.shape) for part in posterior)), noise).numpy()
    Psi = twin_features(u[0].numpy(), x.numpy())
    precision = Psi.T @ Psi / float(NOISE_VARIANCE) + np.eye(6)
    offset = draws - np.linalg.solve(precision, Psi.T @ y.numpy() / float(NOISE_VARIANCE))
    squares = np.einsum("si,ij,sj->s", offset, precision, offset)
    assert stats.kstest(squares, "chi2", args=(6,)).pvalue > 1e-3  # fixed seed


def test_a_prior_draw_has_the_prior_variance() -> None:
    """Var f(0) of whitened standard normal weights: s_v² E tanh²(c) + s_b²."""
    w = torch.randn(100_000, NETWORK.k, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    f = NETWORK.values(w, torch.zeros(1, 3, dtype=torch.float64))[:, 0]
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    expected = 1.3**2 * (weights * np.tanh(nodes) ** 2).sum() / weights.sum() + 0.7**2
    error = float(f.square().std()) / math.sqrt(len(f))
    assert abs(float(f.square().mean()) - expected) < 4 * error
