"""The ELBO in weight space, whose optimum is known: the member of the family closest to the exact posterior."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.blr import PrecisionGaussian, covariance_tril, mean_field_optimum_scale
from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.methods.base import Method, Optimum
from fsvi_bench.methods.data import Batch
from fsvi_bench.posteriors.base import Family
from fsvi_bench.posteriors.gaussian import FactorGaussian, FactorisedGaussian, FullGaussian, GaussianPosterior
from fsvi_bench.tasks.task import Task


def nearest(family: Family, exact: PrecisionGaussian) -> GaussianPosterior:
    """The Gaussian of a family with the smallest KL(q ‖ exact)."""
    if family == "full":
        return FullGaussian(exact.mean, covariance_tril(exact.precision_tril))
    return FactorisedGaussian(exact.mean, mean_field_optimum_scale(exact.precision_tril))


def kl_to(exact: PrecisionGaussian, q: GaussianPosterior | FactorGaussian) -> float:
    """KL(q ‖ exact) of one problem; infinite where q has no density."""
    return math.inf if q.singular else float(gaussian_kl_to_precision(q.mean, q.covariance_tril(), *exact).total)


def weight_kl(q: Gaussian) -> Float[Tensor, " B"]:
    """KL(q ‖ N(0, I)) over the weights."""
    diagonal = q.root.diagonal(dim1=-2, dim2=-1) if q.root.ndim == 3 else q.root
    squares = q.root.flatten(1).square().sum(-1) + q.mean.square().sum(-1)
    return 0.5 * (squares - q.mean.shape[-1]) - diagonal.log().sum(-1)


class WeightSpaceMethod(Method):
    """The negative ELBO in weight space, which is KL(q ‖ P_D) minus the log evidence."""

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        return self.mean_nll(q, batch) + weight_kl(q)

    def optimum(self, place: int, task: Task) -> Optimum:
        exact = task.truth.posterior
        q = nearest(self.family, exact)
        return Optimum(self.objective(place, task, q=Gaussian(q.mean[None], q.root[None])), kl_to(exact, q))
