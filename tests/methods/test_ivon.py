"""IVON against algorithm 1 of Shen et al. (2024) as a loop, and its fixed point: EXACT-FFG."""

import numpy as np
import pytest
import torch

from fsvi_bench.methods.data import Batch, Rows, Streams
from fsvi_bench.training.trainer import train
from tests.maths.draws import close, eye
from tests.methods.synthetic import exact, synthetic
from tests.methods.table import method_on


def ivon(problem, batches, draws, options):
    """m and 1/(N(h + δ)) after all steps, by the paper's names."""
    N, k, delta = problem.N, problem.k, 1 / problem.N
    m, h, g = np.zeros(k), np.full(k, options.hess_init), np.zeros(k)
    for t, (batch, noise) in enumerate(zip(batches, draws, strict=True), start=1):
        Phi, y = batch.rows.Phi[0, :, :k].numpy(), batch.rows.y[0].numpy()
        sigma = 1 / np.sqrt(N * (h + delta))
        samples = [m + sigma * e for e in noise]
        gradients = [Phi.T @ (Phi @ w - y) / N for w in samples]
        g_hat = np.mean(gradients, axis=0)
        h_hat = np.mean([d * (w - m) / sigma**2 for d, w in zip(gradients, samples, strict=True)], axis=0)
        g = options.beta1 * g + (1 - options.beta1) * g_hat
        correction = 0.5 * (1 - options.beta2) ** 2 * (h - h_hat) ** 2 / (h + delta)
        h = options.beta2 * h + (1 - options.beta2) * h_hat + correction
        rate = options.lr * options.decay(t - 1) * (options.hess_init + delta)
        m = m - rate * (g / (1 - options.beta1**t) + delta * m) / (h + delta)
    return m, 1 / (N * (h + delta))


@pytest.mark.parametrize(
    "settings",
    [{"minibatch": 7, "S": 2, "beta2": 0.99999}, {"beta2": 0.9, "lr_schedule": "constant", "hess_init": 3.0}],
)
def test_it_is_algorithm_1(settings):
    problem, settings = synthetic(1, N=31), {**settings, "max_steps": 40, "averaging": 0.0}
    method, same = (method_on("ivon", problem, "ffg", settings) for _ in range(2))
    steps = (Streams(method.seeds, step) for step in range(40))
    draws = [streams.normal("weight samples", method.options.S, problem.k)[0].numpy() for streams in steps]
    mean, variance = ivon(problem, list(same.data()), draws, method.options)
    train(method, "cpu")
    q = method.posterior()[0]
    close(q.mean, torch.from_numpy(mean), rtol=1e-10)
    close(q.scale.square(), torch.from_numpy(variance), rtol=1e-10)


def test_at_the_best_factorised_posterior_its_steps_vanish_on_average(monkeypatch):
    """The gradient is quadratic in a draw, so that its means over ±√k eᵢ, which have covariance I, are exact: there
    Nĥ + 1 is Λ's diagonal, and ĝ + δm is 0."""
    problem = synthetic(1, N=31)
    k, N, posterior = problem.k, problem.N, exact(problem)
    method = method_on("ivon", problem, "ffg", {"S": 2 * k, "minibatch": "full"})
    precision = posterior.precision_tril[0].square().sum(-1)
    method.q.mean.data[0, :k] = posterior.mean[0]
    method.q.hessian.data[0, :k] = (precision - 1) / N
    axes = k**0.5 * eye(k)
    monkeypatch.setattr(Streams, "normal", lambda self, role, *shape: torch.cat([axes, -axes])[None])
    monkeypatch.setattr(method, "optimizers", lambda: type("Still", (), {"step": lambda self, rate: None})())
    monkeypatch.setattr(method, "is_logged", lambda step: False)
    method.training_step(Batch(Rows.whole(problem)), 0)
    close(N * method.q.hessian.grad[0, :k] + 1, precision, rtol=1e-10)
    scale = float((problem.Phi[0].T @ problem.y[0]).abs().max() / problem.noise_variance[0])
    close(N * method.q.mean.grad[0, :k], -posterior.mean[0], rtol=1e-9, atol=1e-12 * scale)
