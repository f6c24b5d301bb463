"""What every inference method is: a LightningModule over B independent problems, trained side by side."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from fsvi_bench.errors import InputError, did_you_mean, plain_demands, quoted
from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.methods.callbacks import Averaging, EarlyEnd
from fsvi_bench.methods.data import HELD_OUT_SETS, Batch, MeasurementDesign, Rows, Streams, TaskData, held_out_sets
from fsvi_bench.methods.problems import TrainingData, checked_seeds
from fsvi_bench.posteriors.base import Family, Posterior, concatenate
from fsvi_bench.posteriors.trainable import TrainableGaussian, TrainablePosterior
from fsvi_bench.tasks.task import Task

AveragedShare = Annotated[float, Field(ge=0, lt=1, description="share of the last steps whose iterates are averaged")]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]  #: neither certain nor impossible


class MethodOptions(BaseModel):
    """A method's hyperparameters; unknown names, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def design(self) -> MeasurementDesign | None:
        """How measurement sets are drawn; None: there are none."""
        return None

    def rows(self, N: int) -> int:
        """How many of N training rows the likelihood sees in one step."""
        return N


class AdamOptions(MethodOptions):
    """Settings of Adam. Burt et al. (2020) name a learning rate for their toy problem only; 0.01 is that one.

    `minibatch` is how many training rows the likelihood sees in one step; all, if there are fewer.
    """

    minibatch: PositiveInt | Literal["full"] = 80
    max_steps: PositiveInt = 15000
    lr: PositiveFloat = 0.01
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    averaging: AveragedShare = 0.0

    def rows(self, N: int) -> int:
        return N if self.minibatch == "full" else min(self.minibatch, N)

    def decay(self, step: int) -> float:
        """The learning rate at a step over the first one's."""
        remaining = 1 - step / self.max_steps
        if self.lr_schedule == "cosine":
            return 0.5 * (1 - math.cos(math.pi * remaining))
        return remaining if self.lr_schedule == "linear" else 1.0


@dataclass(frozen=True)
class ExactLimit:
    """Settings under which a method claims to reach the best member of its family.

    Args:
        settings: options on top of the defaults, `max_steps` and `M` among them.
        tolerance: how many nats above the optimum of KL(q ‖ P_D) it ends at most, on each toy task (k = 20, N = 40).
            The optimum is 0 for `full`, and EXACT-FFG's KL for `ffg`.
    """

    settings: Mapping[str, Any]
    tolerance: float


class Optimum(NamedTuple):
    """What an objective asks for, apart from what an optimiser made of it."""

    value: float  #: the least known value of the objective, as `Method.objective` gives it
    kl: float | None  #: KL(q* ‖ P_D) there; infinite where q* is singular, None where it is not known


def _fault(error: ValidationError, known: Iterable[str]) -> str:
    """What is wrong with settings, to go after a method's name."""
    first = error.errors()[0]
    if not first["loc"]:  # they contradict each other
        return f": {first['ctx']['error']}"
    name, own = str(first["loc"][0]), ", ".join(known) or "none"
    if first["type"] == "extra_forbidden":
        return f", option {quoted(name)}: there is no such option; {did_you_mean(name, known)}its options: {own}"
    # An option that may be a number or a word is told what is wrong with it as either.
    wrong = " or ".join(each["msg"] for each in error.errors() if each["loc"][:1] == first["loc"][:1])
    return f", option '{name}': got {first['input']!r}, {plain_demands(wrong)}; its options: {own}"


class Method(pl.LightningModule, ABC):
    """B problems side by side; no problem's result may depend on which others share the batch.

    A method that descends a loss implements `loss`, one number per problem, and starts from `initial()`; Adam, rows,
    measurement sets, averaging and divergence come with options of these names (`AdamOptions`, `MeasurementOptions`).
    One that has a formula implements `solve`. Settings are fields of a nested `Options(MethodOptions)`, set by
    `--set name=value`; one called `max_steps` is set by `--max-steps`, one called `M` by `--measurement-points`.
    `fsvi-bench methods check` holds a method to all of this.

    Args:
        tasks: one or several of equal shape, or what a method may see of them.
        family: the posterior's family, one of `families`.
        seeds: one per task, from which all that is drawn derives.
        options: checked options, in place of `changes` on top of the defaults of `Options`.

    Raises:
        InputError: no tasks, a family or an option that the method does not have, or not one seed per task.
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    options: Any
    q: Any  #: `initial()`, as it moves; of a method that trains
    average: Any  #: the mean of its iterates, where they are averaged
    diverged_at: Int[Tensor, " B"]  #: the step at which a problem's loss was no number any more, −1 where it always was
    families: ClassVar[tuple[Family, ...]] = ("full", "ffg")
    deterministic: ClassVar[bool] = False  #: True: nothing is drawn; one cell whatever the seeds say
    #: By family: where the method's own optimum is the exact posterior (`full`) or its best factorised approximation
    #: (`ffg`), as where its measurement set sees every weight. Left empty, it claims no such thing.
    exact_limits: ClassVar[Mapping[Family, ExactLimit]] = {}

    def __init__(
        self,
        tasks: TrainingData | Sequence[Task] | Task,
        family: Family | None = None,
        seeds: Sequence[int] | int | None = None,
        options: MethodOptions | None = None,
        **changes: Any,
    ) -> None:
        super().__init__()
        self.problems = TrainingData.of(tasks)
        self.family = self.checked_family(family)
        self.seeds = checked_seeds(seeds, len(self.problems))
        self.options = self.checked_options(changes) if options is None else options
        self.steps_done, self._numbers = 0, Streams(self.seeds)
        self.register_buffer("diverged_at", torch.full((len(self.problems),), -1))
        if self.trains:
            self.q = self.initial()
            averaging = getattr(self.options, "averaging", 0.0)
            self.average = AveragedModel(self.q).requires_grad_(False) if averaging else None

    @classmethod
    def checked_family(cls, family: str | None, name: str | None = None) -> Family:
        """One of the method's families, by default its first.

        Raises:
            InputError: it has no such family.
        """
        for known in cls.families:
            if family in (None, known):
                return known
        own = ", ".join(cls.families)
        raise InputError(f"method {name or cls.__name__} has no family {quoted(str(family))}; its families: {own}")

    @classmethod
    def checked_options(cls, changes: Mapping[str, Any], name: str | None = None) -> MethodOptions:
        """`Options` with some values of its own; errors call the method by `name`.

        Raises:
            InputError: a name or value that the method does not take.
        """
        try:
            return cls.Options.model_validate(dict(changes))
        except ValidationError as error:
            raise InputError(f"method {name or cls.__name__}{_fault(error, cls.Options.model_fields)}") from error

    @property
    def streams(self) -> Streams:
        """Random numbers of the present step, on the method's device."""
        return self._numbers.at(self.steps_done, self.device)

    # --- What a method says -------------------------------------------------------------------------------------------

    def initial(self) -> TrainablePosterior:
        """q at its start, with a leading axis of B problems; by default the prior as a Gaussian of the family."""
        return TrainableGaussian(self.family, len(self.problems), self.problems.k)

    def loss(self, q: Any, batch: Batch) -> Float[Tensor, " B"]:
        """What is minimised, one number per problem, in nats; `q` is what calling `initial()` gives.

        In evaluation mode (`self.training` is False) nothing is drawn: it is then the objective itself.
        """
        raise NotImplementedError

    def solve(self, problem: TrainingData) -> Posterior:
        """The posterior of one problem, with a leading axis of 1, where there is a formula for it."""
        raise NotImplementedError

    def details(self) -> Sequence[Mapping[str, float] | None]:
        """For each problem, numbers of the method's own that its record should hold, such as a sparsity, or None."""
        return [None] * len(self.problems)

    def optima(self, tasks: Sequence[Task]) -> Sequence[Optimum | None]:
        """For each problem's task, what the objective asks for; None where that is not known."""
        return [self.optimum(place, task) for place, task in enumerate(tasks)]

    def optimum(self, place: int, task: Task) -> Optimum | None:
        """The same for one problem, where problems need not be looked at together."""
        return None

    @classmethod
    def check(cls, options: MethodOptions, problem: TrainingData) -> None:
        """Called with every problem, as a batch of one, before anything is trained.

        Raises:
            InputError: the settings do not fit the problem.
        """
        if options.design is not None:
            options.design.distinct_inputs(problem)

    @classmethod
    def is_deterministic(cls, options: MethodOptions) -> bool:
        """Whether nothing is drawn under these options, so that there is one cell whatever the seeds say.

        It says nothing about training: gradients of the full batch are deterministic, too. See `trains`.
        """
        return cls.deterministic

    # --- What Lightning asks for --------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Lightning's hook, at the start of a fit.

        Raises:
            InputError: the Trainer clips one norm over several problems, skips steps, or lowers the precision.
        """
        if (precision := self.trainer.precision) not in ("32-true", "64-true"):  # the former is Lightning's default
            raise InputError(
                f"the Trainer has precision={precision!r}, expected the float64 of the tasks; leave it out"
            )
        clip, skipped = self.trainer.gradient_clip_val, self.trainer.accumulate_grad_batches
        if clip and self.trainer.gradient_clip_algorithm != "value" and len(self.problems) > 1:
            raise InputError(
                f"the Trainer has gradient_clip_val={clip}, one norm over {len(self.problems)} problems, of which none "
                "may depend on others; leave it out, or choose gradient_clip_algorithm='value'"
            )
        if skipped != 1:
            raise InputError(
                f"the Trainer has accumulate_grad_batches={skipped}, expected 1, as max_steps counts batches; leave it "
                "out, and choose a larger minibatch"
            )

    def data(self) -> TaskData:
        """The steps that the options ask for: `Trainer(max_epochs=1).fit(method, datamodule=method.data())`."""
        return self._data()

    def _data(self, **changes: Any) -> TaskData:
        """The same with further arguments of `TaskData`."""
        n, design = self.rows_per_step, self.options.design
        return TaskData(self.problems, self.seeds, steps=self.num_steps, minibatch=n, design=design, **changes)

    def configure_optimizers(self) -> Any:
        """Adam (Kingma and Ba 2015), elementwise and therefore each problem by itself.

        Raises:
            InputError: there is nothing to train.
        """
        if not self.trains:
            name = type(self).__name__
            raise InputError(f"{name} has a formula and no training: ask for its posterior(), without a Trainer")
        optimizer = torch.optim.Adam(self.q.parameters(), lr=self.options.lr, fused=True)
        if self.options.lr_schedule == "constant":
            return optimizer
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.options.decay)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_callbacks(self) -> list[pl.Callback]:
        """Averages iterates where the options say so, and ends when nothing is left to do."""
        return [Averaging(), EarlyEnd()] if getattr(self.options, "averaging", 0.0) else [EarlyEnd()]

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        """Lightning's hook, for speed: PyTorch's own way costs a twentieth of a step."""
        for parameter in self.q.parameters():
            parameter.grad = None

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        losses = self.loss(self.q(), batch)
        if losses.shape != self.diverged_at.shape:
            got, expected = list(losses.shape), list(self.diverged_at.shape)
            raise InputError(f"loss has shape {got}, expected {expected}: one number for each problem, not their mean")
        self.note(losses.detach())
        return losses.sum()

    def note(self, losses: Float[Tensor, " B"], logged: Float[Tensor, " B"] | None = None) -> None:
        """Counts a step, and remembers where its losses were not finite (without a synchronisation on a GPU).

        Args:
            logged: what goes to the log in place of the losses.
        """
        losses = losses.to(self.diverged_at.device)
        if losses.device.type != "cpu" or not math.isfinite(float(losses.sum())):
            self.diverged_at.masked_fill_(~losses.isfinite() & (self.diverged_at < 0), self.steps_done)
        self.steps_done += 1
        if self.is_logged(self.steps_done):
            self.log("loss", (losses if logged is None else logged).mean(), batch_size=len(losses))

    def is_logged(self, step: int) -> bool:
        """Whether a logger looks after this many steps: a call of `log` costs a tenth of a step."""
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        return every > 0 and step % every == 0

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Lightning's hook. A Trainer that ends by its own `max_steps` calls the epoch done; a run is not, before its
        last step."""
        unfinished = checkpoint["state_dict"]["_extra_state"]["steps_done"] < self.num_steps
        if unfinished and "loops" in checkpoint:  # which a checkpoint of weights alone has not
            checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"].update(processed=0, completed=0)

    def get_extra_state(self) -> dict[str, Any]:
        return {"steps_done": self.steps_done}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.steps_done = state["steps_done"]

    # --- What a run asks for ------------------------------------------------------------------------------------------

    @property
    def num_steps(self) -> int:
        """How many steps the whole training takes; 1 for a formula, which has no trace and no posterior before it."""
        return int(getattr(self.options, "max_steps", 1)) if self.trains else 1

    @property
    def trains(self) -> bool:
        """Whether there is a way to the posterior that can be looked at, in place of a formula."""
        return type(self).solve is Method.solve

    @property
    def rows_per_step(self) -> int:
        """Rows of the likelihood in each step."""
        return int(self.options.rows(self.problems.N))

    @cached_property
    def solved(self) -> Any:
        """All problems' formulas, one by one on copies: how LAPACK rounds must not depend on the batch.

        A problem whose targets are no numbers has NaN for a solution, which names it as diverged and spares the others.
        """
        return concatenate([self._solve_one(self.problems.only(b)) for b in range(len(self.problems))])

    def _solve_one(self, problem: TrainingData) -> Posterior:
        if bool(problem.y.isfinite().all()):
            return self.solve(problem)
        solved = self.solve(replace(problem, y=torch.zeros_like(problem.y)))
        # A factor stays lower triangular: it is no number, not malformed.
        nan = solved.map(lambda tensor: torch.full_like(tensor, torch.nan))
        return nan.map(lambda tensor: tensor.tril() if tensor.ndim == 3 else tensor)

    def posterior(self) -> Any:
        """The current approximation, with a leading axis of B problems; of averaged iterates once there are any."""
        return self._moving().posterior() if self.trains else self.solved

    def _moving(self) -> Any:
        averaged = self.average is not None and bool(self.average.n_averaged)
        return self.average.module if averaged else self.q

    def terms(self, place: int) -> Any:
        """One problem's q as `loss` takes it, a batch of one, on the CPU."""
        if self.trains:
            terms = self._moving().only(place)()
            return type(terms)(*(tensor.cpu() for tensor in terms))
        q = self.solved[place : place + 1]
        return Gaussian(q.mean, q.root)

    @torch.no_grad()
    def objective(self, place: int, task: Task, sets: int = HELD_OUT_SETS, q: Any = None) -> float:
        """The loss in nats at one problem's q: all training rows, closed forms in place of samples, and where
        measurement sets are random the mean over this many held-out ones, the same for all q, methods and seeds.

        With its constants, so that a −ELBO plus the log evidence is a KL. Draws from no stream of the training.
        """
        mode, q = self.training, self.terms(place) if q is None else q
        self.train(False)
        try:
            losses = [self.loss(q, batch) for batch in self.held_out(place, task, sets)]
        finally:
            self.train(mode)
        return float(torch.cat(losses).mean())

    def held_out(self, place: int, task: Task, sets: int) -> Sequence[Batch]:
        """What the objective of one problem is evaluated on, in batches of several sets for its one q."""
        rows, design = Rows.whole(TrainingData.of(task)), self.options.design
        return [Batch(rows, A) for A in ([None] if design is None else held_out_sets(task, design, sets))]

    def cost(self) -> dict[str, int]:
        """What one gradient takes: rows of the likelihood and of measurement sets, samples."""
        design = self.options.design
        return {"likelihood_rows": self.rows_per_step} | ({} if design is None else {"measurement_rows": design.M})

    def evaluations(self) -> Sequence[int]:
        """For each problem, how many gradients it has asked for."""
        return [self.steps_done if stopped is None else stopped for stopped in self.stopped_after()]

    def work(self) -> Sequence[Mapping[str, int] | None]:
        """For each problem, what training has taken so far, in units that methods share; None for a formula."""
        if not self.trains:
            return [None] * len(self.problems)
        cost = {"gradients": 1, **self.cost()}
        return [{name: count * each for name, each in cost.items()} for count in self.evaluations()]

    @property
    def finished(self) -> bool:
        """True if further steps would change nothing; training then ends early."""
        return self.steps_done >= self.num_steps or None not in self.stopped_after()

    def stopped_after(self) -> Sequence[int | None]:
        """For each problem, how many steps it took until nothing could move it any more, or None; its trace ends there,
        whatever the others of its batch still do."""
        return [None if step < 0 else step + 1 for step in self.diverged_at.tolist()]

    def divergences(self) -> Sequence[str | None]:
        """For each problem, why training on it came to nothing, or None."""
        steps = self.diverged_at.tolist()
        return [None if step < 0 else f"the loss was not finite at step {step}" for step in steps]
