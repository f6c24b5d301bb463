"""RANDA: the functional KL at a new measurement set at every step (Burt et al. 2020, section 4)."""

from __future__ import annotations

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor

from fsvi_bench.maths.functional_kl import Gaussian, functional_kl
from fsvi_bench.methods.base import ExactLimit
from fsvi_bench.methods.data import Batch
from fsvi_bench.methods.functional import FunctionalMethod, FunctionalOptions

#: With M ≥ k, A determines every weight; the learning rate decays to 0.
_EXACT_LIMIT = ExactLimit(
    {"M": 60, "minibatch": "full", "lr": 0.2, "off_diagonal_lr": 1, "lr_schedule": "cosine"}
    | {"averaging": 0, "max_steps": 1500},
    tolerance=0.01,
)


class RandA(FunctionalMethod):
    """Adam on −E_q[log p(y|w)] + kl_weight · KL(Q_A ‖ P_A), with a new A at each step (Burt et al. 2020, eq. 6).

    For a network this is TFSVI (Rudner, Chen, Teh and Gal 2022), whose functional KL is that of its tangent, except
    that q and the prior share one tangent, at q's mean. TFSVI takes the prior's at its own mean, 0, where only the
    gradient with respect to the output bias is not 0.
    """

    class Options(FunctionalOptions):
        """S weight samples per step, for a network; a linear model needs none."""

        S: PositiveInt = 8

    networks = "weights"
    exact_limits = {"full": _EXACT_LIMIT, "ffg": _EXACT_LIMIT}

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        return self.mean_nll(q, batch) + self.kl_weight * functional_kl(q, self.measured(q, batch))
