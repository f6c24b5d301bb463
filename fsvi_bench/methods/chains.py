"""Shared by Langevin samplers: parallel chains with a step relative to the largest stable one, and their limit."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from fsvi_bench.maths.langevin import Dynamics, Regression, minibatch_covariance, moments_kl, stationary_kl
from fsvi_bench.methods.base import Optimum, StepOptions
from fsvi_bench.methods.points import Count, ParticleMethod, largest_curvature
from fsvi_bench.tasks.task import Task


class ChainOptions(StepOptions):
    """`particles` chains side by side, of which q is the last states; `step_size` is a fraction of the largest stable
    step with gradients of all rows."""

    minibatch: PositiveInt | Literal["full"] = "full"
    particles: Count = 100
    step_size: Annotated[float, Field(gt=0, lt=1)] = 0.1


class ChainMethod(ParticleMethod):
    """Chains from independent draws of the prior; λ_max(Λ), which decides what is stable, is known from the features.

    For a network it is the largest at the chains' starts. Where the posterior's curvature is larger, `step_size` is a
    larger fraction of what is stable.

    The chains of a problem share their minibatches, whose noise moves them together: it is in each chain's
    distribution, and only partly in their spread.
    """

    largest: Float[Tensor, " B"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("largest", largest_curvature(self.problems, self.q().w))

    @abstractmethod
    def dynamics(self, largest: Any) -> Dynamics:
        """The steps defined by the options, given λ_max."""

    def configure_optimizers(self) -> ChainSteps:
        def noise() -> Float[Tensor, "B n k"]:
            return self.streams.normal("injected noise", *self.shape)

        return ChainSteps(self.q.parameters(), self.dynamics(self.largest[:, None, None]), noise)

    def optimum(self, place: int, task: Task) -> Optimum:
        """KL(q ‖ P_D) of a chain's stationary distribution, over runs; with minibatches that of the Gaussian of
        its moments, a lower bound. It is a limit of chains, not the minimum of an objective, so the gap is unknown."""
        posterior = task.truth.posterior
        problem = Regression.of(task.Phi, task.y, task.frozen.noise_variance, posterior.mean)
        if self.rows_per_step == self.problems.N:
            return Optimum(math.nan, stationary_kl(problem.eigenvalues, self.options.step_size))
        dynamics = self.dynamics(float(problem.eigenvalues.max()))
        covariance = minibatch_covariance(problem, dynamics, self.rows_per_step)
        return Optimum(math.nan, math.inf if covariance is None else moments_kl(problem.eigenvalues, covariance))


class ChainSteps(torch.optim.Optimizer):
    """w ← w − force·∇U + √injected ξ; with friction α the same is added to (1 − α)v, and w ← w + v, v = 0 at first."""

    def __init__(self, parameters: Iterable[nn.Parameter], dynamics: Dynamics, noise: Callable[[], Tensor]) -> None:
        super().__init__(parameters, {})
        self.dynamics, self.noise = dynamics, noise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step with the gradients in `grad`, which the closure computes if it is given."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        (w,) = self.param_groups[0]["params"]
        force, injected, friction = self.dynamics
        kick = injected**0.5 * self.noise() - force * w.grad
        if friction is not None:
            v = self.state[w].setdefault("momentum", torch.zeros_like(w))
            kick = v.copy_((1 - friction) * v + kick)
        w.add_(kick)
        return value
