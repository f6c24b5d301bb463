"""Propositions 3 to 9 of Burt et al. (2020): what is shown, against something independent."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from scipy import integrate, stats

from fsvi_bench.maths.gaussian import gaussian_kl
from fsvi_bench.papers.burt2020.theory import networks, singular
from fsvi_bench.papers.burt2020.theory.data_processing import (
    folded_shortfall,
    indicator_kl,
    measure_nested,
    of_values,
    random_features,
    random_posterior,
    relative_to_weights,
)
from fsvi_bench.papers.burt2020.theory.f_divergence import GENERATORS, kl
from fsvi_bench.papers.burt2020.theory.networks import linear_pieces
from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.registry import REPRODUCTIONS
from tests.maths.draws import close

CLAIMS = REPRODUCTIONS["burt2020-theory"].file.claims


def judged(frames):
    """Verdicts on the claims that stand in these frames, by name."""
    return {claim.statistic: claim.judge(claim.at.of(frames)) for claim in CLAIMS if claim.at.frame in frames}


def settings_of(**changes):
    settings = REPRODUCTIONS["burt2020-theory"]._settings("quick")
    return type(settings).model_validate(settings.model_dump() | changes)


# --- Propositions 3 and 6 ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nested():
    return measure_nested(settings_of(draws=2))


def drawn_model(k=8, points=12):
    generator = torch.Generator().manual_seed(3)
    return *random_posterior(k, generator), random_features(points, k, generator)


@pytest.mark.parametrize("rows", [[0], [0, 1, 2], [1, 4, 6, 3, 0, 7, 2], list(range(8))], ids=len)
def test_divergences_of_values_are_those_of_their_covariances(rows):
    """From N(Φμ, ΦΣΦᵀ) and N(0, ΦΦᵀ) as dense matrices; cond(ΦΦᵀ), about 1e4 here, costs the naive way digits."""
    mean, factor, Phi = drawn_model()
    A = Phi[rows]
    q, p = ((A @ part) @ (A @ part).mT for part in (factor, torch.eye(8, dtype=torch.float64)))
    expected = gaussian_kl(A @ mean, torch.linalg.cholesky(q), 0 * (A @ mean), torch.linalg.cholesky(p))
    close(kl(of_values(mean, factor, A)), expected, rtol=1e-10)


def test_more_values_than_the_rank_say_what_independent_ones_do():
    """12 values of rank 8: any 8 of them determine the others, as do 3 of 9 values at three points."""
    mean, factor, Phi = drawn_model()
    for all_rows, few in ((list(range(12)), list(range(8))), ([0, 5, 9] * 3, [9, 0, 5])):
        seen, as_few = (of_values(mean, factor, Phi[rows]) for rows in (all_rows, few))
        assert len(seen.shift) == len(few)
        for generator in GENERATORS:
            close(generator.divergence(seen), generator.divergence(as_few), rtol=1e-8)


def test_claims_on_data_processing_notice_a_breach(nested):
    """A functional KL above the weights', or one that falls, or one that differs at full rank, is seen as such."""
    k, worse = settings_of().features, nested.copy()
    of_kl = (worse["divergence"] == "KL(Q, P)") & (worse["draw"] == 2)
    worse.loc[of_kl & (worse["points"] == 4), "functional"] = worse.loc[of_kl, "weights"].iloc[0] + 0.5
    other = nested.copy()
    at = (other["divergence"] == "total variation") & (other["draw"] == 1) & (other["points"] == 12)
    other.loc[at, "functional"] *= 0.9
    found = judged({"nested": relative_to_weights(worse, k)})
    also = judged({"nested": relative_to_weights(other, k)})
    seen = worse[of_kl].set_index("inputs")["functional"]
    for verdicts, name, value, case in (
        (found, "proposition 3: largest excess of the functional over the weight KL", 0.5, "draw 2, M = 4"),
        (found, "proposition 3: smallest shortfall where the rank is below k", -0.5, "draw 2, M = 4"),
        (
            found, "proposition 2: largest fall of the functional KL as points are added",
            seen["M = 4"] - seen["M = 5"], "draw 2, M = 5",
        ),
        (
            also, "proposition 6: largest relative difference of the two where the features' rank is k", 0.1,
            "total variation, draw 1, M = 12",
        ),
    ):  # fmt: skip
        assert verdicts[name].value == pytest.approx(value, rel=1e-9)
        assert verdicts[name].statistic == f"{name} ({case})"


@pytest.mark.parametrize(("mean", "scale"), [(3.0, 1.0), (0.7, 0.5), (-1.0, 2.0)])
def test_shortfall_of_a_fold_is_the_difference_of_two_kls(mean, scale):
    """KL of w in closed form less KL of |w| from densities on the half-line, where they are sums of two."""

    def integrand(t):
        q = stats.norm.pdf(t, mean, scale) + stats.norm.pdf(-t, mean, scale)
        return q * math.log(q / (2 * stats.norm.pdf(t))) if q > 0 else 0.0

    folded = integrate.quad(integrand, 0, abs(mean) + 12 * scale, limit=400, epsabs=1e-13)[0]
    weight = 0.5 * (scale**2 + mean**2 - 1) - math.log(scale)
    assert folded_shortfall(mean, scale) == pytest.approx(weight - folded, abs=1e-9)


def test_indicators_lose_everything_as_their_cells_shrink():
    """Eleven cells by SciPy; halving a small cell halves the KL; without width nothing is left, exactly."""
    edges = np.arange(-4.5, 6.0)
    q, p = (np.append(np.diff(stats.norm.cdf(edges, mean)), 0) for mean in (1, 0))
    q[-1], p[-1] = 1 - q.sum(), 1 - p.sum()
    assert indicator_kl(1.0) == pytest.approx(float((q * np.log(q / p)).sum()), rel=1e-9)
    assert indicator_kl(1e-6) / indicator_kl(5e-7) == pytest.approx(2, rel=1e-6)
    assert indicator_kl(0.0) == 0.0


# --- Propositions 4 and 8 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "M"), [(2, 8), (10, 11)])
def test_the_model_is_a_subset_of_regressors_narrower_than_its_process(k, M):
    """K − FFᵀ is positive definite; FFᵀ has rank k."""
    problem = singular.draw_problem(settings_of(), k, M)
    K = problem.tril @ problem.tril.mT
    grid = np.arange(M)
    close(K, np.exp(-0.5 * (grid[:, None] - grid) ** 2), rtol=1e-12)
    assert float(torch.linalg.eigvalsh(K - problem.factor @ problem.factor.mT).min()) > 0
    assert int(torch.linalg.matrix_rank(problem.factor)) == k


@pytest.fixture(scope="module")
def case():
    """Along the noise, and without."""
    return singular.follow(settings_of(steps=5), 2, 5), singular.without_noise(settings_of(), [(2, 5)])


def test_slopes_are_read_off_the_last_step(case):
    along, _ = case
    time = -np.log(along["noise"])
    rates = singular.rates(along.assign(kl=2.5 * time.where(along.index >= 3, 3.0 * time)))
    row = rates[rates["divergence"] == "kl"].iloc[0]
    assert (row["case"], row["rate"], row["expected"]) == ("k = 2, M = 5", pytest.approx(2.5, rel=1e-12), 1.5)
    assert along["noise"].iloc[-1] == pytest.approx(settings_of().smallest_noise, rel=1e-12)


def test_divergences_of_a_case_fit_together(case):
    """Le Cam: H² ≤ TV ≤ √(1 − (1 − H²)²), in logarithms, at every noise; and exact values without noise."""
    along, bare = case
    affinity = along["alpha = 0.5"]
    assert (np.log(along["overlap"]) <= affinity).all()
    assert (np.log(along["overlap"]) >= 2 * affinity - math.log(2)).all()
    assert bare.set_index("divergence")["found"].to_dict() == {
        "KL(Q, P)": math.inf, "KL(P, Q)": math.inf, "total variation": 1.0, "squared Hellinger": 1.0,
        "alpha = 0.25": pytest.approx(16 / 3), "alpha = 0.75": pytest.approx(16 / 3), "alpha = 2": math.inf,
    }  # fmt: skip


def test_claims_on_singular_laws_notice_a_breach(case):
    """A KL of another slope, a value without noise that is not the largest, an event that shows too much."""
    along, bare = case
    wrong = bare.assign(found=bare["found"].where(bare["divergence"] != "KL(P, Q)", 9.0))
    found = judged(singular.judged_by_case(along.assign(kl=2 * along["kl"]), singular.distance_from_largest(wrong)))
    slope = found["proposition 4: KL(Q_e, P), largest relative distance of its slope from (M - k)/2"]
    assert slope.value == pytest.approx(1, rel=1e-3)
    assert found["proposition 4: smallest KL without noise, in either direction"].value == 9.0
    # KL(P, Q) should be infinite and is 9: infinitely far.
    assert found["proposition 8: without noise, largest distance from f(0) + f'(infinity)"].value == math.inf
    shown = judged(singular.judged_by_case(along.assign(event=1.0), bare))
    excess = shown["proposition 8: explicit event, largest excess over the total variation"].value
    assert excess == pytest.approx(along["overlap"].max(), rel=1e-9)


def test_the_curve_has_the_slope_of_one_parameter():
    found = singular.follow_curve(settings_of(curve_draws=40, curve_points=3))
    assert found["curve slopes"]["error"].mean() == pytest.approx(0.0, abs=1e-3)
    assert tuple(found["curve"]["noise"]) == singular.CURVE_NOISE


# --- Proposition 9 ----------------------------------------------------------------------------------------------------


def test_points_are_quantiles_and_nested():
    coarse, fine = networks.places(3), networks.places(5)
    assert len(coarse) == 7
    assert np.array_equal(coarse, fine[3::4])
    np.testing.assert_allclose(coarse, np.tan(np.pi * (np.arange(1, 8) / 8 - 0.5)), rtol=1e-12, atol=1e-12)


def test_pieces_of_pruned_networks_follow_the_binomial_law():
    """A weight of 0 removes a bend: pieces − 1 is binomial(6, 0.8); χ² of 500 networks against it."""
    settings = settings_of(networks=500, widths=[1], pairs=[[1, 2]], seen_networks=2, finest=2)
    drawn = networks.count_pieces(settings)
    counts = drawn.loc[drawn["law"] == networks.ZEROS, "pieces"].value_counts()
    expected = 500 * stats.binom.pmf(np.arange(7), 6, 0.8)
    observed = counts.reindex(range(1, 8), fill_value=0).to_numpy()
    merged = [np.append(numbers[:3].sum(), numbers[3:]) for numbers in (observed, expected)]
    assert stats.chisquare(*merged).pvalue > 1e-3


def test_wider_networks_are_seen_and_narrow_ones_never():
    found = networks.see(settings_of(seen_networks=30, finest=6), 1, 2)
    assert found["points"].to_list() == [3, 7, 15, 31, 63]
    assert found["value"].is_monotonic_increasing
    assert set(found["refuted"]) == {0}
    generator = settings_of().generator("seen", 1, 2)
    assert all(linear_pieces(networks.draw_network(2, generator)) == 3 for _ in range(30))
    assert found["value"].iloc[-1] > 0.5


NINE_OF_TEN = Statistic.of_proportion([True] * 9 + [False])


def seen_by(share, refuted=0):
    """Of widths 1 and 2."""
    seen = pd.DataFrame([share], columns=["value", "low", "high"])
    return seen.assign(points=3, pair="1 and 2", narrow=1, wide=2, refuted=refuted)


def test_claims_on_networks_notice_a_breach():
    """Of ten networks of width 2, one has more pieces than it can have; and a narrow one shows the event."""
    networks_ = pd.DataFrame({"law": networks.PLAIN, "width": 2, "pieces": [3] * 9 + [5]})
    others = [(networks.BARE, 2, 2), (networks.WHOLE, 6, 7), (networks.ZEROS, 6, 6)]
    drawn = pd.concat([networks_, pd.DataFrame(others, columns=networks_.columns)], ignore_index=True)
    shown = networks.shown_by_events(seen_by(NINE_OF_TEN, refuted=1))
    found = judged({**networks.judged_by_width(drawn), "events": shown})
    excess = "proposition 9: largest number of pieces in excess of width + 1"
    assert (found[excess].value, found[excess].statistic) == (2, f"{excess} (width 2)")
    assert found["proposition 9: smallest fraction of networks with exactly width + 1 pieces"].value == 0.9
    assert found["proposition 9: largest number of pieces of any width without hidden biases"].value == 2
    least = "proposition 9: smallest total variation that finitely many values show between two widths"
    assert math.isnan(found[least].low)
    fine = judged(networks.judged_by_width(drawn[drawn["pieces"] != 5]))
    assert fine[excess].value == 0


def test_an_event_shows_of_every_divergence_what_two_coins_do():
    """9 of 10 wide networks, no narrow one; an infinite KL(wide, narrow) only if p's whole interval is above 0."""
    seen = networks.shown_by_events(seen_by(NINE_OF_TEN))

    def shown(name, way, of=seen):
        return of[of["law"] == f"{name}, {way}"][["value", "low", "high"]].iloc[0].to_list()

    wide, narrow = "Q wide, P narrow", "Q narrow, P wide"
    assert shown("squared Hellinger", wide) == pytest.approx([1 - math.sqrt(1 - p) for p in NINE_OF_TEN], rel=1e-13)
    assert shown("KL(Q, P)", narrow)[0] == pytest.approx(math.log(10), rel=1e-13)
    assert shown("KL(Q, P)", wide) == [math.inf] * 3
    none = networks.shown_by_events(seen_by(Statistic.of_proportion([False] * 10)))
    assert shown("KL(Q, P)", wide, none)[1] == 0
    assert networks.shown_by_events(seen_by(NINE_OF_TEN, refuted=1))[["value", "low", "high"]].isna().all(axis=None)
    name = "proposition 7: smallest fraction of f(0) + f'(infinity), where finite, that finitely many values show"
    found = judged({"events": seen})[name]
    # α = ¼: 1 − (1 − p)^α of the largest value one way; α = ¾ the other way round.
    expected = [1 - (1 - p) ** 0.25 for p in NINE_OF_TEN]
    assert [found.value, found.low, found.high] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("cases", [[3, 3]], "expected ascending"), ("cases", [[0, 2]], "cases"), ("widths", [1, 0], "widths"),
        ("folded_mean", math.nan, "folded_mean"), ("curve_points", 61, "curve_points"),
    ],
)  # fmt: skip
def test_settings_outside_what_the_formulas_serve_are_refused(field, value, words):
    with pytest.raises(ValidationError, match=words):
        settings_of(**{field: value})
