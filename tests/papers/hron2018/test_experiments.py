"""The statistics of Hron et al. 2018's reproductions, each against something independent."""

import itertools
import math
from types import SimpleNamespace

import mpmath as mp
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import integrate
from scipy.special import expit

from fsvi_bench.papers.hron2018 import fig5, limits, moments
from fsvi_bench.papers.hron2018.fig1_3 import GAUSSIAN, convergence, growth, likelihoods, neighbourhood
from fsvi_bench.papers.hron2018.fig5 import BOUND, EVIDENCE
from fsvi_bench.papers.registry import REPRODUCTIONS
from tests import reference
from tests.maths.draws import f64

EIGENVALUES = [4.0, 2.5, 1.5, 0.5]


def settings_of(name, **changes):
    settings = REPRODUCTIONS[f"hron2018-{name}"]._settings("quick")
    return type(settings).model_validate(settings.model_dump() | changes)


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


# --- Moments ----------------------------------------------------------------------------------------------------------


def test_intervals_of_floating_point_formats():
    for name, kind in (("single", np.float32), ("double", np.float64)):
        info = np.finfo(kind)
        exponents = [math.log2(info.tiny), math.log2(info.max)]
        assert moments.FORMATS[name] == pytest.approx(exponents, rel=1e-8)


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
    monkeypatch.setattr(limits, "dropout", law)
    assert limits.one_weight_minimiser(1e-10) == pytest.approx(1.5)
    assert limits.equation_8_gap(1.5) == 0


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
