"""Tasks of sparse GPs that a user has fitted with GPyTorch: what is taken over, and what is refused by name."""

from __future__ import annotations

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import InducingPointKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    UnwhitenedVariationalStrategy,
    VariationalStrategy,
)

from fsvi_bench.errors import InputError
from fsvi_bench.tasks.from_gpytorch import read_model
from fsvi_bench.tasks.task import Task

KERNELS = {
    "sgpr-rbf-ard": RBFKernel,
    "sgpr-matern12-ard": lambda **options: MaternKernel(nu=0.5, **options),
    "sgpr-matern32-ard": lambda **options: MaternKernel(nu=1.5, **options),
    "sgpr-matern52-ard": lambda **options: MaternKernel(nu=2.5, **options),
}


class SGPR(gpytorch.models.ExactGP):
    """As GPyTorch's tutorial writes it, with as many inducing points as are asked for."""

    def __init__(self, X, y, kernel, k=12, mean=None, warp=lambda x: x, shift=lambda x: 0.0):
        super().__init__(X, y, GaussianLikelihood())
        self.mean_module, self.warp, self.shift = mean or ConstantMean(), warp, shift
        self.covar_module = InducingPointKernel(kernel, X[:k].clone(), self.likelihood) if k else kernel

    def forward(self, x):
        x = self.warp(x)
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x) + self.shift(x), self.covar_module(x))


class SVGP(gpytorch.models.ApproximateGP):
    def __init__(self, Z, kernel, strategy=VariationalStrategy):
        distribution = CholeskyVariationalDistribution(len(Z))
        super().__init__(strategy(self, Z, distribution, learn_inducing_locations=True))
        self.mean_module, self.covar_module = ConstantMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def data(n=60, D=3, seed=0):
    g = np.random.default_rng(seed)
    X = g.normal(size=(n, D))
    return X, np.sin(X).sum(1) + 2.0 + 0.1 * g.normal(size=n)


def of_data(kernel, dtype=torch.float64, D=3, **options):
    """A model that was not fitted."""
    X, y = (torch.from_numpy(part).to(dtype) for part in data(D=D))
    return SGPR(X, y, kernel, **options).to(dtype)


def ard():
    return ScaleKernel(RBFKernel(ard_num_dims=3))


def climb(model, mll, X, y, steps=15):
    model.train()
    optimiser = torch.optim.Adam(mll.parameters(), lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = -mll(model(X), y)
        loss.backward()
        optimiser.step()
    return model


def fitted(kernel=None, X=None, y=None, dtype=torch.float64, **options):
    X, y = data() if X is None else (X, y)
    inputs, targets = torch.from_numpy(X).to(dtype), torch.from_numpy(y).to(dtype)
    model = SGPR(inputs, targets, kernel or ard(), **options).to(dtype)
    return climb(model, gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model), inputs, targets)


def dense_kernel(name, a, b, lengthscales, outputscale):
    r = np.sqrt((((a[:, None] - b[None]) / lengthscales) ** 2).sum(-1))
    s = {"sgpr-rbf-ard": 0, "sgpr-matern12-ard": 1, "sgpr-matern32-ard": 3**0.5, "sgpr-matern52-ard": 5**0.5}[name]
    polynomial = {0: 1, 1: 1, 3**0.5: 1 + s * r, 5**0.5: 1 + s * r + 5 * r**2 / 3}[s]
    return outputscale * polynomial * np.exp(-s * r if s else -(r**2) / 2)


def dense_twin(name, model, likelihood, Z, X, y, jitter=1e-6):
    """Mean, covariance and log evidence of the weights from what GPyTorch's modules say, in dense NumPy."""
    scale = model.covar_module
    scale = scale.base_kernel if isinstance(scale, InducingPointKernel) else scale
    base = scale.base_kernel if isinstance(scale, ScaleKernel) else scale
    outputscale = float(scale.outputscale.detach()) if isinstance(scale, ScaleKernel) else 1.0
    lengthscales = base.lengthscale.detach().numpy().astype(float).reshape(-1)
    noise, constant = float(likelihood.noise.detach()), float(model.mean_module.constant.detach())
    Z = Z.detach().numpy().astype(float)
    L = np.linalg.cholesky(dense_kernel(name, Z, Z, lengthscales, outputscale) + jitter * np.eye(len(Z)))
    Phi = np.linalg.solve(L, dense_kernel(name, Z, X, lengthscales, outputscale)).T
    covariance = np.linalg.inv(Phi.T @ Phi / noise + np.eye(len(Z)))
    residual, marginal = y - constant, Phi @ Phi.T + noise * np.eye(len(y))
    evidence = -0.5 * (residual @ np.linalg.solve(marginal, residual) + np.linalg.slogdet(2 * np.pi * marginal)[1])
    return covariance @ (Phi.T @ residual) / noise, covariance, evidence


def require_equal(task, twin, tolerance=1e-8):
    mean, covariance, evidence = twin
    assert np.abs(task.exact.mean - mean).max() <= tolerance * np.abs(mean).max()
    assert np.abs(task.exact.covariance - covariance).max() <= tolerance * np.abs(covariance).max()
    assert task.exact.log_evidence == pytest.approx(evidence, rel=tolerance)
    assert task.exact.mean.dtype == task.exact.covariance.dtype == np.float64
    assert type(task.exact.log_evidence) is float


@pytest.mark.parametrize("ard", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_taken_over(name, scaled, ard):
    X, y = data()
    base = KERNELS[name](ard_num_dims=3 if ard else None)
    model = fitted(ScaleKernel(base) if scaled else base, X, y)
    task = Task.from_gpytorch(model, X, y)
    require_equal(task, dense_twin(name, model, model.likelihood, model.covar_module.inducing_points, X, y))
    assert task.frozen.lengthscales.shape == (3,)
    assert float(task.frozen.target_mean) == pytest.approx(float(model.mean_module.constant.detach()), rel=1e-15)


@pytest.mark.parametrize("strategy", [VariationalStrategy, UnwhitenedVariationalStrategy])
def test_an_svgp_gives_its_task_whitened_or_not(strategy):
    X, y = data()
    inputs, targets = torch.from_numpy(X), torch.from_numpy(y)
    model = SVGP(inputs[:12], ScaleKernel(MaternKernel(nu=1.5)), strategy).double()
    likelihood = GaussianLikelihood().double()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    with pytest.raises(InputError, match="at their initial values"):
        Task.from_gpytorch(model, X, y, likelihood=likelihood)
    climb(model, mll, inputs, targets)
    task = Task.from_gpytorch(model, X, y, likelihood=likelihood)
    Z = model.variational_strategy.inducing_points
    require_equal(task, dense_twin("sgpr-matern32-ard", model, likelihood, Z, X, y))
    with pytest.raises(InputError, match="the likelihood is NoneType, expected GPyTorch's GaussianLikelihood; pass"):
        Task.from_gpytorch(model, X, y)


def test_single_precision_is_converted_and_not_rounded_further():
    X, y = data()
    X, y = X.astype(np.float32), y.astype(np.float32)
    model = fitted(None, X, y, torch.float32)
    task = Task.from_gpytorch(model, X, y)
    assert {tensor.dtype for tensor in task.frozen.tensors.values()} == {torch.float64, torch.int64}
    Z = model.covar_module.inducing_points
    twin = dense_twin("sgpr-rbf-ard", model, model.likelihood, Z, X.astype(float), y.astype(float))
    require_equal(task, twin)
    other = Task.from_gpytorch(model, pd.DataFrame(X), pd.Series(y))
    assert other.sha256 == task.sha256 == Task.from_gpytorch(model, torch.from_numpy(X), torch.from_numpy(y)).sha256


def test_rows_held_out_are_scored_and_without_them_the_training_rows():
    X, y = data(80)
    model = fitted(None, X[:60], y[:60])
    task = Task.from_gpytorch(model, X[:60], y[:60], X_test=X[60:], y_test=y[60:])
    assert (task.N, len(task.y_test)) == (60, 20)
    constant = float(model.mean_module.constant.detach())
    assert task.y_test.numpy() == pytest.approx(y[60:] - constant, rel=1e-14)
    assert torch.equal(task.X_test, torch.from_numpy(X[60:]))
    alone = Task.from_gpytorch(model, X[:60], y[:60])
    assert torch.equal(alone.X_test, alone.X)
    assert np.array_equal(alone.exact.mean, task.exact.mean)


def other_noise():
    model = fitted()
    model.likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.ones(60, dtype=torch.float64))
    return model


def diverged():
    model = fitted()
    model.covar_module.inducing_points.data[0, 0] = float("nan")
    return model


REFUSED = {
    "the kernel is PeriodicKernel, expected GPyTorch's RBFKernel or MaternKernel": lambda: fitted(
        ScaleKernel(gpytorch.kernels.PeriodicKernel())
    ),
    "the kernel is AdditiveKernel": lambda: fitted(RBFKernel() + MaternKernel()),
    "kernel.x.. of all inputs": lambda: fitted(RBFKernel(active_dims=[0])),
    "the mean is LinearMean, expected GPyTorch's ConstantMean or ZeroMean": lambda: fitted(mean=LinearMean(3)),
    "the model has no inducing points": lambda: of_data(ScaleKernel(RBFKernel()), k=0),
    "the likelihood is FixedNoiseGaussianLikelihood": other_noise,
    "forward does not return its own mean and kernel": lambda: fitted(warp=torch.tanh),
    "transform inputs before the model": lambda: fitted(shift=lambda x: x[:, 0]),
    # Half a percent off: a covariance that falls to 0.5 at some distance is 0.0035 off there.
    "transform inputs before the model, not inside it": lambda: fitted(warp=lambda x: 1.005 * x),
    "expected finite parameters": diverged,
    "the model is Linear, expected GPyTorch's ExactGP or ApproximateGP": lambda: torch.nn.Linear(3, 1),
    "at their initial values": lambda: of_data(RBFKernel()),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_a_task_cannot_hold_is_refused_in_one_sentence(words):
    with pytest.raises(InputError, match=words) as refused:
        Task.from_gpytorch(REFUSED[words](), *data())
    assert "\n" not in str(refused.value)


def test_an_initial_value_of_a_constraint_is_no_fit_either():
    constraint = gpytorch.constraints.Positive(initial_value=torch.tensor(2.0, dtype=torch.float64))
    model = of_data(RBFKernel(lengthscale_constraint=constraint))
    assert model.covar_module.base_kernel.lengthscale.item() == pytest.approx(2.0)
    with pytest.raises(InputError, match="at their initial values"):
        Task.from_gpytorch(model, *data())


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
@pytest.mark.parametrize(("lengthscale", "outputscale"), [(0.05, 1.0), (1.0, 100.0), (30.0, 0.01)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_gpytorchs_own_is_no_other_kernel(kernel, lengthscale, outputscale, dtype):
    scaled = ScaleKernel(kernel(ard_num_dims=2))
    model = of_data(scaled, dtype, D=2, k=20)
    scaled.base_kernel.lengthscale, scaled.outputscale = lengthscale, outputscale
    found, tensors = read_model(model, None)
    assert float(tensors["outputscale"]) == pytest.approx(outputscale, rel=1e-6)
    assert KERNELS[f"sgpr-{found}-ard"] is kernel


@pytest.mark.parametrize("moved", ["outputscale", "noise"])
def test_a_fit_may_leave_some_parameters_where_they_were(moved):
    model = of_data(kernel := ScaleKernel(RBFKernel()))
    setattr(kernel if moved == "outputscale" else model.likelihood, moved, 4.0)
    assert Task.from_gpytorch(model, *data()).k == 12


INPUTS, TARGETS = data()


@pytest.mark.parametrize(
    ("X", "y", "options", "words"),
    [
        (INPUTS[:, :2], TARGETS, {}, r"X has shape \[60, 2\] and y \[60\], expected \[n, 3\] and \[n\]; .* columns"),
        (INPUTS, TARGETS[:-1], {}, r"X has shape \[60, 3\] and y \[59\], expected"),
        (INPUTS, 0 * TARGETS, {}, "all 60 targets are 0"),
        (INPUTS, TARGETS, {"name": "a b"}, "name is 'a b', expected"),
        (INPUTS, TARGETS, {"jitter": -1.0}, "jitter is -1.0, expected 0 or more"),
        (INPUTS, TARGETS, {"X_test": INPUTS}, "y_test is not numeric"),
        (INPUTS, TARGETS, {"X_test": INPUTS[:, :1], "y_test": TARGETS}, r"X_test has shape \[60, 1\] and y_test"),
    ],
)
def test_data_that_are_not_the_models_are_refused(X, y, options, words):
    with pytest.raises(InputError, match=words):
        Task.from_gpytorch(fitted(), X, y, **options)
