"""SWAG against its definition: SGD with momentum written as a loop, and moments of what that loop collects."""

import math

import numpy as np
import pytest
import torch

from fsvi_bench.training.trainer import train
from tests.maths.draws import close
from tests.methods.synthetic import synthetic
from tests.methods.table import method_on


def sgd(problem, batches, step, momentum):
    """Iterates of w ← w − v, v ← momentum·v + step·∇(−log p(y, w)), one for each batch of (Phi, y) in units of noise."""
    w, v, iterates = np.zeros(problem.k), np.zeros(problem.k), []
    for batch in batches:
        Phi, y = batch.rows.Phi[0, :, : problem.k].numpy(), batch.rows.y[0].numpy()
        v = momentum * v + step * (Phi.T @ (Phi @ w - y) + w)
        w = w - v
        iterates.append(w)
    return iterates


def swag_moments(iterates, rank):
    """Maddox et al. (2019), algorithm 1, with running means as in its code."""
    means = [np.mean(iterates[: count + 1], axis=0) for count in range(len(iterates))]
    D = np.array([w - mean for w, mean in zip(iterates, means, strict=True)])[-rank:]
    variances = np.mean(np.square(iterates), axis=0) - means[-1] ** 2
    return means[-1], 0.5 * np.diag(variances) + 0.5 * D.T @ D / (len(D) - 1)


@pytest.mark.parametrize(
    ("settings", "collected"),
    [
        ({"minibatch": 7, "max_steps": 60, "rank": 4, "burn_in": 0.5}, slice(34, None, 5)),  # 31 rows: 5 steps a pass
        ({"minibatch": 7, "max_steps": 40, "every": 3, "burn_in": 0.0, "momentum": 0.0}, slice(2, None, 3)),
        ({"minibatch": "full", "max_steps": 30, "rank": 50, "burn_in": 0.2, "step_size": 0.5}, slice(6, None, 1)),
    ],
)
def test_the_posterior_has_the_moments_of_the_iterates(settings, collected):
    """The factor is compared as a covariance. Sums of squares lose digits to the mean: 1e-10."""
    data, rank = synthetic(1, N=31), settings.get("rank", 20)
    method = method_on("swag", data, "full", settings)
    batches = list(method_on("swag", data, "full", settings).data())
    curvature = float(torch.linalg.eigvalsh(data.Phi[0].T @ data.Phi[0] / data.noise_variance[0]).max()) + 1
    momentum = method.options.momentum
    step = method.options.step_size * 2 * (1 + momentum) / curvature
    train(method, "cpu")
    mean, covariance = swag_moments(sgd(data, batches, step, momentum)[collected], rank)
    q = method.posterior()[0]
    close(q.mean, torch.from_numpy(mean), rtol=1e-10)
    close(q.covariance, torch.from_numpy(covariance), rtol=1e-9, atol=1e-10 * float(abs(covariance).max()))


@pytest.mark.parametrize("k", [4, 5])
def test_the_objective_at_the_start_is_the_energy_of_0(k):
    """Whether or not k is filled up."""
    data = synthetic(1, N=31, k=k)
    energy = 0.5 * (data.y[0] @ data.y[0] / data.noise_variance[0] + 31 * (2 * torch.pi * data.noise_variance[0]).log())
    expected = float(energy) + 0.5 * k * math.log(2 * math.pi)
    method = method_on("swag", data, "full", {"minibatch": "full"})
    batch = next(iter(method.data()))
    assert method.loss(method.q(), batch).item() == pytest.approx(expected, rel=1e-12)


def test_the_step_is_a_share_of_the_largest_stable_one():
    """Below it SGD on all rows settles at the posterior mean, and above it blows up."""
    data = synthetic(1, N=31)
    exact = torch.linalg.solve(
        data.Phi[0].T @ data.Phi[0] / data.noise_variance[0] + torch.eye(data.k).double(),
        data.Phi[0].T @ data.y[0] / data.noise_variance[0],
    )
    for momentum in (0.0, 0.9):
        settings = {"minibatch": "full", "momentum": momentum, "max_steps": 1000}
        stable = method_on("swag", data, "full", {**settings, "step_size": 0.99})
        train(stable, "cpu")
        close(stable.q.w[0, : data.k].detach(), exact, rtol=1e-6)
        beyond = method_on("swag", data, "full", {**settings, "step_size": 1.0})
        beyond.step *= 1.02
        train(beyond, "cpu")
        assert not (beyond.q.w.detach().abs().max() < 1e3)
