"""Posteriors given as arrays by other tools: the moments of a Gaussian, or samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.posteriors.base import Approximation, Posterior, defect, divergence, wrong_size
from fsvi_bench.posteriors.functions import FunctionSamplesPosterior
from fsvi_bench.posteriors.gaussian import FactorGaussian, FullGaussian
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES, DrawnPosterior, SamplesPosterior

#: Tolerances for rounding: the difference between a covariance and its transpose, in units of the weights' standard
#: deviations, and how far an eigenvalue of the correlation matrix may be below 0.
ASYMMETRY, NEGATIVE = 1e-8, 1e-10
#: Axes of tensors, where not all are of length k.
AXES = {"samples": "S, k", "particles": "n, k", "factor": "k, r"}
FORMS = "a posterior of fit, a pair (mean [k], covariance [k, k]), or samples or particles [n, k]"


def posterior_of(q: Any, k: int) -> Approximation:
    """What `fsvi_bench.score` was given, as one posterior over k weights or over functions, on the CPU.

    Raises:
        InputError: it is none, or one over another number of weights.
    """
    if isinstance(q, FunctionSamplesPosterior):
        q = dict(q.tensors())
    if isinstance(q, dict) and set(q) == set(FunctionSamplesPosterior.parameters):
        return _functions(q)
    if isinstance(q, Posterior):
        return _checked(q, k)
    if hasattr(q, "mean") and hasattr(q, "covariance"):  # such as `task.exact`
        q = (q.mean, q.covariance)
    if isinstance(q, tuple | list) and len(q) == 2:
        return _gaussian(numbers("mean", q[0]), numbers("covariance", q[1]), k)
    if isinstance(q, tuple):
        raise InputError(f"the posterior is a tuple of length {len(q)}, expected {FORMS}")
    if isinstance(q, dict) and "f_train" in q:
        raise InputError(
            "the posterior has functions at a network's inputs, expected those of a linear task; give score the "
            "network that load_network returns"
        )
    if isinstance(q, dict | str | set) or q is None:
        raise InputError(f"the posterior is of type {type(q).__name__}, expected {FORMS}")
    return _drawn(numbers("samples", q), k)


def _checked(q: Posterior, k: int) -> Posterior:
    for name, tensor in q.tensors().items():
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise InputError(
                f"the posterior's {name} is of type {kind}, expected a tensor; convert it with torch.as_tensor"
            )
        if tensor.is_meta:
            raise InputError(f"the posterior's {name} is on the meta device, expected numbers; load them first")
        if tensor.layout != torch.strided:
            kind = str(tensor.layout).removeprefix("torch.")
            raise InputError(
                f"the posterior's {name} has the layout {kind}, expected strided; convert it with to_dense()"
            )
    _require_one_problem(q)
    q = q.map(Tensor.detach).cpu()
    _require_weights(q.k, k)
    if (wrong := q.wrong_number()) is not None:
        raise InputError(f"this is not a posterior: {wrong}")
    if (fault := defect(q, k) or divergence(q)) is not None:
        raise InputError(f"this is not a posterior over the task's {k} weights: {fault}{_why(fault)}; correct it")
    return q


def _require_one_problem(q: Posterior) -> None:
    forms = {name: AXES.get(name, ["", "k", "k, k"][axes]) for name, axes in q.parameters.items()}
    ranks = {name: len(form.split()) for name, form in forms.items()}
    got = q.tensors()
    # A retain probability may be shared by all weights of a problem: m gives the number of problems.
    excess = {got[name].ndim - ranks[name] for name in got if name != "retain_probability"}
    if excess == {0}:
        return
    shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in got.items())
    expected = "those of one problem; score q[0]"
    if excess != {1}:
        expected = ", ".join(f"{name} [{form}]" for name, form in forms.items()) + "; reshape them"
    raise InputError(f"the posterior has tensors of shapes {shapes}, expected {expected}")


def _why(fault: str) -> str:
    return " (float32 rounding alone can move a KL by 2e-6)" if "float32" in fault else ""


def _require_weights(got: int, k: int) -> None:
    if got != k:
        raise InputError(wrong_size(got, k))


def _drawn(draws: Tensor, k: int) -> DrawnPosterior:
    """Particles, or samples where there are enough for their moments."""
    if draws.ndim != 2:
        raise InputError(f"the posterior has shape {list(draws.shape)}, expected {FORMS}")
    if draws.shape[1] != k:
        hint = "transpose them" if draws.shape[0] == k else "use the task that they were drawn on"
        raise InputError(f"the samples have shape {list(draws.shape)}, expected [n, {k}]; {hint}")
    q = SamplesPosterior(draws) if len(draws) >= MINIMUM_SAMPLES else ParticlesPosterior(draws)
    if (wrong := q.wrong_number()) is not None:
        raise InputError(f"this is not a posterior: {wrong}")
    return q


def _functions(values: dict[str, Any]) -> FunctionSamplesPosterior:
    f = {name: numbers(name, values[name]) for name in FunctionSamplesPosterior.parameters}
    for name, tensor in f.items():
        if tensor.ndim != 2:
            raise InputError(
                f"'{name}' has shape {list(tensor.shape)}, expected [n, inputs]; give one function per row"
            )
    q = FunctionSamplesPosterior(**f)
    if wrong := q.malformed() or q.wrong_number():
        raise InputError(f"this is not a posterior over functions: {wrong}")
    return q


def _gaussian(mean: Tensor, covariance: Tensor, k: int) -> Posterior:
    """A Gaussian from its moments. It is singular if its covariance is singular to float64 precision."""
    if mean.ndim != 1:
        fix = "use mean.ravel()" if mean.numel() == k else "give one mean per weight"
        raise InputError(f"the mean has shape {list(mean.shape)}, expected [{k}]; {fix}")
    _require_weights(len(mean), k)
    if covariance.shape != (k, k):
        diagonal = "put variances on its diagonal with numpy.diag, or give two particles as an array"
        fix = diagonal if covariance.ndim == 1 else f"give that of all {k} weights"
        raise InputError(f"the covariance has shape {list(covariance.shape)}, expected [{k}, {k}]; {fix}")
    factor = _factor(covariance)
    if factor.shape[1] == k:
        return FullGaussian(mean, tril_of_gram(factor.mT))
    return FactorGaussian(mean, factor)


def _factor(covariance: Float[Tensor, "k k"]) -> Float[Tensor, "k r"]:
    """F of full column rank with FFᵀ = Σ. Rank and signs are determined from the correlation matrix, which does not
    depend on the scales of the weights.

    Raises:
        InputError: Σ is not symmetric, or has a negative eigenvalue.
    """
    if float(variance := covariance.diagonal().min()) < 0:
        raise InputError(
            f"the covariance has the variance {float(variance):g} on its diagonal, expected 0 or more; check how "
            "it was computed"
        )
    scale = covariance.diagonal().sqrt()
    size = scale[:, None] * scale
    asymmetry = (covariance - covariance.mT).abs()
    if bool((asymmetry > ASYMMETRY * size).any()):
        fix = "if that is rounding, give (C + C.T) / 2"
        if not covariance.triu(1).any():
            fix = "if it is a Cholesky factor L, give L @ L.T"
        elif not covariance.tril(-1).any():
            fix = "if it is a Cholesky factor U, give U.T @ U"
        raise InputError(
            f"the covariance is not symmetric: entries differ from their mirror images by up to {asymmetry.max():.1e}; "
            f"{fix}"
        )
    # A weight with variance 0 has no correlations.
    correlation = torch.where(size > 0, 0.5 * (covariance + covariance.mT) / size.where(size > 0, 1.0), covariance)
    eigenvalues, vectors = torch.linalg.eigh(correlation)
    if float(eigenvalues[0]) < -NEGATIVE:
        raise InputError(
            f"the covariance is not positive semi-definite: its correlation matrix has the eigenvalue "
            f"{float(eigenvalues[0]):.1e}, expected none below 0; check how it was computed"
        )
    kept = eigenvalues > len(scale) * torch.finfo(torch.float64).eps * eigenvalues[-1]
    return (scale[:, None] * vectors[:, kept]) * eigenvalues[kept].sqrt()


def numbers(name: str, values: Any) -> Tensor:
    """A copy as a tensor, whose memory is allocated by torch because rounding depends on its alignment.

    Raises:
        InputError: the values are not finite float64 numbers.
    """
    if np.ma.is_masked(values):
        raise InputError(f"'{name}' has masked entries, expected a number in each; fill them")
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"'{name}' cannot be read as an array of numbers, expected float64; convert it") from error
    if array.dtype == object and not array.ndim:
        kind = type(values).__name__
        raise InputError(f"'{name}' is a {kind}, expected an array of float64 numbers; give its numbers")
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)
    if array.dtype != np.float64:
        fault = f"'{name}' has type {array.dtype}, expected float64"
        raise InputError(f"{fault}{_why(fault)}; compute it in float64")
    if len(wrong := np.argwhere(~np.isfinite(array))):
        where = f" at {wrong[0].tolist()}" if array.ndim else ""
        raise InputError(f"'{name}' contains NaN or infinity{where}, expected finite numbers; fit it again")
    return torch.tensor(np.asarray(array, order="C"))
