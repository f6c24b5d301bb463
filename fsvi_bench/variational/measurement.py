"""Measurement sets: how they are drawn, and a stream of them for B problems, each with random streams of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from fsvi_bench.errors import InputError
from fsvi_bench.maths.functional_kl import ALIGNMENT, Measurement
from fsvi_bench.maths.measurement import measure
from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.training_problems import TrainingProblems

Source = Literal["mixed", "data", "box"]

#: Sets drawn and prepared at once. Never a result's business: every problem draws in the same order whatever this is,
#: and triangular solves take right-hand sides of a whole chunk, so a run's length does not move its first steps.
CHUNK = 8


@dataclass(frozen=True)
class MeasurementDesign:
    """The distribution μ of measurement sets, and how their KL divergence is taken (Burt et al. 2020, eq. 6, F.2).

    `mixed`: ⌊M/2⌋ distinct training inputs, the rest uniform in the bounding box of the training inputs; `data`, `box`:
    all of one kind. Distinct means unequal inputs: a data set's duplicate rows count once.
    """

    M: int
    source: Source = "mixed"
    kl_jitter: float = 0.0
    rank_tolerance: float = RANK_TOLERANCE

    @property
    def M_data(self) -> int:
        """How many of the M inputs are training inputs."""
        return {"mixed": self.M // 2, "data": self.M, "box": 0}[self.source]

    def distinct_inputs(self, problems: TrainingProblems) -> list[NDArray[np.int64]]:
        """For each problem, the training rows to choose from; none if no training inputs are asked for.

        Raises:
            InputError: there are fewer distinct ones than a set takes.
        """
        if not self.M_data:
            return []
        distinct = [distinct_rows(X) for X in problems.X]
        if (fewest := min(map(len, distinct))) < self.M_data:
            raise InputError(
                f"M={self.M} asks for {self.M_data} distinct training inputs, but a split has {fewest}; "
                "choose a smaller --measurement-points"
            )
        return distinct


class MeasuredSet(NamedTuple):
    """One measurement set per problem: features, and what the functional KL needs of them."""

    Phi_A: Float[Tensor, "B M k"]
    measurement: Measurement


def stream_generator(seed: int, role: str) -> np.random.Generator:
    """A problem's own stream for one purpose. SFC64 draws normals fastest; its normals do not depend on chunk sizes."""
    return np.random.Generator(np.random.SFC64(derive_seed(seed, role)))


def aligned(k: int) -> int:
    """The next multiple of `ALIGNMENT`: methods carry dummy weights that no function value depends on up to there."""
    return k + -k % ALIGNMENT


def align(Phi: Float[Tensor, "*B n k"]) -> Float[Tensor, "*B n k_aligned"]:
    """Features with zero columns for the dummy weights."""
    return pad(Phi, (0, aligned(Phi.shape[-1]) - Phi.shape[-1])) if Phi.shape[-1] % ALIGNMENT else Phi


def distinct_rows(X: Float[Tensor, "N D"]) -> NDArray[np.int64]:
    """Numbers of the first of each group of equal rows, ascending."""
    return np.sort(np.unique(X.cpu().numpy(), axis=0, return_index=True)[1])


class MeasurementStream:
    """Endless measurement sets for B problems. Drawn on the CPU, so that they are the same on every device.

    Raises:
        InputError: the design asks for more distinct training inputs than a problem has.
    """

    def __init__(self, problems: TrainingProblems, design: MeasurementDesign, seeds: Sequence[int]) -> None:
        self.problems, self.design = problems, design
        self._distinct = design.distinct_inputs(problems)
        self._rows = [stream_generator(seed, "measurement rows") for seed in seeds]
        self._maps = [problems.feature_map[problem] for problem in range(len(problems))]
        self._buffer: Tensor | None = None
        self._box = [stream_generator(seed, "measurement box") for seed in seeds]

    def __iter__(self) -> Iterator[MeasuredSet]:
        """Sets one by one; each is overwritten by a later one."""
        while True:
            chunk = self.draw(CHUNK)
            if chunk.device.type == "cpu":
                # Step by step: a step's matrices fit into the cache.
                yield from (MeasuredSet(Phi_A, self.measure(Phi_A)) for Phi_A in chunk)
            else:
                # All at once: whether a set is degenerate is asked of the GPU once a chunk, not once a step.
                measurement, B = self.measure(chunk.flatten(0, 1)), len(self.problems)
                yield from (
                    MeasuredSet(Phi_A, measurement.narrow(step * B, (step + 1) * B)) for step, Phi_A in enumerate(chunk)
                )

    def measure(self, Phi_A: Float[Tensor, "B M k"]) -> Measurement:
        """Basis and slack of one set per problem, as the design asks."""
        return measure(Phi_A, jitter=self.design.kl_jitter, rank_tolerance=self.design.rank_tolerance)

    def draw(self, sets: int) -> Float[Tensor, "sets B M k"]:
        """Features at the next `sets` measurement sets of each problem, in a buffer that the next draw overwrites."""
        data, M_data = self.problems, self.design.M_data
        shape = (sets, len(data), self.design.M, aligned(data.k))
        if self._buffer is None or self._buffer.shape != shape:
            self._buffer = data.Phi.new_zeros(shape)
        features = self._buffer[..., : data.k]
        if M_data:
            for problem, rows in enumerate(self._draw_rows(sets)):
                features[:, problem, :M_data] = data.Phi[problem, rows.to(data.Phi.device)]
        if M_data < self.design.M:
            for problem, Phi_box in enumerate(self._draw_box(sets)):
                features[:, problem, M_data:] = Phi_box
        return self._buffer

    def _draw_rows(self, sets: int) -> Iterator[Int[Tensor, "sets M_data"]]:
        for distinct, generator in zip(self._distinct, self._rows, strict=True):
            draws = [
                generator.choice(len(distinct), self.design.M_data, replace=False, shuffle=False) for _ in range(sets)
            ]
            yield torch.from_numpy(distinct[np.stack(draws)])

    def _draw_box(self, sets: int) -> Iterator[Float[Tensor, "sets M_box k"]]:
        """Features at uniform inputs, problem by problem on a CPU: LAPACK's solve would round by where one lies."""
        data = self.problems
        M_box, D = self.design.M - self.design.M_data, data.X.shape[-1]
        unit = torch.from_numpy(np.stack([generator.random((sets * M_box, D)) for generator in self._box]))
        inputs = data.low[:, None] + (data.high - data.low)[:, None] * unit.to(data.low.device)
        if inputs.device.type == "cpu":
            features = (feature_map(x.clone()) for feature_map, x in zip(self._maps, inputs, strict=True))
        else:
            features = iter(data.feature_map(inputs))
        yield from (one.reshape(sets, M_box, -1) for one in features)
