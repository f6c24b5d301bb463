"""Sample-then-optimise and ensembles: where they end is a linear solve."""

import torch

from fsvi_bench.methods.data import Streams
from fsvi_bench.training.trainer import train
from tests.maths.draws import close, eye
from tests.methods.synthetic import synthetic
from tests.methods.table import method_on

CONVERGED = {"minibatch": "full", "lr": 0.3, "lr_schedule": "cosine", "max_steps": 1200}


def test_sample_then_optimise_ends_at_exact_draws():
    """Each particle is Λ⁻¹(Φᵀ(y + e)/σ² + a) for its own noise; Adam's last steps leave 1e-6."""
    data = synthetic(2, N=31)
    method = method_on("sample-then-optimise", data, "particles", {**CONVERGED, "particles": 6})
    streams, anchors = Streams(method.seeds), method.anchor.clone()
    noise = streams.normal("target noise", 6, 31)
    train(method, "cpu")
    for b, particles in enumerate(method.posterior().particles):
        Phi, variance = data.Phi[b], data.noise_variance[b]
        precision = Phi.T @ Phi / variance + eye(data.k)
        targets = data.y[b] + variance.sqrt() * noise[b]
        expected = torch.linalg.solve(precision, (targets @ Phi / variance + anchors[b]).T).T
        close(particles, expected, rtol=1e-5, atol=1e-6)


def test_their_law_is_the_exact_posterior():
    """Moments of 4,000 minimisers, solved for from the method's own draws, within 4 standard errors in each weight."""
    data = synthetic(1, N=31)
    method = method_on("sample-then-optimise", data, "particles", {"particles": 4000})
    Phi, variance = data.Phi[0], data.noise_variance[0]
    covariance = torch.linalg.inv(Phi.T @ Phi / variance + eye(data.k))
    w = (data.y[0] @ Phi / variance + method.moment[0] + method.anchor[0]) @ covariance
    mean, spread = covariance @ (Phi.T @ data.y[0]) / variance, covariance.diagonal()
    assert bool(((w.mean(0) - mean).abs() < 4 * (spread / 4000).sqrt()).all())
    assert bool(((w.var(0) / spread - 1).abs() < 4 * (2 / 4000) ** 0.5).all())


def test_an_ensemble_ends_at_least_squares_and_does_not_spread():
    """k = 8 < N = 31: one minimiser."""
    data = synthetic(1, N=31)
    method = method_on("ensemble", data, "particles", CONVERGED)
    train(method, "cpu")
    expected = torch.linalg.lstsq(data.Phi[0], data.y[0][:, None]).solution[:, 0]
    close(method.posterior().particles[0], expected.expand(5, -1), rtol=1e-3, atol=1e-3)
