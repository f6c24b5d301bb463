"""What FIXEDA, RANDA, SSGE, natural gradients and mean-field VI compute, against what the mathematics says they must."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from fsvi_bench.maths.blr import mean_field_optimum_scale
from fsvi_bench.methods import ssge
from fsvi_bench.methods.base import TrainingProblems
from fsvi_bench.methods.registry import load_method
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian, unstack
from fsvi_bench.scoring.objective import ExpectedFunctionalKL, FixedFunctionalKL, WeightSpaceKL
from fsvi_bench.scoring.scores import kl_and_nlpd, score
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.problem import load_problem
from fsvi_bench.tasks.task import read_task
from fsvi_bench.training.trainer import train
from fsvi_bench.variational.gradients import set_gradient
from fsvi_bench.variational.likelihood import FullBatch
from fsvi_bench.variational.measurement import MeasurementDesign, MeasurementStream
from fsvi_bench.variational.parameters import FullParameters, make_parameters
from tests import reference as twin
from tests.conftest import REFERENCE
from tests.methods.test_conformance import odd_problems, take, toys

EXPECTED = json.loads((REFERENCE / "expected.json").read_text())
f64 = torch.float64
families = pytest.mark.parametrize("family", ["full", "ffg"])


def method_on(name, data, family, settings=None, seeds=None, **options):
    """A method set up as Lightning's hook does it, without training."""
    entry = load_method(name)
    seeds = list(range(1, len(data) + 1)) if seeds is None else seeds
    return entry.cls(data, family, entry.options(settings or {}), seeds, **options)


def trained(name, data, family, settings, observe=None, at=(), **options):
    method = method_on(name, data, family, settings, **options)
    train(method, "cpu", observe, at)
    assert list(method.divergences()) == [None] * len(data)
    return method


def random_q(family, k, seed=0):
    """Mean, and a covariance factor far from the prior's."""
    g = torch.Generator().manual_seed(seed)
    mean, draw = torch.randn(k, generator=g, dtype=f64), torch.randn(k, k, generator=g, dtype=f64)
    scale = torch.exp(0.5 * draw.diagonal())
    return mean, torch.diag(scale) + (0.3 * draw.tril(-1) if family == "full" else 0)


def place(q, mean, tril):
    """Moves parameters (of one problem) to a given q; dummy weights stay at the prior."""
    k = len(mean)
    q._mean.data[0, :k] = mean
    if isinstance(q, FullParameters):
        q._factor.data[0, :k, :k] = tril
        q._log_diagonal.data[0, :k] = tril.diagonal().log()
    else:
        q._log_scale.data[0, :k] = tril.diagonal().log()
    q.refresh()


def gradients(q, k):
    """∂/∂mean, ∂/∂(strictly lower L) and ∂/∂(log diagonal), as set; zero for dummy weights."""
    parts = [q._mean.grad[0], q._log_diagonal.grad[0] if isinstance(q, FullParameters) else q._log_scale.grad[0]]
    for part in parts:
        assert not part[k:].any()
    if not isinstance(q, FullParameters):
        return parts[0][:k], torch.zeros(0, dtype=f64), parts[1][:k]
    factor = q._factor.grad[0]
    assert not factor.triu().any()
    assert not factor[k:].any()
    return parts[0][:k], factor[:k, :k][tuple(torch.tril_indices(k, k, -1))], parts[1][:k]


def negative_elbo(data, mean, below, log_diagonal):
    """−ELBO of one problem written densely, for autograd; `below` may be empty."""
    k = len(mean)
    tril = torch.diag(log_diagonal.exp())
    if len(below):
        tril = tril.index_put(tuple(torch.tril_indices(k, k, -1)), below)
    Phi, y, variance = data.Phi[0], data.y[0], data.noise_variance[0]
    residual = (y - Phi @ mean).square().sum() + (Phi @ tril).square().sum()
    likelihood = 0.5 * residual / variance + 0.5 * len(y) * torch.log(2 * math.pi * variance)
    return likelihood + 0.5 * (tril.square().sum() + mean.square().sum() - k) - log_diagonal.sum()


def rank(Phi_A):
    values = torch.linalg.svdvals(Phi_A)
    return int((values > 1e-9 * values[0]).sum())


# --- Measurement sets that see every weight ---------------------------------------------------------------------------


@pytest.fixture(params=["toy", "odd", pytest.param("boston", marks=pytest.mark.data)])
def seen(request):
    """A problem and an M at which `mixed` sets see all of its weights: k = 20, 7 and 100."""
    if request.param == "toy":
        return TrainingProblems.of(toys()[:1]), 60
    if request.param == "odd":
        return take(odd_problems(), [0]), 30
    return TrainingProblems.of([request.getfixturevalue("boston")]), 300


def drawn_sets(data, M, seeds, sets=8):
    stream = MeasurementStream(data, MeasurementDesign(M), seeds)
    return stream.draw(sets)[..., : data.k].clone()


@families
@pytest.mark.parametrize(
    ("name", "settings"),
    [("fixed-a", {}), ("fixed-a", {"optimizer": "adam"}), ("rand-a", {"minibatch": "full"})],
    ids=["fixed-a", "fixed-a-adam", "rand-a"],
)
def test_if_A_sees_every_weight_the_objective_is_that_of_weight_space(seen, name, settings, family):
    """Value and gradient at a random q, against the ELBO by autograd and by the twins' loops."""
    data, M = seen
    k = data.k
    assert (drawn_sets(data, M, [1]).shape[-1], *{rank(A[0]) for A in drawn_sets(data, M, [1])}) == (k, k)
    mean, tril = random_q(family, k)
    method = method_on(name, data, family, {**settings, "M": M}, [1])
    method.descent = method.make_descent()
    lbfgs = name == "fixed-a" and not settings
    q = method.descent.searches[0].q if lbfgs else method.descent.q
    place(q, mean, tril)
    got = method.descent.searches[0].loss() if lbfgs else float(method.descent.set_gradient())

    numpy_q = mean.numpy(), (tril @ tril.mT).numpy()
    expected = twin.gaussian_kl(*numpy_q, np.zeros(k), np.eye(k))
    if lbfgs:
        Phi, y, variance = data.Phi[0].numpy(), data.y[0].numpy(), float(data.noise_variance[0])
        constant = 0.5 * (y @ y) / variance + 0.5 * len(y) * math.log(2 * math.pi * variance)
        expected -= twin.expected_log_likelihood(Phi, y, variance, *numpy_q) + constant
    assert got == pytest.approx(expected, rel=1e-10)

    below = tril[tuple(torch.tril_indices(k, k, -1))] if family == "full" else torch.zeros(0, dtype=f64)
    leaves = [part.clone().requires_grad_() for part in (mean, below, tril.diagonal().log())]
    by_autograd = torch.autograd.grad(negative_elbo(data, *leaves), leaves, allow_unused=True)
    for mine, other in zip(gradients(q, k), by_autograd, strict=True):
        if len(mine):
            assert torch.allclose(mine, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


@families
@pytest.mark.parametrize("kind", ["fixed-a", "rand-a"])
def test_if_A_sees_every_weight_the_gap_is_that_of_the_kl(kind, family):
    """−objective = log evidence − KL(q ‖ P_D), so the optimum is EXACT and the gap is the difference of two KLs."""
    problem = toys()[0]
    mean, tril = random_q(family, 20)
    q = FullGaussian(mean, tril) if family == "full" else FactorisedGaussian(mean, tril.diagonal())
    if kind == "fixed-a":
        method = method_on("fixed-a", TrainingProblems.of([problem]), family, {"M": 60})
        assert rank(method.Phi_A[0]) == 20
    else:
        method = method_on("rand-a", TrainingProblems.of([problem]), family, {"M": 60})
    (objective,) = method.objectives()
    assert isinstance(objective, FixedFunctionalKL if kind == "fixed-a" else ExpectedFunctionalKL)
    got, expected = objective.scores(q, problem), WeightSpaceKL().scores(q, problem)
    # Natural gradients find RANDA's optimum (1,000 steps); FIXEDA's is written down.
    assert got.kl_at_objective_optimum == pytest.approx(expected.kl_at_objective_optimum, abs=1e-9)
    assert got.objective_gap == pytest.approx(expected.objective_gap, rel=1e-9)
    assert expected.objective_gap == pytest.approx(score(q, problem).kl - expected.kl_at_objective_optimum, rel=1e-12)


ONE_NATURAL_STEP = {"step_size": 1.0, "decay": 0.0, "averaging": 0.0, "max_steps": 1}


@pytest.mark.data
def test_one_natural_step_arrives_at_the_exact_posterior(boston):
    data = TrainingProblems.of([boston])
    assert rank(drawn_sets(data, 300, [1], 1)[0, 0]) == 100
    method = trained("rand-a-ngd", data, "full", {**ONE_NATURAL_STEP, "M": 300})
    assert abs(kl_and_nlpd(method.posterior()[0], boston)[0]) < 1e-9


def test_one_natural_step_of_a_factorised_q_arrives_at_the_optimal_scales_and_more_steps_near_the_mean(toy):
    """The direction for the mean knows nothing of correlations, so that it converges as steepest descent does."""
    data = TrainingProblems.of([toy])
    optimum = mean_field_optimum_scale(toy.truth.posterior.precision_tril)
    method = trained("rand-a-ngd", data, "ffg", {**ONE_NATURAL_STEP, "M": 60})
    assert torch.allclose(method.posterior()[0].scale, optimum, rtol=1e-12)
    gaps = []
    for steps in (30, 1000):
        method = trained("rand-a-ngd", data, "ffg", {**ONE_NATURAL_STEP, "M": 60, "max_steps": steps})
        assert torch.allclose(method.posterior()[0].scale, optimum, rtol=1e-12)
        gaps.append(WeightSpaceKL().scores(method.posterior()[0], toy).objective_gap)
    assert 0 < gaps[1] < 0.1 < 10 * gaps[1] < gaps[0]


#: Found by trial: RANDA at M = 120 sees all weights of boston and wine; 2,000 steps reach 0.003 on boston.
ADAM_TO_EXACT = {"M": 120, "minibatch": "full", "lr": 0.2, "lr_schedule": "cosine", "max_steps": 2500}


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", ["boston", "wine"])
def test_adam_on_randa_reaches_the_exact_posterior_if_A_sees_every_weight(name, request):
    problem = (
        request.getfixturevalue("boston") if name == "boston" else load_problem(build_task(load_card("wine"), 0).task)
    )
    data = TrainingProblems.of([problem])
    assert {rank(A[0]) for A in drawn_sets(data, 120, [1])} == {100}
    method = trained("rand-a", data, "full", ADAM_TO_EXACT)
    assert -1e-9 < kl_and_nlpd(method.posterior()[0], problem)[0] < 1e-2


# --- FIXEDA at a declared measurement set -----------------------------------------------------------------------------


def declared_A(problem):
    """As `expected.json` says: the first 40 training inputs, then 40 uniform draws over the training box."""
    low, high = problem.bounding_box
    unit = torch.from_numpy(np.random.default_rng(7).random((40, problem.X.shape[1])))
    return torch.cat([problem.X[:40], low + (high - low) * unit])


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(("family", "steps", "tolerance"), [("full", 2000, 0.03), ("ffg", 4000, 2e-3)])
@pytest.mark.parametrize("name", ["boston-00", "concrete-03"])
def test_fixed_a_has_the_mean_of_appendix_e(name, family, steps, tolerance):
    """The mean decouples from Σ, in a quadratic with the Hessian ΦᵀΦ/σ² + VVᵀ: its optimum is unique as the kernels of
    Φ and Φ_A meet in 0 only, and does not depend on the family.

    L-BFGS moves mean and Σ together, and Σ, which has no optimum, never lets it finish: after these steps the mean was
    0.011 from the fixed point with a full Σ (of a norm of 13.7) and 0.002 with a factorised one; no entry can be
    further off than the whole vector is. A mean without VVᵀ (least squares) or with I for it (EXACT) is 1 off.
    """
    problem = load_problem(read_task(REFERENCE / "tasks" / f"{name}.safetensors"))
    data, A = TrainingProblems.of([problem]), declared_A(problem)
    expected = EXPECTED[name]["fixed_a"]
    settings = {"M": 80, "max_steps": steps}
    method = trained("fixed-a", data, family, settings, A=A[None])
    assert rank(method.Phi_A[0]) == expected["rank"]
    assert torch.allclose(method.Phi_A[0], problem.feature_map(A), rtol=1e-10, atol=1e-12)

    V = torch.linalg.svd(method.Phi_A[0], full_matrices=False).Vh.mT
    hessian = problem.Phi.mT @ problem.Phi / problem.task.noise_variance + V @ V.mT
    assert float(torch.linalg.eigvalsh(hessian)[0]) > 0.1  # unique, by a margin
    moment = problem.Phi.mT @ problem.y / problem.task.noise_variance
    fixed_point = torch.linalg.solve(hessian, moment)
    assert float(fixed_point.norm()) == pytest.approx(expected["optimal_mean_norm"], rel=1e-9)
    assert fixed_point[:5].tolist() == pytest.approx(expected["optimal_mean_first5"], abs=1e-9)
    assert float((fixed_point - problem.truth.posterior.mean).norm()) > 1

    mean = method.posterior()[0].mean
    assert float((mean - fixed_point).norm()) < tolerance
    assert float(mean.norm()) == pytest.approx(expected["optimal_mean_norm"], abs=tolerance)
    assert mean[:5].tolist() == pytest.approx(expected["optimal_mean_first5"], abs=tolerance)


def test_fixed_a_takes_the_given_inputs_and_draws_others_without(toy):
    data = TrainingProblems.of([toy])
    A = torch.linspace(-1, 1, 6, dtype=f64)[None, :, None]
    given = method_on("fixed-a", data, "full", {"M": 80}, A=A)
    assert torch.equal(given.Phi_A[0], toy.feature_map(A[0]))
    drawn = method_on("fixed-a", data, "full", {"M": 10}).Phi_A
    assert torch.equal(drawn, method_on("fixed-a", data, "full", {"M": 10, "optimizer": "adam"}).Phi_A)
    assert not torch.equal(drawn, method_on("fixed-a", data, "full", {"M": 10}, seeds=[2]).Phi_A)


def test_fixed_a_drifts_from_the_posterior_once_A_sees_too_little(toy):
    """More steps, lower objective, higher KL, and an infinite KL at the infimum: what the table's caption says."""
    kls, gaps = [], []
    for steps in (50, 200, 800):
        method = trained("fixed-a", TrainingProblems.of([toy]), "full", {"M": 10, "max_steps": steps})
        (objective,) = method.objectives()
        scores = objective.scores(method.posterior()[0], toy)
        assert scores.kl_at_objective_optimum == math.inf
        kls.append(kl_and_nlpd(method.posterior()[0], toy)[0])
        gaps.append(scores.objective_gap)
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] > -1e-9
    assert kls == sorted(kls)


# --- SSGE -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior_score", ["exact", "ssge"])
@pytest.mark.parametrize("M", [5, 12])
@families
def test_ssge_with_the_exact_score_is_randa_on_average(family, M, prior_score, monkeypatch):
    """Mean of 1,000 gradients against the analytic one, over all entries at once (k = 7; M = 5 and 12, so that either
    A sees too little or the function values are degenerate). Chi-square in the directions that vary at all; in the
    others the estimate has no noise and must agree to rounding."""
    data, k = take(odd_problems(), [0]), 7
    mean, tril = random_q(family, k)
    q, likelihood = make_parameters(family, 1, 8), FullBatch(data)
    place(q, mean, tril)
    A = next(iter(MeasurementStream(data, MeasurementDesign(M), [1])))
    Phi_A = torch.cat([A.Phi_A[0], torch.zeros(-M % 4, 8, dtype=f64)])[:, :k]
    assert rank(Phi_A) == min(M, k)
    precision = torch.linalg.pinv(Phi_A @ tril @ tril.mT @ Phi_A.mT, rtol=1e-10, hermitian=True)
    prior_precision = torch.linalg.pinv(Phi_A @ Phi_A.mT, rtol=1e-10, hermitian=True)

    def exact_score(samples, queries, options):
        if queries is None:
            return -(samples - Phi_A @ mean) @ precision
        return -queries @ prior_precision

    monkeypatch.setattr(ssge, "_score", exact_score)
    options = load_method("ssge").options({"S": 8, "M": M, "prior_score": prior_score})
    samples = ssge.FunctionSamples(options, [1], 8, torch.device("cpu"))
    draws = []
    for _ in range(1000):
        ssge.set_stein_gradient(q, A, likelihood, samples, 1.0)
        draws.append(torch.cat(gradients(q, k)))
    estimates = torch.stack(draws)
    set_gradient(q, A.measurement, likelihood, 1.0)
    truth = torch.cat(gradients(q, k))

    error = estimates.mean(0) - truth
    values, vectors = torch.linalg.eigh(estimates.T.cov() / len(estimates))
    varies = values > 1e-12 * values[-1]
    assert int(varies.sum()) >= k
    turned = vectors.mT @ error
    assert torch.allclose(turned[~varies], torch.zeros_like(turned[~varies]), atol=1e-9 * float(truth.abs().max()))
    statistic = float((turned[varies].square() / values[varies]).sum())
    assert chi2.sf(statistic, int(varies.sum())) > 1e-3
    # And it could have failed: half the KL's gradient, say, is far outside.
    set_gradient(q, A.measurement, likelihood, 0.5)
    wrong = (vectors.mT @ (estimates.mean(0) - torch.cat(gradients(q, k))))[varies]
    assert chi2.sf(float((wrong.square() / values[varies]).sum()), int(varies.sum())) < 1e-12


@families
@pytest.mark.parametrize(
    "settings",
    [
        {"prior_score": "ssge"},
        {"injected_noise": 0.01},
        {"prior_score": "ssge", "injected_noise": 0.01, "S": 9},
        {"bandwidth": 0.5},
        {"S": 2},
        {"S": 7},
        {"S": 33},
        {"eigen_share": 0.5},
        {"eigen_share": 1.0},
        {"M": 1},
        {"kl_weight": "N/B"},
        {"kl_weight": 0},
        {"kl_jitter": 1e-4},
        {"draw_A": "data"},
        {"draw_A": "box"},
        {"averaging": 0.5, "lr_schedule": "linear"},
    ],
    ids=str,
)
def test_every_setting_of_ssge_runs_and_stays_finite(settings, family):
    data = TrainingProblems.of(toys()[:2])
    method = trained("ssge", data, family, {"M": 10, "minibatch": 20, "S": 20, "max_steps": 30, **settings})
    for q in unstack(method.posterior()):
        assert q.mean.isfinite().all()
        assert q.covariance_tril().isfinite().all()
        assert (q.covariance_tril().diagonal() > 0).all()
        assert not torch.equal(q.mean, torch.zeros_like(q.mean))


# --- Options that all of them share -----------------------------------------------------------------------------------


def test_a_weight_of_N_over_B_is_that_number():
    data = TrainingProblems.of(toys()[:1])
    for name in ("rand-a", "fixed-a", "ssge"):
        settings = {"M": 10, "minibatch": 10, "max_steps": 9}
        if name == "fixed-a":
            settings["optimizer"] = "adam"
        word, number, other = (
            trained(name, data, "full", {**settings, "kl_weight": weight}).posterior() for weight in ("N/B", 4, 1)
        )
        assert torch.equal(word.mean, number.mean)
        assert torch.equal(word.scale_tril, number.scale_tril)
        assert not torch.equal(word.mean, other.mean)


@pytest.mark.parametrize(("source", "from_data"), [("mixed", 5), ("data", 11), ("box", 0)])
def test_where_measurement_points_come_from(source, from_data, toy):
    """M = 11, so that half is rounded down. A training input's features are among Φ's rows, a drawn input's are not."""
    data = TrainingProblems.of([toy])
    method = method_on("fixed-a", data, "full", {"M": 11, "draw_A": source})
    among = (method.Phi_A[0][:, None] == toy.Phi[None]).all(-1)
    assert among.any(1).tolist() == [True] * from_data + [False] * (11 - from_data)
    assert among.sum(0).max() <= 1  # distinct


@pytest.mark.parametrize(
    "settings",
    [
        {"M": 30, "minibatch": 7},
        {"M": 10, "minibatch": "full", "draw_A": "data"},
        {"M": 10, "minibatch": "full", "draw_A": "box"},
    ],
    ids=["minibatch", "data", "box"],
)
def test_each_source_of_chance_follows_the_seed(settings):
    """One source at a time: the rows of the minibatch (M = 30 sees all weights), of A, and A's uniform inputs. Two
    copies of one problem part if their seeds differ."""
    problem = toys()[0]
    method = trained(
        "rand-a", TrainingProblems.of([problem] * 3), "full", {**settings, "max_steps": 10}, seeds=[1, 2, 1]
    )
    one, other, again = unstack(method.posterior())
    assert torch.equal(one.mean, again.mean)
    assert not torch.equal(one.mean, other.mean)


@families
def test_averaging_takes_the_mean_of_the_last_iterates(family):
    """Of mean, off-diagonal factor and log diagonal, over the last quarter of the steps."""
    data, settings = TrainingProblems.of(toys()[:1]), {"M": 10, "minibatch": 20, "max_steps": 40}
    iterates = []
    method = method_on("rand-a", data, family, settings)
    train(method, "cpu", lambda steps, _: iterates.append(method.posterior()[0]), list(range(31, 41)))
    averaged = trained("rand-a", data, family, {**settings, "averaging": 0.25}).posterior()[0]
    assert len(iterates) == 10
    assert torch.allclose(averaged.mean, torch.stack([q.mean for q in iterates]).mean(0), rtol=1e-12, atol=1e-14)
    trils = torch.stack([q.covariance_tril() for q in iterates])
    assert torch.allclose(averaged.covariance_tril().tril(-1), trils.tril(-1).mean(0), rtol=1e-12, atol=1e-14)
    log_diagonal = trils.diagonal(dim1=-2, dim2=-1).log().mean(0)
    assert torch.allclose(averaged.covariance_tril().diagonal().log(), log_diagonal, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [
        ("constant", lambda t: 1),
        ("linear", lambda t: 1 - t / 20),
        ("cosine", lambda t: (1 + math.cos(math.pi * t / 20)) / 2),
    ],
)
def test_learning_rate_schedules(schedule, factor):
    """Adam's step is elementwise proportional to the learning rate: the second step's size tells its rate, given
    the same first step; the first step moves every mean by lr itself (m/√v = ±1, but for Adam's ε)."""
    data = TrainingProblems.of(toys()[:1])
    settings = {"M": 30, "minibatch": "full", "max_steps": 20, "lr": 0.05, "lr_schedule": schedule}
    means = {}
    method = method_on("rand-a", data, "full", settings)
    train(method, "cpu", lambda steps, _: means.update({steps: method.posterior()[0].mean}), list(range(21)))
    assert torch.allclose((means[1] - means[0]).abs(), torch.full((20,), 0.05, dtype=f64), rtol=1e-6)
    rates = [method.options.learning_rate()(step) for step in range(20)]
    assert rates == pytest.approx([0.05 * factor(step) for step in range(20)], rel=1e-12)
    # The last step, by an independent Adam on the same gradients, would be as large as its rate allows at most.
    assert float((means[20] - means[19]).abs().max()) <= 10 * rates[-1]
    assert (float((means[20] - means[19]).abs().max()) < 1e-2 * 0.05) == (schedule == "cosine")


@families
def test_fixed_a_by_adam_and_by_lbfgs_descend_the_same_objective(family, toy):
    """With an A that sees all weights both arrive at its optimum, EXACT of that family."""
    data = TrainingProblems.of([toy])
    (objective,) = method_on("fixed-a", data, family, {"M": 30}).objectives()
    adam = {"optimizer": "adam", "lr": 0.5, "lr_schedule": "cosine", "max_steps": 1000}
    for settings, close in (({"max_steps": 500}, 1e-8), (adam, 1e-3)):
        method = trained("fixed-a", data, family, {"M": 30, **settings})
        scores = objective.scores(method.posterior()[0], toy)
        assert -1e-9 < scores.objective_gap < close
        assert kl_and_nlpd(method.posterior()[0], toy)[0] == pytest.approx(scores.kl_at_objective_optimum, abs=close)


def test_lbfgs_ends_early_and_says_nothing_is_wrong(toy):
    seen = []
    method = trained("fixed-a", TrainingProblems.of([toy]), "ffg", {"M": 30}, lambda steps, _: seen.append(steps))
    assert method.finished
    assert method.num_steps == 15000
    assert seen
    assert seen[-1] < 15000
    assert WeightSpaceKL().scores(method.posterior()[0], toy).objective_gap < 1e-9


# --- Mean-field VI ----------------------------------------------------------------------------------------------------


def test_mean_field_vi_goes_to_exact_ffg():
    """Reparameterised gradients with S = 8, a falling learning rate and averaged iterates: within 0.006 nats of
    EXACT-FFG's KL of about 15 on four problems. What remains is the noise of the gradients at a finite number of steps
    (with S = 1 it is 20 to 60 times as much); the gap cannot be negative, as EXACT-FFG is the optimum."""
    problems = toys()[:4]
    settings = {"minibatch": "full", "lr": 0.1, "lr_schedule": "cosine", "max_steps": 2500, "S": 8, "averaging": 0.4}
    method = trained("mean-field-vi", TrainingProblems.of(problems), "ffg", settings)
    for q, problem, objective in zip(unstack(method.posterior()), problems, method.objectives(), strict=True):
        scores = objective.scores(q, problem)
        optimum = FactorisedGaussian(
            problem.truth.posterior.mean, mean_field_optimum_scale(problem.truth.posterior.precision_tril)
        )
        assert scores.kl_at_objective_optimum == pytest.approx(kl_and_nlpd(optimum, problem)[0], rel=1e-9)
        assert 0 < scores.objective_gap < 0.02
        assert kl_and_nlpd(q, problem)[0] == pytest.approx(scores.kl_at_objective_optimum, abs=0.02)
