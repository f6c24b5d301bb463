"""The expected log likelihood, q's parameters, and the whole objective's gradient in them, against plain formulas."""

import numpy as np
import pytest
import torch

from fsvi_bench.maths.batching import LINE, filled
from fsvi_bench.maths.blr import expected_log_likelihood
from fsvi_bench.maths.functional_kl import Gaussian, functional_kl, measure
from fsvi_bench.methods.data import CHUNK, Rows, Streams, TaskData, expected_nll, fill_columns
from fsvi_bench.posteriors.trainable import TrainableGaussian
from tests.maths.draws import close, draw
from tests.methods.synthetic import automatic_loss, synthetic, transparent

B, K = 3, 8


def draw_q(seed, k=K):
    """(mean, factor, scale) for B problems."""
    rng = np.random.default_rng(seed)
    return *draw(rng, B, k), torch.from_numpy(np.exp(0.5 * rng.standard_normal((B, k))))


def chosen_rows(n, N, seed, step):
    """Rows of a minibatch, drawn again from the stream's seed."""
    (generator,) = Streams([seed])("minibatch rows")
    return [generator.choice(N, n, replace=False, shuffle=False) for _ in range(step + 1)][step]


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


def gradients(rows, *roots_and_mean):
    """∂/∂mean and ∂/∂root of the negative expected log likelihood."""
    leaves = [tensor.clone().requires_grad_() for tensor in roots_and_mean]
    return torch.autograd.grad(expected_nll(Gaussian(*leaves), rows).sum(), leaves)


MINIBATCHES = [("full", 0), (5, 0), (12, 3), (8, CHUNK + 1), (30, 0)]


# --- Gradients of the likelihood --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(("n", "step"), MINIBATCHES)
def test_values_and_gradients_equal_automatic_ones(n, step, compress):
    problems = synthetic(B)
    rows, Phi, y = rows_at(problems, n, step, compress=compress)
    mean, factor, scale = draw_q(0)
    leaves = [tensor.clone().requires_grad_() for tensor in (mean, factor, scale.log())]
    variance = problems.noise_variance
    of_full = -expected_log_likelihood(Phi, y, variance, leaves[0], leaves[1], N=30)
    in_mean, in_factor = torch.autograd.grad(of_full.sum(), leaves[:2])
    of_factorised = -expected_log_likelihood(Phi, y, variance, mean, torch.diag_embed(leaves[2].exp()), N=30)
    (in_log_scale,) = torch.autograd.grad(of_factorised.sum(), leaves[2])
    got_mean, got_factor = gradients(rows, mean, factor)
    close(got_mean, in_mean, rtol=1e-12, atol=1e-10)  # sums of 30 terms of order 100
    close(got_factor, in_factor, rtol=1e-12, atol=1e-10)
    same_mean, got_scale = gradients(rows, mean, scale)
    close(same_mean, in_mean, rtol=1e-12, atol=1e-10)
    close(scale * got_scale, in_log_scale, rtol=1e-12, atol=1e-10)
    # Of a minibatch the constant is the whole set's, too.
    close(expected_nll(Gaussian(mean, factor), rows), of_full.detach(), rtol=1e-12)
    close(expected_nll(Gaussian(mean, scale), rows), of_factorised.detach(), rtol=1e-12)
    close(expected_nll(Gaussian(mean, torch.diag_embed(scale)), rows), of_factorised.detach(), rtol=1e-12)


@pytest.mark.parametrize("n", ["full", 7])
def test_the_likelihood_passes_gradcheck(n):
    """With a full factor (by inner products of all rows, or by rows) and with scales."""
    rows, _, _ = rows_at(synthetic(B), n, 0)
    assert rows.is_whole == (n == "full")
    mean, factor, scale = (tensor.requires_grad_() for tensor in draw_q(1))
    below = torch.tril_indices(K, K)
    lower = factor.detach()[:, below[0], below[1]].requires_grad_()

    def of_full(mean, lower):
        tril = lower.new_zeros(B, K, K).index_put((torch.arange(B)[:, None], below[0], below[1]), lower)
        return expected_nll(Gaussian(mean, tril), rows)

    # Values of order 1e3 have digits of 1e-12, central differences over 2e-6 of 1e-6.
    assert torch.autograd.gradcheck(of_full, (mean, lower), rtol=1e-6, atol=1e-5)
    of_factorised = lambda *q: expected_nll(Gaussian(*q), rows)  # noqa: E731
    assert torch.autograd.gradcheck(of_factorised, (mean, scale), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("compress", [True, False])
def test_dummy_weights_do_not_matter(compress):
    """k = 10 of 12: the dummies have no gradient, and the value does not see them."""
    problems, (mean, factor, scale) = synthetic(B, k=10), draw_q(3, 12)
    whole = Rows.whole(problems, compress)
    changed_mean, changed_factor = mean.clone(), factor.clone()
    changed_mean[:, 10:], changed_factor[:, 10:] = 3.0, 5.0
    expected = expected_nll(Gaussian(mean, factor), whole)
    assert torch.equal(expected_nll(Gaussian(changed_mean, changed_factor), whole), expected)
    for rows in (whole, *minibatches(problems, 7, [1, 2, 3], 1)):
        in_mean, in_factor = gradients(rows, mean, factor)
        assert not in_mean[:, 10:].any()
        assert in_factor[:, :10].any()
        assert not in_factor[:, 10:].any()
        assert not gradients(rows, mean, scale)[1][:, 10:].any()


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


def test_minibatch_gradients_are_unbiased():
    """Each of the 2·(8 + 8 + 64) components over 4000 minibatches of 6 out of 30 rows, within 4 standard errors."""
    problems = synthetic(2)
    mean, factor, scale = (tensor[:2] for tensor in draw_q(4))

    def all_of(rows):
        (in_mean, in_factor), (_, in_scale) = gradients(rows, mean, factor), gradients(rows, mean, scale)
        return torch.cat([in_mean, in_scale, in_factor.flatten(1)], dim=-1)

    whole = all_of(Rows.whole(problems))
    draws = [all_of(rows) for rows in minibatches(problems, 6, [7, 8], 4000)]
    draws = torch.stack(draws)
    standard_error = draws.std(0) / np.sqrt(len(draws))
    z = (draws.mean(0) - whole) / standard_error.clamp_min(1e-12)
    assert z.abs().max() < 4
    assert z.abs().max() > 0.5  # that many draws do scatter
    # The whole gradient is hundreds of standard errors away from 0: a wrong scale of N/n would be seen.
    assert (whole / standard_error).abs().amax() > 100


def test_a_problem_has_the_same_minibatches_in_any_batch():
    problems, (mean, factor, scale) = synthetic(B), draw_q(5)
    steps = 2 * CHUNK + 1
    together = minibatches(problems, 7, [1, 2, 3], steps)
    alone = [minibatches(problems.only(b), 7, [b + 1], steps) for b in range(B)]
    for rows, *each in zip(together, *alone, strict=True):
        whole = *gradients(rows, mean, factor), *gradients(rows, mean, scale)
        for b, one in enumerate(each):
            q = [tensor[b : b + 1].clone() for tensor in (mean, factor, scale)]
            part = *gradients(one, q[0], q[1]), *gradients(one, q[0], q[2])
            for of_all, of_one in zip(whole, part, strict=True):
                assert torch.equal(of_one[0], of_all[b])


@pytest.mark.parametrize("compress", [True, False])
def test_the_full_batch_is_bitwise_the_same_in_any_batch(compress):
    problems = synthetic(7, N=31, k=12)
    whole = Rows.whole(problems, compress)
    for b in range(7):
        one = Rows.whole(problems.only(b), compress)
        for name in ("Phi", "y", "constant", "gram", "moment"):
            assert torch.equal(getattr(one, name)[0], getattr(whole, name)[b])


def test_the_full_batch_has_the_inner_products_of_all_rows():
    """Compressed or not."""
    problems = synthetic(2, N=31, k=10)
    variance = problems.noise_variance[:, None, None]
    for rows in (Rows.whole(problems), Rows.whole(problems, compress=False)):
        close(rows.gram[:, :10, :10], problems.Phi.mT @ problems.Phi / variance, rtol=1e-12)
        expected = (problems.Phi.mT @ problems.y[..., None] / variance)[..., 0]
        close(rows.moment[:, :10], expected, rtol=1e-12, atol=1e-11)
        close(rows.y.square().sum(-1), problems.y.square().sum(-1) / problems.noise_variance, rtol=1e-13)


def test_the_kind_of_rows_follows_the_minibatch():
    problems = synthetic(1)
    for n, is_whole in (("full", True), (30, True), (29, False)):
        one, other = minibatches(problems, n, [1], 2)
        assert one.is_whole == is_whole
        assert (one is other) == is_whole


# --- Parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [5, 8])
@pytest.mark.parametrize("family", ["full", "ffg"])
def test_the_start_is_the_prior_itself(family, k):
    q = TrainableGaussian(family, B, k)
    posterior = q.posterior()
    assert posterior.family == family
    assert torch.equal(posterior.mean, torch.zeros(B, k, dtype=torch.float64))
    assert torch.equal(posterior.covariance_tril(), torch.eye(k, dtype=torch.float64).repeat(B, 1, 1))
    assert all(parameter.dtype == torch.float64 for parameter in q.parameters())


@pytest.mark.parametrize("family", ["full", "ffg"])
def test_a_posterior_is_a_copy(family):
    q = TrainableGaussian(family, B, K)
    posterior = q.posterior()
    with torch.no_grad():
        for parameter in q.parameters():
            parameter += 1
    assert torch.equal(posterior.mean, torch.zeros(B, K, dtype=torch.float64))
    assert torch.equal(posterior.covariance_tril(), torch.eye(K, dtype=torch.float64).repeat(B, 1, 1))
    assert torch.equal(q.posterior().mean, torch.ones(B, K, dtype=torch.float64))
    e = torch.tensor(1.0, dtype=torch.float64).exp()
    assert torch.equal(q.posterior().covariance_tril().diagonal(dim1=1, dim2=2), e.expand(B, K))


def test_a_log_diagonal_triangle_passes_gradcheck():
    g = torch.Generator().manual_seed(0)
    q = TrainableGaussian("full", 2, 4)
    lower = torch.randn(2, 4, 4, generator=g, dtype=torch.float64).requires_grad_()

    def root(lower):
        q._parameters["lower"] = lower
        return q().root

    assert torch.equal(
        root(lower).detach(), lower.detach().tril(-1) + lower.detach().diagonal(dim1=1, dim2=2).exp().diag_embed()
    )
    assert torch.autograd.gradcheck(root, (lower,))


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
    expected = dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values())), strict=True))
    q, A = TrainableGaussian(family, B, k), measure(fill_columns(Phi_A))
    take_over(q, leaves, k)
    got_kl = functional_kl(q(), A)
    got = expected_nll(q(), rows) + kl_weight * got_kl
    got.sum().backward()
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


@pytest.mark.parametrize("family", ["full", "ffg"])
@pytest.mark.parametrize("n", ["full", 30, 29])
def test_a_likelihood_that_is_no_number_shows_in_the_loss(n, family):
    """For that problem alone, and although the KL is a number."""
    problems, Phi_A = synthetic(B), torch.from_numpy(np.random.default_rng(8).standard_normal((B, 6, K)))
    problems.y[1] = float("nan")
    (rows,), q = minibatches(problems, n, [1, 2, 3], 1), TrainableGaussian(family, B, K)
    kl = functional_kl(q(), measure(Phi_A)).detach()
    close(kl, [0.0, 0.0, 0.0], atol=1e-13)  # of the prior to itself
    assert (expected_nll(q(), rows) + kl).isnan().tolist() == [False, True, False]
