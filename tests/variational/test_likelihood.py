"""Likelihood gradients, q's parameters, and the whole objective's gradient in them, against automatic differentiation."""

import numpy as np
import pytest
import torch
from fsvi_bench.maths.measurement import measure
from fsvi_bench.variational.gradients import set_gradient
from fsvi_bench.variational.likelihood import FullBatch, Rows, make_likelihood
from fsvi_bench.variational.measurement import CHUNK, align, aligned, stream_generator
from fsvi_bench.variational.parameters import make_parameters, rounded_up

from fsvi_bench.maths.blr import expected_log_likelihood
from tests.maths.draws import close, draw
from tests.variational import automatic_loss, synthetic, transparent

B, K = 3, 8


def draw_q(seed, k=K):
    """(mean, factor, scale) for B problems."""
    rng = np.random.default_rng(seed)
    return *draw(rng, B, k), torch.from_numpy(np.exp(0.5 * rng.standard_normal((B, k))))


def chosen_rows(n, N, seed, step):
    """Rows of a minibatch, drawn again from the stream's seed."""
    generator = stream_generator(seed, "minibatch rows")
    return [generator.choice(N, n, replace=False, shuffle=False) for _ in range(step + 1)][step]


def likelihood_at(problems, n, step):
    """A likelihood that stands at `step`, and what it should have: rows and targets of each problem, as leaves."""
    seeds = [21, 22, 23]
    likelihood = make_likelihood(problems, n, seeds)
    for _ in range(step + 1):
        likelihood.advance()
    N = problems.y.shape[1]
    chosen = [np.arange(N) if n == "full" else chosen_rows(n, N, seed, step) for seed in seeds]
    Phi = torch.stack([problems.Phi[b, rows] for b, rows in enumerate(chosen)])
    return likelihood, Phi, torch.stack([problems.y[b, rows] for b, rows in enumerate(chosen)])


MINIBATCHES = [("full", 0), (5, 0), (12, 3), (8, CHUNK + 1), (30, 0)]


# --- Gradients of the likelihood --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "step"), MINIBATCHES)
def test_gradients_equal_automatic_ones(n, step):
    problems = synthetic(B)
    likelihood, Phi, y = likelihood_at(problems, n, step)
    mean, factor, scale = draw_q(0)
    leaves = [tensor.clone().requires_grad_() for tensor in (mean, factor, scale.log())]
    variance = problems.noise_variance
    in_mean, in_factor = torch.autograd.grad(
        -expected_log_likelihood(Phi, y, variance, leaves[0], leaves[1], N=30).sum(), leaves[:2]
    )
    of_factorised = expected_log_likelihood(Phi, y, variance, mean, torch.diag_embed(leaves[2].exp()), N=30)
    (in_log_scale,) = torch.autograd.grad(-of_factorised.sum(), leaves[2])
    close(likelihood.mean_gradient(mean), in_mean, rtol=1e-12, atol=1e-10)  # sums of 30 terms of order 100
    start = torch.ones_like(factor)
    likelihood.add_factor_gradient(start, factor)
    close(start - 1, in_factor, rtol=1e-12, atol=1e-10)
    close(scale.square() * likelihood.precision_diagonal(), in_log_scale, rtol=1e-12, atol=1e-10)


def test_values_of_the_full_batch_differ_as_expected_log_likelihoods_do():
    problems = synthetic(B)
    likelihood, variance = FullBatch(problems), problems.noise_variance
    values, expected, diagonal, expected_diagonal = [], [], [], []
    for seed in (1, 2):
        mean, factor, scale = draw_q(seed)
        values.append(likelihood.value(mean, factor))
        expected.append(-expected_log_likelihood(problems.Phi, problems.y, variance, mean, factor))
        diagonal.append(likelihood.value_diagonal(mean, scale))
        spread = torch.diag_embed(scale)
        expected_diagonal.append(-expected_log_likelihood(problems.Phi, problems.y, variance, mean, spread))
        close(likelihood.value(mean, spread), diagonal[-1], rtol=1e-13)
    close(values[0] - values[1], expected[0] - expected[1], rtol=1e-12)
    close(diagonal[0] - diagonal[1], expected_diagonal[0] - expected_diagonal[1], rtol=1e-12)


def test_dummy_weights_do_not_matter():
    """k = 10 of 12: the dummies have no gradient, and the value does not see them."""
    problems, (mean, factor, _) = synthetic(B, k=10), draw_q(3, 12)
    likelihood = FullBatch(problems)
    changed_mean, changed_factor = mean.clone(), factor.clone()
    changed_mean[:, 10:], changed_factor[:, 10:] = 3.0, 5.0
    assert torch.equal(likelihood.value(changed_mean, changed_factor), likelihood.value(mean, factor))
    for of in (likelihood, Rows(problems, 7, [1, 2, 3])):
        of.advance()
        assert not of.mean_gradient(mean)[:, 10:].any()
        assert not of.precision_diagonal()[:, 10:].any()
        gradient = torch.zeros_like(factor)
        of.add_factor_gradient(gradient, factor)
        assert gradient[:, :10].any()
        assert not gradient[:, 10:].any()


# --- Minibatches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 6, 12])
def test_rows_of_a_minibatch_are_distinct_and_of_the_problem(n):
    """With inputs for features the rows can be read off; √(N/n)/σ scales them, and σ² = 1 here."""
    problems = transparent(torch.from_numpy(np.random.default_rng(0).standard_normal((2, 12, 4))))
    likelihood = Rows(problems, n, [1, 2])
    seen = [[], []]
    for _ in range(60):
        likelihood.advance()
        for b in range(2):
            rows = likelihood.rows[b, :n] / np.sqrt(12 / n)
            distance = torch.cdist(rows, problems.X[b])
            assert distance.amin(1).max() < 1e-6
            which = distance.argmin(1).tolist()
            assert len(set(which)) == n
            close(likelihood.targets[b, :n], problems.y[b, which] * np.sqrt(12 / n), rtol=1e-14)
            seen[b].append(tuple(which))
        assert not likelihood.rows[:, n:].any()
        assert likelihood.rows.shape[1] % 4 == 0
    if n < 12:
        assert min(len(set(draws)) for draws in seen) > 10
        assert seen[0] != seen[1]


def test_minibatch_gradients_are_unbiased():
    """Each of the 2·(8 + 8 + 64) components over 4000 minibatches of 6 out of 30 rows, within 4 standard errors."""
    problems = synthetic(2)
    mean, factor, _ = (tensor[:2] for tensor in draw_q(4))
    whole, likelihood, draws = FullBatch(problems), Rows(problems, 6, [7, 8]), []

    def gradients(of):
        in_factor = torch.zeros_like(factor)
        of.add_factor_gradient(in_factor, factor)
        return torch.cat([of.mean_gradient(mean), of.precision_diagonal(), in_factor.flatten(1)], dim=-1)

    for _ in range(4000):
        likelihood.advance()
        draws.append(gradients(likelihood))
    draws = torch.stack(draws)
    standard_error = draws.std(0) / np.sqrt(len(draws))
    z = (draws.mean(0) - gradients(whole)) / standard_error.clamp_min(1e-12)
    assert z.abs().max() < 4
    assert z.abs().max() > 0.5  # that many draws do scatter
    # The whole gradient is hundreds of standard errors away from 0: a wrong scale of N/n would be seen.
    assert (gradients(whole) / standard_error).abs().amax() > 100


def test_a_problem_has_the_same_minibatches_in_any_batch():
    problems, (mean, factor, _) = synthetic(B), draw_q(5)
    together = Rows(problems, 7, [1, 2, 3])
    alone = [Rows(problems.only(b), 7, [b + 1]) for b in range(B)]
    for _ in range(2 * CHUNK + 1):
        for likelihood in (together, *alone):
            likelihood.advance()
        whole = torch.zeros_like(factor)
        together.add_factor_gradient(whole, factor)
        for b, likelihood in enumerate(alone):
            one = torch.zeros_like(factor[:1])
            likelihood.add_factor_gradient(one, factor[b : b + 1].clone())
            assert torch.equal(one[0], whole[b])
            assert torch.equal(likelihood.mean_gradient(mean[b : b + 1].clone())[0], together.mean_gradient(mean)[b])
            assert torch.equal(likelihood.precision_diagonal()[0], together.precision_diagonal()[b])


def test_the_full_batch_is_bitwise_the_same_in_any_batch():
    problems = synthetic(7, N=31, k=12)
    whole = FullBatch(problems)
    for b in range(7):
        one = FullBatch(problems.only(b))
        assert torch.equal(one.precision[0], whole.precision[b])
        assert torch.equal(one.moment[0], whole.moment[b])


def test_the_kind_of_likelihood_follows_the_minibatch():
    problems = synthetic(1)
    assert isinstance(make_likelihood(problems, "full", [1]), FullBatch)
    assert isinstance(make_likelihood(problems, 30, [1]), FullBatch)
    assert isinstance(make_likelihood(problems, 29, [1]), Rows)


# --- Parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [5, 8])
@pytest.mark.parametrize("family", ["full", "ffg"])
def test_the_start_is_the_prior_itself(family, k):
    q = make_parameters(family, B, aligned(k))
    q.refresh()
    posterior = q.posterior(k)
    assert posterior.family == family
    assert torch.equal(posterior.mean, torch.zeros(B, k, dtype=torch.float64))
    assert torch.equal(posterior.covariance_tril(), torch.eye(k, dtype=torch.float64).repeat(B, 1, 1))
    assert all(parameter.dtype == torch.float64 for parameter in q.parameters())


@pytest.mark.parametrize("family", ["full", "ffg"])
def test_a_posterior_is_a_copy(family):
    q = make_parameters(family, B, K)
    posterior = q.posterior(K)
    with torch.no_grad():
        for parameter in q.parameters():
            parameter += 1
    q.refresh()
    assert torch.equal(posterior.mean, torch.zeros(B, K, dtype=torch.float64))
    assert torch.equal(posterior.covariance_tril(), torch.eye(K, dtype=torch.float64).repeat(B, 1, 1))
    assert torch.equal(q.posterior(K).mean, torch.ones(B, K, dtype=torch.float64))
    e = torch.tensor(1.0, dtype=torch.float64).exp()
    assert torch.equal(q.posterior(K).covariance_tril().diagonal(dim1=1, dim2=2), e.expand(B, K))


# --- The whole objective's gradient -----------------------------------------------------------------------------------


def unconstrained(family, seed, k):
    """Leaves: mean and log scales, or mean, strict lower triangle and log diagonal; and what they stand for."""
    mean, factor, scale = draw_q(seed, k)
    if family == "ffg":
        leaves = {"_mean": mean, "_log_scale": scale.log()}
    else:
        leaves = {"_mean": mean, "_factor": factor.tril(-1), "_log_diagonal": factor.diagonal(dim1=1, dim2=2).log()}
    return {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}


def take_over(q, leaves, k):
    """Sets q's parameters; dummy weights stay at the prior."""
    with torch.no_grad():
        for name, parameter in q.named_parameters():
            leaf = leaves[name].detach()
            if name == "_factor":
                parameter[:, :k, :k] = leaf.tril(-1)
            else:
                parameter[:, :k] = leaf
    q.refresh()


@pytest.mark.parametrize("family", ["full", "ffg"])
@pytest.mark.parametrize("kl_weight", [1.0, 2.5, 0.0])
@pytest.mark.parametrize(("n", "step"), [("full", 0), (7, 2)])
@pytest.mark.parametrize(("k", "M"), [(8, 3), (8, 6), (8, 9), (10, 4), (10, 8), (10, 13)])
def test_the_gradient_in_the_unconstrained_parameters(k, M, n, step, kl_weight, family):
    problems = synthetic(B, k=k)
    likelihood, Phi, y = likelihood_at(problems, n, step)
    Phi_A = torch.from_numpy(np.random.default_rng([6, M]).standard_normal((B, M, k)))
    leaves = unconstrained(family, 7, k)
    loss, kl = automatic_loss(problems, Phi_A, kl_weight, leaves, (Phi, y))
    expected = dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values())), strict=True))
    q = make_parameters(family, B, aligned(k))
    take_over(q, leaves, k)
    close(set_gradient(q, measure(align(Phi_A)), likelihood, kl_weight), kl.detach())
    for name, parameter in q.named_parameters():
        whole, gradient = parameter.grad, expected[name]
        assert whole.shape == parameter.shape
        if name == "_factor":
            close(whole[:, :k, :k], gradient, rtol=1e-9, atol=1e-9)
            assert not whole.triu().any()  # neither the diagonal, which has parameters of its own, nor what is above
            whole = whole.clone()
            whole[:, :k, :k] = 0
        else:
            close(whole[:, :k], gradient, rtol=1e-9, atol=1e-9)
            assert whole.shape[1] == rounded_up(k)
            whole = whole[:, k:]
        # Dummy weights stay where they are, but for what rounding says: nothing, or 1 − 1/1² in units of eps.
        assert whole.abs().max() < 1e-14 if whole.numel() else k % 8 == 0


@pytest.mark.parametrize("family", ["full", "ffg"])
@pytest.mark.parametrize("n", ["full", 30, 29])
def test_a_likelihood_that_is_no_number_shows_in_what_a_step_returns(n, family):
    """For that problem alone, and although the KL, which is otherwise returned, is a number."""
    problems, Phi_A = synthetic(B), torch.from_numpy(np.random.default_rng(8).standard_normal((B, 6, K)))
    problems.y[1] = float("nan")
    likelihood, q = make_likelihood(problems, n, [1, 2, 3]), make_parameters(family, B, K)
    likelihood.advance()
    returned = set_gradient(q, measure(Phi_A), likelihood, 1.0)
    assert returned.isnan().tolist() == [False, True, False]
    close(returned[::2], [0.0, 0.0], atol=1e-13)  # the KL of the prior to itself
