"""Fits the sparse GP regression (Titsias 2009) that supplies a task's features, on one training split.

Defaults follow Burt et al. (2020), appendix F.2: ARD RBF kernel, initial lengthscales 1 and noise variance 1e-4,
inducing points drawn from the training inputs, at most 5000 iterations of L-BFGS. The model is GPyTorch's. The bound is
our own marginal log likelihood: GPyTorch's takes four times as long, and it is a mean per data point, which changes
when L-BFGS stops.

With many inputs, a kernel of lengthscale 1 is almost 0 between most pairs of rows, and the fit can end where everything
is noise. The cards of such data sets have a longer `initial_lengthscale`, and, where that is not enough, more initial
noise and `initial_rows`: the fit then starts at the exact GP of that many rows, as in Snelson and Ghahramani (2006).
"""

from __future__ import annotations

import copy
import importlib.metadata
import platform
import time

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import InducingPointKernel, RBFKernel, ScaleKernel
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.sgpr_lapack import LapackCollapsedBound, NotPositiveDefiniteError
from fsvi_bench.tasks.card import FitSettings
from fsvi_bench.tasks.certificate import Fit, Start

Array = NDArray[np.float64]
START_ITERATIONS = 200  #: of the exact GP; on pumadyn32nm, eight of ten converge within 127


class SparseGP(gpytorch.models.ExactGP):  # type: ignore[misc]
    """Sparse GP on standardised X [N,D] and y [N] with inducing points Z [k,D], at its initial parameters."""

    def __init__(self, X: Array, y: Array, Z: Array, settings: FitSettings) -> None:
        # With GPyTorch's default floor of 1e-4 the paper's initial noise would be minus infinity in raw space.
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=GreaterThan(settings.noise_floor))
        super().__init__(torch.from_numpy(X), torch.from_numpy(y), likelihood)
        kernel = ScaleKernel(RBFKernel(ard_num_dims=X.shape[1]))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = InducingPointKernel(kernel, torch.from_numpy(Z.copy()), likelihood)
        self.double()
        # Double tensors, because GPyTorch rounds Python floats to single precision.
        one = torch.tensor(1.0, dtype=torch.float64)
        kernel.base_kernel.lengthscale, kernel.outputscale = settings.initial_lengthscale * one, one
        likelihood.noise = settings.initial_noise_variance * one

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class CollapsedBound(gpytorch.mlls.MarginalLogLikelihood):  # type: ignore[misc]
    """Titsias's bound of a `SparseGP` on its training data: `mll(model).backward()`.

    Unlike GPyTorch's marginal log likelihoods, which are means per point, it is the total in nats.
    """

    def __init__(self, likelihood: gpytorch.likelihoods.GaussianLikelihood, model: SparseGP, jitter: float) -> None:
        super().__init__(likelihood, model)
        kernel = "covar_module.base_kernel"
        scales = (
            f"{kernel}.base_kernel.raw_lengthscale",
            f"{kernel}.raw_outputscale",
            "likelihood.noise_covar.raw_noise",
        )
        self._transforms = [model.constraint_for_parameter_name(name).transform for name in scales]
        self.raw = [model.covar_module.inducing_points, *map(model.get_parameter, scales)]
        # The parameters become views of one vector, so that one copy per evaluation sets them all.
        self.vector = torch.nn.utils.parameters_to_vector(self.raw).detach()
        torch.nn.utils.vector_to_parameters(self.vector, self.raw)
        X, y = model.train_inputs[0].numpy(), model.train_targets.numpy()
        self._evaluate = LapackCollapsedBound(X, y, len(self.raw[0]), jitter)

    def forward(self, model: SparseGP) -> Tensor:
        bound, gradient = self.value_and_gradient()
        raw = torch.nn.utils.parameters_to_vector(self.raw)
        # The product is 0 and its derivative is the gradient. There is no second derivative; requesting it is an error.
        return torch.from_numpy(gradient) @ (raw - raw.detach()) + bound

    @torch.no_grad()
    def value_and_gradient(self) -> tuple[float, Array]:
        """The bound and its gradient in `raw`, GPyTorch's unconstrained parameters, as one vector.

        Raises:
            NotPositiveDefiniteError: k(Z,Z) cannot be factorised at these parameters.
        """
        Z, *raw = self.raw
        lengthscales, outputscale, noise = (f(r).numpy() for f, r in zip(self._transforms, raw, strict=True))
        with np.errstate(all="ignore"):  # on overflow the bound is not finite, and the evaluation raises an error
            bound, by_Z, by_lengthscales, *by_others = self._evaluate(
                Z.numpy(), lengthscales[0], outputscale.item(), noise.item()
            )
        # Each constraint is softplus plus a constant, so its derivative is the logistic function. Autograd would add
        # 10% to the evaluation time on a small data set.
        slopes = torch.sigmoid(self.vector[by_Z.size :]).numpy()
        return bound, np.concatenate([by_Z.ravel(), slopes * np.concatenate([by_lengthscales, by_others])])


INFEASIBLE = 1e100  #: nats, returned if the bound cannot be computed


def minus_bound(vector: Array, bound: CollapsedBound) -> tuple[float, Array]:
    """SciPy's objective and gradient at a vector of raw parameters; sets the model's parameters to it."""
    bound.vector.copy_(torch.from_numpy(vector))
    try:
        value, gradient = bound.value_and_gradient()
    except (NotPositiveDefiniteError, ValueError):  # the step was too long; the line search backtracks
        return INFEASIBLE, np.zeros_like(vector)
    return -value, -gradient


def fit_sgpr(X: Array, y: Array, settings: FitSettings, rng: np.random.Generator) -> tuple[SparseGP, Fit]:
    """Maximises the collapsed bound for standardised inputs X [N,D] and targets y [N].

    The initial inducing points are `settings.k` distinct training inputs drawn by `rng`.

    Raises:
        InputError: there are fewer distinct training inputs than inducing points.
    """
    started = time.perf_counter()
    model, start = _start(X, y, settings, rng)
    result = _maximise(CollapsedBound(model.likelihood, model, settings.jitter), settings.max_iterations)
    return model, Fit(
        bound=-result.fun,
        bound_per_point=-result.fun / len(y),
        iterations=result.nit,
        evaluations=result.nfev,
        converged=result.status == 0,
        message=result.message,
        gradient_norm=float(np.abs(result.jac).max()),
        seconds=time.perf_counter() - started,
        settings=settings,
        versions=_versions(),
        start=start,
    )


def _start(X: Array, y: Array, settings: FitSettings, rng: np.random.Generator) -> tuple[SparseGP, Start | None]:
    """The model at the initial parameters: of the settings, or of the exact GP of some rows if that bound is higher.

    It can be lower, for example if these rows happen to have no noise.
    """
    model = SparseGP(X, y, _draw_inducing_points(X, settings.k, rng), settings)
    if settings.initial_rows is None:
        return model, None
    rows = rng.choice(len(X), min(settings.initial_rows, len(X)), replace=False)
    (exact, result), other = exact_gp(X[rows], y[rows], settings), copy.deepcopy(model)
    other.covar_module.base_kernel.load_state_dict(exact.covar_module.base_kernel.state_dict())
    other.likelihood.load_state_dict(exact.likelihood.state_dict())
    bounds = (CollapsedBound(each.likelihood, each, settings.jitter) for each in (model, other))
    usual, found = (minus_bound(bound.vector.numpy().copy(), bound)[0] for bound in bounds)
    start = Start(
        rows=len(rows),
        used=found < usual,
        evidence_per_row=-result.fun / len(rows),
        iterations=result.nit,
        converged=result.status == 0,
    )
    return (other if start.used else model), start


def exact_gp(X: Array, y: Array, settings: FitSettings) -> tuple[SparseGP, OptimizeResult]:
    """The kernel and the noise of greatest evidence on X [N,D] and y [N], at O(N³) per iteration, and how it ended.

    It is the sparse GP with the rows as inducing points, whose bound is the evidence up to the jitter. As it is only
    a start, it ends after `START_ITERATIONS`: the evidence can be nearly flat, and the search could then take an hour.
    """
    model, iterations = SparseGP(X, y, X, settings), min(START_ITERATIONS, settings.max_iterations)
    return model, _maximise(CollapsedBound(model.likelihood, model, settings.jitter), iterations, fixed=X.size)


def _maximise(bound: CollapsedBound, iterations: int, fixed: int = 0) -> OptimizeResult:
    """Maximises the bound in all parameters except the first `fixed` coordinates of the inducing points."""
    vector = bound.vector.numpy().copy()

    def objective(free: Array) -> tuple[float, Array]:
        value, gradient = minus_bound(np.concatenate([vector[:fixed], free]), bound)
        return value, gradient[fixed:]

    result = minimize(
        objective,
        vector[fixed:],
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": iterations, "maxfun": 3 * iterations},
    )
    bound.vector[fixed:] = torch.from_numpy(result.x)
    return result


def _draw_inducing_points(X: Array, k: int, rng: np.random.Generator) -> Array:
    """k distinct training inputs, since a duplicate would make k(Z,Z) singular."""
    distinct = np.unique(X, axis=0)
    if len(distinct) < k:
        raise InputError(f"k is {k}, expected at most the {len(distinct)} distinct training inputs; choose a smaller k")
    return rng.choice(distinct, k, replace=False)


def _versions() -> dict[str, str]:
    names = ("fsvi-bench", "torch", "gpytorch", "scipy", "numpy")
    return {name: importlib.metadata.version(name) for name in names} | {"python": platform.python_version()}
