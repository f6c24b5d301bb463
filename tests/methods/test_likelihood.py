"""The expected log likelihood, q's parameters, and the whole objective's gradient in them, against plain formulas."""

import numpy as np
import pytest
import torch

from fsvi_bench.maths.batching import LINE, filled
from fsvi_bench.maths.functional_kl import functional_kl, measure
from fsvi_bench.maths.random import distinct
from fsvi_bench.methods.data import Rows, Streams, TaskData, expected_nll, fill_columns
from fsvi_bench.posteriors.trainable import TrainableGaussian
from tests.maths.draws import close, draw, eye, f64, ones, zeros
from tests.methods.synthetic import automatic_loss, synthetic, transparent

B, K = 3, 8


def draw_q(seed, k=K):
    """(mean, factor, scale) for B problems."""
    rng = np.random.default_rng(seed)
    return *draw(rng, B, k), torch.from_numpy(np.exp(0.5 * rng.standard_normal((B, k))))


def chosen_rows(n, N, seed, step):
    """Rows of a minibatch, drawn again from the seed."""
    keys = Streams((seed,)).keys("minibatch rows")
    return distinct(keys, range(step, step + 1), [N], n, torch.device("cpu"))[0, 0].numpy()


def minibatches(problems, n, seeds, steps, **options):
    """The rows that these steps see."""
    data = TaskData(problems, seeds, steps=steps, minibatch=n, **options)
    return [batch.rows for batch in data.train_dataloader()]


def rows_at(problems, n, step, **options):
    """Rows as a step sees them, and what they should be: rows and targets of each problem."""
    seeds = [21, 22, 23]
    rows, N = minibatches(problems, n, seeds, step + 1, **options)[step], problems.N
    chosen = [np.arange(N) if n == "full" else chosen_rows(n, N, seed, step) for seed in seeds]
    Phi = torch.stack([problems.Phi[b, each] for b, each in enumerate(chosen)])
    return rows, Phi, torch.stack([problems.y[b, each] for b, each in enumerate(chosen)])


# --- Minibatches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 6, 12])
def test_rows_of_a_minibatch_are_distinct_and_of_the_problem(n):
    """With inputs for features the rows can be read off; √(N/n)/σ scales them, and σ² = 1 here."""
    problems = transparent(torch.from_numpy(np.random.default_rng(0).standard_normal((2, 12, 4))))
    seen = [[], []]
    for drawn in minibatches(problems, n, [1, 2], 60, compress=False):
        for b in range(2):
            rows = drawn.Phi[b, :n] / np.sqrt(12 / n)
            distance = torch.cdist(rows, problems.X[b])
            assert distance.amin(1).max() < 1e-6
            which = distance.argmin(1).tolist()
            assert len(set(which)) == n
            close(drawn.y[b, :n], problems.y[b, which] * np.sqrt(12 / n), rtol=1e-14)
            seen[b].append(tuple(which))
        assert not drawn.Phi[:, n:].any()
        assert not drawn.y[:, n:].any()
        assert drawn.Phi.shape[1] % 4 == 0
    if n < 12:
        assert min(len(set(draws)) for draws in seen) > 10
        assert seen[0] != seen[1]


def test_the_full_batch_has_the_inner_products_of_all_rows():
    """Compressed or not."""
    problems = synthetic(2, N=31, k=10)
    variance = problems.noise_variance[:, None, None]
    for rows in (Rows.whole(problems), Rows.whole(problems, compress=False)):
        close(rows.gram[:, :10, :10], problems.Phi.mT @ problems.Phi / variance, rtol=1e-12)
        expected = (problems.Phi.mT @ problems.y[..., None] / variance)[..., 0]
        close(rows.moment[:, :10], expected, rtol=1e-12, atol=1e-11)
        close(rows.y.square().sum(-1), problems.y.square().sum(-1) / problems.noise_variance, rtol=1e-13)


# --- Parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["full", "ffg"])
def test_a_posterior_is_a_copy(family):
    q = TrainableGaussian(family, B, K)
    posterior = q.posterior()
    with torch.no_grad():
        for parameter in q.parameters():
            parameter += 1
    assert torch.equal(posterior.mean, zeros(B, K))
    assert torch.equal(posterior.covariance_tril(), eye(K).repeat(B, 1, 1))
    assert torch.equal(q.posterior().mean, ones(B, K))
    e = f64(1.0).exp()
    assert torch.equal(q.posterior().covariance_tril().diagonal(dim1=1, dim2=2), e.expand(B, K))


# --- The whole objective's gradient -----------------------------------------------------------------------------------


def unconstrained(family, seed, k):
    """Leaves: mean and log scales, or mean and a lower triangle with its diagonal's logarithm."""
    mean, factor, scale = draw_q(seed, k)
    if family == "ffg":
        leaves = {"mean": mean, "log_scale": scale.log()}
    else:
        lower = factor.tril(-1) + torch.diag_embed(factor.diagonal(dim1=1, dim2=2).log())
        leaves = {"mean": mean, "lower": lower}
    return {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}


def take_over(q, leaves, k):
    """Sets q's parameters; dummy weights stay at the prior."""
    for name, parameter in q.named_parameters():
        leaf = leaves[name].detach()
        if name == "lower":
            parameter.data[:, :k, :k] = leaf
        else:
            parameter.data[:, :k] = leaf


@pytest.mark.parametrize("family", ["full", "ffg"])
@pytest.mark.parametrize("kl_weight", [1.0, 2.5, 0.0])
@pytest.mark.parametrize(("n", "step"), [("full", 0), (7, 2)])
@pytest.mark.parametrize(("k", "M"), [(8, 3), (8, 6), (8, 9), (10, 4), (10, 8), (10, 13)])
def test_the_gradient_in_the_unconstrained_parameters(k, M, n, step, kl_weight, family):
    problems = synthetic(B, k=k)
    rows, Phi, y = rows_at(problems, n, step)
    Phi_A = torch.from_numpy(np.random.default_rng([6, M]).standard_normal((B, M, k)))
    leaves = unconstrained(family, 7, k)
    loss, kl = automatic_loss(problems, Phi_A, kl_weight, leaves, (Phi, y))
    expected = dict(zip(leaves, torch.autograd.grad(3 * loss.sum(), list(leaves.values())), strict=True))
    q, A = TrainableGaussian(family, B, k), measure(fill_columns(Phi_A))
    take_over(q, leaves, k)
    got_kl = functional_kl(q(), A)
    got = expected_nll(q(), rows) + kl_weight * got_kl
    (3 * got.sum()).backward()
    close(got_kl.detach(), kl.detach())
    close(got.detach(), loss.detach())
    for name, parameter in q.named_parameters():
        whole, gradient = parameter.grad, expected[name]
        assert whole.shape == parameter.shape
        if name == "lower":
            close(whole[:, :k, :k].tril(), gradient.tril(), rtol=1e-9, atol=1e-9)
            assert not whole.triu(1).any()
            whole = whole.clone()
            whole[:, :k, :k] = 0
        else:
            close(whole[:, :k], gradient, rtol=1e-9, atol=1e-9)
            assert whole.shape[1] == filled(k, LINE)
            whole = whole[:, k:]
        # Dummy weights stay where they are, but for what rounding says: nothing, or 1 − 1/1² in units of eps.
        assert whole.abs().max() < 1e-14 if whole.numel() else k % 8 == 0
