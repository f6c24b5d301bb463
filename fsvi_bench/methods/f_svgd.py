"""f-SVGD: Stein variational gradient descent in function space (Wang, Ren, Zhu and Zhang 2019)."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import pad

from fsvi_bench.maths.batching import one_by_one, products
from fsvi_bench.maths.functional_kl import measure
from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.methods.base import AdamOptions, MethodOptions
from fsvi_bench.methods.data import Batch, MeasurementDesign, Source
from fsvi_bench.methods.networks import NetworkData, require_part
from fsvi_bench.methods.points import Count, ParticleMethod, Points
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.svgd import kernel_and_repulsion, stein_direction


class FSvgd(ParticleMethod):
    """SVGD's direction v for the function values at a set X, taken to the weights by Φ_Xᵀv, by Adam.

    X is the minibatch's inputs and the measurement set A. With K the kernel matrix of the function values f_i = Φ_X w_i
    and P the projector onto Φ_X's row space, by which Φ_Xᵀ∇log p(f_i) = −P w_i under the prior N(0, Φ_XΦ_Xᵀ),

        Φ_Xᵀv_i = (1/n) Σ_j [K_ji (−∇NLL_j − P w_j) + (2/h) K_ji Φ_XᵀΦ_X(w_i − w_j)].

    The kernel is SVGD's, with the median heuristic at X.

    For a network v_i is taken to the weights by the Jacobian at w_i, and the prior of the function values is the
    Gaussian with its covariance, and with noise as in the functional methods' `kl_jitter`.
    """

    class Options(AdamOptions):
        """Twenty particles, as in the paper; `M` and `draw_A` are of A alone. `prior_jitter` is a network's."""

        particles: Count = 20
        M: PositiveInt = 80
        draw_A: Source = "box"
        rank_tolerance: Annotated[float, Field(ge=0, lt=1)] = RANK_TOLERANCE
        prior_jitter: PositiveFloat = 1e-4

        @property
        def design(self) -> MeasurementDesign:
            return MeasurementDesign(self.M, self.draw_A, features_only=True)

    @classmethod
    def check(cls, options: MethodOptions, problem: TrainingData | NetworkData) -> None:
        super().check(options, problem)
        if isinstance(problem, NetworkData):
            require_part(problem.model, "prior_covariance", "f-svgd")

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The surrogate Σ_i w_iᵀ(−direction_i), as SVGD's."""
        q = self.q()
        if self.is_network:
            return self.network_step(q, batch)
        w = q.w.detach().requires_grad_()
        energy = self.energies(Points(w), batch)
        (gradient,) = torch.autograd.grad(energy.sum(), w)
        self.note(energy.detach().mean(-1))
        w = w.detach()
        Phi_X = self.features(batch)
        seen = measure(Phi_X, rank_tolerance=self.options.rank_tolerance).project_rows(
            pad(w, (0, Phi_X.shape[-1] - w.shape[-1]))
        )[..., : w.shape[-1]]
        # The energy's gradient includes the whole prior's, w; the set determines Pw of it.
        direction = one_by_one(functional_direction, products(Phi_X, w), w - seen - gradient, Phi_X)
        return -(direction * q.w).sum()

    def network_step(self, q: Points, batch: Batch) -> Tensor:
        """The surrogate −Σ_i f(w_i)ᵀv_i."""
        rows = batch.rows
        self.note(self.energies(Points(q.w.detach()), batch).mean(-1))
        X = torch.cat([rows.X, batch.X_A], 1)
        values = self.problems.values(q.w, X)
        f = values.detach()
        likelihood = pad(rows.slope(f[..., : rows.N]) * (self.problems.N / rows.N), (0, self.options.M))
        covariance = self.problems.prior_covariance(X)
        covariance.diagonal(dim1=-2, dim2=-1).add_(self.options.prior_jitter)
        v = one_by_one(stein_direction, f, likelihood - one_by_one(weighted, f, covariance))
        return -(v * values).sum()

    def features(self, batch: Batch) -> Float[Tensor, "B n k"]:
        """Φ_X, without rows of zeros. Where the likelihood sees all rows, others with the same inner products stand for
        them, on which alone the direction depends."""
        data, n = self.problems, self.rows_per_step
        count = min(n, data.k + 1) if n == data.N else n
        unit = (n / data.N * data.noise_variance.to(self.device)).sqrt()[:, None, None]
        return torch.cat([batch.rows.Phi[:, :count] * unit, batch.Phi_A[:, : self.options.M]], -2)


def weighted(f: Float[Tensor, "B n m"], covariance: Float[Tensor, "B m m"]) -> Float[Tensor, "B n m"]:
    """C⁻¹f_i for each particle; NaN where C is not positive definite."""
    tril, info = torch.linalg.cholesky_ex(covariance)
    return torch.where((info == 0)[:, None, None], torch.cholesky_solve(f.mT, tril).mT, torch.nan)


def functional_direction(
    values: Float[Tensor, "B n m"], score: Float[Tensor, "B n k"], Phi_X: Float[Tensor, "B m k_filled"]
) -> Float[Tensor, "B n k"]:
    """Φ_Xᵀv, given Φ_Xᵀ∇log p(f_j, y) as `score`."""
    K, repulsion = kernel_and_repulsion(values)
    return (K @ score + (repulsion @ Phi_X)[..., : score.shape[-1]]) / values.shape[1]
