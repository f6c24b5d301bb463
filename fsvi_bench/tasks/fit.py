"""Sparse GP regression (Titsias 2009) fitted to one training split: where a task's features come from.

Settings follow Burt et al. (2020), appendix F.2: ARD RBF kernel, lengthscales 1, noise variance 1e-4 at the start,
inducing points drawn from the training inputs, L-BFGS for at most 5000 iterations. GPyTorch's kernel and likelihood
hold the parameters and their transforms; the bound is ours (GPyTorch's own path is slower and optimises a mean per
data point, which changes when L-BFGS stops).
"""

from __future__ import annotations

from dataclasses import dataclass

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from numpy.typing import NDArray
from scipy.optimize import minimize

from fsvi_bench.errors import InputError
from fsvi_bench.maths.sgpr_lapack import LapackCollapsedBound
from fsvi_bench.tasks.card import FitSettings

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SgprFit:
    """The optimised parameters and how the optimiser got there. The bound is the total over N points, in nats."""

    inducing_points: Array
    lengthscales: Array
    outputscale: float
    noise_variance: float
    bound: float
    iterations: int
    evaluations: int
    converged: bool
    message: str
    gradient_norm: float  #: largest absolute component of the gradient in the unconstrained parameters


class SgprObjective(torch.nn.Module):
    """The negative bound and its gradient over one flat vector of unconstrained parameters, as SciPy wants them.

    GPyTorch's kernel and likelihood, with the inducing points, hold the parameters and their transforms.
    """

    def __init__(self, X: Array, y: Array, Z: Array, settings: FitSettings) -> None:
        super().__init__()
        rbf = gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1])
        self.kernel = gpytorch.kernels.ScaleKernel(rbf)
        # GPyTorch's default floor of 1e-4 would put the paper's start at minus infinity in raw space.
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=GreaterThan(settings.noise_floor))
        self.inducing_points = torch.nn.Parameter(torch.from_numpy(Z.copy()))
        self.double()
        # Double tensors: from a Python float GPyTorch would keep seven digits.
        rbf.lengthscale = torch.tensor(1.0, dtype=torch.float64)
        self.kernel.outputscale = torch.tensor(1.0, dtype=torch.float64)
        self.likelihood.noise = torch.tensor(settings.initial_noise_variance, dtype=torch.float64)
        self._constrained_parameters = [
            (rbf.raw_lengthscale, rbf.raw_lengthscale_constraint),
            (self.kernel.raw_outputscale, self.kernel.raw_outputscale_constraint),
            (self.likelihood.noise_covar.raw_noise, self.likelihood.noise_covar.raw_noise_constraint),
        ]
        raw = [parameter for parameter, _ in self._constrained_parameters]
        self._flat = self._share_storage([self.inducing_points, *raw])
        self._evaluate = LapackCollapsedBound(X, y, len(Z), settings.jitter)

    @staticmethod
    def _share_storage(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
        """Makes the parameters views of one vector: setting it sets them all, in one copy per evaluation."""
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
            parameter.data = part.view_as(parameter)
        return flat

    def pack(self) -> Array:
        """The unconstrained parameters as one vector."""
        return self._flat.numpy().copy()

    def unpack(self, vector: Array) -> None:
        """Sets the parameters from a vector such as `pack()` gives."""
        self._flat.copy_(torch.from_numpy(vector))

    def value_and_gradient(self, vector: Array) -> tuple[float, Array]:
        """Minus the total bound and its gradient at a vector of unconstrained parameters.

        Raises:
            NotPositiveDefiniteError: k(Z,Z) cannot be factorised there.
        """
        self.unpack(vector)
        with torch.no_grad():
            lengthscales, outputscale, noise = (c.transform(raw).numpy() for raw, c in self._constrained_parameters)
            # Both constraints are softplus plus a constant, so their derivative is the logistic function: autograd
            # through them would cost a tenth of the whole evaluation on a small data set.
            slopes = torch.sigmoid(self._flat[self.inducing_points.numel() :]).numpy()
            Z = self.inducing_points.numpy()
        bound, grad_Z, grad_lengthscales, grad_outputscale, grad_noise = self._evaluate(
            Z, lengthscales[0], outputscale.item(), noise.item()
        )
        grad_scales = slopes * np.concatenate([grad_lengthscales, [grad_outputscale, grad_noise]])
        return -bound, -np.concatenate([grad_Z.ravel(), grad_scales])


def fit_sgpr(X: Array, y: Array, settings: FitSettings, rng: np.random.Generator) -> SgprFit:
    """Maximises the collapsed bound for standardised inputs X [N,D] and targets y [N].

    Inducing points start at `settings.k` distinct training inputs drawn by `rng`.

    Raises:
        InputError: there are fewer distinct training inputs than inducing points.
        NotPositiveDefiniteError: k(Z,Z) could not be factorised on the way.
    """
    objective = SgprObjective(X, y, _draw_inducing_points(X, settings.k, rng), settings)
    result = minimize(
        objective.value_and_gradient,
        objective.pack(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": settings.max_iterations, "maxfun": 3 * settings.max_iterations},
    )
    objective.unpack(result.x)
    kernel = objective.kernel
    return SgprFit(
        inducing_points=objective.inducing_points.detach().numpy().copy(),
        lengthscales=kernel.base_kernel.lengthscale[0].detach().numpy().copy(),
        outputscale=kernel.outputscale.item(),
        noise_variance=objective.likelihood.noise.item(),
        bound=-float(result.fun),
        iterations=int(result.nit),
        evaluations=int(result.nfev),
        converged=bool(result.status == 0),
        message=str(result.message),
        gradient_norm=float(np.abs(result.jac).max()),
    )


def _draw_inducing_points(X: Array, k: int, rng: np.random.Generator) -> Array:
    """k distinct training inputs: a repeated one would make k(Z,Z) singular from the start."""
    distinct = np.unique(X, axis=0)
    if len(distinct) < k:
        raise InputError(f"k = {k} inducing points are asked of {len(distinct)} distinct training inputs; lower k")
    return distinct[rng.choice(len(distinct), size=k, replace=False)]
