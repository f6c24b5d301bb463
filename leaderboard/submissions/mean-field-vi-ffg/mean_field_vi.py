"""Mean-field variational inference in weight space: Bayes by Backprop (Blundell et al. 2015)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor

from fsvi_bench.methods.base import ExactLimit, MethodOptions
from fsvi_bench.methods.descending import AdamOptions, DescentMethod, MinibatchOptions
from fsvi_bench.posteriors.base import Family
from fsvi_bench.scoring.objective import Objective, WeightSpaceKL
from fsvi_bench.variational.descent import AdamDescent
from fsvi_bench.variational.likelihood import make_likelihood
from fsvi_bench.variational.measurement import aligned, stream_generator
from fsvi_bench.variational.parameters import FactorisedParameters


class MeanFieldOptions(AdamOptions, MinibatchOptions):
    """S weight samples a step."""

    S: PositiveInt = 1


#: What remains is the noise of the gradients at a finite number of steps.
_FALLING = {"minibatch": "full", "lr": 0.1, "lr_schedule": "cosine", "max_steps": 2500, "S": 8, "averaging": 0.4}


class MeanFieldVI(DescentMethod):
    """Adam on the ELBO with reparameterised gradients and the KL to the prior in closed form.

    Its optimum is EXACT-FFG: what it loses to that, it loses to its optimiser and its noise.
    """

    Options: ClassVar[type[MethodOptions]] = MeanFieldOptions
    options: MeanFieldOptions
    families: ClassVar[tuple[Family, ...]] = ("ffg",)
    exact_limits: ClassVar[Mapping[Family, ExactLimit]] = {"ffg": ExactLimit(_FALLING, tolerance=0.02)}

    def make_descent(self) -> AdamDescent:
        options, data, k = self.options, self.problems, aligned(self.problems.k)
        q = FactorisedParameters(len(data), k).to(self.device)
        likelihood = make_likelihood(data, options.rows(data.y.shape[1]), self.seeds)
        generators = [stream_generator(seed, "weight samples") for seed in self.seeds]

        def gradient() -> Float[Tensor, " B"]:
            likelihood.advance()
            mean, scale = q.mean, q.scale
            of_mean, of_log_scale = mean.clone(), scale.square() - 1  # of KL(q ‖ prior) in closed form
            for _ in range(options.S):
                noise = torch.stack([torch.from_numpy(g.standard_normal(k)) for g in generators]).to(mean.device)
                of_w = likelihood.mean_gradient(mean + scale * noise) / options.S
                of_mean += of_w
                of_log_scale += of_w * scale * noise
            q.set_gradient(of_mean, of_log_scale)
            return of_mean.sum(-1)

        return AdamDescent(q, gradient, options.learning_rate(), options.averaging)

    def cost(self) -> dict[str, int]:
        return {"likelihood_rows": self.options.rows(self.problems.y.shape[1]), "weight_samples": self.options.S}

    def objectives(self) -> Sequence[Objective]:
        return [WeightSpaceKL()] * len(self.problems)
