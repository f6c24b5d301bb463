"""Free-form masks (Gal 2016, §6.6.4, lemma 1) against enumeration, and spike and slab (§§6.6.5-6.6.6)."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import logsigmoid

from fsvi_bench.maths.bernoulli_optimum import coordinate_ascent_masks
from fsvi_bench.maths.blr import blr_posterior, mean_field_optimum_scale
from fsvi_bench.maths.spike_slab import spike_slab_moments, spike_slab_optimum, spike_slab_row
from fsvi_bench.papers.gal2016.section_6_3.data import Problems, Settings
from fsvi_bench.seeds import derived_generator

RARE_SPIKE = 1e-9  #: the f that stands for f → 0
WIDTHS = tuple(10.0 ** (-power / 8) for power in range(-8, 25))  #: σ of eq. 6.8, from 10 down to 0.001
ATOMS = (0.0, 0.1, 0.5, 1.0)  #: |m| of eq. 6.8


class Target(NamedTuple):
    """The posterior restricted to the points m∘ε: what lemma 1's factorised q approximates."""

    masks: Float[Tensor, "S k"]
    log_mass: Float[Tensor, " S"]

    @property
    def retain(self) -> Float[Tensor, " k"]:
        """The exact P(ε_i = 1)."""
        return self.log_mass.exp() @ self.masks

    def kl(self, logit: Float[Tensor, " k"]) -> Float[Tensor, ""]:
        """KL of Π Bernoulli(ε_i; σ(logit_i)) to it."""
        log_q = (self.masks * logsigmoid(logit) + (1 - self.masks) * logsigmoid(-logit)).sum(-1)
        return (log_q.exp() * (log_q - self.log_mass)).sum()


def enumerate_masks(X: Float[Tensor, "N k"], y: Float[Tensor, " N"], m: Float[Tensor, " k"]) -> Target:
    """All 2^k of them, weighted by N(y; X(m∘ε), I) N(m∘ε; 0, I)."""
    masks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=len(m))), dtype=torch.float64)
    weights = masks * m
    log_joint = -0.5 * (y - weights @ X.mT).square().sum(-1) - 0.5 * weights.square().sum(-1)
    return Target(masks, log_joint.log_softmax(0))


class Masks(NamedTuple):
    """Per repeat; m is the MAP."""

    size: Float[Tensor, "R k"]  #: |m_i| √Λ_ii, in the standard deviations that are left to w_i by the others
    retain: Float[Tensor, "R k"]  #: by CAVI from p = ½
    enumerated: Float[Tensor, "R k"]
    kl: Float[Tensor, " R"]  #: of CAVI's q, nats
    gain: Float[Tensor, " R"]  #: what L-BFGS from nearby takes off it
    best_start: Float[Tensor, " R"]  #: what the best of several random starts takes off it


def compare_masks(settings: Settings, problems: Problems) -> Masks:
    """CAVI and enumeration on every repeat."""
    return Masks(*map(torch.stack, zip(*(_masks(settings, problems, i) for i in range(len(problems.w))), strict=True)))


def _masks(settings: Settings, problems: Problems, repeat: int) -> Masks:
    X, y, one = problems.X[repeat], problems.y[repeat], torch.ones((), dtype=torch.float64)
    posterior = blr_posterior(X, y, one)
    m, target = posterior.mean, enumerate_masks(X, y, posterior.mean)
    logit = coordinate_ascent_masks(X, y, one, m, torch.zeros_like(m))
    random = derived_generator("gal2016-6.3", "mask starts", repeat)
    starts = [torch.from_numpy(3 * random.standard_normal(len(m))) for _ in range(settings.mask_starts)]
    others = [target.kl(coordinate_ascent_masks(X, y, one, m, start)) for start in starts]
    kl = target.kl(logit)
    nearby = logit + 0.1 * torch.from_numpy(random.standard_normal(len(m)))  # off saddles, if there are any
    return Masks(
        m.abs() / mean_field_optimum_scale(posterior.precision_tril),
        logit.sigmoid(),
        target.retain,
        kl,
        kl - descend(target, nearby),
        kl - torch.stack(others).min(),
    )


def descend(target: Target, start: Float[Tensor, " k"]) -> Float[Tensor, ""]:
    """The least KL that L-BFGS finds from a start: no coordinate-wise argument, and no mean-field algebra, in it."""

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        logit = torch.tensor(x, requires_grad=True)
        kl = target.kl(logit)
        kl.backward()  # type: ignore[no-untyped-call]
        return kl.item(), logit.grad.numpy()  # type: ignore[union-attr]

    found = minimize(value, start.numpy(), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10})
    return torch.tensor(found.fun, dtype=torch.float64)


class SpikeSlabFindings(NamedTuple):
    """Spike-and-slab optima of the mask problems, and eq. 6.8 by itself."""

    size: Float[Tensor, "R k"]  #: |slab mean| over slab scale
    slab_weight: Float[Tensor, "R k"]
    rank_correlation: Float[Tensor, " R"]  #: of |slab mean| and slab log odds
    gaussian_error: Float[Tensor, " R"]  #: moments at f = `RARE_SPIKE` less the mean-field posterior's, relative
    dropout_probability: Float[Tensor, "a w"]  #: eq. 6.8's α/(1+α) for `ATOMS` and `WIDTHS`


def examine_spike_slab(settings: Settings, problems: Problems) -> SpikeSlabFindings:
    """On every repeat."""
    data = problems.X, problems.y, problems.unit
    found = spike_slab_optimum(*data, settings.prior_spike)
    pairs = zip(found.mean.abs(), -found.log_odds, strict=True)
    ranks = [float(spearmanr(size.numpy(), odds.numpy()).statistic) for size, odds in pairs]
    rare = spike_slab_optimum(*data, RARE_SPIKE)
    mean, scale = spike_slab_moments(rare.spike_weight, rare.mean, rare.scale)
    posterior = blr_posterior(*data)
    exact_scale = mean_field_optimum_scale(posterior.precision_tril)
    errors = torch.stack([(mean - posterior.mean).abs() / exact_scale, (scale / exact_scale - 1).abs()])
    return SpikeSlabFindings(
        found.mean.abs() / found.scale,
        1 - found.spike_weight,
        torch.tensor(ranks, dtype=torch.float64),
        errors.amax((0, -1)),
        dropout_probability(settings.prior_spike),
    )


def dropout_probability(prior_spike: float) -> Float[Tensor, "a w"]:
    """α/(1+α) of eq. 6.8 for one weight. As σ → 0 it tends to 0 for every m ≠ 0, to 1 for m = 0.

    The exponent −m²/2σ² beats the factor 1/σ. So Gal's "dropout probability, which tends towards 1" (§6.6.5) should
    read retain probability: it is kept ever more surely.
    """
    m, sigma = torch.meshgrid(*(torch.tensor(v, dtype=torch.float64) for v in (ATOMS, WIDTHS)), indexing="ij")
    return spike_slab_row(m[..., None], sigma, prior_spike).log_odds.sigmoid()
