"""What a task needs of a sparse GP that a user has fitted with GPyTorch; whatever a task cannot express is refused."""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from gpytorch.kernels import InducingPointKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.variational import UnwhitenedVariationalStrategy, VariationalStrategy
from torch import Tensor

from fsvi_bench.errors import InputError, plain
from fsvi_bench.maths.features import Kernel, ard_kernel
from fsvi_bench.tasks.frozen import Features


def read_model(
    model: gpytorch.models.GP, likelihood: gpytorch.likelihoods.GaussianLikelihood | None, jitter: float
) -> tuple[Features, dict[str, Tensor]]:
    """The kind of features, and a task's tensors by name (float64, on the CPU), those of the data apart.

    Raises:
        InputError: it is no sparse GP of the kinds that a task can hold, or it was never fitted.
    """
    if not isinstance(model, gpytorch.models.ExactGP | gpytorch.models.ApproximateGP):
        raise InputError(f"the model is a {type(model).__name__}, expected GPyTorch's ExactGP or ApproximateGP")
    whole = _only(model, gpytorch.kernels.Kernel)
    name, base, outputscale, inducing_points = _unwrap(whole, model)
    _require_fitted(model, whole)
    tensors = {
        "inducing_points": inducing_points,
        "lengthscales": base.lengthscale.reshape(-1),
        "outputscale": outputscale,
        "noise_variance": _noise(likelihood or getattr(model, "likelihood", None)),
        "target_mean": _constant(_only(model, gpytorch.means.Mean)),
    }
    tensors = {key: value.detach().cpu().double() for key, value in tensors.items()}
    for key in ("outputscale", "noise_variance", "target_mean"):
        if tensors[key].numel() != 1 or inducing_points.ndim != 2:
            raise InputError("the model is a batch of GPs or has several outputs, expected one GP of one output")
        tensors[key] = tensors[key].reshape(())
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise InputError("the model's parameters are not finite; fit it again with a smaller step")
    if not 0 <= jitter < float("inf"):
        raise InputError(f"jitter is {jitter!r}, expected 0 or more, such as 1e-6")
    tensors["lengthscales"] = tensors["lengthscales"].expand(inducing_points.shape[-1])
    _require_plain_forward(model, inducing_points, tensors, name)
    return f"sgpr-{name}-ard", {**tensors, "jitter": torch.tensor(jitter)}  # type: ignore[return-value]


def _only(model: torch.nn.Module, kind: type) -> Any:
    held = [module for module in model.children() if isinstance(module, kind)]
    found = [module for module in held if sum(module in other.modules() for other in held) == 1]  # parts of none else
    if len(found) != 1:
        raise InputError(f"the model holds {len(found)} modules of type {kind.__name__}, expected one as its attribute")
    return found[0]


def _unwrap(kernel: Any, model: Any) -> tuple[Kernel, Any, Tensor, Tensor]:
    """The kernel's name, the kernel within ScaleKernel, its scale, and the inducing points, wherever they are kept."""
    strategy: Any = getattr(model, "variational_strategy", None)
    held = isinstance(strategy, VariationalStrategy | UnwhitenedVariationalStrategy)
    outputscale, points = torch.ones((), dtype=torch.float64), strategy.inducing_points if held else None
    while type(kernel) in (ScaleKernel, InducingPointKernel) and kernel.active_dims is None:
        if type(kernel) is ScaleKernel:
            outputscale = outputscale * kernel.outputscale.cpu()
        else:
            points = kernel.inducing_points
        kernel = kernel.base_kernel
    if type(kernel) not in (RBFKernel, MaternKernel) or kernel.active_dims is not None:
        some = " with active_dims" if kernel.active_dims is not None else ""
        raise InputError(
            f"the model's kernel is {type(kernel).__name__}{some}, expected RBFKernel or MaternKernel over all inputs, "
            "with or without ScaleKernel; fit it again with one of these"
        )
    if points is None:
        raise InputError(
            "the model has no inducing points, expected an ExactGP with InducingPointKernel or an ApproximateGP with "
            "VariationalStrategy; fit a sparse GP"
        )
    name: Any = "rbf" if type(kernel) is RBFKernel else f"matern{round(2 * kernel.nu)}2"
    return name, kernel, outputscale, points


def _require_fitted(model: Any, kernel: Any) -> None:
    """A fit moves the lengthscales and scales of a kernel from where GPyTorch starts them."""

    def moved(parameter: Tensor, constraint: Any) -> bool:
        start = getattr(constraint, "initial_value", None)
        return bool((parameter != (0 if start is None else constraint.inverse_transform(start))).any())

    hyperparameters = [
        moved(parameter, constraint)
        for name, parameter, constraint in kernel.named_parameters_and_constraints()
        if name.endswith(("raw_lengthscale", "raw_outputscale"))
    ]
    called = getattr(getattr(model, "variational_strategy", None), "variational_params_initialized", 1)
    if not any(hyperparameters) or not called:
        raise InputError(
            "the model's parameters are all at their initial values, expected a fitted model; fit it first"
        )


def _noise(likelihood: Any) -> Tensor:
    if likelihood is None:
        raise InputError("an SVGP does not hold its likelihood; give likelihood=, the GaussianLikelihood of its fit")
    if not isinstance(likelihood, gpytorch.likelihoods.GaussianLikelihood):
        raise InputError(f"the likelihood is {type(likelihood).__name__}, expected GaussianLikelihood; fit with that")
    return likelihood.noise


def _constant(mean: Any) -> Tensor:
    if type(mean) not in (ConstantMean, ZeroMean):
        raise InputError(f"the model's mean is {type(mean).__name__}, expected ZeroMean or ConstantMean; fit with one")
    return mean.constant if type(mean) is ConstantMean else torch.zeros(())


def _require_plain_forward(model: Any, points: Tensor, tensors: dict[str, Tensor], name: Kernel) -> None:
    """At the inducing points, prior and Nyström covariance are both k(Z,Z), unless `forward` does something besides."""
    Z = tensors["inducing_points"]
    try:
        with torch.no_grad():
            prior = model.forward(points)
            mean, covariance = prior.mean.cpu().double(), prior.covariance_matrix.cpu().double()
    except Exception as error:
        raise InputError(f"the model's forward fails at its inducing points: {plain(str(error))}") from error
    expected = ard_kernel(Z, Z, tensors["lengthscales"], tensors["outputscale"], name)
    scale = float(tensors["outputscale"])
    constant = tensors["target_mean"].expand_as(mean)
    if not (
        torch.allclose(covariance, expected, rtol=0, atol=0.05 * scale)
        and torch.allclose(mean, constant, rtol=1e-3, atol=0.05 * scale**0.5)
    ):
        raise InputError(
            "the model's forward is not its mean and kernel alone, expected MultivariateNormal(mean(x), kernel(x)); "
            "transform the inputs before the model, not in it"
        )
