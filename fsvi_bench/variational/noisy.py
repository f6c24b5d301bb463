"""Gradients of the expected squared error under noisy weights, and the ways to estimate them.

For f = Φw with independent w_i = centre_i + spread_i e_i (e of mean 0 and variance 1), E‖y − f‖²/2 is
½‖y − Φ centre‖² + ½ Σ_i φ_iᵀφ_i spread_i², whatever the law of e: `exact` is its gradient. The others sample
(Kingma, Salimans and Welling 2015, section 2): `per-minibatch` one set of weights a step, `per-point` one for each row,
and `local` the function values themselves, N(Φ centre, Φ² spread²), which no other moments of e would change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.functional_kl import as_columns
from fsvi_bench.tasks.training_problems import TrainingProblems
from fsvi_bench.variational.likelihood import FixedRows, Rows, RowStream
from fsvi_bench.variational.measurement import stream_generator

Estimator = Literal["exact", "local", "per-point", "per-minibatch"]


class NoisyGradient(NamedTuple):
    """Of ½‖y − f‖² in centre and spread."""

    centre: Float[Tensor, "B k"]
    spread: Float[Tensor, "B k"]


class Noise:
    """Draws from each problem's own stream, on the CPU: standard normals or uniforms."""

    def __init__(self, seeds: Sequence[int], role: str, kind: Literal["normal", "uniform"] = "normal") -> None:
        self._generators = [stream_generator(seed, role) for seed in seeds]
        self._kind = kind

    def __call__(self, *shape: int) -> Tensor:
        """Draws [B, *shape]."""
        draws = np.empty((len(self._generators), *shape))
        for place, generator in zip(draws, self._generators, strict=True):
            if self._kind == "normal":
                generator.standard_normal(out=place)
            else:
                generator.random(out=place)
        return torch.from_numpy(draws)


def make_rows(problems: TrainingProblems, n: int, seeds: Sequence[int]) -> RowStream:
    """All rows at every step if n is their number, or n of them drawn anew."""
    return FixedRows(problems) if n == problems.y.shape[1] else Rows(problems, n, seeds)


class NoisyError(ABC):
    """½‖y − f‖² over one step's rows, scaled to the whole training set and by 1/σ²."""

    def __init__(self, rows: RowStream) -> None:
        self.rows = rows

    @abstractmethod
    def gradient(self, centre: Float[Tensor, "B k"], spread: Float[Tensor, "B k"]) -> NoisyGradient:
        """Its gradient, or an unbiased estimate, with the next step's rows and noise."""


class ExactError(NoisyError):
    """The expectation's own gradient: no noise but the minibatch's."""

    def gradient(self, centre: Float[Tensor, "B k"], spread: Float[Tensor, "B k"]) -> NoisyGradient:
        self.rows.advance()
        of_centre = self.rows.mean_gradient(centre)
        return NoisyGradient(of_centre, spread * self.rows.precision_diagonal())


class LocalError(NoisyError):
    """The local reparameterisation: function values from their own normal distribution."""

    def __init__(self, rows: RowStream, seeds: Sequence[int]) -> None:
        super().__init__(rows)
        self._noise = Noise(seeds, "function noise")

    def gradient(self, centre: Float[Tensor, "B k"], spread: Float[Tensor, "B k"]) -> NoisyGradient:
        self.rows.advance()
        Phi, y = self.rows.rows, self.rows.targets
        squares = Phi.square()
        deviation = (squares @ as_columns(spread.square()))[..., 0].sqrt()
        noise = self._noise(y.shape[1]).to(Phi.device)
        residual = (Phi @ as_columns(centre))[..., 0] + deviation * noise - y
        # A row that no weight moves (a zero row of the alignment) has deviation 0 and nothing to say of the spread.
        pull = torch.where(deviation > 0, residual * noise / deviation, 0.0)
        of_spread = spread * (squares.mT @ as_columns(pull))[..., 0]
        return NoisyGradient((Phi.mT @ as_columns(residual))[..., 0], of_spread)


class SampledError(NoisyError):
    """Weights themselves are drawn, once a step or once a row."""

    def __init__(self, rows: RowStream, noise: Callable[..., Tensor], per_point: bool) -> None:
        super().__init__(rows)
        self._noise, self.per_point = noise, per_point

    def gradient(self, centre: Float[Tensor, "B k"], spread: Float[Tensor, "B k"]) -> NoisyGradient:
        self.rows.advance()
        Phi, y = self.rows.rows, self.rows.targets
        n = y.shape[1] if self.per_point else 1
        e = self._noise(n, centre.shape[-1]).to(Phi.device)
        return self._through(Phi, y, centre[:, None] + spread[:, None] * e, e)

    def _through(
        self, Phi: Float[Tensor, "B n k"], y: Float[Tensor, "B n"], w: Float[Tensor, "B s k"], e: Float[Tensor, "B s k"]
    ) -> NoisyGradient:
        of_w = error_gradient(Phi, y, w)
        return NoisyGradient(of_w.sum(-2), (of_w * e).sum(-2))


def error_gradient(
    Phi: Float[Tensor, "B n k"], y: Float[Tensor, "B n"], w: Float[Tensor, "B s k"]
) -> Float[Tensor, "B s k"]:
    """∂/∂w of ½‖y − f‖² for one set of weights (s = 1) or one for each row (s = n)."""
    if w.shape[1] == 1:
        residual = Phi @ as_columns(w[:, 0])
        residual[..., 0] -= y
        return (Phi.mT @ residual).mT[:, :1]
    residual = (Phi * w).sum(-1) - y
    return residual[..., None] * Phi


def make_error(estimator: Estimator, rows: RowStream, seeds: Sequence[int]) -> NoisyError:
    """The estimator by name, with Gaussian noise."""
    if estimator == "exact":
        return ExactError(rows)
    if estimator == "local":
        return LocalError(rows, seeds)
    return SampledError(rows, Noise(seeds, "weight noise"), estimator == "per-point")
