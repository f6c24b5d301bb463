"""Expected squared errors under weight noise: every estimator against the closed form, and against autograd.

A squared error is quadratic in the noise, so that its mean over points with mean 0 and covariance I, ±√k eᵢ, is its
expectation, without error. Estimators are given these points in place of their draws.
"""

import pytest
import torch

from fsvi_bench.methods.data import Batch, Rows, Streams
from fsvi_bench.methods.noisy import NoisyMethod, NoisyOptions, weights_nll
from tests.maths.draws import close, eye, zeros
from tests.methods.synthetic import synthetic
from tests.methods.table import first_batch, method_on, place, random_q

K = 8
ESTIMATORS = ("exact", "local", "per-point", "per-minibatch")


def point(seed=0, B=1):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(B, K, generator=g, dtype=torch.float64) for _ in range(2))


def expected_error(problems, centre, spread):
    """½E‖y − Φw‖²/σ² from its definition as bias and variance, with the likelihood's constant."""
    residual = problems.y - (problems.Phi @ centre[..., None])[..., 0]
    variance = (problems.Phi.square() @ spread.square()[..., None])[..., 0]
    constant = 0.5 * problems.N * (2 * torch.pi * problems.noise_variance).log()
    return constant + 0.5 * (residual.square() + variance).sum(-1) / problems.noise_variance


class Estimates(NoisyMethod):
    """Nothing but the estimators."""

    Options = NoisyOptions


def estimates(problems, estimator, n=30):
    return Estimates(problems, "ffg", estimator=estimator, minibatch=n)


def sigma_points(width):
    """2·width points with mean 0 and covariance I."""
    axes = width**0.5 * eye(width)
    return torch.cat([axes, -axes])


def test_in_evaluation_every_estimator_is_the_exact_one():
    problems, (centre, spread) = synthetic(2, N=31), point(B=2)
    for estimator in ESTIMATORS:
        got = estimates(problems, estimator, 7).eval().expected_nll(centre, spread, Batch(Rows.whole(problems)))
        close(got, expected_error(problems, centre, spread), rtol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_has_the_exact_value_and_gradient_for_its_mean(estimator, monkeypatch):
    problems, leaves = synthetic(1, N=31), [part.requires_grad_() for part in point()]
    method = estimates(problems, estimator, 31)
    batch = first_batch(method)
    # One number for each function value, or the same weights for every row.
    points = torch.tensor([[1.0], [-1.0]]).double() if estimator == "local" else sigma_points(K)
    losses = []
    for each in points:
        monkeypatch.setattr(Streams, "normal", lambda self, role, *shape, each=each: each.expand(1, *shape))
        losses.append(method.expected_nll(*leaves, batch))
    mean, expected = torch.stack(losses).mean(), expected_error(problems, *leaves).sum()
    close(mean.detach(), expected.detach(), rtol=1e-12)
    for mine, other in zip(torch.autograd.grad(mean, leaves), torch.autograd.grad(expected, leaves), strict=True):
        close(mine, other, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("name", ["mean-field-vi"])
def test_the_sampled_elbo_is_the_exact_one_for_its_mean(name, monkeypatch):
    method = method_on(name, synthetic(1, N=31), "ffg", {"S": 2 * K, "minibatch": "full"})
    place(method.q, *random_q("ffg", K))
    batch = first_batch(method)
    monkeypatch.setattr(Streams, "normal", lambda self, role, *shape: sigma_points(K)[None])
    sampled = method.loss(method.q(), batch)
    exact = method.eval().loss(method.q(), batch)
    close(sampled.detach(), exact.detach(), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "settings"), [("bernoulli-dropout", {"training": "masks"}), ("concrete-dropout", {"temperature": 1e-3})]
)
def test_masks_keep_weights_with_the_retain_probability(name, settings):
    """Concrete masks are all but hard at a low temperature; 4 standard errors."""
    method = method_on(name, synthetic(1), "bernoulli", {"retain_probability": 0.7, **settings})
    masks = method.masks(method.q(), 4000).detach()
    assert float(((masks > 1e-3) & (masks < 1 - 1e-3)).double().mean()) < 0.01
    assert float(masks.mean()) == pytest.approx(0.7, abs=4 * (0.21 / masks.numel()) ** 0.5)


@pytest.mark.parametrize("sets", [1, 12])
def test_the_error_of_given_weights_is_its_definition(sets):
    """Value and gradient."""
    g = torch.Generator().manual_seed(3)
    Phi, y, w = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((2, 12, 8), (2, 12), (2, sets, 8)))
    w.requires_grad_()
    loss = 0.5 * (y - (Phi * w).sum(-1)).square().sum(-1)
    got = weights_nll(w, Rows(Phi, y, zeros(2)))
    close(got.detach(), loss.detach(), rtol=1e-12)
    expected = torch.autograd.grad(loss.sum(), w)[0]
    close(torch.autograd.grad(got.sum(), w)[0], expected, rtol=1e-12, atol=1e-12)


def test_without_spread_the_local_estimator_has_no_gradient_in_it():
    """Its square root would have an infinite slope there."""
    problems, (centre, _) = synthetic(1), point()
    spread = torch.zeros_like(centre).requires_grad_()
    method = estimates(problems, "local")
    method.expected_nll(centre, spread, first_batch(method)).sum().backward()
    assert not spread.grad.any()
