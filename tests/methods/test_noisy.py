"""Expected squared errors under weight noise: every estimator against the closed form, and against autograd."""

import numpy as np
import pytest
import torch

from fsvi_bench.methods.data import Batch, Rows, Streams
from fsvi_bench.methods.noisy import NoisyMethod, NoisyOptions, exact_nll, local_nll, weights_nll
from tests.maths.draws import close
from tests.methods.synthetic import synthetic

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


class Estimates(NoisyMethod):
    """Nothing but the estimators."""

    Options = NoisyOptions

    def draws(self, centre, spread, steps, noise=None):
        """(∂/∂centre, ∂/∂spread) of one estimate after another."""
        self.options = self.options.model_copy(update={"max_steps": steps})
        for batch in self.data().train_dataloader():
            leaves = mean, deviation = [part.clone().requires_grad_() for part in (centre, spread)]

            def weights(n, mean=mean, deviation=deviation):
                return mean[:, None] + deviation[:, None] * noise(n, K)

            loss = self.expected_nll(*leaves, batch, None if noise is None else weights)
            yield torch.autograd.grad(loss.sum(), leaves)


def estimates(problems, estimator, n, seeds):
    return Estimates(problems, "ffg", seeds, estimator=estimator, minibatch=n)


def test_the_exact_gradient_is_that_of_the_definition():
    problems, (centre, spread) = synthetic(3, N=31), point(B=3)
    (got,) = estimates(problems, "exact", 31, [0, 1, 2]).draws(centre, spread, 1)
    for mine, other in zip(got, truth(problems, centre, spread), strict=True):
        close(mine, other, rtol=1e-11, atol=1e-11)


def test_in_evaluation_every_estimator_is_the_exact_one():
    problems, (centre, spread) = synthetic(2, N=31), point(B=2)
    constant = 0.5 * 31 * (2 * torch.pi * problems.noise_variance).log()
    for estimator in ("exact", "local", "per-point", "per-minibatch"):
        method = estimates(problems, estimator, 7, [0, 1]).eval()
        got = method.expected_nll(centre, spread, Batch(Rows.whole(problems)))
        close(got, expected_error(problems, centre, spread) + constant, rtol=1e-12)


@pytest.mark.parametrize("n", [7, 30])
@pytest.mark.parametrize("estimator", ["exact", "local", "per-point", "per-minibatch"])
def test_every_estimator_has_the_exact_gradient_for_its_mean(estimator, n):
    """Rows drawn or all; |mean − truth| < 5 standard errors in each of 16 entries (0.001% of a normal lies beyond)."""
    problems, (centre, spread) = synthetic(1), point()
    method = estimates(problems, estimator, n, [1])
    draws = torch.stack([torch.cat(gradient, -1)[0] for gradient in method.draws(centre, spread, DRAWS)])
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
        method = estimates(problems, estimator, 30, [1])
        draws = torch.stack([of_spread[0] for _, of_spread in method.draws(centre, spread, DRAWS)])
        variances[estimator] = float(draws.var(0).sum())
    assert 1.2 * variances["local"] < variances["per-point"]
    assert 1.2 * variances["per-point"] < variances["per-minibatch"]


def test_a_bernoulli_mask_has_the_same_expected_gradient_as_its_moments_say():
    problems, (m, _), p = synthetic(1), point(), 0.7
    deviation, streams = (p * (1 - p)) ** 0.5, Streams([5])

    def masks(*shape):
        return ((streams.uniform("masks", *shape) < p).double() - p) / deviation

    method = estimates(problems, "per-point", 30, [5])
    gradients = method.draws(p * m, deviation * m, DRAWS, masks)
    draws = torch.stack([torch.cat(gradient, -1)[0] for gradient in gradients])
    expected = torch.cat(truth(problems, p * m, deviation * m), -1)[0]
    assert ((draws.mean(0) - expected).abs() < 5 * draws.std(0) / DRAWS**0.5).all()


@pytest.mark.parametrize("sets", [1, 12])
def test_the_error_of_given_weights_is_its_definition(sets):
    """Value and gradient."""
    g = torch.Generator().manual_seed(3)
    Phi, y, w = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((2, 12, 8), (2, 12), (2, sets, 8)))
    w.requires_grad_()
    loss = 0.5 * (y - (Phi * w).sum(-1)).square().sum(-1)
    got = weights_nll(w, Rows(Phi, y, torch.zeros(2, dtype=torch.float64)))
    close(got.detach(), loss.detach(), rtol=1e-12)
    expected = torch.autograd.grad(loss.sum(), w)[0]
    close(torch.autograd.grad(got.sum(), w)[0], expected, rtol=1e-12, atol=1e-12)


def test_without_spread_the_local_estimator_is_the_plain_gradient():
    problems, (centre, _) = synthetic(1), point()
    zero = torch.zeros_like(centre)
    ((of_centre, of_spread),) = estimates(problems, "local", 30, [1]).draws(centre, zero, 1)
    close(of_centre, truth(problems, centre, zero)[0], rtol=1e-11, atol=1e-11)
    assert not of_spread.any()


def test_the_estimators_pass_gradcheck():
    problems, (centre, spread) = synthetic(2), point(B=2)
    rows, noise = Rows.whole(problems, compress=False), Streams([1, 2]).normal("noise", 32)
    q = centre.requires_grad_(), spread.requires_grad_()
    # Values of order 1e3 have digits of 1e-12, central differences over 2e-6 of 1e-6.
    assert torch.autograd.gradcheck(lambda *q: exact_nll(*q, rows), q, rtol=1e-6, atol=1e-5)
    assert torch.autograd.gradcheck(lambda *q: local_nll(*q, rows, noise), q, rtol=1e-6, atol=1e-5)


def test_every_problem_draws_from_its_own_stream():
    several, alone = Streams([1, 2, 3]).normal("weight noise", 4, 8), Streams([2]).normal("weight noise", 4, 8)
    assert torch.equal(several[1], alone[0])
    assert len(np.unique(several.numpy())) == 3 * 4 * 8
