"""Adam: against a textbook loop, averaging, learning rates, and what it says of divergence."""

import numpy as np
import pytest
import torch
from fsvi_bench.maths.measurement import measure
from fsvi_bench.variational.descent import AdamDescent, DivergenceLog, LearningRate
from fsvi_bench.variational.gradients import set_gradient
from fsvi_bench.variational.likelihood import FullBatch
from fsvi_bench.variational.measurement import align, aligned
from fsvi_bench.variational.parameters import make_parameters

from tests import reference
from tests.maths.draws import close
from tests.variational import FAMILIES, automatic_loss, features, synthetic


def adam_on(problems, Phi_A, family, learning_rate, **options):
    """FIXEDA by Adam."""
    q = make_parameters(family, len(problems), aligned(problems.k))
    measurement, likelihood = measure(align(Phi_A)), FullBatch(problems)
    return AdamDescent(q, lambda: set_gradient(q, measurement, likelihood, 1.0), learning_rate, **options)


def parameter_names(family):
    return ("_mean", "_log_scale") if family == "ffg" else ("_mean", "_factor", "_log_diagonal")


def automatic_gradient(problem, Phi_A, family):
    """The objective's gradient in one vector of unconstrained parameters, automatically."""
    k = problem.k
    shapes = [(1, k), (1, k)] if family == "ffg" else [(1, k), (1, k, k), (1, k)]
    sizes = [int(np.prod(shape)) for shape in shapes]

    def gradient(x):
        parts = torch.from_numpy(x).split(sizes)
        leaves = [part.reshape(shape).requires_grad_() for part, shape in zip(parts, shapes, strict=True)]
        loss, _ = automatic_loss(problem, Phi_A, 1.0, dict(zip(parameter_names(family), leaves, strict=True)))
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss.sum(), leaves)]).numpy()

    return gradient, np.zeros(sum(sizes))


def flattened(q, family, b, k):
    """One problem's unconstrained parameters as a vector, in `automatic_gradient`'s order."""
    parameters = dict(q.named_parameters())
    mean, last = parameters["_mean"][b, :k], parameters[parameter_names(family)[-1]][b, :k]
    below = [] if family == "ffg" else [parameters["_factor"][b, :k, :k].tril(-1).flatten()]
    return torch.cat([mean, *below, last]).detach().numpy()


@FAMILIES
@pytest.mark.parametrize(
    ("k", "M", "schedule"), [(8, 3, "constant"), (8, 6, "cosine"), (8, 9, "linear"), (10, 6, "constant")]
)
def test_adam_is_the_textbook_s_for_every_problem(k, M, schedule, family):
    """50 steps of each of three problems alone, with automatic gradients, against the batch: rounding only."""
    problems, Phi_A, learning_rate = synthetic(3, k=k), features(0, 3, M, k), LearningRate(0.03, schedule, 50)
    descent = adam_on(problems, Phi_A, family, learning_rate)
    descent.run(range(20))
    descent.run(range(20, 50))
    for b in range(3):
        gradient, start = automatic_gradient(problems.only(b), Phi_A[b : b + 1], family)
        expected = reference.adam(gradient, start, [learning_rate(step) for step in range(50)])[-1]
        np.testing.assert_allclose(flattened(descent.q, family, b, k), expected, rtol=0, atol=1e-10)
    assert descent.diverged_at.tolist() == [-1, -1, -1]
    assert descent.evaluations == [50, 50, 50]
    assert not descent.finished


@FAMILIES
def test_adam_averages_the_iterates_of_the_tail(family):
    """A share of 0.3 of 20 steps is the last 6 of them; parameters are averaged, not what they stand for."""
    problems, Phi_A, learning_rate = synthetic(2), features(1, 2, 5), LearningRate(0.05, "constant", 20)
    descent = adam_on(problems, Phi_A, family, learning_rate, averaging=0.3)
    plain = adam_on(problems, Phi_A, family, learning_rate)
    iterates = []
    for step in range(20):
        plain.run(range(step, step + 1))
        descent.run(range(step, step + 1))
        iterates.append([flattened(plain.q, family, b, 8) for b in range(2)])
        if step < 14:  # nothing is averaged yet: the posterior is the iterate itself
            assert torch.equal(descent.posterior(8).mean, plain.posterior(8).mean)
            assert torch.equal(descent.posterior(8).covariance_tril(), plain.posterior(8).covariance_tril())
    for b in range(2):
        expected = torch.from_numpy(np.mean(iterates[14:], axis=0)[b])
        averaged = descent.posterior(8)[b]
        close(averaged.mean, expected[:8], rtol=1e-13, atol=1e-15)
        tril = averaged.covariance_tril()
        close(tril.diagonal(), expected[-8:].exp(), rtol=1e-13)
        if family == "full":
            close(tril.tril(-1).flatten(), expected[8:72], rtol=1e-13, atol=1e-15)
    # To look at the average does not change where the descent stands.
    for one, two in zip(descent.q.parameters(), plain.q.parameters(), strict=True):
        assert torch.equal(one, two)


@FAMILIES
def test_an_adam_run_does_not_depend_on_how_it_is_cut_nor_on_the_batch(family):
    problems, Phi_A, learning_rate = synthetic(5, k=12), features(2, 5, 7, 12), LearningRate(0.03, "linear", 30)
    whole = adam_on(problems, Phi_A, family, learning_rate, averaging=0.5)
    whole.run(range(30))
    for b in range(5):
        alone = adam_on(problems.only(b), Phi_A[b : b + 1].clone(), family, learning_rate, averaging=0.5)
        for start in range(0, 30, 6):
            alone.run(range(start, start + 6))
        assert torch.equal(alone.posterior(12).mean[0], whole.posterior(12).mean[b])
        assert torch.equal(alone.posterior(12).covariance_tril()[0], whole.posterior(12).covariance_tril()[b])


def test_learning_rates():
    constant, linear, cosine = (LearningRate(0.2, schedule, 8) for schedule in ("constant", "linear", "cosine"))
    assert [constant(step) for step in (0, 4, 7)] == [0.2, 0.2, 0.2]
    assert [linear(step) for step in (0, 2, 4, 7)] == pytest.approx([0.2, 0.15, 0.1, 0.025], rel=1e-14)
    expected = [0.1 * (1 + np.cos(np.pi * step / 8)) for step in range(8)]
    assert [cosine(step) for step in range(8)] == pytest.approx(expected, rel=1e-12)
    assert cosine(0) == 0.2
    assert cosine(4) == pytest.approx(0.1, rel=1e-14)


def scripted(losses, bad_gradient):
    """An Adam run of one quadratic per problem, whose losses are as scripted: [steps][problem]."""
    q = make_parameters("ffg", len(losses[0]), 8)
    steps = iter(losses)

    def gradient():
        loss = torch.tensor(next(steps), dtype=torch.float64)
        in_mean = q.mean - 1.0
        if bad_gradient:
            in_mean = torch.where(loss.isfinite()[:, None], in_mean, torch.nan)
        q.set_gradient(in_mean, torch.zeros_like(in_mean))
        return loss

    return AdamDescent(q, gradient, LearningRate(0.1, "constant", len(losses)))


@pytest.mark.parametrize("bad_gradient", [False, True])
def test_divergence_is_noted_at_the_first_bad_step_of_that_problem(bad_gradient):
    nan, inf = float("nan"), float("inf")
    losses = [
        [1.0, 1.0, 1.0, 1.0],
        [1.0, nan, 1.0, 1.0],
        [1.0, nan, inf, 1.0],
        [1.0, 1.0, -inf, 1.0],
        [1.0, 1.0, 1.0, nan],
    ]
    descent, healthy = scripted(losses, bad_gradient), scripted([[1.0]] * 5, False)
    descent.run(range(2))
    assert descent.diverged_at.tolist() == [-1, 1, -1, -1]
    descent.run(range(2, 5))
    healthy.run(range(5))
    assert descent.diverged_at.tolist() == [-1, 1, 2, 4]
    assert not descent.finished
    assert torch.equal(descent.posterior(8).mean[0], healthy.posterior(8).mean[0])
    assert bool(descent.posterior(8).mean[1].isnan().all()) == bad_gradient


def test_a_run_is_finished_when_all_its_problems_have_diverged():
    nan = float("nan")
    descent = scripted([[1.0, nan], [1.0, 1.0], [nan, 1.0]], True)
    descent.run(range(2))
    assert not descent.finished
    descent.run(range(2, 3))
    assert descent.finished
    assert descent.diverged_at.tolist() == [2, 0]


def test_a_log_keeps_the_first_step():
    log = DivergenceLog(3, torch.device("cpu"))
    assert log.steps.tolist() == [-1, -1, -1]
    log.note(0, torch.tensor([0.0, float("nan"), 0.0]))
    log.note(5, torch.tensor([0.0, float("nan"), float("inf")]))
    assert log.steps.tolist() == [-1, 0, 5]


def test_a_set_that_is_not_finite_diverges_alone_and_at_once():
    problems, Phi_A, learning_rate = synthetic(3), features(3, 3, 6), LearningRate(0.03, "constant", 10)
    healthy = adam_on(problems, Phi_A, "full", learning_rate)
    Phi_A = Phi_A.clone()
    Phi_A[1, 0, 0] = float("nan")
    descent = adam_on(problems, Phi_A, "full", learning_rate)
    for run in (healthy, descent):
        run.run(range(10))
    assert descent.diverged_at.tolist() == [-1, 0, -1]
    assert torch.equal(descent.posterior(8).mean[::2], healthy.posterior(8).mean[::2])
    assert torch.equal(descent.posterior(8).covariance_tril()[::2], healthy.posterior(8).covariance_tril()[::2])
