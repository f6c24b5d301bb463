"""The data of a step for B problems: rows of the likelihood and measurement sets, served by a LightningDataModule.

Random numbers are functions of a problem's seed, their role, the step and their index (`maths.random`). So a
problem's numbers depend neither on its batch, nor on the device, nor on the steps before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import count, islice, repeat
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
from fsvi_bench.maths.random import distinct, normals, uniforms
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.methods.problems import TrainingData, checked_seeds
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.task import Task

Source = Literal["mixed", "data", "box"]
Minibatch = int | Literal["full"]

#: Steps whose rows and measurement sets are made at once, those from a multiple of it on. Triangular solves round by
#: their number of right-hand sides and always take those of a whole chunk, so a run's length does not change its first
#: steps.
CHUNK = 8

_CPU = torch.device("cpu")
_AHEAD = 2**14  #: numbers that `Streams` draws at once, if one step takes fewer; results do not depend on it


@dataclass(frozen=True)
class Streams:
    """Random numbers of one step for B problems, each a function of its problem's seed, its role, the step and its
    index. Two draws of one role and shape in one step are the same numbers."""

    seeds: tuple[int, ...]
    step: int = 0
    device: torch.device = _CPU
    _blocks: dict[Any, tuple[int, Tensor]] = field(default_factory=dict, compare=False, repr=False)

    def at(self, step: int, device: torch.device) -> Streams:
        """The numbers of another step, on this device."""
        return replace(self, step=step, device=device)

    def keys(self, role: str) -> tuple[int, ...]:
        """One key of `maths.random` for each problem."""
        return _keys(self.seeds, role)

    def normal(self, role: str, *shape: int) -> Float[Tensor, "B ..."]:
        """Standard normal numbers [B, *shape]."""
        return self._drawn(normals, role, shape)

    def uniform(self, role: str, *shape: int) -> Float[Tensor, "B ..."]:
        """Numbers in [0, 1), [B, *shape]."""
        return self._drawn(uniforms, role, shape)

    def _drawn(self, law: Callable[..., Tensor], role: str, shape: tuple[int, ...]) -> Tensor:
        """This step's part of a block of steps: a small draw costs its calls, not its numbers."""
        size, place = math.prod(shape), (law, role, shape, self.device)
        ahead = min(_AHEAD // (len(self.seeds) * size), 64)
        if ahead < 2:
            return law(self.keys(role), range(self.step, self.step + 1), size, self.device).reshape(-1, *shape)
        first, block = self._blocks.get(place, (0, ()))
        if not first <= self.step < first + len(block):
            first, block = self.step, law(self.keys(role), range(self.step, self.step + ahead), size, self.device)
            self._blocks[place] = first, block
        # A copy, since callers may modify it.
        return block[self.step - first].reshape(-1, *shape).clone()


@lru_cache(maxsize=256)
def _keys(seeds: tuple[int, ...], role: str) -> tuple[int, ...]:
    return tuple(derive_seed(seed, role) for seed in seeds)


@dataclass(frozen=True, eq=False)
class Rows(Stacked):
    """Rows of the likelihood in units of the noise, scaled to the whole training set.

    `Phi` [B,n,k] and `y` [B,n] are multiplied by √(N/n)/σ, so −E_q log p(y|w) is constant + ½ E_q ‖y − Φw‖². Zero rows
    and columns fill them up (see `maths.batching`).
    """

    Phi: Float[Tensor, "B n k"]
    y: Float[Tensor, "B n"]
    constant: Float[Tensor, " B"]  #: ½N log 2πσ²
    is_whole: bool = False  #: the same rows at every step, so that inner products pay

    @staticmethod
    def whole(data: TrainingData, compress: bool = True) -> Rows:
        """All rows, or k + 1 rows with the same inner products: the triangular factor of [Φ, y]/σ."""
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
    """The same for a full Σ, with its gradients −Φᵀ(y − Φμ)/σ² and ΦᵀΦL/σ², in half of autograd's time. The latter
    holds on and below the diagonal."""

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


def sampled_nll(w: Float[Tensor, "B S k"], rows: Rows | NetworkData) -> Float[Tensor, "B S"]:
    """−log p(y | f), f = Φw or a network's, for each of S weight vectors."""
    if isinstance(rows, NetworkData):
        return rows.nll(w)
    residual = rows.y[:, None] - products(rows.Phi, w)
    return rows.constant[:, None] + 0.5 * (residual * residual).sum(-1)


@dataclass(frozen=True)
class MeasurementDesign:
    """The distribution μ of measurement sets, and how their KL divergence is computed (Burt et al. 2020, eq. 6, F.2).

    `mixed` takes ⌊M/2⌋ distinct training inputs and draws the rest uniformly from their bounding box; `data` and `box`
    take all M from one source. Distinct inputs differ in value: duplicate rows of a data set count once.
    """

    M: int
    source: Source = "mixed"
    kl_jitter: float = 0.0
    rank_tolerance: float = RANK_TOLERANCE
    features_only: bool = False  #: whether the method takes no KL, for which a set would have to be prepared

    @property
    def M_data(self) -> int:
        """How many of the M inputs are training inputs."""
        return {"mixed": self.M // 2, "data": self.M, "box": 0}[self.source]

    def distinct_inputs(self, data: TrainingData | NetworkData) -> list[NDArray[np.int64]]:
        """For each problem, the training rows to choose from; an empty list if the design takes no training inputs.

        Raises:
            InputError: a problem has fewer distinct inputs than a set takes.
        """
        if not self.M_data:
            return []
        distinct = [distinct_rows(X) for X in data.X]
        if (fewest := min(map(len, distinct))) < self.M_data:
            raise InputError(
                f"M={self.M} needs {self.M_data} distinct training inputs, but a split has only {fewest}; "
                "choose a smaller M (--measurement-points)"
            )
        return distinct

    def measure(self, Phi_A: Float[Tensor, "B M k"], span: bool = False) -> MeasurementSets:
        """One set per problem, prepared for the functional KL."""
        return measure(Phi_A, jitter=self.kl_jitter, rank_tolerance=self.rank_tolerance, span=span)


def distinct_rows(X: Float[Tensor, "N D"]) -> NDArray[np.int64]:
    """Indices of the first row of each group of equal rows, in ascending order."""
    return np.sort(np.unique(X.cpu().numpy(), axis=0, return_index=True)[1])


class MeasurementStream:
    """Measurement sets of B problems, one for each step.

    Raises:
        InputError: the design needs more distinct training inputs than a problem has.
    """

    def __init__(self, data: TrainingData, design: MeasurementDesign, streams: Streams) -> None:
        self.data, self.design, self.streams = data, design, streams
        rows = [torch.from_numpy(of_problem) for of_problem in design.distinct_inputs(data)]
        self._sizes = [len(of_problem) for of_problem in rows]
        # Places in Φ with its rows in one column, problem after problem.
        shifted = [of_problem + problem * data.N for problem, of_problem in enumerate(rows)]
        padded = torch.nn.utils.rnn.pad_sequence(shifted or [data.y.new_zeros(0).long()], batch_first=True)
        self._places: Tensor = padded.to(data.y.device)
        self._maps = [data.feature_map[problem] for problem in range(len(data))]
        self._buffer = data.Phi.new_zeros(0)

    def draw(self, steps: range) -> Float[Tensor, "sets B M k"]:
        """Features at the sets of consecutive steps, in memory that the next draw overwrites."""
        data, M_data = self.data, self.design.M_data
        shape = len(steps), len(data), self.design.M, filled(data.k)
        if self._buffer.shape != shape:
            self._buffer = data.Phi.new_zeros(shape)
        features = self._buffer
        if M_data:
            features[:, :, :M_data, : data.k] = data.Phi.flatten(0, 1)[self._draw_rows(steps)]
        if M_data < self.design.M:
            for problem, Phi_box in enumerate(self._draw_box(steps)):
                features[:, problem, M_data:, : data.k] = Phi_box
        return features

    def sets(self, steps: range) -> Iterator[tuple[MeasurementSets | None, Float[Tensor, "B M k"]]]:
        """The sets of consecutive steps, prepared for the functional KL if the method takes it, and their features
        filled up.

        On a GPU all are prepared at once: to see whether one has lost rank takes a synchronisation, which steps
        themselves never need.
        """
        Phi_A, B = self.draw(steps), len(self.data)
        if self.design.features_only:
            yield from ((None, fill(one)) for one in Phi_A)
        elif Phi_A.device.type == "cpu":
            yield from ((self.design.measure(one), fill(one)) for one in Phi_A)
        else:
            prepared = self.design.measure(Phi_A.flatten(0, 1))
            for place, one in enumerate(Phi_A):
                yield prepared.narrow(place * B, (place + 1) * B), fill(one)

    def _draw_rows(self, steps: range) -> Int[Tensor, "sets B M_data"]:
        """Places of distinct training inputs in Φ with its rows in one column."""
        keys, device = self.streams.keys("measurement rows"), self.data.y.device
        drawn = distinct(keys, steps, self._sizes, self.design.M_data, device)
        return self._places.expand(len(steps), -1, -1).gather(-1, drawn)

    def _draw_box(self, steps: range) -> Iterator[Float[Tensor, "sets M_box k"]]:
        """Features at uniform inputs; on a CPU problem by problem, since LAPACK's solve rounds by memory alignment."""
        data = self.data
        M_box, (B, _, D) = self.design.M - self.design.M_data, data.X.shape
        unit = uniforms(self.streams.keys("measurement box"), steps, M_box * D, data.X.device)
        unit = unit.view(len(steps), B, M_box, D).transpose(0, 1).flatten(1, 2)
        inputs = data.low[:, None] + (data.high - data.low)[:, None] * unit
        if inputs.device.type == "cpu":
            features = (feature_map(x.clone()) for feature_map, x in zip(self._maps, inputs, strict=True))
        else:
            features = iter(data.feature_map(inputs))
        yield from (one.reshape(len(steps), M_box, -1) for one in features)


def input_sets(
    data: NetworkData, design: MeasurementDesign, streams: Streams
) -> Callable[[range], Float[Tensor, "sets B M D"]]:
    """Draws the inputs of networks' measurement sets of consecutive steps."""
    stream = MeasurementStream(data.inputs_as_features, design, streams)
    return lambda steps: stream.draw(steps)[..., : data.X.shape[-1]]


HELD_OUT_SETS = 256  #: measurement sets on which a random objective is evaluated, the same for every method


@lru_cache(maxsize=32)  # of 16 MB, at M = 80
def held_out_sets(task: Task, design: MeasurementDesign, count: int) -> list[MeasurementSets]:
    """The first `count` frozen measurement sets of a task, prepared, in batches of up to 16."""
    streams = Streams((derive_seed(task.sha256, "held-out measurement sets"),))
    stream = MeasurementStream(TrainingData.of(task), design, streams)
    parts = [range(start, min(start + 16, count)) for start in range(0, count, 16)]
    # Some q that are evaluated are nearly singular, so their covariance must not be inverted.
    return [design.measure(stream.draw(part)[:, 0].clone(), span=True) for part in parts]


class Batch(NamedTuple):
    """The data of one step, for B problems."""

    rows: Any  #: `Rows`, or `NetworkData`
    A: Any = None  #: MeasurementSets, if the method takes a KL at them
    Phi_A: Any = None  #: their features [B,M,k], filled up
    X_A: Any = None  #: for a network their inputs [B,M,D] instead: the features are its Jacobian at q's mean

    def only(self, place: int) -> Batch:
        """One problem's part, a batch of one, as a copy: its alignment must not depend on the others."""
        A, tensors = self.A, (self.Phi_A, self.X_A)
        return Batch(
            self.rows.only(place),
            None if A is None else A.only(place),
            *(None if each is None else each[place : place + 1].clone() for each in tensors),
        )


class TaskData(pl.LightningDataModule):
    """Steps for `Trainer.fit(method, datamodule)`: an epoch is the whole run, a batch one step of all problems.

    `method.data()` makes the one that fits a method's options. Lightning's checkpoints hold the step, so a resumed run
    gets the same batches as an uninterrupted one.

    Args:
        tasks: one or several of equal shape, or `TrainingData` or `NetworkData`.
        seeds: one per task; rows and sets depend on nothing else.
        steps: the number of steps.
        minibatch: rows of the likelihood in each step; `full`, or a number of at least N, takes all of them.
        design: how measurement sets are drawn; None: there are none.
        fixed_A: features [B,M,k] of one measurement set for all steps, in place of drawn ones. Without a design, only
            its features are in the batches.
        compress: whether k + 1 rows with the same inner products may replace all rows.

    Raises:
        InputError: the tasks' shapes differ, there is not one seed for each, `steps` or `minibatch` is less than 1, or
            the design needs more distinct training inputs than a task has.
    """

    def __init__(
        self,
        tasks: Stacked | Sequence[Task] | Task,
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

    def __str__(self) -> str:  # Lightning's own would iterate, and so use up a step
        return f"TaskData({len(self.problems)} problems, step {self.step} of {self.steps})"

    def train_dataloader(self) -> TaskData:
        """Itself: iterating yields the remaining steps."""
        return self

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        device = torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device
        for batch in islice(self.batches(self.problems.to(device), self.step), self.steps - self.step):
            self.step += 1
            yield batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Lightning's hook; batches are made on the device."""
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step = state_dict["step"]

    def batches(self, data: TrainingData | NetworkData, first: int = 0) -> Iterator[Batch]:
        """Batches of the steps from `first` on, indefinitely."""
        rows, sets = self._rows(data), self._sets(data)
        chunks = (range(start, start + CHUNK) for start in count(first - first % CHUNK, CHUNK))
        every = (Batch(n, *A) for steps in chunks for n, A in zip(rows(steps), sets(steps), strict=False))
        return islice(every, first % CHUNK, None)

    def _sets(self, data: TrainingData | NetworkData) -> Callable[[range], Iterator[tuple[Any, ...]]]:
        """Makes the measurement sets of consecutive steps, and their features."""
        if self.fixed_A is not None:
            fixed = fixed_sets(fill_columns(self.fixed_A.to(data.y.device)), self.design)
            return lambda steps: repeat(fixed)
        if self.design is None:
            return lambda steps: repeat(())
        if isinstance(data, NetworkData):
            inputs = input_sets(data, self.design, self.streams)
            return lambda steps: ((None, None, X_A) for X_A in inputs(steps))
        return MeasurementStream(data, self.design, self.streams).sets

    def _rows(self, data: TrainingData | NetworkData) -> Callable[[range], Iterator[Rows | NetworkData]]:
        """Makes the rows of consecutive steps: all of them, or a minibatch of distinct ones."""
        n, B = data.N if self.minibatch == "full" else min(self.minibatch, data.N), len(data)
        if n == data.N:
            whole = data if isinstance(data, NetworkData) else Rows.whole(data, self.compress)
            return lambda steps: repeat(whole, len(steps))

        def indices(steps: range) -> Int[Tensor, "steps B n"]:
            return distinct(self.streams.keys("minibatch rows"), steps, [data.N] * B, n, data.y.device)

        if isinstance(data, NetworkData):
            return lambda steps: map(data.minibatch, indices(steps))
        scale = (data.N / n / data.noise_variance).sqrt()[:, None, None]
        place, of_all = torch.arange(B, device=data.y.device)[:, None], constant(data)

        def minibatches(steps: range) -> Iterator[Rows]:
            for index in indices(steps):
                y = fill((data.y[place, index] * scale[..., 0])[..., None])[..., 0]
                yield Rows(fill(data.Phi[place, index] * scale), y, of_all)

        return minibatches


def fixed_sets(
    Phi_A: Float[Tensor, "B M k_filled"], design: MeasurementDesign | None
) -> tuple[MeasurementSets | None, Float[Tensor, "B M_filled k_filled"]]:
    """One measurement set for all steps, prepared if there is a functional KL to take, and its features."""
    return None if design is None else design.measure(Phi_A, span=True), fill(Phi_A)


def fill_columns(Phi: Float[Tensor, "B M k"]) -> Float[Tensor, "B M k_filled"]:
    """Features with zero columns for the dummy weights."""
    return fill(Phi)[..., : Phi.shape[-2], :]
