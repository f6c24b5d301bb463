"""Linear layers with multiplicative noise: every dropout of Kingma, Salimans and Welling (2015), called KSW here.

A layer maps a [M,K] to b [M,L] by weights θ [K,L], which stand as in KSW's B = Aθ, and a bias without noise. Unlike the
rest of the package these modules compute in PyTorch's default precision, float32, as networks usually do.

| kind | noise | estimator `local` | `per-point` | `per-minibatch` |
|---|---|---|---|---|
| `none` | | | | |
| `bernoulli` | ξ = d/(1 − p) on a, d ~ Bernoulli(1 − p) | a mask per point | the same | one mask for all |
| `gaussian-a`, `variational-a` | ξ ~ N(1, α) on a: w_i = s_i θ_i | s per point | the same | one s for all |
| `gaussian-b`, `variational-b` | w_ij ~ N(θ_ij, α θ_ij²) | noise on b | a matrix per point | one matrix |

For noise on the inputs a weight sample per data point *is* a noise vector per data point, since a diag(s) θ = (a ∘ s) θ
(KSW, section 3.2). The kinds `gaussian-*` keep α = p/(1 − p) fixed; `variational-*` learn log α per layer, per unit (an
input of the layer: it is the unit that dropout would drop), or per weight (independent noise only), with α ≤ 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fsvi_bench.maths.log_uniform import gaussian_dropout_kl, ksw_cubic_kl, ksw_lower_bound_kl, molchanov_kl
from fsvi_bench.papers.parts import Plain

Kind = Literal["none", "bernoulli", "gaussian-a", "gaussian-b", "variational-a", "variational-b"]
Estimator = Literal["local", "per-point", "per-minibatch"]
Granularity = Literal["layer", "unit", "weight"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
Kl = Literal["exact", "cubic", "lower-bound", "molchanov"]
KL_FUNCTIONS: dict[Kl, Callable[[Tensor], Tensor]] = {
    "exact": gaussian_dropout_kl,
    "cubic": ksw_cubic_kl,
    "lower-bound": ksw_lower_bound_kl,
    "molchanov": molchanov_kl,
}

CHUNK = 2**24  # entries of the per-point noise that are held at a time


class NoiseSettings(Plain):
    """What noise a layer carries. `estimator` changes gradients, never the distribution of a single output."""

    kind: Kind
    estimator: Estimator = "local"
    granularity: Granularity = "layer"
    kl: Kl = "cubic"

    @model_validator(mode="after")
    def _inputs_have_no_weights(self) -> NoiseSettings:
        if self.kind == "variational-a" and self.granularity == "weight":
            raise ValueError(
                "got an α per weight for variational-a, expected one per layer or unit because its noise sits on the"
                " inputs; choose granularity layer or unit, or kind variational-b"
            )
        return self

    @property
    def is_variational(self) -> bool:
        return self.kind.startswith("variational")

    @property
    def is_on_weights(self) -> bool:
        """Independent noise on the weights (type B), as opposed to noise on the inputs."""
        return self.kind.endswith("-b")


class NoisyLinear(nn.Module):
    """One layer. Called with a generator it draws noise, called without one it uses the mean weights.

    `drop_rate` p in (0, 1) gives α = p/(1 − p), where learning starts if α is learnt (then p ≤ 1/2).
    """

    log_alpha: Tensor  #: [1,1], [K,1] or [K,L]

    def __init__(
        self, inputs: int, outputs: int, noise: NoiseSettings, drop_rate: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.noise, self.drop_rate = noise, drop_rate
        self.theta = nn.Parameter(math.sqrt(2 / inputs) * torch.randn(inputs, outputs, generator=generator))  # He's
        self.bias = nn.Parameter(torch.zeros(outputs))
        start = math.log(drop_rate / (1 - drop_rate)) if noise.kind != "none" else -math.inf
        if noise.is_variational:
            shape = {"layer": (1, 1), "unit": (inputs, 1), "weight": (inputs, outputs)}[noise.granularity]
            self.log_alpha = nn.Parameter(torch.full(shape, start))
        else:
            self.register_buffer("log_alpha", torch.full((1, 1), start))

    def forward(self, a: Float[Tensor, "M K"], generator: torch.Generator | None = None) -> Float[Tensor, "M L"]:
        if generator is None or self.noise.kind == "none":
            return torch.addmm(self.bias, a, self.theta)
        if not self.noise.is_on_weights:
            return torch.addmm(self.bias, a * self._input_noise(a, generator), self.theta)
        if self.noise.estimator == "local":
            return self._local(a, generator)
        scale = self._scale()
        if self.noise.estimator == "per-point":
            noise: Tensor = PerPointNoise.apply(a, scale, generator)  # type: ignore[no-untyped-call]
            return torch.addmm(self.bias, a, self.theta) + noise
        return torch.addmm(self.bias, a, self.theta + scale * normal_like(scale, generator))

    def _local(self, a: Tensor, generator: torch.Generator) -> Tensor:
        """b = γ + √δ ζ with the moments of KSW's eq. 10."""
        alpha, square = self.log_alpha.exp(), self.theta.square()
        # Per layer or unit, α scales the inputs: M×K products instead of K×L ones.
        per_weight = alpha.shape == square.shape
        delta = a.square() @ (alpha * square) if per_weight else (alpha.mT * a.square()) @ square
        # Where all inputs are 0 so is δ, and the root's derivative there is infinite: ∞ · 0 is NaN. The smallest normal
        # number keeps it finite, hence the product 0, and moves no other δ.
        deviation = (delta + torch.finfo(delta.dtype).tiny).sqrt()
        return torch.addmm(self.bias, a, self.theta) + deviation * normal_like(delta, generator)

    def _scale(self) -> Float[Tensor, "K L"]:
        """Standard deviations of the weights, up to signs, which a symmetric noise does not mind: √α θ."""
        return (0.5 * self.log_alpha).exp() * self.theta

    def _input_noise(self, a: Tensor, generator: torch.Generator) -> Float[Tensor, "rows K"]:
        rows = a[:1] if self.noise.estimator == "per-minibatch" else a
        if self.noise.kind == "bernoulli":
            keep = 1 - self.drop_rate
            uniform = torch.rand(rows.shape, generator=generator, dtype=a.dtype, device=a.device)
            return (uniform < keep).to(a.dtype) / keep
        return 1 + (0.5 * self.log_alpha).exp().mT * normal_like(rows, generator)

    def kl(self) -> Tensor:
        """KL to the log-uniform prior in nats, over all weights (type B) or all input scales s_i (type A).

        Zero where nothing about α is learnt: the KL does not depend on θ (KSW, appendix C).
        """
        if not self.noise.is_variational:
            return self.theta.new_zeros(())
        terms = self.theta.numel() if self.noise.is_on_weights else len(self.theta)
        return KL_FUNCTIONS[self.noise.kl](self.log_alpha.exp()).sum() * (terms / self.log_alpha.numel())

    @torch.no_grad()
    def project(self) -> None:
        """Back to α ≤ 1, after each step of an optimiser (KSW, section 3.4).

        A clamp within the forward pass would have no gradient beyond the bound, and α could never come back.
        """
        if self.noise.is_variational:
            self.log_alpha.clamp_(max=0.0)

    @torch.no_grad()
    def mean_drop_rate(self) -> float:
        """Mean of α/(1 + α), the dropout rate that has the same relative variance as α."""
        return float(self.log_alpha.sigmoid().mean())


class PerPointNoise(torch.autograd.Function):
    """Σ_i a_mi s_ij ε_mij with an ε of its own for every data point m: [M,L].

    ε has M·K·L entries, which at KSW's sizes is more than memory holds. It is drawn in chunks of points and, from the
    generator's saved state, drawn again on the way back.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, scale: Tensor, generator: torch.Generator) -> Tensor:
        ctx.save_for_backward(a, scale)
        ctx.state, ctx.device = generator.get_state(), generator.device
        parts = [
            torch.bmm(a[rows, None], noise.mul_(scale))[:, 0]
            for rows, noise in PerPointNoise.draws(a, scale, generator)
        ]
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        a, scale = ctx.saved_tensors
        generator = torch.Generator(ctx.device)
        generator.set_state(ctx.state)
        grad_a, grad_scale = torch.empty_like(a), torch.zeros_like(scale)
        for rows, noise in PerPointNoise.draws(a, scale, generator):
            pulled = noise.mul_(grad[rows, None])
            grad_a[rows] = torch.einsum("mij,ij->mi", pulled, scale)
            grad_scale += torch.einsum("mi,mij->ij", a[rows], pulled)
        return grad_a, grad_scale, None

    @staticmethod
    def draws(a: Tensor, scale: Tensor, generator: torch.Generator) -> Iterator[tuple[slice, Tensor]]:
        """Pairs of a slice of points and its noise [m,K,L]."""
        step = max(1, CHUNK // max(1, scale.numel()))
        for start in range(0, len(a), step):
            rows = slice(start, min(start + step, len(a)))
            shape = (rows.stop - rows.start, *scale.shape)
            yield rows, torch.randn(shape, generator=generator, dtype=a.dtype, device=a.device)


def normal_like(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
