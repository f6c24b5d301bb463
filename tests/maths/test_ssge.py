"""The spectral Stein gradient estimator against reference values, a twin in loops, and densities whose score is known."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from fsvi_bench.maths.ssge import leading_count, median_bandwidth, spectral_stein_score, squared_distances
from tests import reference
from tests.maths.draws import EXPECTED, close, f64
from tests.maths.draws import normal as samples_of


def distances_of(samples):
    return squared_distances(samples, samples)


# --- Against the reference and the twin -------------------------------------------------------------------------------


def test_equals_the_reference_at_given_settings_and_by_its_rules():
    expected, samples, queries = EXPECTED["ssge"], samples_of(3, 20, 2), samples_of(4, 3, 2)
    h, J = expected["bandwidth"], expected["n_eigen"]
    close(spectral_stein_score(samples, queries, bandwidth=h, n_eigen=J), expected["score"], rtol=1e-8, atol=0)
    close(spectral_stein_score(samples, queries), expected["score_by_rules"], rtol=1e-8, atol=0)
    h = median_bandwidth(distances_of(samples))
    close(h, expected["median_rule_bandwidth"], rtol=1e-12)
    eigenvalues = torch.linalg.eigvalsh((-torch.cdist(samples, samples).square() / (2 * h**2)).exp()).flip(-1)
    assert int(leading_count(eigenvalues, 0.99)) == expected["share_099_n_eigen"]


@pytest.mark.parametrize(
    "options",
    [{}, {"share": 0.9}, {"share": 0.999}, {"bandwidth": 0.7}, {"bandwidth": 2.0, "share": 0.95}, {"n_eigen": 1}],
    ids=str,
)
@pytest.mark.parametrize(("S", "d"), [(6, 1), (11, 3), (12, 5)])
def test_equals_the_twin_at_the_samples_and_elsewhere(S, d, options):
    # Coefficients are divided by λ_j ≥ 1e-4 or so, twice: eps becomes 1e-12 and less, relative to scores of order 1.
    samples, queries = samples_of([1, S], S, d) + 0.5, samples_of([2, S], 4, d)
    for at, actual in (
        (queries, spectral_stein_score(samples, queries, **options)),
        (samples, spectral_stein_score(samples, **options)),
    ):
        expected, _ = reference.spectral_stein_score(samples.numpy(), at.numpy(), **options)
        close(actual, expected, rtol=1e-9, atol=1e-10)


def test_every_problem_of_a_batch_has_its_own_bandwidth_and_count():
    samples = samples_of(5, 3, 8, 2) * f64([0.1, 1.0, 30.0])[:, None, None]
    samples[2, :7] *= 1e-3  # one far from all the others: fewer eigenvalues hold the share
    counts = set()
    for one, score in zip(samples, spectral_stein_score(samples, samples[:, :3]), strict=True):
        expected, J = reference.spectral_stein_score(one.numpy(), one[:3].numpy())
        # Scores go like 1/h, so tolerances do, too.
        close(score, expected, rtol=1e-8, atol=1e-9 * np.abs(expected).max())
        counts.add(J)
    assert len(counts) > 1


# --- The number of eigenfunctions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eigenvalues", "share", "J"),
    [
        ([99.0, 1.0, 0.0], 0.99, 1),  # reached, not exceeded
        ([98.0, 1.5, 0.5], 0.99, 2),
        ([1.0, 1.0, 1.0, 1.0], 0.75, 3),
        ([1.0, 1.0, 1.0, 1.0], 0.76, 4),
        ([4.0, 0.0, 0.0, 0.0], 1.0, 1),
        ([4.0, 1e-18, -1e-17], 0.99, 1),  # eigenvalues of a singular kernel matrix are rounding
        ([1.0, 0.5, 0.25], 1.0, 3),
        ([1.0, 1e-3, 1e-17], 1.0, 2),  # of the third nothing but rounding is left
    ],
)
def test_the_count_is_the_least_that_reaches_the_share(eigenvalues, share, J):
    assert int(leading_count(f64(eigenvalues), share)) == J


# --- What it estimates ------------------------------------------------------------------------------------------------


def test_the_error_at_a_standard_normal_falls_with_the_number_of_samples():
    """The score of N(0, I) is −x. Root mean square errors over 100 repetitions in two dimensions are 1.36 ± 0.08,
    0.62 ± 0.02 and 0.34 ± 0.01: ratios of 2.2 ± 0.13 and 1.8 ± 0.07, of which 1.5 is four standard errors short. To
    answer 0 always would leave 1 (the root mean square of −x), and the wrong sign would leave 2."""
    errors = []
    for S in (15, 60, 240):
        samples, queries = samples_of([9, S], 100, S, 2), samples_of([10, S], 100, 50, 2)
        score = spectral_stein_score(samples, queries)
        errors.append(float((score + queries).square().mean().sqrt()))
    assert errors[0] > 1.5 * errors[1] > 1.5**2 * errors[2]
    assert errors[2] < 0.5


# --- The median rule --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("S", [2, 3, 4, 5, 6, 9])  # 1, 3, 6, 10, 15 and 36 pairs
def test_the_bandwidth_is_the_median_distance_over_pairs(S):
    samples = samples_of([13, S], 2, S, 3)
    for one, h in zip(samples.numpy(), median_bandwidth(distances_of(samples)), strict=True):
        assert float(h) == pytest.approx(np.median(pdist(one)), rel=1e-12)


def test_equal_samples_are_never_at_a_negative_distance():
    once = samples_of(0, 6, 7)
    samples = torch.cat([once, once, once])
    sizes = samples.square().sum(-1)
    assert (sizes[:, None] + sizes - 2 * samples @ samples.mT).min() < 0  # what rounding makes of the formula
    assert distances_of(samples).min() == 0


# --- Problems beside each other ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])  # the square of the last one is not finite
@pytest.mark.parametrize("S", [7, 8])  # 21 and 28 pairs: the median of an odd and of an even number
@pytest.mark.parametrize("bandwidth", [None, 1.0])
def test_samples_that_are_not_finite_are_nan_for_their_problem_alone(S, bad, bandwidth):
    samples, queries = samples_of([14, S], 3, S, 4), samples_of([15, S], 3, 2, 4)

    def scores():
        return [spectral_stein_score(samples, at, bandwidth=bandwidth) for at in (None, queries)]

    healthy = scores()
    samples[1, 3, 2] = bad
    for before, after in zip(healthy, scores(), strict=True):
        assert torch.equal(after[::2], before[::2])
        assert after[1].isnan().all()
