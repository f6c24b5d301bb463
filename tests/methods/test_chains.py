"""SGLD and SGHMC: what n chains are after T steps is known, since their recursion is linear and Gaussian."""

import math

import pytest
import torch

from fsvi_bench.maths.langevin import Regression, langevin, minibatch_covariance, moments_kl, stationary_kl, underdamped
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.training.trainer import train
from tests.methods.synthetic import exact, synthetic
from tests.methods.table import method_on, toys

PARTICLES = 4000


def regression(data):
    return Regression.of(data.Phi[0], data.y[0], data.noise_variance[0], exact(data).mean[0])


def law(dynamics, values, mean, steps):
    """Mean and variance of w in each eigenvector after so many steps from w ~ N(0, 1), v = 0, exactly.

    The method's v is the one before w ← w + v, so that its w is the recursion's w + v.
    """
    A = dynamics.matrix(values)
    d = A.shape[-1]
    shift, X = torch.zeros(len(values), d).double(), torch.zeros(len(values), d, d).double()
    shift[:, 0], X[:, 0, 0] = -mean, 1
    for _ in range(steps):
        shift, X = (A @ shift[..., None])[..., 0], A @ X @ A.mT
        X[:, -1, -1] += dynamics.injected
    observed = torch.ones(d).double()
    return mean + shift @ observed, ((X @ observed) @ observed)


def in_eigenvectors(method, data):
    Vh = torch.linalg.svd(data.Phi[0] / data.noise_variance[0].sqrt()).Vh
    return method.posterior().particles[0] @ Vh.mT


@pytest.mark.parametrize(("name", "friction"), [("sgld", None), ("sghmc", 0.1)])
@pytest.mark.parametrize(("steps", "share"), [(3, 0.3), (40, 0.5), (500, 0.7)])
def test_with_all_rows_the_moments_are_exact_at_every_time(name, friction, steps, share):
    """4 standard errors of mean and variance in each of 8 eigenvectors. The last case is stationary."""
    data = synthetic(1, N=31)
    problem = regression(data)
    largest = float(problem.eigenvalues.max())
    settings = {"particles": PARTICLES, "step_size": share, "max_steps": steps}
    method = method_on(name, data, "particles", settings)
    train(method, "cpu")
    dynamics = langevin(largest, share) if friction is None else underdamped(largest, share, friction)
    mean, variance = law(dynamics, problem.eigenvalues, problem.mean, steps)
    w, n = in_eigenvectors(method, data), settings["particles"]
    assert bool(((w.mean(0) - mean).abs() < 4 * (variance / n).sqrt()).all())
    assert bool(((w.var(0) / variance - 1).abs() < 4 * math.sqrt(2 / n)).all())
    if steps > 100:
        stationary = 1 / (problem.eigenvalues * (1 - share * problem.eigenvalues / largest))
        assert torch.allclose(variance, stationary, rtol=1e-3)
        # And it could have failed: the posterior's own variance is far outside along the largest eigenvalue.
        assert float(w.var(0)[0] * problem.eigenvalues[0]) > 1 + 20 * math.sqrt(2 / n)


@pytest.mark.parametrize(("name", "friction", "share"), [("sgld", None, 0.15), ("sghmc", 0.3, 0.05)])
def test_with_minibatches_each_chain_has_the_moments_of_the_fixed_point(name, friction, share):
    """One chain in each of 600 problems that differ in their seed alone, since the chains of one problem share their
    minibatches. 4 standard errors, by the squares' own scatter: the law is no Gaussian."""
    data = synthetic(1, N=31)
    problem, copies = regression(data), data.map(lambda tensor: tensor.expand(600, *tensor.shape[1:]).clone())
    largest = float(problem.eigenvalues.max())
    settings = {"particles": 2, "step_size": share, "minibatch": 7, "max_steps": 600}
    method = method_on(name, copies, "particles", settings | ({"friction": friction} if friction else {}))
    train(method, "cpu")
    dynamics = langevin(largest, share) if friction is None else underdamped(largest, share, friction)
    covariance = minibatch_covariance(problem, dynamics, 7)
    Vh = torch.linalg.svd(data.Phi[0] / data.noise_variance[0].sqrt()).Vh
    squares = (method.posterior().particles[:, 0] @ Vh.mT - problem.mean).square()
    error = squares.mean(0) - covariance.diagonal()
    assert bool((error.abs() < 4 * squares.std(0) / len(squares) ** 0.5).all())
    # And it could have failed: without the noise of minibatches it would be far off.
    alone = 1 / (problem.eigenvalues * (1 - share * problem.eigenvalues / largest))
    assert bool(((squares.mean(0) - alone).abs() > 6 * squares.std(0) / len(squares) ** 0.5).any())


@pytest.mark.parametrize("name", ["sgld", "sghmc"])
def test_the_optimum_is_the_stationary_law(name):
    toy = toys()[0]
    problem = regression(TrainingData.of(toy))
    largest = float(problem.eigenvalues.max())
    for settings, expected in (
        ({}, stationary_kl(problem.eigenvalues, 0.1)),
        ({"minibatch": 40}, stationary_kl(problem.eigenvalues, 0.1)),
        ({"minibatch": 20, "step_size": 1e-3}, None),
        ({"minibatch": 1, "step_size": 0.9}, math.inf),
    ):
        if expected is None:
            dynamics = langevin(largest, 1e-3) if name == "sgld" else underdamped(largest, 1e-3, 0.1)
            expected = moments_kl(problem.eigenvalues, minibatch_covariance(problem, dynamics, 20))
        found = method_on(name, TrainingData.of(toy), "particles", settings).optimum(0, toy)
        assert math.isnan(found.value)
        assert found.kl == pytest.approx(expected, rel=1e-9)
