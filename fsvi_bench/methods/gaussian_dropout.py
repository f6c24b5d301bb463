"""Gaussian dropout: multiplicative noise N(1, α) at a fixed α (Srivastava et al. 2014; Kingma et al. 2015)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from pydantic import PositiveFloat
from torch import Tensor

from fsvi_bench.maths.gaussian_dropout import gaussian_dropout_kl, gaussian_dropout_optimum
from fsvi_bench.methods.base import Optimum
from fsvi_bench.methods.data import Batch
from fsvi_bench.methods.noisy import NoisyMethod, NoisyOptions
from fsvi_bench.posteriors.trainable import Multiplicative, TrainableMultiplicative
from fsvi_bench.tasks.task import Task


class GaussianDropout(NoisyMethod):
    """Adam on the expected negative log likelihood under N(θ, αθ²) alone.

    The objective contains no prior. It is variational inference only for a prior whose KL does not depend on θ, the
    log-uniform prior. Its optimum is a ridge regression (`maths.gaussian_dropout`).
    """

    class Options(NoisyOptions):
        """α = (1 − p)/p for a retain probability p; 0.25 is p = 0.8."""

        alpha: PositiveFloat = 0.25

    families = ("ffg",)

    def initial(self) -> TrainableMultiplicative:
        return TrainableMultiplicative(len(self.problems), self.problems.k, self.options.alpha, basis=self.basis)

    def loss(self, q: Multiplicative, batch: Batch) -> Float[Tensor, " B"]:
        return self.expected_nll(q.theta, q.scale, batch)

    def optimum(self, place: int, task: Task) -> Optimum:
        alpha = torch.tensor([self.options.alpha], dtype=torch.float64)
        theta = gaussian_dropout_optimum(task.Phi, task.y, alpha)
        q = Multiplicative(theta[None], alpha.sqrt() * theta[None], alpha.log())
        kl = gaussian_dropout_kl(theta, alpha, *task.truth.posterior)
        return Optimum(self.objective(place, task, q=q), float(kl.total))
