"""Dropout methods against the closed forms of their objectives, and against a deterministic optimiser of the same."""

import math

import numpy as np
import pytest
import torch

from fsvi_bench.maths.bernoulli_dropout import bernoulli_objective, optimal_m
from fsvi_bench.maths.bernoulli_optimum import optimal_shared_retain
from fsvi_bench.maths.gaussian_dropout import gaussian_dropout_optimum
from fsvi_bench.maths.log_uniform import (
    log_uniform_kl,
)
from fsvi_bench.maths.spike_slab import spike_slab_optimum
from fsvi_bench.methods.problems import TrainingData
from tests.maths.draws import close, f64
from tests.methods.synthetic import InputsAsFeatures
from tests.methods.table import of_objective, toys, trained_method

TO_THE_END = {"minibatch": "full", "lr": 0.05, "lr_schedule": "cosine", "averaging": 0.2}


def expected_error(problem, mean, variance):
    residual = problem.y - problem.Phi @ mean
    return (
        0.5 * (residual.square().sum() + (problem.Phi.square().sum(0) * variance).sum()) / problem.frozen.noise_variance
    )


@pytest.fixture(scope="module")
def problem():
    return toys()[0]


@pytest.fixture(scope="module")
def data(problem):
    return TrainingData.of([problem])


def model(problem):
    return problem.Phi, problem.y, problem.frozen.noise_variance


# --- Bernoulli --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.5, 0.9, 1.0])
def test_bernoulli_dropout_is_its_closed_form(problem, data, p):
    (q,) = (trained_method("bernoulli-dropout", data, "bernoulli", {"retain_probability": p, "l": 1.5}).posterior()[0],)
    close(q.m, optimal_m(*model(problem), f64([p]), 1.5), rtol=1e-13)
    assert float(q.retain_probability) == p


def test_optimised_retain_probabilities_are_the_optima(problem, data):
    shared = trained_method("bernoulli-dropout", data, "bernoulli", {"optimise": "shared"})
    best = optimal_shared_retain(*model(problem))
    q = shared.posterior()[0]
    close(q.retain_probability, best.retain_probability[0], rtol=1e-13)
    own = trained_method("bernoulli-dropout", data, "bernoulli", {"optimise": "per-weight"}).posterior()[0]
    values = [float(bernoulli_objective(*model(problem), each.m, each.retain_probabilities)) for each in (own, q)]
    assert values[0] <= values[1]
    assert of_objective(shared, 0, problem) == (math.inf, pytest.approx(0.0, abs=1e-9))
    assert shared.details()[0]["retain_probability"] == pytest.approx(float(q.retain_probability), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bernoulli-dropout", "gaussian-dropout"])
def test_by_adam_noise_comes_to_the_closed_form(name):
    """m* and θ* to a relative 1e-3 of their norms where features are well-conditioned (8 of them, standard normal)."""
    problem, data = well_conditioned()
    settings = {**TO_THE_END, "estimator": "exact", "max_steps": 1500}
    if name == "bernoulli-dropout":
        q = trained_method(
            name, data, "bernoulli", {**settings, "training": "masks", "retain_probability": 0.8}
        ).posterior()[0]
        got, expected = q.m, optimal_m(*problem, f64([0.8]))
    else:
        q = trained_method(name, data, "ffg", settings).posterior()[0]
        got, expected = q.mean, gaussian_dropout_optimum(*problem[:2], f64([0.25]))
        close(q.scale, 0.5 * q.mean.abs(), rtol=1e-12)
    assert float((got - expected).norm() / expected.norm()) < 1e-3


def well_conditioned(N=200, k=8):
    """(Φ, y, σ²), and the same as a training problem."""
    rng = np.random.default_rng(0)
    Phi = torch.from_numpy(rng.standard_normal((N, k)))
    w, noise = torch.from_numpy(rng.standard_normal((k, 1))), torch.from_numpy(0.5 * rng.standard_normal(N))
    y = (Phi @ w)[:, 0] + noise
    X = Phi[None, :, :1]
    data = TrainingData(X, y[None], Phi[None], f64([0.25]), X.amin(1), X.amax(1), InputsAsFeatures())
    return (Phi, y, f64(0.25)), data


@pytest.mark.slow
def test_concrete_dropout_learns_a_probability_near_the_optimum():
    """The relaxation is biased: the objective at hard masks comes within a few nats of the best, from far away."""
    problem, data = well_conditioned()
    settings = {"minibatch": "full", "lr": 0.02, "lr_schedule": "cosine", "max_steps": 1500, "retain_probability": 0.5}
    method = trained_method("concrete-dropout", data, "bernoulli", settings)
    q, best = method.posterior()[0], optimal_shared_retain(*problem)
    start = bernoulli_objective(*problem, optimal_m(*problem, f64([0.5])), f64([0.5]))
    gap = float(bernoulli_objective(*problem, q.m, q.retain_probabilities) - best.objective)
    assert 0 <= gap < 0.02 * float(start - best.objective)
    assert float(q.retain_probability) > 0.95
    assert method.details()[0]["retain_probability"] == pytest.approx(float(q.retain_probability), rel=1e-12)


# --- Gaussian ---------------------------------------------------------------------------------------------------------


def test_the_gap_of_gaussian_dropout_is_that_of_its_likelihood(problem, data):
    method = trained_method("gaussian-dropout", data, "ffg", {"minibatch": "full", "max_steps": 50})
    q, theta = method.posterior()[0], gaussian_dropout_optimum(problem.Phi, problem.y, f64([0.25]))
    gap = expected_error(problem, q.mean, 0.25 * q.mean.square()) - expected_error(
        problem, theta, 0.25 * theta.square()
    )
    assert of_objective(method, 0, problem)[1] == pytest.approx(float(gap), rel=1e-9)


@pytest.mark.slow
def test_free_alpha_prunes_weights_without_data_in_the_additive_form():
    """Least squares gives feature 0 the weight 0: its log α passes the threshold, and is counted."""
    (Phi, y, _), data = well_conditioned()
    data.y[0] = y - Phi[:, 0] * torch.linalg.lstsq(Phi, y[:, None]).solution[0]
    settings = {**TO_THE_END, "estimator": "exact", "max_steps": 2000}
    method = trained_method("sparse-variational-dropout", data, "ffg", settings)
    q = method.posterior()[0]
    pruned = (2 * (q.scale.log() - q.mean.abs().log()) > 3).tolist()
    assert pruned[0]
    assert method.details()[0]["sparsity"] == sum(pruned) / 8 < 0.5
    kept = f64([not each for each in pruned]).bool()
    u = q.mean.square() / (2 * q.scale.square())
    assert float(log_uniform_kl(u)[kept].min()) > float(log_uniform_kl(u)[~kept].max())


def test_spike_and_slab_is_its_optimum(problem, data):
    q = trained_method("spike-and-slab", data, "spike-slab", {"f": 0.3, "l": 2.0}).posterior()[0]
    expected = spike_slab_optimum(*model(problem), 0.3, 2.0)
    close(q.spike_weight, expected.spike_weight, rtol=1e-10, atol=1e-12)
    close(q.slab_mean, expected.mean, rtol=1e-10)
    close(q.slab_scale, expected.scale, rtol=1e-12)
