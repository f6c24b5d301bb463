"""The sparse GP as a GPyTorch model, and our bound as a marginal log likelihood over it."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch

from fsvi_bench.tasks import fit as fit_module
from fsvi_bench.tasks.card import FitSettings
from fsvi_bench.tasks.fit import CollapsedBound, SparseGP, exact_gp, fit_sgpr, minus_bound


def model_of(N=60, k=7, D=2, seed=3, **settings):
    """A model away from where a fit starts, whose k(Z,Z) needs no jitter: GPyTorch adds none where it can do without."""
    g = np.random.default_rng(seed)
    X, y = g.normal(size=(N, D)), g.normal(size=N)
    model = SparseGP(X, y, g.permutation(X)[:k].copy(), FitSettings(k=k, initial_noise_variance=0.1, **settings))
    kernel = model.covar_module.base_kernel
    kernel.base_kernel.lengthscale = torch.from_numpy(g.uniform(0.3, 0.9, D))
    kernel.outputscale = torch.tensor(1.7, dtype=torch.float64)
    return model


def gradients(model):
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_and_its_gradient_are_gpytorchs_own(seed):
    model = model_of(seed=seed).train()
    X, y = model.train_inputs[0], model.train_targets
    theirs = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model(X), y) * len(y)
    theirs.backward()
    expected = gradients(model)
    ours = CollapsedBound(model.likelihood, model, jitter=0.0)(model)
    ours.backward()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    found = gradients(model)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=1e-6 * float(expected[name].abs().max()))


def test_the_gradient_is_the_bounds_slope_through_gpytorchs_transforms():
    """Central differences in the raw parameters: h = 1e-5 leaves 1e-9 of curvature and 1e-10 of rounding, relatively."""
    model = model_of(N=40, k=5)
    bound = CollapsedBound(model.likelihood, model, jitter=1e-6)
    point = bound.vector.numpy() + 0.1 * np.random.default_rng(0).normal(size=len(bound.vector))
    _, gradient = minus_bound(point, bound)
    for index, step in enumerate(1e-5 * np.eye(len(point))):
        slope = (minus_bound(point + step, bound)[0] - minus_bound(point - step, bound)[0]) / 2e-5
        assert gradient[index] == pytest.approx(slope, rel=1e-6, abs=1e-6)


def test_what_scipy_minimises_is_minus_the_marginal_log_likelihood():
    model = model_of()
    bound = CollapsedBound(model.likelihood, model, jitter=1e-6)
    value, gradient = minus_bound(bound.vector.numpy() + 0.1, bound)
    (-bound(model)).backward()
    assert -bound(model).item() == value
    assert torch.equal(torch.cat([raw.grad.reshape(-1) for raw in bound.raw]), torch.from_numpy(gradient))


def test_second_derivatives_are_refused_rather_than_wrong():
    model = model_of()
    bound = CollapsedBound(model.likelihood, model, jitter=1e-6)
    noise = bound.raw[-1]
    (first,) = torch.autograd.grad(bound(model), noise, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not require grad|once_differentiable"):
        torch.autograd.grad(first, noise)


def test_a_fitted_model_predicts_as_gpytorch_models_do():
    g = np.random.default_rng(1)
    X = g.uniform(-2, 2, size=(80, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * g.normal(size=80)
    model, fit = fit_sgpr(X, y, FitSettings(k=12, initial_noise_variance=0.1), g)
    assert fit.bound == pytest.approx(float(CollapsedBound(model.likelihood, model, 1e-6)(model)), rel=1e-12)
    model.eval()
    with torch.no_grad():
        mean = model(torch.linspace(-1.5, 1.5, 7, dtype=torch.float64)[:, None]).mean
    assert mean.numpy() == pytest.approx(np.sin(2 * np.linspace(-1.5, 1.5, 7)), abs=0.15)


def evidence(X, y, raw):
    """log N(y; 0, K + σ² I), from the logarithms of lengthscales, outputscale and noise variance."""
    scaled = torch.from_numpy(X) / raw[:-2].exp()
    squares = (scaled[:, None] - scaled).square().sum(-1)
    K = raw[-2].exp() * torch.exp(-squares / 2)
    noise = raw[-1].exp() * torch.eye(len(y), dtype=torch.float64)
    zero = torch.zeros(len(y), dtype=torch.float64)
    return torch.distributions.MultivariateNormal(zero, K + noise).log_prob(torch.from_numpy(y))


def test_the_exact_gp_is_where_the_evidence_has_no_slope():
    """L-BFGS stops when a bound of about −60 nats changes by less than 1e-7 nats, which leaves slopes below 0.01.

    A jitter of 1e-9 at the inducing points moves the bound by about 1e-6 nats.
    """
    g = np.random.default_rng(5)
    X = g.normal(size=(60, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * g.normal(size=60)
    settings = FitSettings(initial_lengthscale=1.7, initial_noise_variance=0.1, jitter=1e-9)
    model, result = exact_gp(X, y, settings)
    kernel = model.covar_module.base_kernel
    found = [*kernel.base_kernel.lengthscale[0], kernel.outputscale, model.likelihood.noise[0]]
    raw = torch.stack(found).detach().log().requires_grad_()
    value = evidence(X, y, raw)
    bound = CollapsedBound(model.likelihood, model, settings.jitter)(model).item()
    assert [bound, -result.fun] == pytest.approx([value.item()] * 2, rel=1e-6)
    (slope,) = torch.autograd.grad(value, raw)
    assert float(slope.abs().max()) < 1e-2
    start = torch.tensor([1.7, 1.7, 1.7, 1.0, 0.1], dtype=torch.float64).log()
    assert value > evidence(X, y, start) + 5
    assert torch.equal(model.covar_module.inducing_points, torch.from_numpy(X))


def test_with_many_inputs_only_the_exact_gp_of_some_rows_finds_the_one_that_matters():
    """Else all is noise, even from long lengthscales: the bound of that is −½ log(2πe) per point."""
    g = np.random.default_rng(0)
    X = g.normal(size=(1000, 30))
    y = np.sin(3 * X[:, 4]) + 0.3 * g.normal(size=1000)
    y = (y - y.mean()) / y.std()
    start = {"initial_lengthscale": 5.5, "initial_noise_variance": 0.1}
    for settings in ({}, start):
        _, lost = fit_sgpr(X, y, FitSettings(k=20, **settings), np.random.default_rng(1))
        assert lost.bound_per_point == pytest.approx(-0.5 * np.log(2 * np.pi * np.e), abs=1e-3)
    settings = FitSettings(k=20, initial_rows=400, max_iterations=60, **start)
    model, fit = fit_sgpr(X, y, settings, np.random.default_rng(1))
    assert fit.bound_per_point > -0.8
    lengthscales = model.covar_module.base_kernel.base_kernel.lengthscale[0]
    assert int(lengthscales.argmin()) == 4
    assert fit.start.used
    assert fit.start.evidence_per_row > lost.bound_per_point + 0.03  # 400 rows already tell that it is not noise


def test_the_start_at_the_exact_gp_ends_before_its_search_does(monkeypatch):
    """Which can take an hour where the evidence is nearly flat; the fit itself goes on."""
    monkeypatch.setattr(fit_module, "START_ITERATIONS", 2)
    g = np.random.default_rng(5)
    X = g.normal(size=(60, 3))
    fit = fit_sgpr(X, np.sin(2 * X[:, 0]), FitSettings(k=5, initial_rows=50, max_iterations=10), g)[1]
    assert (fit.start.iterations, fit.start.converged, fit.iterations) == (2, False, 10)
