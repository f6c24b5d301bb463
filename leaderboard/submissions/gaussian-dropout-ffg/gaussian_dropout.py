"""Gaussian dropout: multiplicative noise N(1, α) at a fixed α (Srivastava et al. 2014; Kingma et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from jaxtyping import Float
from pydantic import PositiveFloat
from torch import Tensor

from fsvi_bench.methods.base import MethodOptions
from fsvi_bench.methods.dropping import NoisyMethod, NoisyOptions
from fsvi_bench.posteriors.base import Family
from fsvi_bench.scoring.dropout_objective import NoisyLikelihood
from fsvi_bench.scoring.objective import Objective
from fsvi_bench.variational.descent import AdamDescent
from fsvi_bench.variational.dropout_parameters import MultiplicativeParameters


class GaussianDropoutOptions(NoisyOptions):
    """α = (1 − p)/p for a retain probability p; 0.25 is p = 0.8."""

    alpha: PositiveFloat = 0.25


class GaussianDropout(NoisyMethod):
    """Adam on the expected negative log likelihood under N(θ, αθ²), and on nothing else.

    There is no prior in this objective: it is variational inference only for a prior whose KL does not depend on θ, the
    log-uniform one. Its optimum is a ridge regression (`maths.gaussian_dropout`).
    """

    Options: ClassVar[type[MethodOptions]] = GaussianDropoutOptions
    options: GaussianDropoutOptions
    families: ClassVar[tuple[Family, ...]] = ("ffg",)

    def make_descent(self) -> AdamDescent:
        q = MultiplicativeParameters(len(self.problems), self.width, self.options.alpha, True, None).to(self.device)
        error, root = self.make_error(), self.options.alpha**0.5

        def gradient() -> Float[Tensor, " B"]:
            of_centre, of_spread = error.gradient(q.mean, q.signed_scale)
            of_theta = of_centre + root * of_spread
            q.set_gradient(of_theta, None)
            return of_theta.sum(-1)

        return self.by_adam(q, gradient)

    def objectives(self) -> Sequence[Objective]:
        return [NoisyLikelihood(self.options.alpha)] * len(self.problems)
