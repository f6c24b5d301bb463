"""What methods with a `Descent` have in common, and the options that several of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from jaxtyping import Float
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.methods.base import Method, MethodOptions
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.scoring.objective import ExpectedFunctionalKL, Objective
from fsvi_bench.tasks.training_problems import TrainingProblems
from fsvi_bench.variational.descent import AdamDescent, Descent, LearningRate
from fsvi_bench.variational.likelihood import Likelihood, make_likelihood
from fsvi_bench.variational.measurement import MeasuredSet, MeasurementDesign, MeasurementStream, Source, aligned
from fsvi_bench.variational.parameters import Parameters, make_parameters

Averaging = Annotated[float, Field(ge=0, lt=1, description="share of the last steps whose iterates are averaged")]


class DescentMethod(Method, ABC):
    """A method whose steps are those of a `Descent`, set up once the device is known."""

    automatic_optimization: ClassVar[bool] = False
    steps_per_call: ClassVar[int] = 64
    descent: Descent

    @classmethod
    def check(cls, options: MethodOptions, problem: TrainingProblems) -> None:
        if isinstance(options, MeasurementOptions):
            options.design().distinct_inputs(problem)

    @abstractmethod
    def make_descent(self) -> Descent:
        """Streams, parameters and optimiser, on the method's device."""

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self.descent = self.make_descent()

    @property
    def num_steps(self) -> int:
        return int(self.options.max_steps)  # type: ignore[attr-defined]

    def cost(self) -> dict[str, int]:
        """What one gradient takes: training rows, measurement rows, function samples."""
        return {}

    def work(self) -> Sequence[dict[str, int]]:
        cost = self.cost()
        return [
            {"gradients": count, **{name: count * each for name, each in cost.items()}}
            for count in self.descent.evaluations
        ]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.descent.run(batch)

    def posterior(self) -> Posterior:
        return self.descent.posterior(self.problems.k)

    def stopped_after(self) -> Sequence[int | None]:
        return self.descent.stopped_after

    @property
    def finished(self) -> bool:
        return self.descent.finished

    def divergences(self) -> Sequence[str | None]:
        steps = self.descent.diverged_at.tolist()
        return [None if step < 0 else f"the loss was not finite at step {step}" for step in steps]


class AdamOptions(MethodOptions):
    """Settings of Adam. Burt et al. (2020) name a learning rate for their toy problem only; 0.01 is that one."""

    max_steps: PositiveInt = 15000
    lr: PositiveFloat = 0.01
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    averaging: Averaging = 0.0

    def learning_rate(self) -> LearningRate:
        return LearningRate(self.lr, self.lr_schedule, self.max_steps)


class MeasurementOptions(MethodOptions):
    """Where the functional KL is taken, and its weight against the likelihood."""

    M: PositiveInt = 80
    draw_A: Source = "mixed"
    kl_weight: NonNegativeFloat | Literal["N/B"] = 1.0
    kl_jitter: NonNegativeFloat = 0.0
    rank_tolerance: Annotated[float, Field(ge=0, lt=1)] = RANK_TOLERANCE

    def design(self) -> MeasurementDesign:
        return MeasurementDesign(self.M, self.draw_A, self.kl_jitter, self.rank_tolerance)

    def weight(self, n: int, N: int) -> float:
        """kl_weight as a number; `N/B` is what FBNN's code does (Sun et al. 2019): the KL over the minibatch's size
        beside a mean log likelihood per point, which is N/n times its weight in the ELBO."""
        return N / n if self.kl_weight == "N/B" else float(self.kl_weight)


class MinibatchOptions(MethodOptions):
    """How many training rows the likelihood sees in one step; all, if there are fewer."""

    minibatch: PositiveInt | Literal["full"] = 80

    def rows(self, N: int) -> int:
        """The number of rows."""
        return N if self.minibatch == "full" else min(self.minibatch, N)


class FunctionalOptions(AdamOptions, MeasurementOptions, MethodOptions):
    """Adam on a functional objective. The paper sees as many rows as measurement points in a step: `minibatch=M`."""

    minibatch: PositiveInt | Literal["full", "M"] = "M"

    def rows(self, N: int) -> int:
        """The number of rows in one step; all, if there are fewer than asked for."""
        if self.minibatch == "full":
            return N
        return min(self.M if self.minibatch == "M" else self.minibatch, N)

    def cost(self, N: int) -> dict[str, int]:
        """Rows of either kind behind one gradient."""
        return {"likelihood_rows": self.rows(N), "measurement_rows": self.M}

    def objective(self, N: int) -> ExpectedFunctionalKL:
        """What a method minimises that draws A anew at each step."""
        return ExpectedFunctionalKL(self.design(), self.weight(self.rows(N), N))


Gradient = Callable[[Parameters, MeasuredSet, Likelihood, float], Float[Tensor, " B"]]


class RandomSetMethod(DescentMethod, ABC):
    """Adam on −E_q[log p(y|w)] + kl_weight · KL(Q_A ‖ P_A) with A drawn anew at each step (Burt et al. 2020, eq. 6)."""

    options: FunctionalOptions

    @abstractmethod
    def make_gradient(self) -> Gradient:
        """A function of q, a measurement set, a step's likelihood and kl_weight that hands the objective's gradient to
        q and returns a number per problem, not finite where the gradient is not."""

    def make_descent(self) -> AdamDescent:
        options, data, N = self.options, self.problems, self.problems.y.shape[1]
        q = make_parameters(self.family, len(data), aligned(data.k)).to(self.device)
        likelihood = make_likelihood(data, options.rows(N), self.seeds)
        sets = iter(MeasurementStream(data, options.design(), self.seeds))
        set_gradient, kl_weight = self.make_gradient(), options.weight(options.rows(N), N)

        def gradient() -> Float[Tensor, " B"]:
            likelihood.advance()
            return set_gradient(q, next(sets), likelihood, kl_weight)

        return AdamDescent(q, gradient, options.learning_rate(), options.averaging)

    def cost(self) -> dict[str, int]:
        return self.options.cost(self.problems.y.shape[1])

    def objectives(self) -> Sequence[Objective]:
        return [self.options.objective(self.problems.y.shape[1])] * len(self.problems)
