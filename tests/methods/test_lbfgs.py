"""L-BFGS, one search per problem: closed-form optima, convergence, divergence, and each one's independence."""

import math

import pytest
import torch

from fsvi_bench.maths.blr import mean_field_optimum_scale
from fsvi_bench.maths.functional_kl import functional_kl, measure
from fsvi_bench.methods.data import Rows, expected_nll
from fsvi_bench.methods.fixed_a import FixedA
from fsvi_bench.methods.lbfgs import LBFGS
from fsvi_bench.posteriors.trainable import TrainableGaussian
from fsvi_bench.training.trainer import train
from tests.maths.draws import close, zeros
from tests.methods.synthetic import FAMILIES, exact, features, kl_to, synthetic


class Watched(FixedA):
    """FIXEDA at a given set; `calls` counts each problem's losses. A loss is NaN from where `broken` says so."""

    def __init__(self, problems, Phi_A, family, kl_weight=1.0, steps=2000, broken=lambda problem, calls: False):
        super().__init__(problems, family, M=2, kl_weight=kl_weight, max_steps=steps)
        self.Phi_A, self.broken, self.calls, self.place = Phi_A, broken, [0] * len(problems), 0

    def _iterate(self, place, optimizer, batch):
        self.place = place
        return super()._iterate(place, optimizer, batch)

    def loss(self, q, batch):
        self.calls[self.place] += 1
        loss = super().loss(q, batch)
        return loss * math.nan if self.broken(self.place, self.calls[self.place]) else loss


def test_learning_rates_do_not_affect_it():
    starts = [FixedA(synthetic(1), "full", M=2, off_diagonal_lr=rate).q.state_dict() for rate in (1.0, 0.01)]
    assert all(torch.equal(one, starts[1][name]) for name, one in starts[0].items())


def trained(*arguments, observe=None, at=(), **options):
    method = Watched(*arguments, **options)
    train(method, "cpu", observe and (lambda steps, seconds: observe(method)), at)
    return method


@pytest.mark.parametrize("kl_weight", [1.0, 2.0])
@pytest.mark.parametrize(("k", "M"), [(8, 9), (6, 7)])
def test_lbfgs_reaches_the_closed_form_optimum_where_a_sees_every_weight(k, M, kl_weight):
    """The gradient is below 1e-7 there, or the loss of order 100 no longer moves by 1e-12: KLs of 1e-10 either way."""
    problems, Phi_A = synthetic(2, k=k), features(4, 2, M, k)
    p = exact(problems, kl_weight)
    for family in ("full", "ffg"):
        method = trained(problems, Phi_A, family, kl_weight)
        assert method.finished
        assert None not in method.stopped_after()
        assert method.diverged_at.tolist() == [-1, -1]
        q = method.posterior()
        assert q.family == family
        expected = zeros(2)
        if family == "ffg":
            expected = kl_to(type(q)(p.mean, mean_field_optimum_scale(p.precision_tril)), p)
            close(q.scale, mean_field_optimum_scale(p.precision_tril), rtol=1e-5)
        close(kl_to(q, p), expected, rtol=0, atol=1e-9)
        close(q.mean, p.mean, rtol=0, atol=1e-5)


def test_lbfgs_stops_a_problem_that_has_converged_while_another_goes_on():
    """Problem 0 has no targets and a prior for its optimum, but for the covariance; problem 1 needs many more steps."""
    problems, Phi_A = synthetic(2), features(5, 2, 9)
    problems.Phi[0] = 0.0
    problems.Phi[0, 0, 0] = 0.1
    after = []

    def look(method):
        assert method.evaluations() == method.calls
        if method.steps_done == 40:
            assert not method.finished
            after.extend(method.calls)

    method = trained(problems, Phi_A, "full", steps=400, observe=look, at=[40])
    assert after[0] < 40 < after[1]
    assert method.evaluations() == method.calls
    assert method.calls[0] == after[0]
    assert method.calls[1] > after[1]
    assert None not in method.stopped_after()
    close(kl_to(method.posterior(), exact(problems)), [0.0, 0.0], atol=1e-9)


@FAMILIES
def test_lbfgs_is_pytorch_s_own_uncut_run(family):
    """Twelve iterations in one call of the optimiser give the same q; a step's first point is not evaluated anew."""
    problems, A = synthetic(1), measure(features(6, 1, 9), span=True)
    rows, calls = Rows.whole(problems), {}

    def loss_of(name, q):
        def loss():
            calls[name] = calls.get(name, 0) + 1
            return (expected_nll(q(), rows) + functional_kl(q(), A))[0]

        return loss

    ours, theirs = TrainableGaussian(family, 1, 8), TrainableGaussian(family, 1, 8)
    optimizer, loss = LBFGS(ours.parameters()), loss_of("ours", ours)
    for _ in range(12):
        optimizer.step(loss)
    assert not optimizer.converged
    group = {**optimizer.param_groups[0], "max_iter": 12, "max_eval": 1000}
    names = ("lr", "max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size", "line_search_fn")
    uncut, loss_of_uncut = (
        torch.optim.LBFGS(theirs.parameters(), **{name: group[name] for name in names}),
        loss_of("theirs", theirs),
    )

    def closure():
        uncut.zero_grad()
        value = loss_of_uncut()
        value.backward()
        return value

    uncut.step(closure)
    assert torch.equal(ours.posterior().mean, theirs.posterior().mean)
    assert torch.equal(ours.posterior().covariance_tril(), theirs.posterior().covariance_tril())
    assert calls["ours"] <= calls["theirs"] + 3


def test_lbfgs_notes_a_loss_that_is_no_number_for_that_problem_alone():
    problems, Phi_A = synthetic(3), features(7, 3, 9)
    healthy = trained(problems, Phi_A, "full", steps=300)
    method = trained(problems, Phi_A, "full", steps=300, broken=lambda problem, count: problem == 1)
    assert method.diverged_at.tolist() == [-1, 0, -1]
    assert method.stopped_after()[1] == 1
    assert None not in method.stopped_after()
    assert torch.equal(method.posterior().mean[::2], healthy.posterior().mean[::2])
    assert torch.equal(method.posterior().covariance_tril()[::2], healthy.posterior().covariance_tril()[::2])


def test_lbfgs_stays_where_no_step_gives_a_number():
    """From the eleventh evaluation on everything is NaN: the search turns back to the best point that it knows."""
    problems, Phi_A = synthetic(1), features(7, 1, 9)
    method = trained(problems, Phi_A, "full", steps=300, broken=lambda problem, count: count > 10)
    assert method.finished
    assert method.stopped_after()[0] < 20
    assert method.diverged_at.tolist() == [-1]
    assert method.posterior().covariance_tril().isfinite().all()
