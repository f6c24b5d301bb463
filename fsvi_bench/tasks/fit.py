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

from fsvi_bench.maths.sgpr_lapack import LapackCollapsedBound, NotPositiveDefiniteError
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


class _SgprModel(torch.nn.Module):
    """GPyTorch's kernel and likelihood with inducing points; the flat vector that SciPy sees is `pack()`."""

    def __init__(self, Z: Array, settings: FitSettings) -> None:
        super().__init__()
        rbf = gpytorch.kernels.RBFKernel(ard_num_dims=Z.shape[1])
        self.kernel = gpytorch.kernels.ScaleKernel(rbf)
        # GPyTorch's default floor of 1e-4 would put the paper's start at minus infinity in raw space.
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=GreaterThan(settings.noise_floor))
        self.inducing_points = torch.nn.Parameter(torch.from_numpy(Z.copy()))
        self.double()
        rbf.lengthscale = 1.0
        self.kernel.outputscale = 1.0
        self.likelihood.noise = settings.initial_noise_variance

    def pack(self) -> Array:
        return torch.nn.utils.parameters_to_vector(self.parameters()).detach().numpy().copy()

    def unpack(self, vector: Array) -> None:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(vector), self.parameters())

    def constrained(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inducing points [k,D], lengthscales [D], outputscale [], noise variance []."""
        lengthscales = self.kernel.base_kernel.lengthscale[0]
        return self.inducing_points, lengthscales, self.kernel.outputscale, self.likelihood.noise[0]


def fit_sgpr(X: Array, y: Array, settings: FitSettings, rng: np.random.Generator) -> SgprFit:
    """Maximises the collapsed bound for standardised inputs X [N,D] and targets y [N].

    Inducing points start at `settings.k` distinct training inputs drawn by `rng`.

    Raises:
        NotPositiveDefiniteError: already the start cannot be factorised.
    """
    model = _SgprModel(_draw_inducing_points(X, settings.k, rng), settings)
    evaluate = LapackCollapsedBound(X, y, settings.k, settings.jitter)

    def objective(vector: Array) -> tuple[float, Array]:
        model.unpack(vector)
        model.zero_grad()
        constrained = model.constrained()
        Z, lengthscales, outputscale, noise = (p.detach().numpy() for p in constrained)
        bound, *gradient = evaluate(Z, lengthscales, float(outputscale), float(noise))
        torch.autograd.backward(constrained, [torch.as_tensor(-np.asarray(g)) for g in gradient])
        grads = [p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]
        return -bound, torch.cat(grads).numpy()

    result = minimize(
        objective,
        model.pack(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": settings.max_iterations, "maxfun": 3 * settings.max_iterations},
    )
    model.unpack(result.x)
    Z, lengthscales, outputscale, noise = (p.detach().numpy().copy() for p in model.constrained())
    return SgprFit(
        inducing_points=Z,
        lengthscales=lengthscales,
        outputscale=float(outputscale),
        noise_variance=float(noise),
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
    return distinct[rng.choice(len(distinct), size=k, replace=False)]


__all__ = ["NotPositiveDefiniteError", "SgprFit", "fit_sgpr"]
