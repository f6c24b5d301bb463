"""What a step sees: rows of the likelihood and measurement sets, for B problems, by a LightningDataModule.

Every problem draws from random streams of its own, on the CPU, so that what it sees depends neither on the batch that
it is in nor on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, count, repeat
from typing import Any, Literal, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fsvi_bench.errors import InputError, whole_number
from fsvi_bench.maths.batching import Stacked, fill, filled, matvec, products
from fsvi_bench.maths.functional_kl import Gaussian, MeasurementSets, measure, scaled
from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.maths.linalg import product_tril, square_norm
from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.methods.problems import TrainingData, checked_seeds
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.task import Task

Source = Literal["mixed", "data", "box"]
Minibatch = int | Literal["full"]

#: Steps drawn at once. Never a result's business: every problem draws in the same order whatever this is, and
#: triangular solves take right-hand sides of a whole chunk, so a run's length does not move its first steps.
CHUNK = 8


class Streams:
    """Random streams of B problems, one for each seed and role. SFC64 draws normals fastest, and its normals do not
    depend on how many are asked for at once."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = tuple(seeds)
        self._generators: dict[str, list[np.random.Generator]] = {}

    def __call__(self, role: str) -> list[np.random.Generator]:
        """One generator per problem."""
        if role not in self._generators:
            self._generators[role] = [
                np.random.Generator(np.random.SFC64(derive_seed(seed, role))) for seed in self.seeds
            ]
        return self._generators[role]

    def normal(self, role: str, *shape: int) -> Float[Tensor, "B ..."]:
        """Standard normal numbers [B, *shape]."""
        draws = np.empty((len(self.seeds), *shape))
        for place, generator in zip(draws, self(role), strict=True):
            generator.standard_normal(out=place)
        return torch.from_numpy(draws)

    def uniform(self, role: str, *shape: int) -> Float[Tensor, "B ..."]:
        """Numbers in [0, 1), [B, *shape]."""
        return torch.from_numpy(np.stack([generator.random(shape) for generator in self(role)]))

    def state(self) -> dict[str, list[dict[str, Any]]]:
        """Where the streams stand, in plain numbers, since a checkpoint holds no NumPy array."""
        return {role: [_plain_state(g) for g in generators] for role, generators in self._generators.items()}

    def restore(self, state: Mapping[str, list[dict[str, Any]]]) -> None:
        """Goes back to where `state` was taken."""
        self._generators.clear()
        for role, problems in state.items():
            for generator, of_problem in zip(self(role), problems, strict=True):
                generator.bit_generator.state = of_problem


def _plain_state(generator: np.random.Generator) -> dict[str, Any]:
    state = generator.bit_generator.state
    return {**state, "state": {"state": state["state"]["state"].tolist()}}


@dataclass(frozen=True, eq=False)
class Rows(Stacked):
    """Rows of the likelihood in units of the noise, scaled to the whole training set.

    `Phi` [B,n,k] and `y` [B,n] are times √(N/n)/σ: −E_q log p(y|w) is constant + ½ E_q ‖y − Φw‖². Zero rows and columns
    fill them up (`maths.batching`).
    """

    Phi: Float[Tensor, "B n k"]
    y: Float[Tensor, "B n"]
    constant: Float[Tensor, " B"]  #: ½N log 2πσ²
    is_whole: bool = False  #: the same rows at every step, so that inner products pay

    @staticmethod
    def whole(data: TrainingData, compress: bool = True) -> Rows:
        """All rows, or as many as there are weights and one more, with the same inner products: the triangular factor
        of [Φ, y]/σ."""
        root = data.noise_variance.sqrt()[:, None, None]
        both = torch.cat([data.Phi, data.y[..., None]], -1) / root
        if compress:
            # Problem by problem: N need not be a multiple of anything, and a NaN is its own problem's.
            both = torch.stack([torch.linalg.qr(rows.clone(), mode="r").R for rows in both])
        return Rows(fill(both[..., :-1]), fill(both[..., -1:])[..., 0], constant(data), is_whole=compress)

    @cached_property
    def gram(self) -> Float[Tensor, "B k k"]:
        """ΦᵀΦ/σ²."""
        return self.Phi.mT @ self.Phi

    @cached_property
    def moment(self) -> Float[Tensor, "B k"]:
        """Φᵀy/σ²."""
        return matvec(self.Phi.mT, self.y)


def constant(data: TrainingData) -> Float[Tensor, " B"]:
    """½N log 2πσ² of each problem."""
    return 0.5 * data.N * (LOG_2PI + data.noise_variance.log())


def expected_nll(q: Gaussian, rows: Rows) -> Float[Tensor, " B"]:
    """−E_q[log N(y; Φw, σ²I)] = ½N log 2πσ² + (‖y − Φμ‖² + ‖ΦL‖_F²)/2σ² (Burt et al. 2020, appendix E)."""
    if q.root.ndim == 3 and torch.is_grad_enabled():
        return _ExpectedNLL.apply(q.mean, q.root, rows)  # type: ignore[no-untyped-call]
    residual = rows.y - matvec(rows.Phi, q.mean)
    if q.root.ndim == 3:
        spread = square_norm(q.spread(rows.Phi))
    else:
        spread = (rows.Phi.square().sum(-2) * q.root.square()).sum(-1)
    return rows.constant + 0.5 * (residual.square().sum(-1) + spread)


class _ExpectedNLL(torch.autograd.Function):
    """Of a full Σ, with its gradients −Φᵀ(y − Φμ)/σ² and ΦᵀΦL/σ², which is no gradient above the diagonal: half of
    autograd's time."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, tril: Tensor, rows: Rows) -> Tensor:
        residual = rows.y - matvec(rows.Phi, mean)
        if rows.is_whole:
            of_tril = product_tril(rows.gram, tril)
            spread = (tril * of_tril).sum((-2, -1))
        else:
            moved = rows.Phi @ tril
            of_tril, spread = rows.Phi.mT @ moved, square_norm(moved)
        ctx.save_for_backward(-matvec(rows.Phi.mT, residual), of_tril)
        return rows.constant + 0.5 * (residual.square().sum(-1) + spread)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        return *scaled(ctx.saved_tensors, grad_outputs[0]), None


def sampled_nll(w: Float[Tensor, "B S k"], rows: Rows) -> Float[Tensor, "B S"]:
    """−log N(y; Φw, σ²I) for each of S weight vectors."""
    residual = rows.y[:, None] - products(rows.Phi, w)
    return rows.constant[:, None] + 0.5 * (residual * residual).sum(-1)


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

    def distinct_inputs(self, data: TrainingData) -> list[NDArray[np.int64]]:
        """For each problem, the training rows to choose from; none if no training inputs are asked for.

        Raises:
            InputError: there are fewer distinct ones than a set takes.
        """
        if not self.M_data:
            return []
        distinct = [distinct_rows(X) for X in data.X]
        if (fewest := min(map(len, distinct))) < self.M_data:
            raise InputError(
                f"M={self.M} asks for {self.M_data} distinct training inputs, but a split has {fewest}; "
                "choose a smaller M (--measurement-points)"
            )
        return distinct

    def measure(self, Phi_A: Float[Tensor, "B M k"], span: bool = False) -> MeasurementSets:
        """One set per problem, prepared for the functional KL."""
        return measure(Phi_A, jitter=self.kl_jitter, rank_tolerance=self.rank_tolerance, span=span)


def distinct_rows(X: Float[Tensor, "N D"]) -> NDArray[np.int64]:
    """Numbers of the first of each group of equal rows, ascending."""
    return np.sort(np.unique(X.cpu().numpy(), axis=0, return_index=True)[1])


class MeasurementStream:
    """Endless measurement sets for B problems.

    Raises:
        InputError: the design asks for more distinct training inputs than a problem has.
    """

    def __init__(self, data: TrainingData, design: MeasurementDesign, streams: Streams) -> None:
        self.data, self.design, self.streams = data, design, streams
        self._distinct = design.distinct_inputs(data)
        self._maps = [data.feature_map[problem] for problem in range(len(data))]
        self._buffer = data.Phi.new_zeros(0)

    def draw(self, sets: int) -> Float[Tensor, "sets B M k"]:
        """Features at the next `sets` measurement sets of each problem, in memory that the next draw overwrites."""
        data, M_data = self.data, self.design.M_data
        shape = sets, len(data), self.design.M, filled(data.k)
        if self._buffer.shape != shape:
            self._buffer = data.Phi.new_zeros(shape)
        features = self._buffer
        if M_data:
            for problem, rows in enumerate(self._draw_rows(sets)):
                features[:, problem, :M_data, : data.k] = data.Phi[problem, rows.to(data.Phi.device)]
        if M_data < self.design.M:
            for problem, Phi_box in enumerate(self._draw_box(sets)):
                features[:, problem, M_data:, : data.k] = Phi_box
        return features

    def sets(self, count: int) -> Iterator[tuple[MeasurementSets, Float[Tensor, "B M k"]]]:
        """The next sets, prepared, and their features filled up; on a GPU all at once, since whether one has lost rank
        takes a synchronisation."""
        Phi_A, B = self.draw(count), len(self.data)
        if Phi_A.device.type == "cpu":
            yield from ((self.design.measure(one), fill(one)) for one in Phi_A)
        else:
            prepared = self.design.measure(Phi_A.flatten(0, 1))
            for step, one in enumerate(Phi_A):
                yield prepared.narrow(step * B, (step + 1) * B), fill(one)

    def _draw_rows(self, sets: int) -> Iterator[Int[Tensor, "sets M_data"]]:
        for distinct, generator in zip(self._distinct, self.streams("measurement rows"), strict=True):
            draws = [
                generator.choice(len(distinct), self.design.M_data, replace=False, shuffle=False) for _ in range(sets)
            ]
            yield torch.from_numpy(distinct[np.stack(draws)])

    def _draw_box(self, sets: int) -> Iterator[Float[Tensor, "sets M_box k"]]:
        """Features at uniform inputs, problem by problem on a CPU: LAPACK's solve would round by where one lies."""
        data = self.data
        M_box, D = self.design.M - self.design.M_data, data.X.shape[-1]
        unit = self.streams.uniform("measurement box", sets * M_box, D)
        inputs = data.low[:, None] + (data.high - data.low)[:, None] * unit.to(data.low.device)
        if inputs.device.type == "cpu":
            features = (feature_map(x.clone()) for feature_map, x in zip(self._maps, inputs, strict=True))
        else:
            features = iter(data.feature_map(inputs))
        yield from (one.reshape(sets, M_box, -1) for one in features)


HELD_OUT_SETS = 256  #: on which a random objective is evaluated; the same for every method


@lru_cache(maxsize=32)  # of 16 MB, at M = 80
def held_out_sets(task: Task, design: MeasurementDesign, count: int) -> list[MeasurementSets]:
    """The first `count` frozen measurement sets of a task, prepared, in batches of up to 16."""
    streams = Streams([derive_seed(task.sha256, "held-out measurement sets")])
    stream = MeasurementStream(TrainingData.of(task), design, streams)
    sizes = [min(16, count - start) for start in range(0, count, 16)]
    # Some q to be judged are all but singular: their covariance is not to be inverted.
    return [design.measure(stream.draw(size)[:, 0].clone(), span=True) for size in sizes]


class Batch(NamedTuple):
    """What one step sees of B problems."""

    rows: Rows
    A: Any = None  #: MeasurementSets, of a method that has them
    Phi_A: Any = None  #: their features [B,M,k], filled up

    def only(self, place: int) -> Batch:
        """One problem's part, a batch of one: where it lies in memory must not depend on the others."""
        A, Phi_A = self.A, self.Phi_A
        return Batch(
            self.rows.only(place),
            None if A is None else A.only(place),
            None if Phi_A is None else Phi_A[place : place + 1].clone(),
        )


class TaskData(pl.LightningDataModule):
    """Steps for `Trainer.fit(method, datamodule)`: an epoch is the whole run, a batch one step of all problems.

    `method.data()` makes the one that fits a method's options. Its state is part of Lightning's checkpoints, so that a
    run which is taken up in the middle sees what it would have seen.

    Args:
        tasks: one or several of equal shape, or what a method may see of them.
        seeds: one per task; rows and sets depend on nothing else.
        steps: how many.
        minibatch: rows of the likelihood in each step; `full` (or as many as there are): all of them.
        design: how measurement sets are drawn; None: there are none.
        fixed_A: features [B,M,k] of one measurement set for all steps, in place of drawn ones; without a design it is
            not prepared for a functional KL.
        compress: with all rows, whether k + 1 rows of the same inner products may stand for them.

    Raises:
        InputError: the tasks' shapes differ, there is not one seed for each, `steps` or `minibatch` is less than 1, or
            the design asks for more distinct training inputs than a task has.
    """

    def __init__(
        self,
        tasks: TrainingData | Sequence[Task] | Task,
        seeds: Sequence[int],
        *,
        steps: int,
        minibatch: Minibatch = "full",
        design: MeasurementDesign | None = None,
        fixed_A: Float[Tensor, "B M k"] | None = None,
        compress: bool = True,
    ) -> None:
        super().__init__()
        self.problems = TrainingData.of(tasks)
        self.streams = Streams(checked_seeds(seeds, len(self.problems)))
        self.steps, self.step = whole_number("steps", steps, 1), 0
        if minibatch != "full":
            whole_number("minibatch", minibatch, 1)
        self.minibatch, self.design, self.fixed_A, self.compress = minibatch, design, fixed_A, compress
        if design is not None and fixed_A is None:
            design.distinct_inputs(self.problems)
        self._before_chunk = self.streams.state()

    def __str__(self) -> str:  # Lightning's own would iterate, and so use up a step
        return f"TaskData({len(self.problems)} problems, step {self.step} of {self.steps})"

    def train_dataloader(self) -> TaskData:
        """Itself: iterating gives the steps that are left."""
        return self

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        device = torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device
        batches = self.chunks(self.problems.to(device))
        for _ in range(self.step % CHUNK):
            next(batches)
        while self.step < self.steps:
            self.step += 1
            yield next(batches)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Lightning's hook: batches are made where they are used."""
        return batch

    def state_dict(self) -> dict[str, Any]:
        # A chunk that is used up lies behind; one that is not is drawn again.
        return {"step": self.step, "streams": self._before_chunk if self.step % CHUNK else self.streams.state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step, self._before_chunk = state_dict["step"], state_dict["streams"]
        self.streams.restore(self._before_chunk)

    def chunks(self, data: TrainingData) -> Iterator[Batch]:
        """Batches from the present chunk's first on, without end."""
        n = data.N if self.minibatch == "full" else min(self.minibatch, data.N)
        rows = repeat(Rows.whole(data, self.compress)) if n == data.N else self._minibatches(data, n)
        sets = self._sets(data)
        while True:
            self._before_chunk = self.streams.state()
            for _ in range(CHUNK):
                yield Batch(next(rows), *next(sets))

    def _sets(self, data: TrainingData) -> Iterator[tuple[Any, ...]]:
        """Measurement sets with their features, drawn when a chunk's first is asked for."""
        if self.fixed_A is not None:
            return repeat(fixed_sets(fill_columns(self.fixed_A.to(data.y.device)), self.design))
        if self.design is None:
            return repeat(())
        stream = MeasurementStream(data, self.design, self.streams)
        return chain.from_iterable(stream.sets(CHUNK) for _ in count())

    def _minibatches(self, data: TrainingData, n: int) -> Iterator[Rows]:
        """n distinct rows a step, drawn from each problem's own stream."""
        scale = (data.N / n / data.noise_variance).sqrt()[:, None, None]
        place, of_all = torch.arange(len(data), device=data.y.device)[:, None], constant(data)
        while True:
            draws = [g.choice(data.N, n, replace=False, shuffle=False) for g in self.streams("minibatch rows")]
            index = torch.from_numpy(np.stack(draws)).to(data.y.device)
            y = fill((data.y[place, index] * scale[..., 0])[..., None])[..., 0]
            yield Rows(fill(data.Phi[place, index] * scale), y, of_all)


def fixed_sets(
    Phi_A: Float[Tensor, "B M k_filled"], design: MeasurementDesign | None
) -> tuple[MeasurementSets | None, Float[Tensor, "B M_filled k_filled"]]:
    """One measurement set for all steps, prepared if there is a functional KL to take, and its features."""
    return None if design is None else design.measure(Phi_A, span=True), fill(Phi_A)


def fill_columns(Phi: Float[Tensor, "B M k"]) -> Float[Tensor, "B M k_filled"]:
    """Features with zero columns for the dummy weights."""
    return fill(Phi)[..., : Phi.shape[-2], :]
