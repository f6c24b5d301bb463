"""L-BFGS, one search per problem: closed-form optima, convergence, divergence, and each one's independence."""

import itertools
import math

import pytest
import torch
from fsvi_bench.maths.measurement import measure
from fsvi_bench.variational.gradients import set_gradient
from fsvi_bench.variational.lbfgs import LbfgsDescent
from fsvi_bench.variational.likelihood import FullBatch
from fsvi_bench.variational.measurement import align, aligned
from fsvi_bench.variational.parameters import make_parameters

from fsvi_bench.maths.blr import mean_field_optimum_scale
from tests.maths.draws import close
from tests.variational import FAMILIES, exact, features, kl_to, synthetic


def lbfgs_on(problems, Phi_A, family, kl_weight=1.0, broken=lambda problem, calls: False):
    """FIXEDA by L-BFGS; `calls` counts each problem's evaluations. The loss is NaN from where `broken` says so."""
    parameters, losses, calls = [], [], [0] * len(problems)

    def loss_of(b):
        q, likelihood = parameters[b], FullBatch(problems.only(b))
        measurement = measure(align(Phi_A[b : b + 1].clone()), avoid_inverse=True)

        def loss():
            calls[b] += 1
            kl = set_gradient(q, measurement, likelihood, kl_weight)
            value = (
                likelihood.value(q.mean, q.factor) if family == "full" else likelihood.value_diagonal(q.mean, q.scale)
            )
            return math.nan if broken(b, calls[b]) else float(value + kl_weight * kl)

        return loss

    for b in range(len(problems)):
        parameters.append(make_parameters(family, 1, aligned(problems.k)))
        losses.append(loss_of(b))
    return LbfgsDescent(parameters, losses), calls


@pytest.mark.parametrize("kl_weight", [1.0, 2.0])
@pytest.mark.parametrize(("k", "M"), [(8, 9), (6, 7)])
def test_lbfgs_reaches_the_closed_form_optimum_where_a_sees_every_weight(k, M, kl_weight):
    """The gradient is below 1e-7 there, or the loss of order 100 no longer moves by 1e-12: KLs of 1e-10 either way."""
    problems, Phi_A = synthetic(2, k=k), features(4, 2, M, k)
    p = exact(problems, kl_weight)
    for family in ("full", "ffg"):
        descent, _ = lbfgs_on(problems, Phi_A, family, kl_weight)
        descent.run(range(2000))
        assert descent.finished
        assert descent.diverged_at.tolist() == [-1, -1]
        q = descent.posterior(k)
        assert q.family == family
        expected = torch.zeros(2, dtype=torch.float64)
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
    descent, calls = lbfgs_on(problems, Phi_A, "full")
    descent.run(range(40))
    assert not descent.finished
    after = list(calls)
    assert descent.evaluations == after
    assert after[0] < 40 < after[1]
    for start in range(40, 400, 40):
        descent.run(range(start, start + 40))
    assert descent.evaluations == calls
    assert calls[0] == after[0]
    assert calls[1] > after[1]
    assert descent.finished
    close(kl_to(descent.posterior(8), exact(problems)), [0.0, 0.0], atol=1e-9)


@FAMILIES
@pytest.mark.parametrize("cuts", [(1,), (5, 6), (64,)])
def test_an_lbfgs_run_does_not_depend_on_how_it_is_cut(family, cuts):
    """To convergence and beyond, in one range, in single steps, and in ranges like a trainer's."""
    problems, Phi_A = synthetic(2), features(6, 2, 9)
    whole, _ = lbfgs_on(problems, Phi_A, family)
    cut, _ = lbfgs_on(problems, Phi_A, family)
    whole.run(range(600))
    start, sizes = 0, itertools.cycle(cuts)
    while start < 600:
        stop = min(start + next(sizes), 600)
        cut.run(range(start, stop))
        start = stop
    assert whole.finished
    assert cut.stopped_after == whole.stopped_after
    assert cut.evaluations == whole.evaluations
    assert torch.equal(whole.posterior(8).mean, cut.posterior(8).mean)
    assert torch.equal(whole.posterior(8).covariance_tril(), cut.posterior(8).covariance_tril())


@FAMILIES
def test_lbfgs_is_pytorch_s_own_uncut_run(family):
    """Twelve iterations in one call of the optimiser give the same q; a step's first point is not evaluated anew."""
    problems, Phi_A = synthetic(1), features(6, 1, 9)
    (descent, calls), (uncut, _) = lbfgs_on(problems, Phi_A, family), lbfgs_on(problems, Phi_A, family)
    search = uncut.searches[0]
    search.optimizer.param_groups[0].update(max_iter=12, max_eval=1000)
    search.iterate(0)
    descent.run(range(12))
    assert descent.stopped_after == [None]
    assert torch.equal(descent.posterior(8).mean, uncut.posterior(8).mean)
    assert torch.equal(descent.posterior(8).covariance_tril(), uncut.posterior(8).covariance_tril())
    assert descent.evaluations == calls
    assert calls[0] <= uncut.evaluations[0] + 3


def test_lbfgs_notes_a_loss_that_is_no_number_for_that_problem_alone():
    problems, Phi_A = synthetic(3), features(7, 3, 9)
    healthy, _ = lbfgs_on(problems, Phi_A, "full")
    descent, _ = lbfgs_on(problems, Phi_A, "full", broken=lambda problem, count: problem == 1)
    for start in range(0, 300, 20):
        descent.run(range(start, start + 20))
        healthy.run(range(start, start + 20))
    assert descent.diverged_at.tolist() == [-1, 0, -1]
    assert descent.stopped_after[1] == 1
    assert descent.finished
    assert torch.equal(descent.posterior(8).mean[::2], healthy.posterior(8).mean[::2])


def test_lbfgs_stays_where_no_step_gives_a_number():
    """From the eleventh evaluation on everything is NaN: the search turns back to the best point that it knows."""
    problems, Phi_A = synthetic(1), features(7, 1, 9)
    descent, _ = lbfgs_on(problems, Phi_A, "full", broken=lambda problem, count: count > 10)
    descent.run(range(300))
    assert descent.finished
    assert descent.stopped_after[0] < 20
    assert descent.diverged_at.tolist() == [-1]
    assert descent.posterior(8).covariance_tril().isfinite().all()
