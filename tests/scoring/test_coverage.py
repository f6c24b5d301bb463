"""Coverage of predictive intervals and quantiles of the spectrum: loops in NumPy and SciPy, draws, limits."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.linalg import eigh
from scipy.stats import norm

from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.posteriors.samples import SamplesPosterior
from fsvi_bench.scoring.predictive import coverage, functions_cdf
from fsvi_bench.scoring.scores import Overconfidence, Scores, not_a_number, score
from tests.maths.draws import f64, linspace, zeros
from tests.maths.mixtures import MixtureProblem, enumerated_cdf

LEVELS = {"50": 0.5, "90": 0.9, "95": 0.95}


def by_loop(problem, mean, covariance):
    """Target by target, ends of the intervals written out."""
    inside, noise = dict.fromkeys(LEVELS, 0), float(problem.frozen.noise_variance)
    for phi, y in zip(problem.Phi_test.numpy(), problem.y_test.tolist(), strict=True):
        centre, sd = float(phi @ mean.numpy()), math.sqrt(float(phi @ covariance.numpy() @ phi) + noise)
        for name, p in LEVELS.items():
            low, high = norm.interval(p, centre, sd)
            inside[name] += low <= y <= high
    return {name: count / len(problem.y_test) for name, count in inside.items()}


def weights(seed=1, k=20):
    g = torch.Generator().manual_seed(seed)
    draw = torch.randn(2, k, generator=g, dtype=torch.float64)
    return draw[0], draw[1].exp() / 4


# --- Gaussians --------------------------------------------------------------------------------------------------------


def test_gaussian_coverage_is_that_of_a_loop(toy):
    mean, scale = weights()
    q = FactorisedGaussian(mean / 5, scale)
    scores, truth = score(q, toy), toy.truth
    assert scores.coverage == by_loop(toy, q.mean, q.covariance)
    assert scores.coverage_exact == by_loop(toy, truth.posterior.mean, truth.covariance_tril @ truth.covariance_tril.mT)
    assert scores.coverage != scores.coverage_exact


# --- Mixtures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bernoulli", "spike-slab"])
def test_a_mixtures_coverage_is_that_of_its_distribution_function(toy, kind):
    """Twelve weights that are not 0: all 4,096 Gaussians are added up at each of the targets."""
    mean, scale = weights(2)
    mean = 2 * mean
    mean[12:] = 0
    drop = linspace(0.5, 0.95, 20)
    if kind == "bernoulli":
        q, scale = BernoulliDropoutPosterior(mean, 1 - drop), zeros(20)
    else:
        drop[12:] = 1
        q = SpikeSlabPosterior(drop, mean, scale)
    arrays = (t.numpy() for t in (toy.y_test, toy.Phi_test[:, :12], drop[:12], mean[:12], scale[:12]))
    below = enumerated_cdf(MixtureProblem(*arrays, float(toy.frozen.noise_variance)))
    expected = {name: np.mean((0.5 - p / 2 <= below) & (below <= 0.5 + p / 2)) for name, p in LEVELS.items()}
    assert coverage(q, toy) == expected
    assert 0 < expected["50"] < expected["95"]
    gaussian = FactorisedGaussian(q.mean, q.covariance_tril().diagonal().clone())
    assert coverage(gaussian, toy) != expected  # the moments alone would not tell


def test_a_rare_atom_too_far_away_leaves_no_coverage(toy):
    """One weight that is next to never on, and then a million noise deviations away: the spread is small, Y's reach
    not."""
    m = zeros(20)
    m[7] = 1e6 * toy.frozen.noise_variance.sqrt() / toy.Phi_test[:, 7].abs().max()
    assert coverage(BernoulliDropoutPosterior(m, f64(1e-8)), toy) is None


# --- Samples ----------------------------------------------------------------------------------------------------------


def test_samples_predict_the_mean_of_their_normal_distributions(toy):
    samples = torch.randn(300, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    f, sigma = toy.Phi_test.numpy() @ samples.numpy().T, float(toy.frozen.noise_variance.sqrt())
    expected = np.array([norm.cdf(y, row, sigma).mean() for y, row in zip(toy.y_test.numpy(), f, strict=True)])
    below = functions_cdf([toy.Phi_test @ samples.mT], toy).numpy()
    np.testing.assert_allclose(below, expected, rtol=1e-11, atol=1e-15)
    q = SamplesPosterior(samples)
    shares = {name: np.mean((0.5 - p / 2 <= expected) & (expected <= 0.5 + p / 2)) for name, p in LEVELS.items()}
    assert coverage(q, toy) == shares


# --- The spectrum -----------------------------------------------------------------------------------------------------


def test_quantiles_of_the_spectrum(toy):
    """NumPy's quantiles of the generalised eigenvalues of (S, S*), found by SciPy from the covariances themselves.

    cond(S*) is 1e5 here, and so many digits the eigenvalues of rebuilt matrices lose.
    """
    mean, scale = weights()
    got = score(FactorisedGaussian(mean, scale), toy).overconfidence
    truth = toy.truth.covariance_tril.numpy()
    eigenvalues = eigh(np.diag(scale.numpy() ** 2), truth @ truth.T, eigvals_only=True)
    expected = np.quantile(eigenvalues, np.linspace(0, 1, 21))
    np.testing.assert_allclose(got.quantiles, expected, rtol=1e-8)
    assert (got.smallest, got.median, got.largest) == (got.quantiles[0], got.quantiles[10], got.quantiles[20])
    assert list(got.quantiles) == sorted(got.quantiles)


# --- Records ----------------------------------------------------------------------------------------------------------


def test_scores_are_read_back_from_json(toy):
    scores = score(FactorisedGaussian(*weights()), toy)
    document = json.loads(scores.model_dump_json())
    assert set(document["coverage"]) == set(document["coverage_exact"]) == set(LEVELS)
    assert len(document["overconfidence"]["quantiles"]) == 21
    assert Scores.model_validate_json(scores.model_dump_json()) == scores


def test_what_is_nan_is_named(toy):
    scores = score(FactorisedGaussian(*weights()), toy)
    assert not_a_number(scores) == []
    bad = scores.model_copy(
        update={
            "nlpd": math.nan,
            "coverage": {"50": math.nan, "90": 0.9},
            "overconfidence": Overconfidence(smallest=0, median=1, largest=math.nan, quantiles=(0.0, *[math.nan] * 20)),
            "intervals": {"rmse": (0.0, math.nan)},
            "kl_marginals": {"1": math.nan, "5": None},
        }
    )
    assert set(not_a_number(bad)) == {"nlpd", "coverage 50", "largest", "quantiles", "intervals rmse", "kl_marginals 1"}
