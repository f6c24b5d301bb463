"""Adam: against a textbook loop, averaging, learning rates, and what is said of divergence."""

import numpy as np
import pytest
import torch

from fsvi_bench.methods.base import AdamOptions, Method
from fsvi_bench.methods.fixed_a import FixedA
from fsvi_bench.training.trainer import train
from tests import reference
from tests.maths.draws import close, f64
from tests.methods.synthetic import FAMILIES, automatic_loss, features, synthetic


def adam_on(problems, Phi_A, family, **options):
    """FIXEDA by Adam, at a given set."""
    method = FixedA(problems, family, optimizer="adam", M=2, **options)
    method.Phi_A = Phi_A
    return method


def parameter_names(family):
    return ("mean", "log_scale") if family == "ffg" else ("mean", "lower")


def automatic_gradient(problem, Phi_A, family):
    """The objective's gradient in one vector of unconstrained parameters, automatically."""
    k = problem.k
    shapes = [(1, k), (1, k) if family == "ffg" else (1, k, k)]
    sizes = [int(np.prod(shape)) for shape in shapes]

    def gradient(x):
        parts = torch.from_numpy(x).split(sizes)
        leaves = [part.reshape(shape).requires_grad_() for part, shape in zip(parts, shapes, strict=True)]
        loss, _ = automatic_loss(problem, Phi_A, 1.0, dict(zip(parameter_names(family), leaves, strict=True)))
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss.sum(), leaves)]).numpy()

    return gradient, np.zeros(sum(sizes))


def flattened(q, family, b, k):
    """One problem's unconstrained parameters as a vector, in `automatic_gradient`'s order."""
    mean, last = (parameter.detach()[b] for parameter in q.parameters())
    last = last[:k] if family == "ffg" else last[:k, :k].tril().flatten()
    return torch.cat([mean[:k], last]).numpy()


@FAMILIES
@pytest.mark.parametrize(
    ("k", "M", "schedule"), [(8, 3, "constant"), (8, 6, "cosine"), (8, 9, "linear"), (10, 6, "constant")]
)
def test_adam_is_the_textbook_s_for_every_problem(k, M, schedule, family):
    """50 steps of each of three problems alone, with automatic gradients, against the batch: rounding only."""
    problems, Phi_A = synthetic(3, k=k), features(0, 3, M, k)
    method = adam_on(problems, Phi_A, family, lr=0.03, lr_schedule=schedule, max_steps=50)
    train(method, "cpu")
    for b in range(3):
        gradient, start = automatic_gradient(problems.only(b), Phi_A[b : b + 1], family)
        rates = [0.03 * method.options.decay(step) for step in range(50)]
        expected = reference.adam(gradient, start, rates)[-1]
        np.testing.assert_allclose(flattened(method.q, family, b, k), expected, rtol=0, atol=1e-10)
    assert method.diverged_at.tolist() == [-1, -1, -1]
    assert method.evaluations() == [50, 50, 50]
    assert method.stopped_after() == [None, None, None]


@FAMILIES
def test_adam_averages_the_iterates_of_the_tail(family):
    """A share of 0.3 of 20 steps is the last 6 of them; parameters are averaged, not what they stand for."""
    problems, Phi_A = synthetic(2), features(1, 2, 5)
    averaged, plain = (adam_on(problems, Phi_A, family, lr=0.05, max_steps=20, averaging=a) for a in (0.3, 0.0))
    iterates, posteriors = [], []

    def note(steps, seconds):
        iterates.append([flattened(plain.q, family, b, 8) for b in range(2)])
        posteriors.append(plain.posterior())

    def compare(steps, seconds):
        """Nothing is averaged yet: the posterior is the iterate itself."""
        assert torch.equal(averaged.posterior().mean, posteriors[steps - 1].mean)
        assert torch.equal(averaged.posterior().covariance_tril(), posteriors[steps - 1].covariance_tril())

    train(plain, "cpu", note, range(1, 21))
    train(averaged, "cpu", compare, range(1, 15))
    for b in range(2):
        expected = torch.from_numpy(np.mean(iterates[14:], axis=0)[b])
        q = averaged.posterior()[b]
        close(q.mean, expected[:8], rtol=1e-13, atol=1e-15)
        tril, last = q.covariance_tril(), expected[8:]
        if family == "full":
            last = last.reshape(8, 8)
            close(tril.tril(-1), last.tril(-1), rtol=1e-13, atol=1e-15)
            last = last.diagonal()
        close(tril.diagonal(), last.exp(), rtol=1e-13)
    # To look at the average does not change where the descent stands.
    for one, two in zip(averaged.q.parameters(), plain.q.parameters(), strict=True):
        assert torch.equal(one, two)


def test_learning_rates():
    def rates(schedule):
        options = AdamOptions(lr=0.2, lr_schedule=schedule, max_steps=8)
        return lambda step: 0.2 * options.decay(step)

    constant, linear, cosine = map(rates, ("constant", "linear", "cosine"))
    assert [constant(step) for step in (0, 4, 7)] == [0.2, 0.2, 0.2]
    assert [linear(step) for step in (0, 2, 4, 7)] == pytest.approx([0.2, 0.15, 0.1, 0.025], rel=1e-14)
    expected = [0.1 * (1 + np.cos(np.pi * step / 8)) for step in range(8)]
    assert [cosine(step) for step in range(8)] == pytest.approx(expected, rel=1e-12)
    assert cosine(0) == 0.2
    assert cosine(4) == pytest.approx(0.1, rel=1e-14)


class Scripted(Method):
    """A quadratic per problem, whose losses are as scripted: [steps][problem]."""

    Options = AdamOptions

    def __init__(self, losses, bad_gradient):
        super().__init__(synthetic(len(losses[0])), "ffg", lr=0.1, max_steps=len(losses), minibatch="full")
        self.losses, self.bad_gradient = losses, bad_gradient

    def loss(self, q, batch):
        scripted = f64(self.losses[self.steps_done])
        quadratic = 0.5 * (q.mean - 1.0).square().sum(-1)
        if self.bad_gradient:
            quadratic = quadratic * torch.where(scripted.isfinite(), 1.0, torch.nan)
        return scripted + (quadratic - quadratic.detach())


def scripted(losses, bad_gradient, observe=None, at=()):
    method = Scripted(losses, bad_gradient)
    train(method, "cpu", observe and (lambda steps, seconds: observe(method)), at)
    return method


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
    seen = []
    method = scripted(losses, bad_gradient, lambda method: seen.append(method.diverged_at.tolist()), [2])
    healthy = scripted([[1.0]] * 5, False)
    assert seen == [[-1, 1, -1, -1]]
    assert method.diverged_at.tolist() == [-1, 1, 2, 4]
    assert method.stopped_after() == [None, 2, 3, 5]
    assert torch.equal(method.posterior().mean[0], healthy.posterior().mean[0])
    assert bool(method.posterior().mean[1].isnan().all()) == bad_gradient


def test_a_run_is_finished_when_all_its_problems_have_diverged():
    nan, seen = float("nan"), []
    losses = [[1.0, nan], [1.0, 1.0], [nan, 1.0], [1.0, 1.0], [1.0, 1.0]]
    method = scripted(losses, True, lambda method: seen.append((method.steps_done, method.finished)), [2])
    assert seen == [(2, False), (3, True)]  # looked at where it ended
    assert method.finished
    assert method.diverged_at.tolist() == [2, 0]
