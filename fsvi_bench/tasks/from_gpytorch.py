"""Reads a task's tensors from a sparse GP fitted with GPyTorch; rejects models that a task cannot represent."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import gpytorch
import torch
from gpytorch.kernels import InducingPointKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.variational import UnwhitenedVariationalStrategy, VariationalStrategy
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.features import Kernel, ard_kernel


def read_model(model: Any, likelihood: Any) -> tuple[Kernel, dict[str, Tensor]]:
    """The kernel's name and the task tensors that the model determines, in float64 on the CPU.

    Raises:
        InputError: it is not a sparse GP that a task can represent, or it was never fitted.
    """
    _require("model", model, gpytorch.models.ExactGP, gpytorch.models.ApproximateGP)
    whole, mean = _part(model, gpytorch.kernels.Kernel), _part(model, gpytorch.means.Mean)
    _require("mean", mean, ConstantMean, ZeroMean)
    likelihood = likelihood or getattr(model, "likelihood", None)  # an SVGP has none
    _require("likelihood", likelihood, gpytorch.likelihoods.GaussianLikelihood)
    base, outputscale, points = _unwrap(whole, getattr(model, "variational_strategy", None))
    _require("kernel", base, RBFKernel, MaternKernel)
    if points is None:
        raise InputError(
            "the model has no inducing points, expected InducingPointKernel or VariationalStrategy; fit a sparse GP"
        )
    _require_fitted(whole, likelihood)
    scalars = {"outputscale": outputscale, "noise_variance": likelihood.noise, "target_mean": mean(points[:1])}
    try:
        tensors = {name: value.reshape(()) for name, value in scalars.items()}
        tensors |= {"inducing_points": points, "lengthscales": base.lengthscale.reshape(-1).expand(points.shape[1])}
    except (RuntimeError, IndexError) as error:
        raise InputError(
            "the model is a batch of GPs or has several outputs, expected a single GP with one output; pass one GP"
        ) from error
    tensors = {name: value.detach().cpu().double() for name, value in tensors.items()}
    kernel: Any = "rbf" if isinstance(base, RBFKernel) else f"matern{round(2 * base.nu)}2"
    _require_plain_forward(model, points, tensors, kernel)
    return kernel, tensors


def _require(what: str, found: Any, *kinds: type) -> None:
    """Subclasses of kernels and means are rejected: they compute other functions."""
    known = isinstance(found, kinds) if what in ("model", "likelihood") else type(found) in kinds
    if not known:
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise InputError(
            f"the {what} is {type(found).__name__}, expected GPyTorch's {expected}; pass a {what} of this kind"
        )


def _part(model: torch.nn.Module, kind: type) -> Any:
    """The outermost kernel or mean among a model's attributes; None unless there is exactly one."""
    held = [module for module in model.children() if isinstance(module, kind)]
    outermost = [module for module in held if sum(module in other.modules() for other in held) == 1]
    return outermost[0] if len(outermost) == 1 else None


def _unwrap(kernel: Any, strategy: Any) -> tuple[Any, Tensor, Any]:
    """The kernel inside ScaleKernel and InducingPointKernel, its scale, and the inducing points."""
    outputscale = torch.ones((), dtype=torch.float64)
    points = (
        strategy.inducing_points if isinstance(strategy, VariationalStrategy | UnwhitenedVariationalStrategy) else None
    )
    while type(kernel) in (ScaleKernel, InducingPointKernel):
        outputscale = outputscale * getattr(kernel, "outputscale", 1)
        points = getattr(kernel, "inducing_points", points)
        kernel = kernel.base_kernel
    return kernel, outputscale, points


def _require_fitted(*parts: Any) -> None:
    """Requires that some constrained parameter (lengthscale, outputscale or noise) has left its initial value.

    The initial value is the constraint's, or GPyTorch's 0 in raw space.
    """
    for part in parts:
        for _, parameter, constraint in part.named_parameters_and_constraints():
            start = getattr(constraint, "initial_value", None)
            moved = (parameter - (0 if start is None else start)).abs() > 1e-6
            if constraint is not None and bool(moved.any()):
                return
    raise InputError(
        "the model's lengthscales, outputscale and noise are all at their initial values, expected fitted ones; "
        "fit the model first"
    )


def _require_plain_forward(model: Any, points: Tensor, tensors: dict[str, Tensor], kernel: Kernel) -> None:
    """Requires `forward` to be MultivariateNormal(mean(x), kernel(x)).

    At the inducing points prior and Nyström covariance are then both k(Z,Z).
    """
    Z, constant, scale = tensors["inducing_points"], tensors["target_mean"], tensors["outputscale"]
    with torch.no_grad(), suppress(Exception):
        prior = model.forward(points)
        covariance = ard_kernel(Z, Z, tensors["lengthscales"], scale, kernel)
        differences = [
            (prior.covariance_matrix.cpu() - covariance) / scale,
            (prior.mean.cpu()[None] - constant) / scale.sqrt(),
        ]
        if torch.cat(differences).abs().max() <= _rounding(points.dtype, Z / tensors["lengthscales"], float(scale)):
            return
    raise InputError(
        "the model's forward does not return its own mean and kernel, expected finite parameters and "
        "MultivariateNormal(mean(x), kernel(x)) of all inputs; transform inputs before the model, not inside it"
    )


def _rounding(dtype: torch.dtype, Z: Float[Tensor, "k D"], scale: float) -> float:
    """Tolerance for the difference between GPyTorch's k(Z,Z) and ours, in units of the outputscale.

    Z is in units of the lengthscales. GPyTorch computes r² from inner products of centred points, with an error of
    about ε R², where R is their largest norm. Kernel values change at most like r (Matérn-1/2), hence by √ε R. The
    Nyström covariance loses √ε too: the Cholesky factor of a matrix with condition number 1/ε has condition number
    1/√ε. If Cholesky fails, GPyTorch adds up to 100 times its jitter setting. On 4,500 models the difference was below
    0.3 of this sum: for R = 3 and unit scale, 1e-3 in single and 1e-6 in double precision.
    """
    reach = float((Z - Z.mean(0)).norm(dim=-1).max())
    jitter = 100 * gpytorch.settings.cholesky_jitter.value(dtype)
    return float(torch.finfo(dtype).eps ** 0.5 * max(1.0, reach) + jitter / scale)
