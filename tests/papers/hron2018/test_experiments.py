"""The statistics of Hron et al. 2018's reproductions, each against something independent."""

import itertools
import math
from types import SimpleNamespace

import mpmath as mp
import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from scipy import integrate
from scipy.special import expit

from fsvi_bench.papers.hron2018 import fig5, limits, moments
from fsvi_bench.papers.hron2018.fig1_3 import GAUSSIAN, convergence, growth, likelihoods, neighbourhood, truncations
from fsvi_bench.papers.hron2018.fig5 import BOUND, EVIDENCE
from fsvi_bench.papers.hron2018.quasi_kl import quasi_kl_gaussian
from fsvi_bench.papers.registry import REPRODUCTIONS
from tests import reference
from tests.maths.draws import draw_pair, f64

EIGENVALUES = [4.0, 2.5, 1.5, 0.5]


def settings_of(name, **changes):
    settings = REPRODUCTIONS[f"hron2018-{name}"]._settings("quick")
    return type(settings).model_validate(settings.model_dump() | changes)


def mass_by_scipy(likelihood, a, b):
    """∫ likelihood(w)/|w| dw over e^a < |w| < e^b, over w itself."""
    sides = [(-math.exp(b), -math.exp(a)), (math.exp(a), math.exp(b))]
    return sum(integrate.quad(lambda w: likelihood(w) / abs(w), *side)[0] for side in sides)


# --- Figures 1 to 3 ---------------------------------------------------------------------------------------------------


def normal_density(w, y=1.0):
    return mp.exp(-((w - y) ** 2) / 2) / mp.sqrt(2 * mp.pi)


def test_mass_around_zero_equals_an_integral_with_many_digits():
    settings = settings_of("fig1-3")
    grown = growth(likelihoods(settings)[GAUSSIAN], 0.5, 0.1, settings, sides=[1, -1], away=-1)
    for row in grown.iloc[[1, 7, -1]].itertuples():
        low = mp.mpf(row.log_size)
        expected = mp.quad(
            lambda t: normal_density(mp.exp(t)) + normal_density(-mp.exp(t)), mp.linspace(low, mp.log(0.5), 9)
        )
        assert row.mass == pytest.approx(float(expected), rel=1e-13)
        assert row.bound == pytest.approx(0.2 * float(mp.log(0.5) - low), rel=1e-13)
        assert row.log_density == pytest.approx(float(mp.log(normal_density(mp.exp(low))) - low), rel=1e-13)


@pytest.mark.parametrize("side", [1, -1])
def test_mass_of_a_tail_equals_an_integral_with_many_digits(side):
    grown = growth(lambda w: expit(side * w), 1.0, 0.5, settings_of("fig1-3"), sides=[side], away=1)
    for row in grown.iloc[[1, 9]].itertuples():
        expected = mp.quad(lambda t: 1 / (1 + mp.exp(-mp.exp(t))), mp.linspace(0, row.log_size, 17))
        assert row.mass == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(("power", "ratio"), [(0, 1.0), (1, 0.1), (2, 0.01)])
def test_a_likelihood_that_vanishes_at_zero_has_finite_mass_there(power, ratio):
    """∫ |w|^(n−1) dw: each decade adds 10^(−n) of what the one before did. So proposition 1's premise is needed."""
    settings = settings_of("fig1-3", decades=4)
    grown = growth(lambda w: np.abs(w) ** power, 1.0, 0.5, settings, sides=[1, -1], away=-1)
    assert convergence(grown, settings.per_decade)["last_ratio"] == pytest.approx(ratio, rel=1e-9)


def test_the_likelihood_exceeds_r_exactly_within_delta():
    delta, r = neighbourhood(settings_of("fig1-3"))
    assert r == pytest.approx(0.5 * float(normal_density(mp.mpf(0))), rel=1e-14)
    assert float(normal_density(mp.mpf(-delta))) == pytest.approx(r, rel=1e-13)
    assert normal_density(mp.mpf(delta)) > r


def test_softmax_of_three_classes():
    logits = f64([[1.3, 0.0, 0.0], [-0.4, 0.0, 0.0]])
    likelihood = likelihoods(settings_of("fig1-3"))["around 0: categorical of 3 classes, linear"]
    assert likelihood(logits[:, 0].numpy()) == pytest.approx(logits.softmax(-1)[:, 0].numpy(), rel=1e-15)


def test_truncations_by_integration_over_w_and_changes_by_hand():
    found = truncations([(-1.0, 1.0), (-1.5, 2.5), (-3.0, 2.75)])
    assert found["interval"].tolist() == ["[−1, 1]", "[−1.5, 2.5]", "[−3, 2.75]"]
    integrals = []
    for row in found.itertuples():
        mass = mass_by_scipy(lambda w: 1.0, row.a, row.b)
        evidence, first, second = (mass_by_scipy(lambda w, n=n: w**n * expit(w), row.a, row.b) for n in range(3))
        mean = first / evidence
        integrals.append((1 / (mass * math.exp(row.a)), mean, math.sqrt(second / evidence - mean**2)))
    assert found[["peak", "mean", "sd"]].to_numpy() == pytest.approx(np.array(integrals), rel=1e-9)
    assert found["gap"].tolist() == pytest.approx([2 / math.e, 2 * math.exp(-1.5), 2 * math.exp(-3)], rel=1e-14)
    assert found["end"].tolist() == pytest.approx([math.e, math.exp(2.5), math.exp(2.75)], rel=1e-14)
    peak, mean, _ = np.transpose(integrals)
    changes = np.transpose([[0.5, 0.25], np.diff(np.log(peak)), mean[1:] / mean[:-1]])
    assert found[["widening", "peak_rise", "mean_ratio"]][1:].to_numpy() == pytest.approx(changes, rel=1e-8)


def test_an_interval_that_does_not_contain_the_one_before_would_be_found():
    """So that the claims of figure 3 can fail."""
    found = truncations([(-2.0, 2.0), (-1.5, 3.0), (-3.0, 1.0)])
    assert found["widening"][1:].tolist() == [-0.5, -2.0]
    assert found["peak_rise"][1] < 0 < found["peak_rise"][2]
    assert found["mean_ratio"][1] > 1 > found["mean_ratio"][2]


# --- Moments ----------------------------------------------------------------------------------------------------------


def test_intervals_of_floating_point_formats():
    for name, kind in (("single", np.float32), ("double", np.float64)):
        info = np.finfo(kind)
        exponents = [math.log2(info.tiny), math.log2(info.max)]
        assert moments.FORMATS[name] == pytest.approx(exponents, rel=1e-8)


@pytest.mark.parametrize("likelihood", [expit, lambda w: 0.3 * expit(2 * w) + 0.7 * expit(-w)])
@pytest.mark.parametrize("power", [1, 2])
def test_moments_by_quadrature_over_log_w_equal_scipys_over_w(power, likelihood):
    """Of likelihoods whose two sides add to 1."""
    a, b = np.array([-3.0, -1.0, 0.5]), np.array([0.5, 2.0, 2.5])
    masses = [mass_by_scipy(lambda w: w**power * likelihood(w), *ends) for ends in zip(a, b, strict=True)]
    assert moments.quadrature_moment(power, a, b, likelihood) == pytest.approx(masses / (b - a), rel=1e-10)


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("power", [1, 2])
def test_moments_by_quadrature_of_one_side_have_a_closed_form(power, side):
    """E wⁿ = (±1)ⁿ (e^(nb) − e^(na))/(n(b − a)) for a step likelihood, also for intervals far below the lower limit."""
    a, b = np.array([-2.0, -40.0, -1e3, -1e12]), np.array([1.0, 3.0, 300.0, 4.0])
    found = moments.quadrature_moment(power, a, b, lambda w: 1.0 * (side * w > 0))
    assert found == pytest.approx(side**power * (np.exp(power * b) - np.exp(power * a)) / (power * (b - a)), rel=1e-12)


def test_sequences_are_the_papers():
    """b = log log |a|; e^b/(b − a) = c, to which E w tends; a = −b. Their ends are those of the settings."""
    settings = settings_of("moments", constants=[0.5, 20.0], largest_b_constant=9.0, largest_b_infinity=40.0, points=7)
    to_0, *to_c, to_infinity = moments.sequences(settings)
    found = [to_0, *to_c, to_infinity]
    assert [each["tends"].unique().tolist() for each in found] == [["to 0"], ["to 0.5"], ["to 20"], ["to infinity"]]
    assert [len(each) for each in found] == [7] * 4
    assert np.exp(np.exp(to_0["b"])).to_numpy() == pytest.approx(-to_0["a"].to_numpy(), rel=1e-12)
    assert -to_0["a"].iloc[[0, -1]].to_numpy() == pytest.approx([10, settings.largest_size], rel=1e-13)
    for c, steps in zip(settings.constants, to_c, strict=True):
        assert (np.exp(steps["b"]) / (steps["b"] - steps["a"])).to_numpy() == pytest.approx(c, rel=1e-12)
        assert steps["c"].tolist() == [c] * 7
        assert steps["b"].iloc[-1] == 9
    assert (to_infinity["a"] == -to_infinity["b"]).all()
    assert to_infinity["b"].iloc[[0, -1]].tolist() == [1, 40]
    for steps in found:
        assert (steps["a"].diff()[1:] < 0).all()
        assert (steps["b"].diff()[1:] > 0).all()


def test_moments_along_sequences_equal_integrals_with_many_digits():
    """E w = ∫ tanh(e^t/2) e^t dt/(b − a) with w = ±e^t; with the other target, w has the opposite sign."""
    settings = settings_of("moments", largest_b_constant=6.0, points=6)
    to_0, to_c, *_, to_infinity = moments.sequences(settings)
    for row in (to_0.iloc[1], to_c.iloc[2], to_infinity.iloc[0]):
        a, b = mp.mpf(row["a"]), mp.mpf(row["b"])
        nodes = mp.linspace(max(a, -40), b, 12)
        mean = mp.quad(lambda t: mp.tanh(mp.exp(t) / 2) * mp.exp(t), nodes) / (b - a)
        variance = mp.quad(lambda t: mp.exp(2 * t), nodes) / (b - a) - mean**2
        expected = [mean, variance, -mean, *(mp.log10(each) for each in (mean, variance, mp.exp(b) / (2 * b)))]
        columns = ["mean", "variance", "mirrored", "log_mean", "log_variance", "log_growth"]
        assert row[columns].tolist() == pytest.approx([float(each) for each in expected], rel=1e-10)


@pytest.mark.parametrize("name", ["posterior_mean", "posterior_variance"])
def test_quadrature_would_find_a_wrong_closed_form(monkeypatch, name):
    """So that the claim of equations 1 and 2 can fail."""
    a, b, right = np.array([-1.0, -3.0]), np.array([1.0, 2.0]), getattr(moments, name)
    good = moments.follow("", a, b).loc[1]
    monkeypatch.setattr(moments, name, lambda a, b: right(a, b) * [1.0, 1.01])
    wrong = moments.follow("", a, b)
    second = wrong["variance"][1] + wrong["mean"][1] ** 2
    ratios = good["mean"] / wrong["mean"][1], (good["variance"] + good["mean"] ** 2) / second
    assert max(good["quadrature"], wrong["quadrature"][0]) < 1e-12
    assert wrong["quadrature"][1] == pytest.approx(max(abs(ratio - 1) for ratio in ratios), rel=1e-9)


PLANTED_STEPS = {
    "a": [-1.0, -1.25, -3.0, -5.0, -8.0, -12.0],
    "b": [0.0, 1.0, 2.0, 3.0, 4.0, 6.0],
    "mean": [9.0, 9.0, 9.0, 9.0, 9.0, 5.0],
    "mirrored": [-9.0, -9.0, -9.0, -9.0, -9.0, -10.0],
    "c": [4.0] * 6,
    "quadrature": [1e-9, 3e-3, 0.0, 1e-6, 0.0, 1e-8],
    "log_mean": [5.0, 9.0, 9.0, 0.0, -0.5, -1.5],
    "log_variance": [5.0, 9.0, 0.0, 1.0, 0.5, 0.25],
    "log_growth": [-9.0, 9.0, 7.0, 0.0, -0.5 - math.log10(4), -1.5 - math.log10(3)],
}


def test_the_end_of_a_sequence_by_hand():
    """The second half has ratios of mean and growth of 1, 4 and 3, and changes of logarithms of −½, −1, −½ and −¼."""
    found = moments.end_of(pd.DataFrame(PLANTED_STEPS).assign(tends="to 4"))
    expected = {
        "widening": 0.25,
        "quadrature": 3e-3,
        "largest_change": -0.25 * math.log(10),
        "least_growth": -0.5 * math.log(10),
        "spread": 9 / 8,
        "distance": 0.25,
        "mirrored_distance": -1.5,
        "log_mirrored": 1.0,
    }
    assert found[list(expected)].to_dict() == pytest.approx(expected, rel=1e-12)
    assert found[["tends", "a", "b", "mean", "log_mean"]].tolist() == ["to 4", -12, 6, 5, -1.5]


@pytest.mark.parametrize(
    ("column", "statistic"),
    [
        ("a", "widening"),
        ("b", "widening"),
        ("quadrature", "quadrature"),
        ("log_mean", "largest_change"),
        ("log_variance", "largest_change"),
        ("log_variance", "least_growth"),
        ("b", "least_growth"),
        ("log_mean", "spread"),
    ],
)
def test_a_value_that_is_not_a_number_in_a_sequence_is_not_skipped(column, statistic):
    steps = pd.DataFrame(PLANTED_STEPS)
    steps.loc[3, column] = math.nan
    assert math.isnan(moments.end_of(steps)[statistic])


@pytest.mark.parametrize(("column", "value", "widening"), [("a", -2.0, -1.0), ("b", 1.5, -0.5)])
def test_a_sequence_whose_interval_narrows_would_be_found(column, value, widening):
    steps = pd.DataFrame(PLANTED_STEPS)
    steps.loc[3, column] = value
    assert moments.end_of(steps)["widening"] == widening


# --- Limits -----------------------------------------------------------------------------------------------------------


def test_limit_of_dropout_by_enumeration_of_its_atoms():
    settings = settings_of("limits")
    cases = limits.dropout_cases(settings)
    law = limits.dropout(*cases)
    assert law.quasi_kl().shape == (18,)
    for value, theta, retain, mean, sd in zip(law.quasi_kl().tolist(), *(each.numpy() for each in cases), strict=True):
        total = 0.0
        for kept in itertools.product((0, 1), repeat=2):
            q = np.prod(np.where(kept, retain, 1 - retain))
            z = (theta * kept - mean) / sd
            total += q * (math.log(q) + 0.5 * z @ z + math.log(2 * math.pi) + np.log(sd).sum())
        assert value == pytest.approx(total, rel=1e-13)
    first = settings.theta[0], (settings.retain_probability[0],) * 2, settings.target_mean[0], settings.target_sd[0]
    assert [tuple(each[0].tolist()) for each in cases] == list(first)


def test_a_minimiser_that_did_not_shrink_with_the_noise_would_be_found(monkeypatch):
    """So that the claim of equation 8 can fail."""
    law = lambda theta, *its: SimpleNamespace(centred_convolved_kl=lambda variance: (theta[:, 0] - 1.5) ** 2)  # noqa: E731
    with monkeypatch.context() as planted:
        planted.setattr(limits, "dropout", law)
        assert limits.one_weight_minimiser(1e-10) == pytest.approx(1.5)


@pytest.mark.parametrize(("theta", "gap"), [(1e-4, math.log(2)), (0.1, 0.0025), (1.5, 0.5625)])
def test_the_gap_of_equation_8_is_a_quarter_of_the_square_unless_the_atoms_merge(theta, gap):
    """QKL is log 2π/2 − log 2 + θ²/4 of atoms at 0 and θ, and log 2π/2 of one at 0."""
    assert limits.equation_8_gap(theta) == pytest.approx(gap, rel=1e-12)


def test_kls_with_their_shifts_are_the_centred_ones_and_the_shift():
    """The closed forms without the shift, and quadrature or dense Gaussians with it, in 18 and 60 cases."""
    settings, noise = settings_of("limits"), 1e-4
    law, shift = limits.dropout(*limits.dropout_cases(settings)), -0.5 * math.log(2 * math.pi * math.e * noise)
    centred = law.centred_convolved_kl(noise)
    assert limits.convolved_kl(law, noise).numpy() == pytest.approx((centred + 2 * shift).numpy(), rel=1e-9)
    for K, subspaces in limits.random_subspaces(settings).items():
        centred = quasi_kl_gaussian(*subspaces, noise)
        found = limits.noisy_kl(*subspaces, noise)
        assert found.numpy() == pytest.approx((centred + (3 - K) * shift).numpy(), rel=1e-9)


def test_one_weight_minimiser_against_integration():
    """KL of ½[N(0, τ) + N(θ, τ)] to N(0, 1) by adaptive quadrature is lower there than 3% beside it."""
    tau = 0.01
    found = limits.one_weight_minimiser(tau)

    def kl(theta):
        def integrand(w):
            q = 0.5 * sum(math.exp(-((w - m) ** 2) / (2 * tau)) for m in (0, theta)) / math.sqrt(2 * math.pi * tau)
            return q * (math.log(q) + 0.5 * w * w) if q > 0 else 0.0

        return integrate.quad(integrand, -1, theta + 1, points=[0, theta], epsabs=1e-12, limit=200)[0]

    assert kl(found) < min(kl(0.97 * found), kl(1.03 * found), kl(0.0))


def test_gradients_differ_from_those_of_dropout_under_another_prior_only(monkeypatch):
    """For the prior N(m, s²), the gradient of the quasi-KL in θ is p(θ − m)/s², not pθ."""
    theta, retain = f64([[0.7, -1.2], [3.0, 0.4]]), f64([[0.2, 0.9], [0.5, 0.5]])
    assert limits.gradient_difference(theta, retain).abs().max() < 1e-14
    right = limits.dropout
    other = lambda theta, retain, mean, sd: right(theta, retain, mean + f64([0.5, -2.0]), sd * f64([2.0, 0.5]))  # noqa: E731
    monkeypatch.setattr(limits, "dropout", other)
    expected = [[0.2 * 0.2 / 4 - 0.14, 0.9 * 0.8 * 4 + 1.08], [0.5 * 2.5 / 4 - 1.5, 0.5 * 2.4 * 4 - 0.2]]
    assert limits.gradient_difference(theta, retain).numpy() == pytest.approx(np.array(expected), rel=1e-12)


def test_the_kl_in_full_dimension_is_the_dense_one_and_equals_the_quasi_kl(monkeypatch):
    mean, factor, _, tril_p = (
        torch.stack(each) for each in zip(*(draw_pair(seed, 3) for seed in range(5)), strict=True)
    )
    law = mean, factor, torch.linalg.cholesky(torch.linalg.inv(tril_p @ tril_p.mT))
    assert limits.full_dimension_difference(*law).abs().max() < 1e-11
    monkeypatch.setattr(limits, "quasi_kl_gaussian", lambda *its: torch.arange(5.0, dtype=torch.float64))
    planted = limits.full_dimension_difference(*law)
    for n, (m, F, L) in enumerate(zip(mean.numpy(), factor.numpy(), tril_p.numpy(), strict=True)):
        kl = reference.gaussian_kl(m, F @ F.T, np.zeros(3), L @ L.T)
        assert planted[n] == pytest.approx(n - kl, rel=1e-9)


def test_distances_from_the_limit_of_planted_kls():
    """Of the cases −1, 0 and 5 they are size, 2·size and 3·size, with either sign."""
    quasi_kl, sizes, shifts = f64([-1.0, 0.0, 5.0]), np.array([1.0, 0.25, 0.125]), np.array([7.0, 8.0, 9.0])
    found = limits.approach("planted", sizes, shifts, lambda size: quasi_kl + size * f64([1.0, -2.0, 3.0]), quasi_kl)
    assert found["way"].unique().tolist() == ["planted"]
    by_case = found.pivot(index=["step", "size", "shift"], columns="case", values="distance")
    assert by_case.index.tolist() == [(0, 1.0, 7.0), (1, 0.25, 8.0), (2, 0.125, 9.0)]
    assert by_case.columns.tolist() == [0, 1, 2]
    assert by_case.to_numpy() == pytest.approx(np.outer(sizes, [1, 2, 3]), rel=1e-14)


# --- Figure 5 ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def settings():
    return settings_of("fig5")


@pytest.fixture
def precision_tril(settings):
    return torch.linalg.cholesky(torch.linalg.inv(f64(settings.covariance)))


def test_ellipses_are_of_whole_standard_deviations(settings):
    drawn = fig5.ellipses(settings.covariance)
    for edge in ("low", "high"):
        w = drawn[["w1", edge]].to_numpy()
        distance = np.sqrt(((w @ np.linalg.inv(settings.covariance)) * w).sum(1))
        assert distance == pytest.approx(drawn["deviations"].to_numpy(), rel=1e-12)
    assert bool((drawn["low"] <= drawn["high"]).all())


@pytest.mark.parametrize("covariance", [[[2.0, 1.3], [1.3, 1.0]], [[1.0, -0.9], [-0.9, 4.0]]])
def test_drawn_lines_by_integration_along_them(covariance):
    """Mass, variance and KL on each line by quadrature, the axis by NumPy's eigenvectors. The "best" line is not it."""
    settings = settings_of("fig5", covariance=covariance, angles=[0.0, 75.0])
    precision, best = np.linalg.inv(covariance), 2.0
    found = fig5.drawn_lines(settings, torch.linalg.cholesky(f64(precision)), best)
    assert found["line"].tolist() == ["best", "other", "other"]
    assert found["degrees"].tolist() == pytest.approx([math.degrees(best), 0, 75])
    longest = np.linalg.eigh(covariance)[1][:, 1]
    for row in found.itertuples():
        along = np.array([math.cos(math.radians(row.degrees)), math.sin(math.radians(row.degrees))])

        def log_p(t, along=along):
            log_normaliser = math.log(2 * math.pi) + 0.5 * np.linalg.slogdet(covariance)[1]
            return -0.5 * t * t * along @ precision @ along - log_normaliser

        def log_q(t, sd=row.sd):
            return -0.5 * (t / sd) ** 2 - math.log(sd) - 0.5 * math.log(2 * math.pi)

        mass, second, quasi_kl = (
            integrate.quad(integrand, -40, 40, points=[-3, 0, 3], limit=200, epsabs=1e-13)[0]
            for integrand in (
                lambda t: math.exp(log_p(t)),
                lambda t: t * t * math.exp(log_p(t)),
                lambda t: math.exp(log_q(t)) * (log_q(t) - log_p(t)),
            )
        )
        assert row.height == pytest.approx(-math.log(mass), rel=1e-10)
        assert row.excess == pytest.approx(row.height - found["height"][0], abs=1e-13)
        assert row.sd == pytest.approx(math.sqrt(second / mass), rel=1e-10)
        assert row.quasi_kl == pytest.approx(quasi_kl, rel=1e-10)
        assert (row.mean, row.kl) == pytest.approx((0, 0), abs=1e-13)
        assert row.apart == pytest.approx(math.degrees(math.acos(abs(longest @ along))), rel=1e-10)
        assert math.tan(math.radians(row.axis)) == pytest.approx(longest[1] / longest[0], rel=1e-12)
        assert 0 <= row.axis < 180


def test_a_line_on_which_the_kl_term_is_not_zero_would_be_found(monkeypatch, settings, precision_tril):
    """So that figure 5's first claim can fail: with another standard deviation it is x − 1 − log x, halved, x = 4."""
    right = fig5.line_quasi_kl
    monkeypatch.setattr(fig5, "line_quasi_kl", lambda angle, mean, sd, tril: right(angle, mean, 2 * sd, tril))
    found = fig5.drawn_lines(settings, precision_tril, 0.3)
    assert found["kl"].to_numpy() == pytest.approx(0.5 * (4 - 1 - math.log(4)), rel=1e-12)
    assert (found["quasi_kl"] - found["height"]).to_numpy() == pytest.approx(found["kl"].to_numpy(), rel=1e-12)


@pytest.mark.parametrize(
    ("sd", "least"), [(1.0, 0.0), (1e3, math.log(100) + (1e-4 - 1) / 2), (1e-4, -math.log(100) + (1e4 - 1) / 2)]
)
def test_the_least_excess_over_the_bound_by_hand(sd, least):
    """For P = N(0, sd² I) it is the KL of the closest standard deviation between 0.01 and 10, around 0."""
    found = fig5.equation_9(torch.eye(2, dtype=torch.float64) / sd)
    assert found["least_excess"] == pytest.approx(least, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("error", [0.3, -0.7])
def test_an_error_of_the_quasi_kl_at_one_angle_would_be_found(monkeypatch, precision_tril, error):
    """The standard Gaussian at one angle has a KL term of 0, so the error is the excess there."""
    right = fig5.line_quasi_kl

    def wrong(angle, mean, sd, tril):
        at = (angle == angle.max()) & (mean == 0) & ((sd - 1).abs() < 1e-9)
        assert at.sum() == 1
        return right(angle, mean, sd, tril) + error * at.double()

    identity = torch.eye(2, dtype=torch.float64)
    assert max(fig5.equation_9(each)["difference"] for each in (identity, precision_tril)) < 1e-10
    monkeypatch.setattr(fig5, "line_quasi_kl", wrong)
    found = fig5.equation_9(identity)
    assert found["difference"] == pytest.approx(abs(error), abs=1e-9)
    assert found["least_excess"] == pytest.approx(min(0, error), abs=1e-9)


@pytest.mark.parametrize("start", [0.2, 0.6, 0.9])
def test_best_angle_does_not_depend_on_the_start(settings, precision_tril, start):
    (a, b), (_, c) = settings.covariance
    assert fig5.best_angle(precision_tril, f64(start)) == pytest.approx(0.5 * math.atan2(2 * b, a - c), abs=1e-7)


def test_the_most_that_minus_quasi_kl_can_be_by_integration_over_lines():
    (Phi, y), noise_sd = fig5.regression(20, 0.5, 0), 0.5
    found = fig5.prior_scales(Phi, y, noise_sd, f64([0.3, 0.9, 3.0]))
    Phi, y, t = Phi.numpy(), y.numpy(), np.linspace(-4, 4, 4001)
    for scale, evidence, bound in found[["scale", EVIDENCE, BOUND]].to_numpy():
        precision = Phi.T @ Phi / noise_sd**2 + np.eye(2) / scale**2
        mean = np.linalg.solve(precision, Phi.T @ y) / noise_sd**2
        masses = []
        for angle in np.linspace(0, math.pi, 721):
            w = mean[:, None] + np.array([math.cos(angle), math.sin(angle)])[:, None] * t
            residual = (y[:, None] - Phi @ w) / noise_sd
            log_joint = -0.5 * ((residual**2).sum(0) + (w**2).sum(0) / scale**2)
            masses.append(np.trapezoid(np.exp(log_joint + 50), t))
        constant = len(y) * math.log(2 * math.pi * noise_sd**2) / 2 + math.log(2 * math.pi * scale**2)
        # A grid of quarters of a degree misses the best angle by little: the mass is flat there.
        assert bound == pytest.approx(math.log(max(masses)) - 50 - constant, abs=1e-4)
        covariance = noise_sd**2 * np.eye(len(y)) + scale**2 * Phi @ Phi.T
        assert evidence == pytest.approx(reference.gaussian_log_density(y, np.zeros(len(y)), covariance), rel=1e-11)


def test_where_a_vanishing_prior_beats_the_best_one():
    data = fig5.regression(20, 0.5, 0)
    found = fig5.prior_scales(*data, 0.5, torch.logspace(-2, 2, 31, dtype=torch.float64))
    overtakes = found.attrs["overtakes"]
    around = torch.logspace(overtakes - 0.01, overtakes + 0.01, 3, dtype=torch.float64)
    below, at, above = fig5.prior_scales(*data, 0.5, around)[BOUND] - found[BOUND].max()
    assert below > 0 > above
    assert at == pytest.approx(0, abs=1e-9)


def test_evidence_and_bound_by_dense_algebra():
    """The evidence by the marginal covariance; log Z_S of the best line is ½ log(λ/2π), λ the largest precision."""
    data, scales = fig5.regression(20, 0.5, 45), np.geomspace(0.01, 100, 31)
    found = fig5.prior_scales(*data, 0.5, torch.from_numpy(scales))
    Phi, y = (each.numpy() for each in data)
    for scale, (evidence, bound) in zip(scales, found[[EVIDENCE, BOUND]].to_numpy(), strict=True):
        covariance = 0.25 * np.eye(len(y)) + scale**2 * Phi @ Phi.T
        largest = np.linalg.eigvalsh(4 * Phi.T @ Phi + np.eye(2) / scale**2)[-1]
        expected = reference.gaussian_log_density(y, np.zeros(len(y)), covariance)
        assert evidence == pytest.approx(expected, rel=1e-10)
        assert bound == pytest.approx(expected + 0.5 * math.log(largest / (2 * math.pi)), rel=1e-10)


# --- Principal subspaces ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1e-2, 1e-5])
def test_convolved_optimum_tends_to_the_principal_subspace(tau):
    """Proposition 7: variances are less by τ."""
    gammas = f64(EIGENVALUES)
    (distance,) = fig5.convolved_distances(gammas, [tau], torch.ones(4, 2).double().tril())["Frobenius distance"]
    assert distance == pytest.approx(tau * math.sqrt(2), abs=1e-6)


@pytest.mark.parametrize("noise_variance", [0.0, 0.1])
def test_curvatures_at_choices_of_eigenvectors(noise_variance):
    """With v = γ − τ: v_i(1/γ_j − 1/γ_i) between kept i and left-out j, from the trace; kept pairs add up; log v."""
    found = fig5.stationary_points(f64(EIGENVALUES), 2, [noise_variance])
    for point, (i, j) in zip(found.itertuples(), itertools.combinations(range(4), 2), strict=True):
        v = {k: EIGENVALUES[k] - noise_variance for k in (i, j)}
        inverse = [1 / gamma for gamma in EIGENVALUES]
        expected = [v[k] * (inverse[other] - inverse[k]) for k in v for other in set(range(4)) - set(v)]
        expected.append((v[i] - v[j]) * (inverse[j] - inverse[i]))
        # ½[v e^x/γ − log(v e^x + τ)] has the second derivative ½[v/γ − vτ/γ²] at x = 0.
        expected += [0.5 * v[k] * (inverse[k] - noise_variance * inverse[k] ** 2) for k in v]
        assert (point.name, point.leading) == (f"{{{i + 1}, {j + 1}}}", (i, j) == (0, 1))
        assert point.slope < 1e-13
        assert point.least_curvature == pytest.approx(min(expected), rel=1e-11)
        assert point.largest_curvature == pytest.approx(max(expected), rel=1e-11)


def test_descent_leaves_the_neighbourhood_of_another_choice():
    start = torch.eye(4, dtype=torch.float64)[:, 2:] + 1e-3
    found = fig5.try_start(f64(EIGENVALUES), start)
    assert max(found["angle"], found["variance_error"]) < 1e-5
    assert not found["missed"]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("fig5", {"noise_variances": [3.0, 1.0]}, "noise below the last one retained"),
        ("fig5", {"dimensions": 5}, "more eigenvalues than dimensions"),
    ],
)
def test_settings_without_sense_are_refused(name, changes, message):
    with pytest.raises(ValidationError, match=message):
        settings_of(name, **changes)
