"""Certificate C0: log Z and the moments of f by the trapezoidal rule over at most four hidden weights.

A concentrated posterior puts few of a Gauss-Hermite rule's nodes where it matters. The trapezoidal rule converges
geometrically for integrands that are analytic and decay: for a posterior of width s its error is about exp(−2π²s²/h²)
at spacing h, 3e-9 at h = s. The grid is refined, and extended, until nothing moves by more than the tolerance.

Signs: the integrand is even in each unit's (a, c), so that half of the units' nodes suffice. Pairs: with the bias
integrated out, K₀ = σ²I + s_b² 11ᵀ, all that the likelihood of two units needs are the inner products of their features
with one another and with y under K₀⁻¹. A pair of nodes costs a few operations, whatever the number of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import solve_triangular

from fsvi_bench.errors import InputError
from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.maths.networks import Network
from fsvi_bench.networks.sampling.models import Target
from fsvi_bench.networks.task import HIDDEN_BY_QUADRATURE

PAIRS = 2**17  #: pairs of nodes held at once
FINER = 1.5  #: the ratio of successive spacings
LEVELS = 8


class Quadrature(NamedTuple):
    """Integrals over the posterior of `collapsed-1` or `collapsed-2`."""

    log_evidence: float
    mean: np.ndarray  #: of f at `x_new` [P]
    variance: np.ndarray  #: [P]
    change: float  #: the largest change of all these in the last refinement


def quadrature(target: Target, tolerance: float = 1e-6) -> Quadrature:
    """The integrals, refined until log Z, the means and the variances change by less than the tolerance.

    Raises:
        InputError: there are more than four hidden weights, or the finest level still moves.
    """
    net = target.network
    if net.k_hidden > HIDDEN_BY_QUADRATURE:
        raise InputError(
            f"collapsed-{net.H} with D={net.D} has {net.k_hidden} hidden weights, expected at most "
            f"{HIDDEN_BY_QUADRATURE}; use a sampler"
        )
    before = None
    for level in range(LEVELS):
        now = np.concatenate(_integrate(target, 0.45 / FINER**level, 7.5 + 0.25 * level))
        change = np.inf if before is None else np.abs(now - before).max()
        if change < tolerance:
            mean, variance = now[1:].reshape(2, -1)
            return Quadrature(float(now[0]), mean, variance, float(change))
        before = now
    raise InputError(
        f"the integrals still change by {change:.1e} on the finest grid, expected less than {tolerance:g}; raise σ²"
    )


def _integrate(target: Target, spacing: float, reach: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log Z [1], and the mean and variance of f at `x_new`."""
    net = target.network
    n = round(reach / spacing)
    line = spacing * np.arange(-n, n + 1)
    axes = np.meshgrid(line[n:], *[line] * net.D, indexing="ij")
    units = np.stack([axis.ravel() for axis in axes], 1)
    radii = (units**2).sum(1)
    order = np.argsort(radii)
    units, radii = units[order], radii[order]
    inside = np.searchsorted(radii, reach**2)  # what is left out has a prior mass of about exp(−reach²/2)
    units, radii = units[:inside], radii[:inside]
    log_weight = -0.5 * radii + (net.D + 1) * (np.log(spacing) - 0.5 * LOG_2PI)
    log_weight += np.log(2) * (units[:, 0] > 0)

    y, x = np.asarray(target.y), np.asarray(target.x_train)
    bias, N = net.bias_scale**2, len(y)
    tril = np.linalg.cholesky(float(target.noise_variance) * np.eye(N) + bias)
    W = solve_triangular(tril, _hidden(net, units, x), lower=True)
    white_y, ones = solve_triangular(tril, np.stack([y, np.ones(N)], 1), lower=True).T
    r, own = W.T @ white_y, 1 + (W**2).sum(0)
    constant = -0.5 * (N * LOG_2PI + 2 * np.log(np.diagonal(tril)).sum() + white_y @ white_y)
    # f(x) = the part of the bias, with this mean and variance, + Σ_h φ_h(x) v_h:
    bias_mean, bias_variance = bias * ones @ white_y, bias - bias**2 * ones @ ones
    phi = _hidden(net, units, np.asarray(target.x_new)) - bias * (ones @ W)  # [P, m]

    if net.H == 2:
        W2, r2, own2, phi2, weight2, radii2 = W, r, own, phi, log_weight, radii
    else:  # a second unit that is not there
        W2, r2, own2, weight2, radii2 = np.zeros((N, 1)), np.zeros(1), np.ones(1), np.zeros(1), np.zeros(1)
        phi2 = np.zeros((len(phi), 1))
    top, total, first, second = -np.inf, 0.0, np.zeros(len(phi)), np.zeros(len(phi))
    size = max(1, PAIRS // len(r2))
    for begin in range(0, len(r), size):
        i = slice(begin, begin + size)
        j = slice(np.searchsorted(radii2, reach**2 - radii[begin], side="right"))  # both units lie in one ball
        cross, own1, r1 = W[:, i].T @ W2[:, j], own[i, None], r[i, None]
        det = own1 * own2[j] - cross**2
        mean1, mean2 = (own2[j] * r1 - cross * r2[j]) / det, (own1 * r2[j] - cross * r1) / det
        log_w = log_weight[i, None] + weight2[j] - 0.5 * np.log(det) + 0.5 * (r1 * mean1 + r2[j] * mean2)
        highest = max(top, log_w.max())
        w = np.exp(log_w - highest)
        shrink, top = np.exp(top - highest), highest
        total = total * shrink + w.sum()
        first = first * shrink + net.H * phi[:, i] @ (w * mean1).sum(1)
        square = phi[:, i] ** 2 @ (w * (mean1**2 + own2[j] / det)).sum(1)
        both = np.einsum("pi,pi->p", phi[:, i], phi2[:, j] @ (w * (mean1 * mean2 - cross / det)).T)
        second = second * shrink + net.H * (square + both)
    mean = first / total
    return np.array([constant + top + np.log(total)]), bias_mean + mean, bias_variance + second / total - mean**2


def _hidden(net: Network, units: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The features of single units [n, m], scaled as those of the network."""
    alone = Network(net.D, 1, output_scale=net.output_scale / net.H**0.5)
    return alone.features(torch.from_numpy(units), torch.from_numpy(x))[..., 0].numpy().T
