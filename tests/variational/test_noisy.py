"""Expected squared errors under weight noise: every estimator against the closed form, and against autograd."""

import numpy as np
import pytest
import torch
from fsvi_bench.variational.noisy import (
    ExactError,
    LocalError,
    Noise,
    SampledError,
    error_gradient,
    make_error,
    make_rows,
)

from tests.maths.draws import close
from tests.variational import synthetic

K = 8
DRAWS = 4000


def point(seed=0, B=1):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(B, K, generator=g, dtype=torch.float64) for _ in range(2))


def expected_error(problems, centre, spread):
    """½E‖y − Φw‖²/σ² from its definition as bias and variance."""
    residual = problems.y - (problems.Phi @ centre[..., None])[..., 0]
    variance = (problems.Phi.square() @ spread.square()[..., None])[..., 0]
    return 0.5 * (residual.square() + variance).sum(-1) / problems.noise_variance


def truth(problems, centre, spread):
    leaves = [part.clone().requires_grad_() for part in (centre, spread)]
    return torch.autograd.grad(expected_error(problems, *leaves).sum(), leaves)


def test_the_exact_gradient_is_that_of_the_definition():
    problems, (centre, spread) = synthetic(3, N=31), point(B=3)
    got = ExactError(make_rows(problems, 31, [0, 1, 2])).gradient(centre, spread)
    for mine, other in zip(got, truth(problems, centre, spread), strict=True):
        close(mine, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n", [7, 30])
@pytest.mark.parametrize("estimator", ["exact", "local", "per-point", "per-minibatch"])
def test_every_estimator_has_the_exact_gradient_for_its_mean(estimator, n):
    """Rows drawn or all; |mean − truth| < 5 standard errors in each of 16 entries (0.001% of a normal lies beyond)."""
    problems, (centre, spread) = synthetic(1), point()
    error = make_error(estimator, make_rows(problems, n, [1]), [1])
    draws = torch.stack([torch.cat(error.gradient(centre, spread), -1)[0] for _ in range(DRAWS)])
    expected = torch.cat(truth(problems, centre, spread), -1)[0]
    standard_error = draws.std(0) / DRAWS**0.5
    if (estimator, n) == ("exact", 30):
        close(draws[0], expected, rtol=1e-11, atol=1e-11)
    else:
        assert ((draws.mean(0) - expected).abs() < 5 * standard_error).all()
        assert (standard_error > 0).all()


def test_estimators_are_as_noisy_as_kingma_and_others_say():
    """Variance of the gradient in the spread: local < per-point < per-minibatch; 4,000 draws tell variances to 3%."""
    problems, (centre, spread) = synthetic(1), point()
    variances = {}
    for estimator in ("local", "per-point", "per-minibatch"):
        error = make_error(estimator, make_rows(problems, 30, [1]), [1])
        draws = torch.stack([error.gradient(centre, spread).spread[0] for _ in range(DRAWS)])
        variances[estimator] = float(draws.var(0).sum())
    assert 1.2 * variances["local"] < variances["per-point"]
    assert 1.2 * variances["per-point"] < variances["per-minibatch"]


def test_a_bernoulli_mask_has_the_same_expected_gradient_as_its_moments_say():
    problems, (m, _), p = synthetic(1), point(), 0.7
    deviation, uniform = (p * (1 - p)) ** 0.5, Noise([5], "masks", "uniform")

    def masks(*shape):
        return ((uniform(*shape) < p).double() - p) / deviation

    error = SampledError(make_rows(problems, 30, [5]), masks, per_point=True)
    draws = torch.stack([torch.cat(error.gradient(p * m, deviation * m), -1)[0] for _ in range(DRAWS)])
    expected = torch.cat(truth(problems, p * m, deviation * m), -1)[0]
    assert ((draws.mean(0) - expected).abs() < 5 * draws.std(0) / DRAWS**0.5).all()


@pytest.mark.parametrize("sets", [1, 12])
def test_the_error_gradient_is_autograds(sets):
    g = torch.Generator().manual_seed(3)
    Phi, y, w = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((2, 12, 8), (2, 12), (2, sets, 8)))
    w.requires_grad_()
    loss = 0.5 * (y - (Phi * w).sum(-1)).square().sum()
    close(error_gradient(Phi, y, w.detach()), torch.autograd.grad(loss, w)[0], rtol=1e-12, atol=1e-12)


def test_without_spread_the_local_estimator_is_the_plain_gradient():
    problems, (centre, _) = synthetic(1), point()
    got = LocalError(make_rows(problems, 30, [1]), [1]).gradient(centre, torch.zeros_like(centre))
    close(got.centre, truth(problems, centre, torch.zeros_like(centre))[0], rtol=1e-11, atol=1e-11)
    assert not got.spread.any()


def test_every_problem_draws_from_its_own_stream():
    several, alone = Noise([1, 2, 3], "weight noise")(4, 8), Noise([2], "weight noise")(4, 8)
    assert torch.equal(several[1], alone[0])
    assert len(np.unique(several.numpy())) == 3 * 4 * 8
