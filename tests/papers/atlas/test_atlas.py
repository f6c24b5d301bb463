"""The atlas: optima against dense formulas, checks against planted faults, statistics against their laws."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from fsvi_bench.maths.langevin import stationary_kl
from fsvi_bench.methods.gfsvi import Gfsvi
from fsvi_bench.methods.inputs import root_of_second_moment
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.ssge import Ssge
from fsvi_bench.papers.atlas import estimators, optima
from fsvi_bench.papers.atlas.chains import compare, kl_of_variances, normal_of_chi_square, schott
from fsvi_bench.papers.atlas.experiment import judged
from fsvi_bench.papers.registry import REPRODUCTIONS
from tests.maths.draws import close, f64, normal
from tests.methods.synthetic import synthetic

SHOWN = {"gwi": 1.0, "gfsvi": 0.1, "fsp-laplace": 0.5, "sgld": 0.9, "vip": 1.0, "laplace": 0.5}


def dense_precision(problem):
    return problem.Phi.mT @ problem.Phi / problem.noise_variance + torch.eye(problem.k, dtype=torch.float64)


def covariance(q):
    tril = q.covariance_tril()
    return tril @ tril.mT


# --- Optima -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_sgld_is_its_dense_formula_and_has_its_kl(toy, share):
    """Λ's condition number is 2,000, and that of I − εΛ/4 at most 10."""
    precision, q = dense_precision(toy), optima.sgld(toy, share, 0)
    epsilon = 4 * share / torch.linalg.eigvalsh(precision)[-1]
    shrunk = torch.eye(toy.k, dtype=torch.float64) - epsilon * precision / 4
    close(covariance(q), torch.linalg.inv(precision @ shrunk), rtol=1e-10, atol=1e-12)
    expected = stationary_kl(torch.linalg.eigvalsh(precision), share)
    assert optima.divergences(toy, q)["kl"] == pytest.approx(expected, rel=1e-9)


def test_parameters_are_in_the_stated_units(toy):
    gamma = 0.2 * float(toy.noise_variance) / toy.N
    close(covariance(optima.gfsvi(toy, 0.2, 0)), covariance(Gfsvi(toy, gamma=gamma).posterior()[0]))
    assert [optima.count(share, 20) for share in (0.01, 0.5, 1.05)] == [1, 10, 21]
    kls = {name: optima.divergences(toy, optima.OPTIMA[name](toy, 1.0, 0))["kl"] for name in ("laplace", "vip")}
    assert kls == {"laplace": pytest.approx(0, abs=1e-9), "vip": math.inf}  # of k draws, the rank is k − 1
    assert not optima.vip(toy, 1.1, 0).singular


def test_spectra_end_where_a_covariance_does(toy):
    found = optima.spectra(toy, SHOWN).groupby("method")["variance"].agg(list)
    close(f64(found["exact"]), torch.linalg.eigvalsh(torch.linalg.inv(dense_precision(toy))).flip(0), rtol=1e-9)
    collapsed = optima.check_gfsvi(toy, [0.1])["collapsed"][0]
    ranks = {name: len(values) for name, values in found.items()}
    assert 0 < collapsed < toy.k
    assert ranks == dict.fromkeys((*SHOWN, "exact"), toy.k) | {"gfsvi": toy.k - collapsed, "vip": toy.k - 1}


def test_only_vip_has_seeds(toy):
    for name, expected in (("laplace", [0]), ("vip", [0, 1, 2])):
        found = optima.sweep(toy, name, [0.5], 3)
        assert found["seed"].to_list() == expected
        assert found["predictive_kl"].nunique() == len(expected)


# --- Checks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_the_gradient_of_gwi_is_a_closed_form_along_multiples_of_the_identity(toy, share):
    """Of the likelihood NG/σ² times s, of λW₂² −2λG(1 − s): their sum over the first is 1 − 2λ(1 − s)σ²/(Ns)."""
    data = TrainingData.of(toy)
    R, weight = root_of_second_moment(data, "data"), 300.0
    expected = abs(1 - 2 * weight * (1 - share) * float(toy.noise_variance) / (toy.N * share))
    assert optima.gwi_gradient(data, R, weight, share) == pytest.approx(expected, rel=1e-9)
    assert optima.check_gwi(toy, [weight])["gradient"][0] < 1e-11


def test_a_gwi_that_is_no_multiple_of_the_identity_is_found(toy, monkeypatch):
    right = optima.best_map
    assert optima.check_gwi(toy, [1.0])["deviation"][0] < 1e-8

    def planted(*arguments):
        found = right(*arguments)
        return found._replace(root=found.root * torch.linspace(1, 1.1, toy.k, dtype=torch.float64))

    monkeypatch.setattr(optima, "best_map", planted)
    assert optima.check_gwi(toy, [1.0])["deviation"][0] > 0.01


def test_a_gfsvi_with_another_gamma_is_found(toy, monkeypatch):
    right, shares = optima.gfsvi, [0.01, 0.1, 0.5]
    found = optima.check_gfsvi(toy, shares)
    assert (found["collapsed"].is_monotonic_increasing, found["mismatches"].sum(), found["density"].sum()) == (
        True,
        0,
        0,
    )
    assert found["deviation"].max() < 1e-8
    monkeypatch.setattr(optima, "gfsvi", lambda problem, share, seed: right(problem, 1e-4 * share, seed))
    planted = optima.check_gfsvi(toy, shares)
    assert (planted["mismatches"] > 0).all()
    assert planted["deviation"].min() > 0.01


def test_contexts_grow_until_they_are_exact(toy):
    found = optima.check_fsp_laplace(toy, [0.5, 0.52, 0.9, 5])  # 10 points twice
    assert found["points"].to_list() == [10, 10, 18, 18, 100, 100]
    assert found["rank"].to_list() == [10, 10, 18, 18, 20, 20]
    assert found["full"].to_list() == [False] * 4 + [True] * 2
    assert np.isinf(found.loc[~found["full"] & (found["truncation"] == "context-span"), "kl"]).all()
    assert found.loc[found["full"], "kl"].abs().max() < 1e-9


# --- Chains -----------------------------------------------------------------------------------------------------------


def drawn(seed, n, deviations):
    return normal([seed, n], n, len(deviations)).numpy() * deviations


def test_draws_of_the_predicted_law_agree_and_others_do_not():
    eigenvalues, share = torch.tensor([9.0, 4.0, 1.0], dtype=torch.float64), 0.8
    predicted = optima.stationary_variances(eigenvalues, share).numpy()
    arguments = predicted, eigenvalues.numpy(), stationary_kl(eigenvalues, share)
    agree = compare(drawn(1, 2000, np.sqrt(predicted)), *arguments)
    assert agree[["z", "z_correlations", "z_kl"]].abs().max().max() < 4
    other = compare(drawn(1, 2000, 1 / np.sqrt(eigenvalues.numpy())), *arguments)  # the exact posterior's
    assert other["z"][0] < -10
    assert other["z_kl"][0] < -4
    mixed = drawn(2, 2000, np.sqrt(predicted))
    mixed[:, 1] += 0.2 * mixed[:, 2] * math.sqrt(predicted[1] / predicted[2])
    assert compare(mixed, *arguments)["z_correlations"][0] > 10


def test_chi_squares_become_standard_normal():
    quantiles = np.array([1e-20, 0.01, 0.5, 0.9])
    values = np.append(stats.chi2.ppf(quantiles, 99), stats.chi2.isf(1e-20, 99))
    expected = [*stats.norm.ppf(quantiles), stats.norm.isf(1e-20)]
    assert normal_of_chi_square(values, 99) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_statistics_of_independent_samples_are_standardised():
    """Over 400 repeats the means are within four standard errors of 0, and variances of 1 within 30% (kurtosis of χ²)."""
    ratios, nu, repeats = np.array([1.0, 3.0, 0.5]), 50, 400
    rng = np.random.default_rng(5)
    correlations = [schott(np.corrcoef(rng.standard_normal((nu + 1, 6)), rowvar=False), nu) for _ in range(repeats)]
    sampled = ratios * rng.chisquare(nu, (repeats, 3)) / nu
    expected = 0.5 * (ratios - 1 - np.log(ratios)).sum()
    of_kl = [(kl - expected) / error for kl, error in (kl_of_variances(each, ratios, nu) for each in sampled)]
    for z in (correlations, of_kl):
        assert abs(np.mean(z)) < 4 / math.sqrt(repeats)
        assert np.var(z) == pytest.approx(1, rel=0.3)


# --- Scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", estimators.ESTIMATORS)
def test_estimators_are_the_methods_own(name):
    """Rotated to principal coordinates, where zero columns are left out, which changes no distance."""
    M, samples = 6, normal([7], 1, 30, 6)
    method = Ssge(synthetic(1, k=8), "full", M=M, S=30, score_estimator=name)
    close(estimators.ESTIMATORS[name](samples[0]), method._score(samples)[0], rtol=1e-9, atol=1e-12)


def test_estimators_share_their_samples(toy):
    found = estimators.compare_estimators(toy, 8, (10, 20), 2)
    assert len(found) == 2 * 2 * len(estimators.ESTIMATORS)
    again = estimators.compare_estimators(toy, 8, (10, 30), 2)
    of_ten = [each[each["S"] == 10].reset_index(drop=True) for each in (found, again)]
    pd.testing.assert_frame_equal(of_ten[0], of_ten[1].astype(of_ten[0].dtypes))


# --- The experiment ---------------------------------------------------------------------------------------------------


def test_ratios_and_gains_are_against_ssge_on_the_same_samples(toy):
    rows = [
        {"dataset": "toy", "S": 100, "seed": seed, "estimator": name, "slope": slope, "error": error, "rank": 5}
        for seed in (0, 1)
        for name, slope, error in (("ssge", 0.5, 0.2 + seed), ("kef", 0.75, 0.8 + 4 * seed), ("nu", 0.25, 0.1))
    ]
    chains = compare(drawn(1, 50, np.ones(2)), np.ones(2), np.ones(2), 0.0).assign(dataset="toy", split=0, share=0.5)
    frames = judged(
        bands=optima.bands(toy, {"laplace": 0.5}),
        spectra=optima.spectra(toy, {"laplace": 0.5}),
        contexts=optima.check_fsp_laplace(toy, [0.5, 2]),
        chains=chains.assign(steps=1),
        estimates=pd.DataFrame(rows),
    )
    others = frames["others"].set_index(["estimator", "seed"])
    assert others.loc["kef", "ratio"].to_list() == pytest.approx([4, 4])
    assert others.loc["nu", "gain"].to_list() == pytest.approx([-0.25, -0.25])
    assert frames["errors"].attrs["first"] == "toy"
    assert frames["shown"]["method"].to_list() == ["laplace"]


def test_settings_name_every_method():
    settings = REPRODUCTIONS["atlas"]._settings("quick")
    lacking = settings.model_dump() | {"shown": {"gwi": 1.0}}
    with pytest.raises(ValidationError, match="expected values for gwi, gfsvi, fsp-laplace, sgld, vip, laplace"):
        type(settings).model_validate(lacking)
