"""The linear models of Gal's §6.3, with unit noise, prior N(0, I) and one output, and results about them.

Gal does not state the number of inputs or their distribution. Here they are Gaussian with equal correlations and
geometrically increasing standard deviations, so neither Σ = E xxᵀ nor Λ = diag Σ is special; the weights are drawn
from the prior, anew in each repeat.
"""

from __future__ import annotations

import itertools
import math
from typing import Annotated, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from scipy.optimize import minimize
from scipy.special import entr
from scipy.stats import norm
from torch import Tensor
from torch.nn.functional import logsigmoid

from fsvi_bench.maths.bernoulli_dropout import compress_rows
from fsvi_bench.maths.bernoulli_optimum import retain_profile
from fsvi_bench.papers.parts import Rising
from fsvi_bench.seeds import derived_generator
from fsvi_bench.strict import Plain

REACH = 12.0  #: standard deviations, beyond which a Gaussian's tail is below 1e-31
Share = Annotated[float, Field(gt=0, lt=1)]


class Settings(Plain):
    """Inputs and data sets of the linear model, and what is computed on them."""

    inputs: int = Field(ge=2)
    correlation: float = Field(ge=0, lt=1)
    smallest_scale: PositiveFloat
    largest_scale: PositiveFloat
    points: Annotated[tuple[PositiveInt, ...], Rising] = Field(min_length=3)
    repeats: int = Field(ge=2)
    profile_points: int = Field(ge=3)
    design_points: PositiveInt
    lengthscale_points: PositiveInt
    spreads: tuple[Share, ...] = Field(min_length=1)
    lengthscales_per_decade: PositiveInt
    mask_weights: int = Field(ge=1, le=12)
    mask_points: PositiveInt
    mask_starts: PositiveInt
    prior_spike: Share

    @model_validator(mode="after")
    def _enough_for_orthogonal_columns(self) -> Settings:
        if self.design_points < self.inputs:
            raise ValueError(
                f"got design_points {self.design_points} for {self.inputs} inputs, expected at least as many, so that "
                "columns can be orthogonal"
            )
        return self

    @property
    def scales(self) -> Float[Tensor, " k"]:
        """The inputs' standard deviations."""
        return torch.from_numpy(np.geomspace(self.smallest_scale, self.largest_scale, self.inputs))


# --- Problems ---------------------------------------------------------------------------------------------------------


class Problems(NamedTuple):
    """A batch of R linear models."""

    X: Float[Tensor, "R N k"]
    y: Float[Tensor, "R N"]
    w: Float[Tensor, "R k"]

    @property
    def data(self) -> tuple[Tensor, Tensor, Tensor]:
        """(X, y, σ² [R])."""
        return self.X, self.y, torch.ones_like(self.y[:, 0])


def draw_problem(settings: Settings, repeat: int, N: int) -> tuple[Tensor, Tensor, Tensor]:
    """(X [N, k], y [N], w [k]) of one repeat. The rows of a smaller N are the first of a larger one's."""
    k = settings.inputs
    w = torch.from_numpy(derived_generator("gal2016-6.3", "weights", k, repeat).standard_normal(k))
    z = torch.from_numpy(derived_generator("gal2016-6.3", "rows", k, repeat).standard_normal((N, k + 2)))
    own, common, noise = z[:, :k], z[:, k : k + 1], z[:, k + 1]
    X = ((1 - settings.correlation) ** 0.5 * own + settings.correlation**0.5 * common) * settings.scales
    return X, X @ w + noise, w


def draw_problems(settings: Settings, N: int, compressed: bool = False) -> Problems:
    """The problems of all repeats; optionally compressed to at most k + 1 rows with the same inner products, so that
    millions of rows fit into memory."""
    drawn = []
    for repeat in range(settings.repeats):
        *data, w = draw_problem(settings, repeat, N)
        drawn.append((*(compress_rows(*data) if compressed else data), w))
    return Problems(*map(torch.stack, zip(*drawn, strict=True)))


def population_covariance(settings: Settings) -> Float[Tensor, "k k"]:
    """Σ = E xxᵀ."""
    scales, shared = settings.scales, settings.correlation
    return torch.outer(scales, scales) * (shared + (1 - shared) * torch.eye(len(scales)))


def redesign(problems: Problems, design: str) -> Problems:
    """The same weights and noise with inputs derived from the given ones.

    "Λ constant": every column is scaled to φᵀφ = N, so only correlation remains. "Σ diagonal": the columns are made
    orthogonal (QR) with their original norms, so Λ = Σ is diagonal and not constant. "general": inputs are unchanged.
    """
    X, length, w = problems.X, problems.X.norm(dim=-2, keepdim=True), problems.w[..., None]
    if design == "Λ constant":
        X = X / length * X.shape[-2] ** 0.5
    elif design == "Σ diagonal":
        X = torch.linalg.qr(X).Q * length
    noise = problems.y - (problems.X @ w)[..., 0]
    return Problems(X, (X @ w)[..., 0] + noise, problems.w)


# --- The objective's profile over p, and its limit --------------------------------------------------------------------


def profile(problems: Problems, N: int, p: Float[Tensor, " P"]) -> Float[Tensor, "R P"]:
    """𝓛(m*, p)/N; Gal's 𝓛 is twice our objective."""
    return 2 * retain_profile(*problems.data).objective(torch.logit(p).expand(len(problems.w), -1)) / N


def limit_profile(
    covariance: Float[Tensor, "k k"], w: Float[Tensor, "*B k"], p: Float[Tensor, " n"]
) -> Float[Tensor, "*B n"]:
    """lim 𝓛(m*, p)/N = a − bᵀ(Σ + (1/p − 1)Λ)⁻¹b, a = wᵀΣw + 1 and b = Σw for y = xᵀw + N(0, 1)."""
    b = w @ covariance
    a = (b * w).sum(-1, keepdim=True) + 1
    matrices = covariance + (1 / p - 1)[:, None, None] * torch.diag(covariance.diagonal())
    solved = torch.linalg.solve(matrices, b[..., None, :, None])[..., 0]
    return a - (b[..., None, :] * solved).sum(-1)


# --- KLs to Gal's two priors ------------------------------------------------------------------------------------------


def widened_kl(m: float, p: float, spread: float) -> float:
    """KL of p N(m, s²) + (1−p) N(0, s²) to N(0, 1), by the trapezoidal rule around each atom.

    For a Gaussian times a function that is smooth on its scale, the rule converges faster than any power of the step.
    For N(0, l⁻²), multiply m and s by l.
    """
    z, step = np.linspace(-REACH, REACH, 4001, retstep=True)
    w = np.array([[m], [0.0]]) + spread * z
    kept, dropped = math.log(p) + norm.logpdf(w, m, spread), math.log1p(-p) + norm.logpdf(w, 0, spread)
    log_ratio = np.logaddexp(kept, dropped) - norm.logpdf(w)
    return float([p, 1 - p] @ log_ratio @ norm.pdf(z) * step)


def gridded_kl(m: float, p: float, step: float) -> float:
    """KL of p δ_m + (1−p) δ_0 to the prior ∝ exp(−½w²) on the multiples of the step, with its normaliser as a sum."""
    reach = math.ceil(REACH / step)
    normaliser = np.exp(-0.5 * (step * np.arange(-reach, reach + 1)) ** 2).sum()
    return float(0.5 * p * m**2 - entr([p, 1 - p]).sum() + math.log(normaliser))


# --- Masks ------------------------------------------------------------------------------------------------------------


class Target(NamedTuple):
    """The posterior restricted to the points m∘ε, which lemma 1's factorised q approximates."""

    masks: Float[Tensor, "S k"]
    log_mass: Float[Tensor, " S"]

    def kl(self, logit: Float[Tensor, " k"]) -> Float[Tensor, ""]:
        """KL of Π Bernoulli(ε_i; σ(logit_i)) to this target."""
        log_q = (self.masks * logsigmoid(logit) + (1 - self.masks) * logsigmoid(-logit)).sum(-1)
        return (log_q.exp() * (log_q - self.log_mass)).sum()

    def descend(self, start: Float[Tensor, " k"]) -> float:
        """The smallest KL that L-BFGS finds from a start, without coordinate-wise or mean-field formulas."""

        def value(x: np.ndarray) -> tuple[float, np.ndarray]:
            logit = torch.tensor(x, requires_grad=True)
            kl = self.kl(logit)
            return kl.item(), torch.autograd.grad(kl, logit)[0].numpy()

        found = minimize(value, start.numpy(), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-10})
        return float(found.fun)


def enumerate_masks(X: Float[Tensor, "N k"], y: Float[Tensor, " N"], m: Float[Tensor, " k"]) -> Target:
    """All 2^k masks, weighted by N(y; X(m∘ε), I) N(m∘ε; 0, I)."""
    masks = torch.tensor(list(itertools.product((0.0, 1.0), repeat=len(m))), dtype=torch.float64)
    weights = masks * m
    log_joint = -0.5 * (y - weights @ X.mT).square().sum(-1) - 0.5 * weights.square().sum(-1)
    return Target(masks, log_joint.log_softmax(0))
