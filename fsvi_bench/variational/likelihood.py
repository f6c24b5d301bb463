"""Gradients of the negative expected log likelihood E_q[−log N(y; Φw, σ²I)], over all rows or a minibatch of them.

With q = N(μ, LLᵀ) it is (‖y − Φμ‖² + ‖ΦL‖_F²)/2σ² plus a constant (Burt et al. 2020, appendix E), so its derivatives
are Φᵀ(Φμ − y)/σ² in μ and ΦᵀΦL/σ² in L; for a factorised q, s_i² [ΦᵀΦ]_ii/σ² in log s_i.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from fsvi_bench.maths.functional_kl import ALIGNMENT, as_columns
from fsvi_bench.maths.linalg import add_product_with_tril
from fsvi_bench.tasks.training_problems import TrainingProblems
from fsvi_bench.variational.measurement import CHUNK, align, stream_generator

Minibatch = int | Literal["full"]


class Likelihood(ABC):
    """Adds the gradient of one step's negative expected log likelihood; each step is asked for once, in order."""

    @abstractmethod
    def advance(self) -> None:
        """Goes on to the next step's rows."""

    @abstractmethod
    def mean_gradient(self, mean: Float[Tensor, "B k"]) -> Float[Tensor, "B k"]:
        """∂/∂μ."""

    @abstractmethod
    def add_factor_gradient(self, gradient: Float[Tensor, "B k k"], factor: Float[Tensor, "B k k"]) -> None:
        """Adds ∂/∂L in place, on and below the diagonal."""

    @abstractmethod
    def precision_diagonal(self) -> Float[Tensor, "B k"]:
        """The diagonal of ΦᵀΦ/σ²: times s² it is ∂/∂(log s)."""


class FullBatch(Likelihood):
    """All rows, through ΦᵀΦ/σ² and Φᵀy/σ²: a step costs the same whatever N is."""

    def __init__(self, problems: TrainingProblems) -> None:
        # Problem by problem: N need not be a multiple of anything, and BLAS would round by alignment.
        noise_variance = problems.noise_variance
        grams, moments = [], []
        for Phi, y, variance in zip(align(problems.Phi), problems.y, noise_variance, strict=True):
            rows = Phi.clone()
            grams.append(rows.mT @ rows / variance)
            moments.append((rows.mT @ as_columns(y))[..., 0] / variance)
        self.precision = torch.stack(grams)  #: ΦᵀΦ/σ² [B,k,k]
        self.moment = torch.stack(moments)  #: Φᵀy/σ² [B,k]
        self._diagonal = self.precision.diagonal(dim1=-2, dim2=-1).contiguous()

    def advance(self) -> None:
        """Every step has the same rows."""

    def mean_gradient(self, mean: Float[Tensor, "B k"]) -> Float[Tensor, "B k"]:
        return (self.precision @ as_columns(mean))[..., 0] - self.moment

    def add_factor_gradient(self, gradient: Float[Tensor, "B k k"], factor: Float[Tensor, "B k k"]) -> None:
        add_product_with_tril(gradient, self.precision, factor)

    def precision_diagonal(self) -> Float[Tensor, "B k"]:
        return self._diagonal

    def value(self, mean: Float[Tensor, "B k"], factor: Float[Tensor, "B k k"]) -> Float[Tensor, " B"]:
        """−E_q[log p(y|w)] without the terms that do not depend on q: ½(μᵀGμ + tr LᵀGL) − μᵀΦᵀy/σ², G = ΦᵀΦ/σ²."""
        fitted = (self.precision @ as_columns(mean))[..., 0]
        spread = (factor * (self.precision @ factor)).sum((-2, -1))
        return (mean * (0.5 * fitted - self.moment)).sum(-1) + 0.5 * spread

    def value_diagonal(self, mean: Float[Tensor, "B k"], scale: Float[Tensor, "B k"]) -> Float[Tensor, " B"]:
        """The same for a factorised q."""
        fitted = (self.precision @ as_columns(mean))[..., 0]
        return (mean * (0.5 * fitted - self.moment)).sum(-1) + 0.5 * (scale.square() * self._diagonal).sum(-1)


class RowStream(Likelihood, ABC):
    """A likelihood that shows its rows: `rows` [B,n,k] and `targets` [B,n], both times √(N/n)/σ, so that their sums of
    squares are those of the whole training set; zero rows and columns up to the alignment."""

    rows: Float[Tensor, "B n k"]
    targets: Float[Tensor, "B n"]

    def mean_gradient(self, mean: Float[Tensor, "B k"]) -> Float[Tensor, "B k"]:
        residual = self.rows @ as_columns(mean)
        residual[..., 0] -= self.targets
        return (self.rows.mT @ residual)[..., 0]

    def add_factor_gradient(self, gradient: Float[Tensor, "B k k"], factor: Float[Tensor, "B k k"]) -> None:
        gradient.baddbmm_(self.rows.mT, self.rows @ factor)

    def precision_diagonal(self) -> Float[Tensor, "B k"]:
        return self.rows.square().sum(-2)


class FixedRows(RowStream):
    """All rows at every step, for those who look at them one by one; `FullBatch` is faster for those who do not."""

    def __init__(self, problems: TrainingProblems) -> None:
        scale = problems.noise_variance.rsqrt()[:, None, None]
        self.rows, self.targets = _aligned_rows(align(problems.Phi) * scale, problems.y * scale[..., 0])

    def advance(self) -> None:
        """Every step has the same rows."""


class Rows(RowStream):
    """n distinct rows a step, drawn from each problem's own stream."""

    def __init__(self, problems: TrainingProblems, n: int, seeds: Sequence[int]) -> None:
        self.problems, self.n, self.N = problems, n, problems.y.shape[1]
        self._generators = [stream_generator(seed, "minibatch rows") for seed in seeds]
        self._chunk: list[tuple[Tensor, Tensor]] = []
        self._scale = (self.N / n / problems.noise_variance).sqrt()[:, None, None]

    def advance(self) -> None:
        if not self._chunk:
            self._chunk = list(reversed(self._draw()))
        self.rows, self.targets = self._chunk.pop()

    def _draw(self) -> list[tuple[Tensor, Tensor]]:
        """The next chunk of steps."""
        data, device = self.problems, self.problems.Phi.device
        steps = []
        place = torch.arange(len(data), device=device)[:, None]
        for _ in range(CHUNK):
            draws = [g.choice(self.N, self.n, replace=False, shuffle=False) for g in self._generators]
            index = torch.from_numpy(np.stack(draws)).to(device)
            rows = align(data.Phi[place, index]) * self._scale
            steps.append(_aligned_rows(rows, data.y[place, index] * self._scale[..., 0]))
        return steps


def _aligned_rows(
    rows: Float[Tensor, "B n k"], targets: Float[Tensor, "B n"]
) -> tuple[Float[Tensor, "B m k"], Float[Tensor, "B m"]]:
    fill = -rows.shape[1] % ALIGNMENT
    return (pad(rows, (0, 0, 0, fill)), pad(targets, (0, fill))) if fill else (rows, targets)


def make_likelihood(problems: TrainingProblems, minibatch: Minibatch, seeds: Sequence[int]) -> Likelihood:
    """All rows (`full`, or a minibatch of N) or so many of them, no more than there are."""
    if minibatch == "full" or minibatch == problems.y.shape[1]:
        return FullBatch(problems)
    return Rows(problems, minibatch, seeds)
