"""Distances between two sets of functions, given by draws at the same inputs, with jackknife errors.

The draws of a set are divided into consecutive groups, which are left out one by one. Consecutive draws of a chain stay
together, so their correlation is in the errors as long as it does not exceed a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import rankdata
from torch import Tensor

from fsvi_bench.maths.likelihood import log_density

GROUPS = 20
REACH, STEP = 8.0, 0.25  #: of the grids of densities beyond the reference's values, in units of the noise
JOINT_DRAWS = 2000  #: of each set in joint scores, evenly spaced
JOINT_INPUTS = (1, 5, 20)

Draws = Float[Tensor, "S P"]
Weights = Float[Tensor, " _"]  #: 1 for a group that counts, else 0


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


class Groups(NamedTuple):
    """Draws and the group of each."""

    f: Draws
    of: Int[Tensor, " S"]
    number: int

    @staticmethod
    def split(f: Draws) -> Groups:
        """`GROUPS` groups of consecutive draws, or a group for each of fewer draws."""
        count = min(GROUPS, len(f))
        return Groups(f, torch.arange(len(f)) * count // len(f), count)

    def thinned(self, inputs: int) -> Groups:
        """At most `JOINT_DRAWS` of the draws, at the first inputs."""
        every = torch.arange(0, len(self.f), max(1, -(-len(self.f) // JOINT_DRAWS)))
        return Groups(self.f[every, :inputs], self.of[every], self.number)

    @property
    def membership(self) -> Float[Tensor, "S groups"]:
        """1 where a draw belongs to a group."""
        return torch.nn.functional.one_hot(self.of, self.number).to(self.f.dtype)

    def kept(self, weights: Weights) -> Bool[Tensor, " S"]:
        """Whether each draw counts."""
        return weights[self.of] > 0


Statistic = Callable[[Weights, Weights], Float[Tensor, " m"]]


def jackknife(statistic: Statistic, q: Groups, reference: Groups) -> list[Estimate]:
    """The m values of a statistic of two independent sets, and their errors: both sets' variances add up."""
    all_q, all_r = torch.ones(q.number), torch.ones(reference.number)
    value = statistic(all_q, all_r)
    left_out = (
        torch.stack([statistic(*weights) for weights in each])
        for each in (
            [(row, all_r) for row in 1 - torch.eye(q.number)],
            [(all_q, row) for row in 1 - torch.eye(reference.number)],
        )
    )
    variance = torch.stack([(len(each) - 1) * each.var(0, correction=0) for each in left_out]).sum(0)
    return [Estimate(*pair) for pair in zip(value.tolist(), variance.sqrt().tolist(), strict=True)]


def predictive_distances(q: Groups, reference: Groups, noise_variance: Float[Tensor, ""] | None) -> list[Estimate]:
    """Means over inputs of KL(reference ‖ q) and of the total variation of the predictive densities of one target.

    Predictives are mixtures of N(f, σ²) over the draws. Densities are integrated by the trapezoidal rule on a grid that
    covers the reference's, with a quarter of σ between nodes; what q has beyond the grid is in the total variation.
    Without a noise variance, they are mixtures of Bernoulli(sigmoid(f)), and the grid is 0 and 1.
    """
    y, step = _grid(reference.f, noise_variance)
    in_groups = [_group_densities(of, y, noise_variance) for of in (q, reference)]

    def statistic(*weights: Weights) -> Float[Tensor, " m"]:
        log_q, log_p = (_mixed(of, each) for of, each in zip(in_groups, weights, strict=True))
        p, density = log_p.exp(), log_q.exp()
        kl = torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1) * step
        beyond = 1 - density.sum(-1) * step
        variation = 0.5 * ((p - density).abs().sum(-1) * step + beyond)
        return torch.stack([kl.mean(), variation.mean()])

    return jackknife(statistic, q, reference)


def _grid(f: Draws, noise_variance: Float[Tensor, ""] | None) -> tuple[Float[Tensor, "P nodes"], Float[Tensor, " P"]]:
    """Nodes, and their distance."""
    if noise_variance is None:
        return f.new_tensor([0.0, 1.0]).expand(f.shape[1], -1), torch.ones_like(f[0])
    scale = float(noise_variance.sqrt())
    low, high = f.amin(0) - REACH * scale, f.amax(0) + REACH * scale
    nodes = int(((high - low) / (STEP * scale)).max().ceil()) + 1
    y = low[:, None] + (high - low)[:, None] * torch.linspace(0, 1, nodes, dtype=low.dtype)
    return y, (high - low) / (nodes - 1)


class _GroupDensities(NamedTuple):
    log_sums: Float[Tensor, "groups P nodes"]  #: log Σ p(y | f) over each group's draws
    sizes: Float[Tensor, " groups"]


def _group_densities(
    groups: Groups, y: Float[Tensor, "P nodes"], noise_variance: Float[Tensor, ""] | None
) -> _GroupDensities:
    members = [groups.f[groups.of == group] for group in range(groups.number)]
    log_sums = [
        torch.stack(
            [
                log_density(nodes[:, None], values, noise_variance).logsumexp(-1)
                for nodes, values in zip(y, f.mT, strict=True)
            ]
        )
        for f in members
    ]
    return _GroupDensities(torch.stack(log_sums), torch.tensor([float(len(f)) for f in members]))


def _mixed(of: _GroupDensities, weights: Weights) -> Float[Tensor, "P nodes"]:
    """The log density of the mixture of all draws that count."""
    return (of.log_sums + weights.log()[:, None, None]).logsumexp(0) - math.log(float(of.sizes @ weights))


def wasserstein_distances(q: Groups, reference: Groups) -> list[Estimate]:
    """Means over inputs of W₁ and of W₂ between the distributions of f (without noise) at one input."""
    ordered = [(of, of.f.sort(0)) for of in (q, reference)]

    def statistic(*weights: Weights) -> Float[Tensor, " m"]:
        a, b = (
            values.mT[of.kept(each)[places].mT].reshape(values.shape[1], -1)
            for (of, (values, places)), each in zip(ordered, weights, strict=True)
        )
        ends = torch.cat([torch.arange(1, n + 1, dtype=a.dtype) / n for n in (a.shape[1], b.shape[1])]).sort().values
        widths = ends.diff(prepend=ends.new_zeros(1))
        levels = ends - 0.5 * widths
        gap = torch.stack([of[:, (levels * of.shape[1]).long().clamp(max=of.shape[1] - 1)] for of in (a, b)]).diff(
            dim=0
        )
        return torch.stack([(gap[0].abs() @ widths).mean(), (gap[0].square() @ widths).sqrt().mean()])

    return jackknife(statistic, q, reference)


def joint_distances(q: Groups, reference: Groups, inputs: int) -> list[Estimate]:
    """Energy distance and MMD² of f at the first inputs together, unbiased for independent draws, so they may be
    negative. Of an autocorrelated chain they are too large.

    MMD² has the kernel exp(−‖a − b‖²/2ℓ²) with ℓ² the sum of the reference's variances. The energy distance is
    2E‖X − Y‖ − E‖X − X′‖ − E‖Y − Y′‖ (Székely and Rizzo 2013), without a root.
    """
    q, reference = q.thinned(inputs), reference.thinned(inputs)
    squared_length = reference.f.var(0).sum()
    sums = [_pair_sums(*pair, squared_length) for pair in ((q, reference), (q, q), (reference, reference))]
    sizes = [of.membership.sum(0) for of in (q, reference)]

    def statistic(*weights: Weights) -> Float[Tensor, " m"]:
        w_q, w_r = (each.to(squared_length.dtype) for each in weights)
        n_q, n_r = (float(size @ w) for size, w in zip(sizes, (w_q, w_r), strict=True))
        cross, within_q, within_r = (
            a @ of @ b for of, a, b in zip(sums, (w_q, w_q, w_r), (w_r, w_q, w_r), strict=True)
        )
        # A draw's distance from itself is 0, with the kernel 1.
        own = torch.tensor([0.0, 1.0], dtype=squared_length.dtype)
        cross, within_q, within_r = (
            cross / (n_q * n_r),
            (within_q - n_q * own) / (n_q * (n_q - 1)),
            (within_r - n_r * own) / (n_r * (n_r - 1)),
        )
        return (2 * cross - within_q - within_r) * torch.tensor([1.0, -1.0], dtype=squared_length.dtype)

    return jackknife(statistic, q, reference)


def _pair_sums(a: Groups, b: Groups, squared_length: Float[Tensor, ""]) -> Float[Tensor, "2 groups_a groups_b"]:
    """Sums over the pairs of two groups of ‖x − y‖ and of the kernel."""
    distances = torch.cdist(a.f, b.f, compute_mode="donot_use_mm_for_euclid_dist")
    both = (distances, (-0.5 * distances.square() / squared_length).exp())
    return torch.stack([a.membership.mT @ each @ b.membership for each in both])


def rank_agreement(q: Groups, reference: Groups) -> Estimate:
    """Spearman's correlation over inputs between the variances of f under q and the reference; NaN without order."""

    def statistic(*weights: Weights) -> Float[Tensor, " m"]:
        ranks = [
            torch.from_numpy(rankdata(of.f[of.kept(each)].var(0).numpy()))
            for of, each in zip((q, reference), weights, strict=True)
        ]
        return torch.corrcoef(torch.stack(ranks))[0, 1:]

    return jackknife(statistic, q, reference)[0]
