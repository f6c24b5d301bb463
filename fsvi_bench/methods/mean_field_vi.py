"""Mean-field variational inference in weight space: Bayes by Backprop (Blundell et al. 2015)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor

from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.methods.base import ExactLimit, GaussianOptions, MethodOptions
from fsvi_bench.methods.data import Batch, sampled_nll
from fsvi_bench.methods.networks import CollapsedData, NetworkData
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.weight_space import WeightSpaceMethod, weight_kl

#: What remains is gradient noise after a finite number of steps.
_FALLING = {"minibatch": "full", "lr": 0.1, "lr_schedule": "cosine", "max_steps": 2500, "S": 8, "averaging": 0.4}


class MeanFieldVI(WeightSpaceMethod):
    """Adam on the ELBO with reparameterised gradients and the KL to the prior in closed form.

    Its optimum is EXACT-FFG: any difference is due to the optimiser and gradient noise.
    """

    class Options(GaussianOptions):
        """S weight samples per step. `collapsed`: over a network's hidden weights alone, its output weights being
        integrated out, which takes all rows."""

        S: PositiveInt = 1
        collapsed: bool = False

    families = ("ffg",)
    networks = "weights"
    exact_limits = {"ffg": ExactLimit(_FALLING, tolerance=0.02)}

    @classmethod
    def check(cls, options: MethodOptions, problem: TrainingData | NetworkData) -> None:
        super().check(options, problem)
        assert isinstance(options, MeanFieldVI.Options)
        if options.collapsed:
            CollapsedData.collapse(problem, options.rows(problem.N))

    def adapted(self, problems: Any) -> Any:
        """A network's problems are collapsed, if the options say so; the ELBO is then less than log p(y) by the KL of
        q(u) to the posterior of u."""
        problems = super().adapted(problems)
        return CollapsedData.collapse(problems, self.options.rows(problems.N)) if self.options.collapsed else problems

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        if not self.training:
            return super().loss(q, batch)
        noise = self.streams.normal("weight samples", self.options.S, q.mean.shape[-1])
        return sampled_nll(q.draws(noise), batch.rows).mean(-1) + weight_kl(q)

    def cost(self) -> dict[str, int]:
        return {**super().cost(), "weight_samples": self.options.S}
