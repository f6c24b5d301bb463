"""RANDA's objective by natural-gradient steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from fsvi_bench.maths.functional_kl import Measurement
from fsvi_bench.methods.base import ExactLimit, MethodOptions
from fsvi_bench.methods.descending import Averaging, DescentMethod, MeasurementOptions
from fsvi_bench.posteriors.base import Family
from fsvi_bench.scoring.objective import ExpectedFunctionalKL, Objective
from fsvi_bench.variational.likelihood import FullBatch
from fsvi_bench.variational.measurement import MeasurementStream
from fsvi_bench.variational.natural import NaturalDescent, StepSize


class NaturalOptions(MeasurementOptions):
    """Step size ρ_t = step_size · (1 + t)^(−decay); always all training rows."""

    max_steps: PositiveInt = 500
    step_size: Annotated[float, Field(gt=0, le=1)] = 0.5
    decay: Annotated[float, Field(ge=0, le=1)] = 0.6
    averaging: Averaging = 0.5


#: With an A that sees every weight one whole step lands on the optimum, but for a factorised q's mean.
_WHOLE_STEPS = {"M": 60, "step_size": 1.0, "decay": 0.0, "averaging": 0.0}


class RandANgd(DescentMethod):
    """Natural gradients of −E_q[log p(y|w)] + kl_weight · KL(Q_A ‖ P_A), with A drawn anew at each step.

    The natural parameters are averaged over the second half of the run, since single steps go on scattering with their
    A. For a full covariance that comes within a tenth of a nat of the objective's optimum; a factorised q is still on
    its way after 500 steps, its mean's direction blind to how features are correlated.
    """

    Options: ClassVar[type[MethodOptions]] = NaturalOptions
    options: NaturalOptions
    exact_limits: ClassVar[Mapping[Family, ExactLimit]] = {
        "full": ExactLimit({**_WHOLE_STEPS, "max_steps": 1}, tolerance=1e-9),
        "ffg": ExactLimit({**_WHOLE_STEPS, "max_steps": 1000}, tolerance=0.1),
    }

    def make_descent(self) -> NaturalDescent:
        options = self.options
        sets = iter(MeasurementStream(self.problems, options.design(), self.seeds))

        def next_measurement() -> Measurement:
            return next(sets).measurement

        return NaturalDescent(
            self.family,
            FullBatch(self.problems),
            next_measurement,
            StepSize(options.step_size, options.decay),
            options.max_steps,
            self._kl_weight,
            options.averaging,
        )

    @property
    def _kl_weight(self) -> float:
        N = self.problems.y.shape[1]
        return self.options.weight(N, N)

    def cost(self) -> dict[str, int]:
        return {"likelihood_rows": self.problems.y.shape[1], "measurement_rows": self.options.M}

    def objectives(self) -> Sequence[Objective]:
        return [ExpectedFunctionalKL(self.options.design(), self._kl_weight)] * len(self.problems)
