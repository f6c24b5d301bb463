"""Scores against independent values (`expected.json`), and against the identities that tie them together."""

from __future__ import annotations

import json
import math

import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import mean_field_optimum_scale
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.scoring.scores import Scores, score
from fsvi_bench.tasks.frozen import read_task
from fsvi_bench.tasks.task import bind_task
from tests.conftest import REFERENCE

EXPECTED = json.loads((REFERENCE / "expected.json").read_text())
f64 = torch.float64


@pytest.fixture(scope="module", params=["boston-00", "concrete-03"])
def case(request):
    """Name and problem of a reference task."""
    return request.param, bind_task(read_task(REFERENCE / "tasks" / f"{request.param}.safetensors"))


def exact_full(problem):
    return FullGaussian(problem.truth.posterior.mean, problem.truth.covariance_tril)


def exact_ffg(problem):
    exact = problem.truth.posterior
    return FactorisedGaussian(exact.mean, mean_field_optimum_scale(exact.precision_tril))


def assert_agrees(scores: Scores, expected: dict) -> None:
    """To a relative 1e-9; in fact the two agree to 1e-10 and better."""
    got = scores.model_dump()
    assert expected
    for name, value in expected.items():
        if isinstance(value, dict):
            assert got[name] == {key: pytest.approx(number, rel=1e-9) for key, number in value.items()}
        else:
            assert got[name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.data
@pytest.mark.parametrize("family", ["full", "ffg"])
def test_posterior_files_score_as_the_reference_says(case, family):
    name, problem = case
    q = read_posterior(REFERENCE / "posteriors" / f"{name}-{family}.safetensors", problem.frozen.k)
    expected = EXPECTED[name][f"posterior_{family}"]
    assert len(expected) == 9
    assert len(expected["kl_marginals"]) == 4
    assert_agrees(score(q, problem), expected)


@pytest.mark.data
def test_exact_and_its_factorised_optimum_score_as_the_reference_says(case):
    name, problem = case
    full, ffg = score(exact_full(problem), problem), score(exact_ffg(problem), problem)
    assert_agrees(full, EXPECTED[name]["exact"])
    assert_agrees(ffg, EXPECTED[name]["exact_ffg"])
    assert full.log_evidence == pytest.approx(EXPECTED[name]["log_evidence"], rel=1e-9)


@pytest.mark.data
def test_the_exact_posterior_scores_zero_to_rounding(case):
    """cond(Λ) is 2e4: every divergence of the exact posterior from itself is a rounding error of that size."""
    _, problem = case
    scores = score(exact_full(problem), problem)
    for name in ("kl", "kl_mean_term", "kl_cov_term", "reverse_kl", "predictive_kl_test", "predictive_kl_box", "w2"):
        assert abs(getattr(scores, name)) < 1e-10, name
    assert all(abs(value) < 1e-10 for value in scores.kl_marginals.values())
    assert scores.nlpd_gap == 0
    assert scores.overconfidence.quantiles == pytest.approx((1,) * 21, abs=1e-10)


@pytest.mark.data
def test_log_evidence_minus_elbo_is_the_kl(case):
    """The identity behind variational inference, to 1e-8, for EXACT-FFG and for two arbitrary posteriors."""
    name, problem = case
    posteriors = [exact_full(problem), exact_ffg(problem)]
    posteriors += [
        read_posterior(REFERENCE / "posteriors" / f"{name}-{family}.safetensors") for family in ("full", "ffg")
    ]
    for q in posteriors:
        scores = score(q, problem)
        assert scores.elbo_gap == pytest.approx(scores.kl, abs=1e-8)
        assert scores.log_evidence - scores.elbo == scores.elbo_gap


def test_marginals_rise_towards_the_weight_kl(toy):
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(20, 20, generator=g, dtype=f64)
    tril = toy.truth.covariance_tril @ (torch.eye(20, dtype=f64) + 0.05 * noise.tril())
    q = FullGaussian(toy.truth.posterior.mean + 0.1 * noise[0], tril)
    scores = score(q, toy)
    values = [scores.kl_marginals[key] for key in ("1", "5", "20", "50")]
    assert values == sorted(values)
    assert values[0] > 0
    # The first 50 grid points span [-2.5, -1.3] and see only some of the features: still below the weight KL.
    assert values[-1] < scores.kl
    assert scores.kl == pytest.approx(scores.kl_mean_term + scores.kl_cov_term, rel=1e-14)


def test_marginals_beyond_the_test_set_do_not_apply(toy):
    from fsvi_bench.tasks.task import Task

    few = Task(toy.frozen, toy.feature_map, toy.X, toy.y, toy.X_test[:31], toy.y_test[:31])
    marginals = score(exact_ffg(toy), few).kl_marginals
    assert marginals["50"] is None
    assert marginals["20"] is not None


def test_nlpd_and_rmse_are_in_the_targets_unit(toy):
    """The same posterior on a task whose targets are ten times as large: NLPD + log 10, RMSE × 10."""
    from dataclasses import replace

    scaled = replace(toy, frozen=replace(toy.frozen, target_std=torch.tensor(10.0, dtype=f64)))
    q = exact_ffg(toy)
    before, after = score(q, toy), score(q, scaled)
    assert after.nlpd - before.nlpd == pytest.approx(math.log(10), rel=1e-12)
    assert after.nlpd_gap == pytest.approx(before.nlpd_gap, abs=1e-12)
    assert after.rmse == pytest.approx(10 * before.rmse, rel=1e-12)
    assert after.kl == before.kl


def test_a_nearly_singular_posterior_gets_a_finite_kl(toy):
    """KL grows like −log of the vanishing scale; a rebuilt covariance would have given NaN."""
    mean, tril = toy.truth.posterior.mean, toy.truth.covariance_tril.clone()
    kls = []
    for scale in (1e-50, 1e-100):
        shrunk = tril.clone()
        shrunk[-1] *= scale
        kls.append(score(FullGaussian(mean, shrunk), toy).kl)
    assert kls[1] - kls[0] == pytest.approx(50 * math.log(10), rel=1e-9)


def test_another_k_is_refused(toy):
    with pytest.raises(InputError, match="task has k=20 features, posterior has 3"):
        score(FactorisedGaussian(torch.zeros(3, dtype=f64), torch.ones(3, dtype=f64)), toy)
