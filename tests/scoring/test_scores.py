"""Scores against independent values (`expected.json`), and against the identities that tie them together."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import mean_field_optimum_scale
from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.posteriors.gaussian import FactorGaussian, FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.scoring.scores import Scores, not_a_number, score, trace_scores
from fsvi_bench.tasks.task import Task
from tests.conftest import REFERENCE
from tests.maths.draws import EXPECTED, PUBLISHED, eye, ones, published, zeros

f64 = torch.float64


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


def from_file(name, family):
    return read_posterior(REFERENCE / "posteriors" / f"{name}-{family}.safetensors", published(name).frozen.k)


@pytest.mark.data
@PUBLISHED
def test_scores_are_the_references_and_log_evidence_minus_elbo_is_the_kl(name):
    """The identity behind variational inference, to 1e-8, for EXACT, EXACT-FFG and for two arbitrary posteriors."""
    problem, expected = published(name), EXPECTED[name]
    for key, q in (
        ("posterior_full", from_file(name, "full")),
        ("posterior_ffg", from_file(name, "ffg")),
        ("exact", exact_full(problem)),
        ("exact_ffg", exact_ffg(problem)),
    ):
        scores = score(q, problem)
        assert_agrees(scores, expected[key])
        assert len(expected[key]) == 9 or key.startswith("exact")
        assert scores.log_evidence == pytest.approx(expected["log_evidence"], rel=1e-9)
        assert scores.elbo_gap == pytest.approx(scores.kl, abs=1e-8)
        assert scores.log_evidence - scores.elbo == scores.elbo_gap


@pytest.mark.data
@PUBLISHED
def test_the_exact_posterior_scores_zero_to_rounding(name):
    """cond(Λ) is 2e4: every divergence of the exact posterior from itself is a rounding error of that size."""
    scores = score(exact_full(published(name)), published(name))
    for each in ("kl", "kl_mean_term", "kl_cov_term", "reverse_kl", "predictive_kl_test", "predictive_kl_box", "w2"):
        assert abs(getattr(scores, each)) < 1e-10, each
    assert all(abs(value) < 1e-10 for value in scores.kl_marginals.values())
    assert scores.nlpd_gap == 0
    assert scores.overconfidence.quantiles == pytest.approx((1,) * 21, abs=1e-10)


def test_marginals_rise_towards_the_weight_kl(toy):
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(20, 20, generator=g, dtype=f64)
    tril = toy.truth.covariance_tril @ (eye(20) + 0.05 * noise.tril())
    q = FullGaussian(toy.truth.posterior.mean + 0.1 * noise[0], tril)
    scores = score(q, toy)
    values = [scores.kl_marginals[key] for key in ("1", "5", "20", "50")]
    assert values == sorted(values)
    assert values[0] > 0
    # The first 50 grid points span [-2.5, -1.3] and see only some of the features: still below the weight KL.
    assert values[-1] < scores.kl
    assert scores.kl == pytest.approx(scores.kl_mean_term + scores.kl_cov_term, rel=1e-14)


def test_marginals_beyond_the_test_set_do_not_apply(toy):
    few = Task(toy.frozen, toy.feature_map, toy.X, toy.y, toy.X_test[:31], toy.y_test[:31])
    marginals = score(exact_ffg(toy), few).kl_marginals
    assert marginals["50"] is None
    assert marginals["20"] is not None


def test_nlpd_and_rmse_are_in_the_targets_unit(toy):
    """The same posterior on a task whose targets are ten times as large: NLPD + log 10, RMSE × 10."""
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
    with pytest.raises(InputError, match="the posterior has 3 weights, expected 20"):
        score(FactorisedGaussian(zeros(3), ones(3)), toy)


# --- Gaussians by a factor --------------------------------------------------------------------------------------------


def test_a_factor_of_full_rank_scores_as_the_same_gaussian_with_a_triangle(toy):
    """Any root of a covariance is the same posterior: here L times an orthogonal matrix."""
    mean, tril = 0.9 * toy.truth.posterior.mean, 1.1 * toy.truth.covariance_tril
    turn = torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(0), dtype=f64)).Q
    got, expected = (score(q, toy) for q in (FactorGaussian(mean, tril @ turn), FullGaussian(mean, tril)))
    assert not got.singular
    assert_agrees(got, expected.model_dump(exclude={"overconfidence", "coverage", "coverage_exact"}, exclude_none=True))


@pytest.mark.parametrize("r", [0, 3, 19, "lower rank"])
def test_a_gaussian_without_a_density_has_an_infinite_kl_and_every_other_score(toy, r):
    """Its predictive is Gaussian, so predictive KLs are closed forms; its W₂ distance is that of its moments."""
    exact = toy.truth.posterior
    factor = toy.truth.covariance_tril[:, : 7 if r == "lower rank" else r]
    if r == "lower rank":  # with rounding, not zeros, where a triangle's diagonal should be zero
        factor = factor @ torch.randn(7, 20, generator=torch.Generator().manual_seed(0), dtype=f64)
    q = FactorGaussian(exact.mean, factor)
    scores = score(q, toy)
    assert scores.singular
    for name in ("kl", "kl_cov_term", "reverse_kl", "kl_moment_matched", "elbo_gap"):
        assert getattr(scores, name) == math.inf, name
    assert scores.elbo == -math.inf
    assert scores.kl_mean_term == 0
    rank = factor.shape[1] if r != "lower rank" else 7
    assert [value == math.inf for value in scores.kl_marginals.values()] == [
        int(torch.linalg.matrix_rank(toy.Phi_test[:n])) > rank for n in (1, 5, 20, 50)
    ]
    for Phi, kl in ((toy.Phi_test, scores.predictive_kl_test), (toy.Phi_box, scores.predictive_kl_box)):
        noise = toy.noise_variance
        ratio = ((Phi @ toy.truth.covariance_tril).square().sum(-1) + noise) / ((Phi @ factor).square().sum(-1) + noise)
        assert kl == pytest.approx(float(0.5 * (ratio - 1 - ratio.log()).mean()), rel=1e-9)
    root = torch.linalg.svd(toy.truth.covariance_tril.mT @ factor).S.sum()
    bures = toy.truth.covariance_tril.square().sum() + factor.square().sum() - 2 * root
    assert scores.w2 == scores.w2_moments == pytest.approx(float(bures.sqrt()), rel=1e-6)
    assert not not_a_number(scores)
    traced = trace_scores(q, toy)
    assert (traced.kl, traced.kl_moment_matched) == (math.inf, math.inf)
    assert traced.nlpd == scores.nlpd


@pytest.mark.parametrize("r", [0, 3, 19])
def test_a_gaussian_without_a_density_has_joint_predictions_and_distances_in_closed_form(toy, r):
    """Joint KLs by dense matrices. Distances as the limit of Gaussians with a density; of a point, as two draws have."""
    exact, noise = toy.truth.posterior, toy.noise_variance
    mean, factor = exact.mean + 0.01, 1.2 * toy.truth.covariance_tril[:, :r]
    scores = score(FactorGaussian(mean, factor), toy)
    for place, Phi in (("test", toy.Phi_test), ("box", toy.Phi_box)):
        assert getattr(scores, f"joint_predictive_kl_{place}_error") is None
        for count, value in getattr(scores, f"joint_predictive_kl_{place}").items():
            X = Phi[: int(count)]
            laws = (
                MultivariateNormal(X @ at, X @ root @ root.mT @ X.mT + noise * torch.eye(len(X), dtype=f64))
                for at, root in ((exact.mean, toy.truth.covariance_tril), (mean, factor))
            )
            expected = None if value is None else pytest.approx(float(kl_divergence(*laws)), rel=1e-8)
            assert value == expected, (place, count)
    names = ("mmd2_test", "energy_distance_test", "w2_test", "w2_box")
    near = score(FullGaussian(mean, tril_of_gram(torch.cat([factor.mT, 1e-7 * eye(20)]))), toy)
    for name in names:
        assert getattr(scores, name) == pytest.approx(getattr(near, name), rel=1e-6), name
    if r == 0:
        of_draws = score(ParticlesPosterior(mean.expand(2, -1).clone()), toy)
        for name in names:
            assert getattr(scores, name) == pytest.approx(getattr(of_draws, name), rel=1e-6), name
