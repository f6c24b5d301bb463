"""VIP: a variational implicit process, whose prior is replaced by S draws of it (Ma et al. 2019).

S draws w_1, ..., w_S of the prior give the model w = w̄ + W̃a/√S, a ~ N(0, I_S), where the columns of W̃ are w_s − w̄.
These are centred: with an orthonormal basis H of what is orthogonal to (1, ..., 1), W̃a = W̃H(Hᵀa), and b = Hᵀa has the
prior N(0, I) in S − 1 dimensions. Inference in b is exact, so q is the image of b's posterior, of rank S − 1 at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fsvi_bench.maths.blr import blr_posterior, covariance_tril
from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.methods.base import Method, MethodOptions, Optimum
from fsvi_bench.methods.data import Batch, Rows, expected_nll, fill_columns
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.weight_space import kl_to, weight_kl
from fsvi_bench.posteriors.gaussian import FactorGaussian
from fsvi_bench.tasks.task import Task


class Vip(Method):
    """Exact inference under S draws of the prior; nothing is trained."""

    class Options(MethodOptions):
        """S, the number of draws; the posterior has a density if S > k."""

        draws: Annotated[int, Field(ge=2)] = 20

    families = ("factor",)
    prior_mean: Float[Tensor, "B k"]
    prior_root: Float[Tensor, "B k r"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        draws = self.streams.normal("prior draws", self.options.draws, self.problems.k)
        self.register_buffer("prior_mean", draws.mean(1))
        self.register_buffer("prior_root", torch.stack([_root(w.clone()) for w in draws]))

    def solve_at(self, place: int, problem: TrainingData) -> FactorGaussian:
        mean, root = self._prior(place)
        residual = problem.y[0] - problem.Phi[0] @ mean
        b = blr_posterior(problem.Phi[0] @ root, residual, problem.noise_variance[0])
        factor = root @ covariance_tril(b.precision_tril)
        return FactorGaussian((mean + root @ b.mean)[None], factor[None])

    def _prior(self, place: int) -> tuple[Float[Tensor, " k"], Float[Tensor, "k r"]]:
        """Mean of one problem's w under the drawn prior, and a root of its covariance."""
        return self.prior_mean[place].cpu().clone(), self.prior_root[place].cpu().clone()

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        """−ELBO of one problem's q, with its KL in the coordinates b."""
        mean, root = batch.A
        of_b = torch.linalg.lstsq(root, torch.cat([(q.mean - mean)[..., None], q.root], -1)).solution
        q_b = Gaussian(of_b[..., 0], tril_of_gram(of_b[..., 1:].mT))
        return expected_nll(q, batch.rows) + weight_kl(q_b)

    def held_out(self, place: int, task: Task, sets: int) -> Sequence[Batch]:
        mean, root = self._prior(place)
        at_features = fill_columns(mean[None, None])[0], fill_columns(root.mT[None]).mT
        return [Batch(Rows.whole(TrainingData.of(task)), at_features)]

    def optimum(self, place: int, task: Task) -> Optimum:
        q = self.solved[place]
        return Optimum(self.objective(place, task), kl_to(task.truth.posterior, q))


def _root(w: Float[Tensor, "S k"]) -> Float[Tensor, "k r"]:
    """A root of (1/S) Σ (w_s − w̄)(w_s − w̄)ᵀ with r = min(S − 1, k) independent columns.

    Its columns are Helmert's contrasts, (w_0 + ... + w_{s−1} − s w_s)/√(s(s + 1)), divided by √S.
    """
    s = torch.arange(1, len(w), dtype=w.dtype)[:, None]
    rows = (w.cumsum(0)[:-1] - s * w[1:]) / (s * (s + 1) * len(w)).sqrt()
    return rows.mT if len(rows) <= w.shape[1] else tril_of_gram(rows)
