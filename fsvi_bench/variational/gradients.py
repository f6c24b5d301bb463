"""One step's gradient of the objective that FIXEDA and RANDA share (Burt et al. 2020, eq. 6)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.functional_kl import Measurement
from fsvi_bench.variational.likelihood import Likelihood
from fsvi_bench.variational.parameters import FullParameters, Parameters


def set_gradient(
    q: Parameters, measurement: Measurement, likelihood: Likelihood, kl_weight: float
) -> Float[Tensor, " B"]:
    """Gradient of −E_q[log p(y|w)] + kl_weight · KL(Q_A ‖ P_A) at q, handed to its parameters.

    Returns the KL, or NaN where the likelihood is no number.
    """
    mean = likelihood.mean_gradient(q.mean)
    sound = mean.sum(-1).isfinite()
    if isinstance(q, FullParameters):
        kl = measurement.gradient(q.mean, q.factor)
        factor = kl.factor if kl_weight == 1 else kl.factor.mul_(kl_weight)
        likelihood.add_factor_gradient(factor, q.factor)
        q.set_gradient(mean.add_(kl.mean, alpha=kl_weight), factor)
        return torch.where(sound, kl.kl, torch.nan)
    scale = q.scale
    diagonal = measurement.gradient_diagonal(q.mean, scale)
    log_scale = (scale.square() * likelihood.precision_diagonal()).add_(diagonal.log_scale, alpha=kl_weight)
    q.set_gradient(mean.add_(diagonal.mean, alpha=kl_weight), log_scale)
    return torch.where(sound, diagonal.kl, torch.nan)
