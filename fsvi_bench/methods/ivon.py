"""IVON: mean-field variational inference by natural gradients at the cost of Adam (Shen et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from fsvi_bench.maths.batching import LINE, filled
from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.methods.base import RateOptions
from fsvi_bench.methods.data import Batch, sampled_nll
from fsvi_bench.methods.weight_space import WeightSpaceMethod
from fsvi_bench.posteriors.trainable import TrainablePosterior

Momentum = Annotated[float, Field(ge=0, lt=1)]


class Ivon(WeightSpaceMethod):
    """Natural gradients of the ELBO over factorised q, with Hessians from the reparameterisation trick.

    q = N(m, 1/(N(h + δ))) with the prior as weight decay, δ = 1/N, and ℓ the mean loss per point. With ĝ the gradient
    of ℓ at a draw and ĥ = ĝ ε √(N(h + δ)), each step takes g ← β1 g + (1 − β1) ĝ, then
    h ← β2 h + (1 − β2) ĥ + ½(1 − β2)² (h − ĥ)²/(h + δ), which keeps h + δ positive, and
    m ← m − α (h₀ + δ)(g/(1 − β1ᵗ) + δm)/(h + δ) (algorithm 1; the factor h₀ + δ is `rescale_lr` of its code).
    Its optimum for a linear model is EXACT-FFG. h is an average over 1/(1 − β2) steps: 100,000 with the published
    1 − 1e-5, which needs longer runs than those here. A model whose gradients per point, of order 1/σ², exceed h₀ needs
    a smaller `lr` than the default, such as 1e-3.
    """

    class Options(RateOptions):
        """S draws a step. q starts at the variances 1/(N(`hess_init` + δ)), not at the prior's."""

        lr: PositiveFloat = 0.1
        lr_schedule: Literal["constant", "linear", "cosine"] = "cosine"
        S: PositiveInt = 1
        beta1: Momentum = 0.9
        beta2: Momentum = 0.99999
        hess_init: NonNegativeFloat = 1.0

    families = ("ffg",)
    networks = "weights"
    automatic_optimization = False

    def initial(self) -> NewtonGaussian:
        return NewtonGaussian(len(self.problems), self.problems.k, self.problems.N, self.options.hess_init)

    def configure_optimizers(self) -> NewtonSteps:
        options = self.options
        delta = 1 / self.problems.N
        return NewtonSteps(self.q.parameters(), options.hess_init + delta, delta, (options.beta1, options.beta2))

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        """In training, the expected error by draws alone: the prior is in the steps."""
        if not self.training:
            return super().loss(q, batch)
        noise = self.streams.normal("weight samples", self.options.S, q.mean.shape[-1])
        return sampled_nll(q.draws(noise), batch.rows).mean(-1)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        with torch.no_grad():
            q = self.q()
        leaves = Gaussian(q.mean.requires_grad_(), q.root.requires_grad_())
        losses = self.loss(leaves, batch)
        of_mean, of_root = torch.autograd.grad(losses.sum() / self.problems.N, leaves)
        # w = m + root ∘ ε: the gradient in the root is the mean of ĝ ∘ ε.
        self.q.place_gradients(of_mean, of_root / leaves.root)
        optimizer: Any = self.optimizers()
        optimizer.step(rate=self.options.lr * self.options.decay(self.steps_done))
        self.note(losses.detach())

    def cost(self) -> dict[str, int]:
        return {**super().cost(), "weight_samples": self.options.S}


class NewtonGaussian(TrainablePosterior):
    """N(mean, 1/(N h + 1)) of B problems, h = `hessian`; dummy weights stay at the prior, h = 0."""

    def __init__(self, B: int, k: int, N: int, hess_init: float) -> None:
        super().__init__()
        self.k, self.N, self.width = k, N, filled(k)
        zeros = torch.zeros(B, filled(k, LINE), dtype=torch.float64)
        hessian = zeros.clone()
        hessian[:, :k] = hess_init
        self.mean = nn.Parameter(zeros, requires_grad=False)
        self.hessian = nn.Parameter(hessian, requires_grad=False)

    def forward(self) -> Gaussian:
        precision = self.N * self.hessian + 1
        return Gaussian(self.mean[:, : self.width].clone(), precision.rsqrt()[:, : self.width])

    @torch.no_grad()
    def start(self, mean: Float[Tensor, "B k"], scale: float) -> None:
        """Moves the mean there; the variances are set by `hess_init`."""
        self.mean[:, : self.k] = mean

    def place_gradients(self, gradient: Float[Tensor, "B k"], hessian: Float[Tensor, "B k"]) -> None:
        """Stores the estimates of a step in `grad`, where the optimiser reads them."""
        for parameter, values in ((self.mean, gradient), (self.hessian, hessian)):
            parameter.grad = nn.functional.pad(values, (0, parameter.shape[1] - values.shape[1]))


class NewtonSteps(torch.optim.Optimizer):
    """Steps on (mean, hessian), whose `grad` are ĝ and ĥ.

    Args:
        rescale: h₀ + δ, the factor of the learning rate.
        delta: δ.
        betas: β1 and β2.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], rescale: float, delta: float, betas: tuple[float, float]
    ) -> None:
        super().__init__(parameters, {"rescale": rescale, "delta": delta, "betas": betas, "step": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, rate: float) -> None:  # type: ignore[override]
        """One step of learning rate `rate`."""
        if closure is not None:
            closure()
        (group,) = self.param_groups
        (mean, h), delta, (beta1, beta2) = group["params"], group["delta"], group["betas"]
        group["step"] += 1
        g = self.state[mean].setdefault("momentum", torch.zeros_like(mean))
        g.copy_(beta1 * g + (1 - beta1) * mean.grad)
        correction = 0.5 * (1 - beta2) ** 2 * (h - h.grad).square() / (h + delta)
        h.copy_(beta2 * h + (1 - beta2) * h.grad + correction)
        direction = (g / (1 - beta1 ** group["step"]) + delta * mean) / (h + delta)
        mean.sub_(rate * group["rescale"] * direction)
