"""Mean-field variational inference in weight space: Bayes by Backprop (Blundell et al. 2015)."""

from __future__ import annotations

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor

from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.methods.base import AdamOptions, ExactLimit
from fsvi_bench.methods.data import Batch, sampled_nll
from fsvi_bench.methods.weight_space import WeightSpaceMethod, weight_kl

#: What remains is the noise of the gradients at a finite number of steps.
_FALLING = {"minibatch": "full", "lr": 0.1, "lr_schedule": "cosine", "max_steps": 2500, "S": 8, "averaging": 0.4}


class MeanFieldVI(WeightSpaceMethod):
    """Adam on the ELBO with reparameterised gradients and the KL to the prior in closed form.

    Its optimum is EXACT-FFG: what it loses to that, it loses to its optimiser and its noise.
    """

    class Options(AdamOptions):
        """S weight samples a step."""

        S: PositiveInt = 1

    families = ("ffg",)
    exact_limits = {"ffg": ExactLimit(_FALLING, tolerance=0.02)}

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        if not self.training:
            return super().loss(q, batch)
        noise = self.streams.normal("weight samples", self.options.S, q.mean.shape[-1])
        return sampled_nll(q.draws(noise), batch.rows).mean(-1) + weight_kl(q)

    def cost(self) -> dict[str, int]:
        return {**super().cost(), "weight_samples": self.options.S}
