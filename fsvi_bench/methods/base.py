"""The base class of all inference methods: a LightningModule over B independent problems, trained side by side."""

from __future__ import annotations

import inspect
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

from fsvi_bench.errors import InputError, demand, did_you_mean, quoted
from fsvi_bench.maths.batching import Stacked, one_by_one
from fsvi_bench.maths.blr import eigenbasis
from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.methods.callbacks import Averaging, EarlyEnd
from fsvi_bench.methods.data import (
    HELD_OUT_SETS,
    Batch,
    MeasurementDesign,
    Rows,
    Streams,
    TaskData,
    expected_nll,
    held_out_sets,
    input_sets,
    sampled_nll,
)
from fsvi_bench.methods.networks import Linearised, NetworkData, modes
from fsvi_bench.methods.problems import TrainingData, checked_seeds
from fsvi_bench.posteriors.base import Family, Posterior, concatenate
from fsvi_bench.posteriors.samples import DrawnPosterior
from fsvi_bench.posteriors.trainable import Average, TrainableGaussian, TrainablePosterior
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.task import FeatureMap, Task

START_SCALE = 0.1  #: of a network's first q, relative to the prior's standard deviations
EVALUATION_DRAWS = 1000  #: of a network's weights, for an objective
HELD_OUT = derive_seed("held-out")  #: no training's seed

AveragedShare = Annotated[
    float, Field(ge=0, lt=1, description="fraction of the steps, at the end, whose iterates are averaged")
]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Networks = Literal["weights", "tangent"] | None
Probability = Annotated[float, Field(gt=0, lt=1)]  #: neither certain nor impossible


class MethodOptions(BaseModel):
    """A method's hyperparameters; unknown names, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def design(self) -> MeasurementDesign | None:
        """How measurement sets are drawn; None for a method without them."""
        return None

    def rows(self, N: int) -> int:
        """Number of training rows per step, of N in all."""
        return N


class StepOptions(MethodOptions):
    """Settings of steps along gradients of the likelihood.

    `minibatch` is the number of training rows per step; all rows, if there are fewer.
    """

    minibatch: PositiveInt | Literal["full"] = 80
    max_steps: PositiveInt = 15000

    def rows(self, N: int) -> int:
        return N if self.minibatch == "full" else min(self.minibatch, N)


class RateOptions(StepOptions):
    """A learning rate, its schedule, and the share of the last iterates that are averaged. Burt et al. (2020) state a
    learning rate only for their toy problem: 0.01, the default here."""

    lr: PositiveFloat = 0.01
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    averaging: AveragedShare = 0.0

    def decay(self, step: int) -> float:
        """The learning rate at a step, relative to the first step's."""
        remaining = 1 - step / self.max_steps
        if self.lr_schedule == "cosine":
            return 0.5 * (1 - math.cos(math.pi * remaining))
        return remaining if self.lr_schedule == "linear" else 1.0


class AdamOptions(RateOptions):
    """Settings of Adam.

    `off_diagonal_lr` is relative to `lr`. It applies to the entries below the diagonal of a full covariance's root. A
    row has up to k of them, and steps of size `lr` in all of them at once can make the root nearly singular.

    With `parametrisation: eigenbasis`, means (or particles) are trained as coordinates in the eigenvectors of ΦᵀΦ, in
    which the likelihood's Hessian is diagonal and the prior is N(0, I) still. A full covariance is trained in these
    coordinates too, with each row of its root relative to the entry on the diagonal. For linear models only.
    """

    off_diagonal_lr: PositiveFloat = 1.0
    parametrisation: Literal["weights", "eigenbasis"] = "weights"

    def require_parametrisation(self, problem: TrainingData | NetworkData) -> None:
        """Raises InputError if q cannot be trained in this parametrisation."""
        if self.parametrisation == "eigenbasis" and isinstance(problem, NetworkData):
            raise InputError(
                "parametrisation=eigenbasis needs a linear model, got a network; set parametrisation=weights"
            )


class GaussianOptions(AdamOptions):
    """Adam on a q with standard deviations, which start at `initial_scale` times the prior's, or, for a network, at
    `initial_scale` times a tenth of them.

    Adam is slow to shrink them: the gradient of ½λs² in log s falls like s², faster than Adam forgets the gradients
    before. It is quick to let them grow.
    """

    initial_scale: PositiveFloat = 1.0


@dataclass(frozen=True)
class ExactLimit:
    """Settings under which a method claims to reach the best member of its family.

    Args:
        settings: options that override the defaults, including `max_steps` and `M`.
        tolerance: largest final KL(q ‖ P_D) above its optimum, in nats, on each toy task (k = 20, N = 40).
            The optimum is 0 for `full`, and EXACT-FFG's KL for `ffg`.
    """

    settings: Mapping[str, Any]
    tolerance: float


class Optimum(NamedTuple):
    """The optimum of an objective, regardless of the optimiser."""

    value: float  #: the lowest known value of `Method.objective`
    kl: float | None  #: KL(q* ‖ P_D) there; infinite if q* is singular, None if unknown


def _fault(error: ValidationError, known: Iterable[str]) -> str:
    """What is wrong with the settings: the part of an error that follows the method's name."""
    first = error.errors()[0]
    if not first["loc"]:  # the error is about several settings together
        return f": {first['ctx']['error']}"
    name, own = str(first["loc"][0]), ", ".join(known) or "none"
    if first["type"] == "extra_forbidden":
        return f", option {quoted(name)}: there is no such option; {did_you_mean(name, known)}its options: {own}"
    # An option that may be a number or a word has an error for each; both are reported.
    wrong = " or ".join(demand(each) for each in error.errors() if each["loc"][:1] == first["loc"][:1])
    return f", option '{name}': got {first['input']!r}, {wrong.replace(' or expected ', ' or ')}; its options: {own}"


class Method(pl.LightningModule, ABC):
    """An inference method for B problems side by side. No result may depend on the other problems in the batch.

    A method that minimises a loss implements `loss`, one number per problem, and starts from `initial()`. Adam,
    minibatches, measurement sets and averaging come with its options (`AdamOptions`, `MeasurementOptions`).
    A method with a closed form implements `solve`. Settings are fields of a nested `Options(MethodOptions)`, set by
    `--set name=value`; `max_steps` is set by `--max-steps`, and `M` by `--measurement-points`.
    `fsvi-bench methods check` checks that a method follows these rules.

    A method may also support networks, as `networks` says: `weights` if its loss takes a network's likelihood from
    `sampled_nll` or `mean_nll`; `tangent` if it treats a network as its linear model at a mode. At a network's prior
    mean only the output bias has a gradient, since a hidden unit's input and output weights are each multiplied by the
    other or by tanh 0. So q starts at a draw from the prior, with a tenth of its standard deviations.

    Args:
        tasks: one task, or several of equal shape; or their `TrainingData` or `NetworkData`.
        family: the posterior's family, one of `families`.
        seeds: one per task; all random numbers derive from them.
        options: validated options; replaces `changes`.

    Raises:
        InputError: there are no tasks, the method lacks the family or an option, or there is not one seed per task.
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    options: Any
    q: Any  #: `initial()` and its current parameters, for methods that train
    average: Any  #: the mean of the iterates, if they are averaged
    diverged_at: Int[Tensor, " B"]  #: the first step with a loss that is not finite, by problem; −1 if there is none
    families: ClassVar[tuple[Family, ...]] = ("full", "ffg")
    networks: ClassVar[Networks] = None  #: how networks are treated; None: not at all
    needs_hidden_units: ClassVar[bool] = False  #: whether it takes no network without them, such as `logit-100`
    deterministic: ClassVar[bool] = False  #: True: nothing is drawn, so there is one cell whatever the seeds
    #: By family: settings under which the method's optimum is the exact posterior (`full`) or its best factorised
    #: approximation (`ffg`), for example because its measurement set determines every weight. Empty: no claim.
    exact_limits: ClassVar[Mapping[Family, ExactLimit]] = {}

    def __init__(
        self,
        tasks: Stacked | Sequence[Task] | Task,
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
        self.problems = self.adapted(self.problems)
        self.register_buffer("diverged_at", torch.full((len(self.problems),), -1))
        if self.trains:
            self.q = self._initial()
            averaging = getattr(self.options, "averaging", 0.0)
            self.average = Average(self.q) if averaging else None

    def __getattr__(self, name: str) -> Any:
        """torch's lookup. If the code of a property raises AttributeError, torch would say that there is no such
        property; here the property is evaluated again, so that the code's own error is raised."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            found = inspect.getattr_static(type(self), name, None)
            if not isinstance(found, property | cached_property):
                raise
        return found.__get__(self)

    def _initial(self) -> TrainablePosterior:
        """`initial()`, moved as the options say, or for a network off the prior's mean."""
        if isinstance(self.options, AdamOptions):
            self.options.require_parametrisation(self.problems)
        q, scale, name = self.initial(), getattr(self.options, "initial_scale", 1.0), type(self).__name__
        if self.basis is not None and getattr(q, "basis", None) is None:
            raise InputError(
                f"{name} does not train q in the eigenbasis, got parametrisation=eigenbasis; set "
                "parametrisation=weights, or pass self.basis to the q of initial()"
            )
        if getattr(q, "is_rotated", False) and not isinstance(self.problems.feature_map, FeatureMap):
            raise InputError(
                f"{name} cannot rotate a network's tangent, got parametrisation=eigenbasis for a full covariance; set "
                "parametrisation=weights"
            )
        if scale != 1 and not (isinstance(q, TrainablePosterior) and q.has_scale):
            raise InputError(
                f"{name} has no standard deviations to start from, got initial_scale={scale:g}; set "
                "initial_scale=1, or define rescale() of the q of initial()"
            )
        if self.is_network:
            q.start(self.streams.normal("initial mean", self.problems.k), START_SCALE * scale)
        elif scale != 1:
            q.rescale(scale)
        return q

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

    @property
    def draws(self) -> Streams:
        """Random numbers of a network's loss: in evaluation mode they are the same for every q, method and seed."""
        return self.streams if self.training else Streams((HELD_OUT,))

    @property
    def is_network(self) -> bool:
        """Whether the problems are networks, and not linear models or networks' tangents."""
        return isinstance(self.problems, NetworkData)

    @property
    def design(self) -> MeasurementDesign | None:
        """How measurement sets are drawn; None: there are none."""
        return self.options.design  # type: ignore[no-any-return]

    @cached_property
    def basis(self) -> Float[Tensor, "B k_filled k_filled"] | None:
        """The basis in which q is trained, for the q of `initial()`; None: the weights'."""
        in_eigenbasis = getattr(self.options, "parametrisation", "weights") == "eigenbasis"
        return eigenbasis(self.problems.Phi) if in_eigenbasis else None

    # --- Hooks for subclasses -----------------------------------------------------------------------------------------

    def adapted(self, problems: Any) -> Any:
        """The problems as the method sees them: a network's weights, its tangent at a mode, or the linear models given.

        Raises:
            InputError: the method does not support networks, or these settings on them.
        """
        if not isinstance(problems, NetworkData):
            return problems
        if self.networks is None:
            from fsvi_bench.methods.registry import network_methods  # it imports this module

            raise InputError(
                f"{type(self).__name__} is a method for linear models, got a network; "
                f"choose one of {', '.join(network_methods())}"
            )
        self.check(self.options, problems)
        if self.networks == "weights":
            return problems
        return Linearised.at(problems, modes(problems, self.streams.normal("initial mean", problems.k)))

    def initial(self) -> TrainablePosterior:
        """The initial q, with a leading axis of B problems; by default the prior as a Gaussian of the family."""
        off_diagonal = getattr(self.options, "off_diagonal_lr", 1.0)
        return TrainableGaussian(self.family, len(self.problems), self.problems.k, off_diagonal, self.basis)

    def loss(self, q: Any, batch: Batch) -> Float[Tensor, " B"]:
        """The loss to minimise, one number per problem, in nats; `q` is the result of calling `initial()`.

        q and the batch's features are in the same coordinates, which need not be those of `self.problems`.
        In evaluation mode (`self.training` is False) it is the objective itself: it draws nothing for a linear model,
        and for a network the same numbers for every q.
        """
        raise NotImplementedError

    def mean_nll(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        """−E_q[log p(y|w)]: for a linear model in closed form, for a network the mean over draws, S of them (an option)
        or, in evaluation mode, many."""
        if not isinstance(batch.rows, NetworkData):
            return expected_nll(q, batch.rows)
        S = self.options.S if self.training else EVALUATION_DRAWS
        noise = self.draws.normal("weight samples", S, q.root.shape[-1])
        return sampled_nll(q.draws(noise), batch.rows).mean(-1)

    def solve(self, problem: TrainingData) -> Posterior:
        """The posterior of one problem in closed form, with a leading axis of 1."""
        raise NotImplementedError

    def solve_at(self, place: int, problem: TrainingData) -> Posterior:
        """The same for a formula that draws from `self.streams` or uses what was prepared for the problem there."""
        return self.solve(problem)

    def details(self) -> Sequence[Mapping[str, float] | None]:
        """For each problem, additional numbers for its record, such as a sparsity, or None."""
        return [None] * len(self.problems)

    def optima(self, tasks: Sequence[Task]) -> Sequence[Optimum | None]:
        """For each problem's task, the optimum of the objective; None if unknown."""
        return [self.optimum(place, task) for place, task in enumerate(tasks)]

    def optimum(self, place: int, task: Task) -> Optimum | None:
        """The same for one problem, for methods that compute optima one by one."""
        return None

    @classmethod
    def check(cls, options: MethodOptions, problem: TrainingData | NetworkData) -> None:
        """Checks the settings against one problem, as a batch of one; called for every problem before training.

        Raises:
            InputError: the settings do not fit the problem.
        """
        if isinstance(options, AdamOptions) and cls.networks != "tangent":
            options.require_parametrisation(problem)
        if options.design is not None:
            if cls.networks == "tangent" and isinstance(problem, NetworkData):
                raise InputError(
                    f"{cls.__name__} takes measurement sets, which a network's tangent does not have; set networks = "
                    '"weights", or leave MeasurementOptions out'
                )
            options.design.distinct_inputs(problem)

    @classmethod
    def is_deterministic(cls, options: MethodOptions) -> bool:
        """Whether nothing is drawn under these options, so there is one cell regardless of the seeds.

        This does not mean that nothing is trained: full-batch gradients are deterministic, too. See `trains`.
        """
        return cls.deterministic

    @classmethod
    def trains_with(cls, options: MethodOptions) -> bool:
        """Whether the method trains in steps under these options, rather than by a closed form."""
        return cls.solve is Method.solve and cls.solve_at is Method.solve_at

    # --- Lightning's interface ----------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Lightning's hook at the start of a fit.

        Raises:
            InputError: the Trainer clips one norm over several problems, skips steps, or lowers the precision.
        """
        if (precision := self.trainer.precision) not in ("32-true", "64-true"):  # the former is Lightning's default
            raise InputError(f"the Trainer has precision={precision!r}, but tasks are float64; leave it out")
        given = getattr(getattr(self.trainer, "datamodule", None), "problems", None)
        rotated, own = (getattr(getattr(of, "feature_map", None), "rotation", None) for of in (given, self.problems))
        if (rotated is None) != (own is None and not self._is_rotated):
            raise InputError(
                "parametrisation=eigenbasis trains a full covariance on rotated features, and all else on those given, "
                f"but the Trainer's data are {'not ' * (rotated is None)}rotated; pass datamodule=method.data()"
            )
        clip, skipped = self.trainer.gradient_clip_val, self.trainer.accumulate_grad_batches
        if clip and self.trainer.gradient_clip_algorithm != "value" and len(self.problems) > 1:
            raise InputError(
                f"the Trainer has gradient_clip_val={clip}, which clips one norm over {len(self.problems)} problems, "
                "but problems must not affect each other; leave it out, or choose gradient_clip_algorithm='value'"
            )
        if skipped != 1:
            raise InputError(
                f"the Trainer has accumulate_grad_batches={skipped}, expected 1, because max_steps counts batches; "
                "leave it out, and choose a larger minibatch"
            )

    def data(self) -> TaskData:
        """The steps according to the options: `Trainer(max_epochs=1).fit(method, datamodule=method.data())`."""
        return self._data()

    def _data(self, **changes: Any) -> TaskData:
        """The same with further arguments of `TaskData`."""
        n, problems = self.rows_per_step, self.problems
        if self._is_rotated:
            assert self.basis is not None
            rotation = self.basis[:, : problems.k, : problems.k]
            problems = problems.rotated(rotation)
            if "fixed_A" in changes:
                fixed = changes["fixed_A"]
                changes["fixed_A"] = one_by_one(torch.matmul, fixed, rotation.to(fixed.device))
        return TaskData(problems, self.seeds, steps=self.num_steps, minibatch=n, design=self.design, **changes)

    @property
    def _is_rotated(self) -> bool:
        """Whether losses are computed on rotated features."""
        return self.trains and bool(getattr(self.q, "is_rotated", False))

    def configure_optimizers(self) -> Any:
        """Adam (Kingma and Ba 2015). It is elementwise, so problems do not affect each other.

        Raises:
            InputError: there is nothing to train.
        """
        if not self.trains:
            name = type(self).__name__
            raise InputError(
                f"{name} has no steps to train; call posterior(), or functions() on a network, without a Trainer"
            )
        optimizer = torch.optim.Adam(self.q.parameters(), lr=self.options.lr, fused=True)
        if self.options.lr_schedule == "constant":
            return optimizer
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.options.decay)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_callbacks(self) -> list[pl.Callback]:
        """Averages iterates if the options say so, and ends training when no problem can change any more."""
        return [Averaging(), EarlyEnd()] if getattr(self.options, "averaging", 0.0) else [EarlyEnd()]

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        """Lightning's hook, overridden for speed: PyTorch's own `zero_grad` takes a twentieth of a step."""
        for parameter in self.q.parameters():
            parameter.grad = None

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        losses = self.loss(self.q(), batch)
        self._require_losses(losses)
        self.note(losses.detach())
        return losses.sum()

    def _require_losses(self, losses: object) -> None:
        """Raises InputError if these are not losses that can be minimised."""
        expected = f"{list(self.diverged_at.shape)}: one number for each problem"
        if not isinstance(losses, Tensor):
            raise InputError(f"loss returned {type(losses).__name__}, expected a tensor of shape {expected}; return it")
        if losses.shape != self.diverged_at.shape:
            raise InputError(f"loss has shape {list(losses.shape)}, expected {expected}; reduce all other axes only")
        if losses.dtype != torch.float64:
            got = str(losses.dtype).removeprefix("torch.")
            raise InputError(f"loss has type {got}, expected float64; compute it in float64")
        if not losses.requires_grad:
            raise InputError("loss does not depend on the parameters of q; compute it from q, without detaching it")

    def note(self, losses: Float[Tensor, " B"], logged: Float[Tensor, " B"] | None = None) -> None:
        """Counts a step, and records which losses were not finite (without a synchronisation on a GPU).

        Args:
            logged: values to log in place of the losses.
        """
        losses = losses.to(self.diverged_at.device)
        if losses.device.type != "cpu" or not math.isfinite(float(losses.sum())):
            self.diverged_at.masked_fill_(~losses.isfinite() & (self.diverged_at < 0), self.steps_done)
        self.steps_done += 1
        if self.is_logged(self.steps_done):
            self.log("loss", (losses if logged is None else logged).mean(), batch_size=len(losses))

    def is_logged(self, step: int) -> bool:
        """Whether the loss is logged at this step: a call of `log` takes a tenth of a step."""
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        return every > 0 and step % every == 0

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Lightning's hook. A Trainer stopped by its own `max_steps` marks the epoch as done, although the run may have
        steps left.

        Raises:
            InputError: the checkpoint's q is in another basis: eigenvectors are unique up to signs only, which another
                processor or BLAS may choose otherwise.
        """
        theirs = checkpoint["state_dict"].get("q.basis")
        ours = getattr(self.q, "basis", None) if self.trains else None
        if (theirs is None) != (ours is None) or not (ours is None or torch.allclose(theirs.to(ours), ours, atol=1e-8)):
            raise InputError(
                "the checkpoint's q has other coordinates than this method's, since its parametrisation or the machine "
                "differs; train from the start, or with the checkpoint's options on such a machine"
            )
        unfinished = checkpoint["state_dict"]["_extra_state"]["steps_done"] < self.num_steps
        if unfinished and "loops" in checkpoint:  # absent from checkpoints of weights only
            checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"].update(processed=0, completed=0)

    def get_extra_state(self) -> dict[str, Any]:
        return {"steps_done": self.steps_done}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.steps_done = state["steps_done"]

    # --- The interface to runs ----------------------------------------------------------------------------------------

    @property
    def num_steps(self) -> int:
        """Number of training steps; 1 for a closed form, which has no trace and no earlier posterior."""
        return int(getattr(self.options, "max_steps", 1)) if self.trains else 1

    @property
    def trains(self) -> bool:
        """Whether the method trains in steps, rather than by a closed form."""
        return self.trains_with(self.options)

    @property
    def rows_per_step(self) -> int:
        """Number of training rows per step."""
        return int(self.options.rows(self.problems.N))

    @cached_property
    def solved(self) -> Any:
        """The closed forms of all problems, one by one on copies: LAPACK's rounding must not depend on the batch.

        A problem whose targets are not finite gets a NaN solution and counts as diverged; the others are unaffected.
        """
        return concatenate([self._solve_one(b, self.problems.only(b)) for b in range(len(self.problems))])

    def _solve_one(self, place: int, problem: TrainingData) -> Posterior:
        finite = bool(problem.y.isfinite().all())
        solved = self.solve_at(place, problem if finite else replace(problem, y=torch.zeros_like(problem.y)))
        if not isinstance(solved, Posterior):
            raise TypeError(f"solve returned {type(solved).__name__}, expected a posterior such as FullGaussian")
        if finite:
            return solved
        # A factor stays lower triangular: its entries are NaN, but its form is valid.
        nan = solved.map(lambda tensor: torch.full_like(tensor, torch.nan))
        return nan.map(lambda tensor: tensor.tril() if tensor.ndim == 3 else tensor)

    def posterior(self) -> Any:
        """The current approximation, with a leading axis of B problems; from averaged iterates once there are any."""
        return self._moving().posterior() if self.trains else self.solved

    @torch.no_grad()
    def functions(
        self, place: int, x: Float[Tensor, "n D"], draws: int | None = None, seed: int = 0
    ) -> Float[Tensor, "S n"]:
        """Values at inputs of functions drawn from one problem's current posterior, the same for the same seed.

        Args:
            draws: how many; None: each particle of a posterior of particles once.

        Raises:
            InputError: `draws` is missing, and the posterior is not one of particles.
        """
        problem, q = self.problems.only(place).to(torch.device("cpu")), self.posterior()[place].cpu()
        if draws is None and not isinstance(q, DrawnPosterior):
            raise InputError(
                "draws is missing, expected the number of functions to draw; pass, for example, draws=1000"
            )
        w = q.draws if draws is None else q.sample(draws, seed)
        return problem.functions(w[None], x[None], seed)[0]

    def _moving(self) -> Any:
        averaged = self.average is not None and self.average.count > 0
        return self.average.module if averaged else self.q

    def terms(self, place: int) -> Any:
        """One problem's q as an argument for `loss`: a batch of one, on the CPU."""
        if self.trains:
            alone = self._moving().only(place)
            terms = alone.terms() if isinstance(alone, TrainablePosterior) else alone()
            return type(terms)(*(tensor.cpu() for tensor in terms))
        q = self.solved[place : place + 1]
        return Gaussian(q.mean, q.root)

    @torch.no_grad()
    def objective(self, place: int, task: Task, sets: int = HELD_OUT_SETS, q: Any = None) -> float:
        """The objective at one problem's q, in nats: all training rows, and for linear models closed forms in place of
        samples. If measurement sets are random, the mean over this many held-out sets, the same for all q, methods and
        seeds.

        Constants are included, so that −ELBO plus the log evidence is a KL. The training's random streams are not used.

        Raises:
            NotImplementedError: the method minimises no loss.
        """
        if type(self).loss is Method.loss:
            raise NotImplementedError(f"{type(self).__name__} minimises no loss")
        mode, q = self.training, self.terms(place) if q is None else q
        q = q.filled() if isinstance(q, Gaussian) else q
        self.train(False)
        try:
            losses = [self.loss(q, batch) for batch in self.held_out(place, task, sets)]
        finally:
            self.train(mode)
        return float(torch.cat(losses).mean())

    def held_out(self, place: int, task: Task, sets: int) -> Sequence[Batch]:
        """Rows and measurement sets on which the objective of one problem is evaluated, in batches of several sets."""
        design = None if self.design is None or self.design.features_only else self.design
        if isinstance(self.problems, NetworkData):
            problem = self.problems.only(place).to(torch.device("cpu"))
            inputs = [None] if design is None else input_sets(problem, design, Streams((HELD_OUT,)))(range(sets))
            return [Batch(problem, X_A=X_A) for X_A in inputs]
        tangent = isinstance(self.problems, Linearised)
        rows = Rows.whole(self.problems.only(place) if tangent else TrainingData.of(task))
        return [Batch(rows, A) for A in ([None] if design is None else held_out_sets(task, design, sets))]

    def cost(self) -> dict[str, int]:
        """The cost of one gradient: training rows, measurement rows, function samples, weight samples."""
        found, design = {"likelihood_rows": self.rows_per_step}, self.design
        if design is not None:
            found["measurement_rows"] = design.M
        if self.is_network and "S" in type(self.options).model_fields:  # see `mean_nll`
            found["weight_samples"] = self.options.S
        return found

    def evaluations(self) -> Sequence[int]:
        """For each problem, the number of gradients computed so far."""
        return [self.steps_done if stopped is None else stopped for stopped in self.stopped_after()]

    def work(self) -> Sequence[Mapping[str, int] | None]:
        """For each problem, the cost of training so far, in units that methods share; None for a closed form."""
        if not self.trains:
            return [None] * len(self.problems)
        cost = {"gradients": 1, **self.cost()}
        return [{name: count * each for name, each in cost.items()} for count in self.evaluations()]

    @property
    def finished(self) -> bool:
        """True if further steps would change nothing; training then ends early."""
        return self.steps_done >= self.num_steps or None not in self.stopped_after()

    def stopped_after(self) -> Sequence[int | None]:
        """For each problem, the number of steps after which it could no longer change, or None. Its trace ends there,
        even if other problems in the batch continue."""
        return [None if step < 0 else step + 1 for step in self.diverged_at.tolist()]

    def divergences(self) -> Sequence[str | None]:
        """For each problem, the reason for its divergence, or None."""
        steps = self.diverged_at.tolist()
        return [None if step < 0 else f"the loss was not finite at step {step}" for step in steps]
