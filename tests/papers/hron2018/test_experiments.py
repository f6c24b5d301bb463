"""The statistics of Hron et al. 2018's reproductions, each against something independent."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import integrate

from fsvi_bench.papers.hron2018 import fig5, limits, moments
from fsvi_bench.papers.hron2018.fig1_3 import GAUSSIAN, growth, likelihoods, neighbourhood, tell
from fsvi_bench.papers.hron2018.fig5 import BOUND, EVIDENCE, prior_scales, regression
from fsvi_bench.papers.hron2018.pca import Target, at_choice, descend, largest_angle, outer
from fsvi_bench.papers.registry import REPRODUCTIONS
from tests.maths.draws import close, f64


def settings_of(name):
    return REPRODUCTIONS[name]._settings(quick=True)


def changed(settings, **values):
    return type(settings).model_validate(settings.model_dump() | values)


# --- Figures 1 to 3 ---------------------------------------------------------------------------------------------------


def normal_density(w, y=1.0):
    return mp.exp(-((w - y) ** 2) / 2) / mp.sqrt(2 * mp.pi)


def test_mass_around_zero_equals_an_integral_with_many_digits():
    settings = settings_of("hron2018-fig1-3")
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
    settings = settings_of("hron2018-fig1-3")
    grown = growth(torch.sigmoid, 1.0, 0.5, settings, sides=[side], away=1)
    for row in grown.iloc[[1, 9]].itertuples():
        high = mp.mpf(row.log_size)
        expected = mp.quad(lambda t: 1 / (1 + mp.exp(-side * mp.exp(t))), mp.linspace(0, high, 17))
        assert row.mass == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(("power", "ratio"), [(0, 1.0), (1, 0.1), (2, 0.01)])
def test_a_likelihood_that_vanishes_at_zero_has_finite_mass_there(power, ratio):
    """∫ |w|^(n−1) dw: each decade adds 10^(−n) of what the one before did. So proposition 1's premise is needed."""
    settings = changed(settings_of("hron2018-fig1-3"), decades=4)
    grown = growth(lambda w: w.abs() ** power, 1.0, 0.5, settings, sides=[1, -1], away=-1)
    assert tell(grown, settings.per_decade)["last_ratio"] == pytest.approx(ratio, rel=1e-9)


def test_the_likelihood_exceeds_r_exactly_within_delta():
    settings = settings_of("hron2018-fig1-3")
    delta, r = neighbourhood(settings)
    assert r == pytest.approx(0.5 * float(normal_density(mp.mpf(0))), rel=1e-14)
    assert float(normal_density(mp.mpf(-delta))) == pytest.approx(r, rel=1e-13)
    assert normal_density(mp.mpf(delta)) > r


def test_softmax_of_three_classes():
    settings = settings_of("hron2018-fig1-3")
    logits = f64([[1.3, 0.0, 0.0], [-0.4, 0.0, 0.0]])
    close(
        likelihoods(settings)["around 0: categorical of 3 classes, linear"](logits[:, 0]),
        logits.softmax(-1)[:, 0],
        rtol=1e-15,
        atol=0,
    )


def test_intervals_that_do_not_widen_are_refused():
    with pytest.raises(ValidationError, match="each inside of the next"):
        changed(settings_of("hron2018-fig1-3"), intervals=[(-1, 1), (-1, 2)])


# --- Moments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [(-1.0, 2.0), (-300.0, 3.0), (-1e6, 2.5)])
@pytest.mark.parametrize("sign", [1, -1])
def test_quadrature_moments(a, b, sign):
    """E w = ±[log cosh(e^b/2) − log cosh(e^a/2)] 2/(b − a), E w² = (e^(2b) − e^(2a))/(2(b − a))."""
    first, second = moments.quadrature_moments(a, b, lambda w: torch.sigmoid(sign * w))
    low, high = mp.exp(a), mp.exp(b)
    expected = 2 * (mp.log(mp.cosh(high / 2)) - mp.log(mp.cosh(low / 2))) / (b - a)
    assert first == pytest.approx(sign * float(expected), rel=1e-12)
    assert second == pytest.approx(float((high**2 - low**2) / (2 * (b - a))), rel=1e-12)


def test_intervals_of_floating_point_formats():
    for name, kind in (("single", np.float32), ("double", np.float64)):
        info = np.finfo(kind)
        exponents = [math.log2(info.tiny), math.log2(info.max)]
        assert moments.FORMATS[name] == pytest.approx(exponents, rel=1e-8)


# --- Limits -----------------------------------------------------------------------------------------------------------


def test_limit_of_dropout_by_enumeration_of_its_atoms():
    settings = settings_of("hron2018-limits")
    dropout = limits.Dropout(settings)
    assert len(dropout.limit) == 18
    for case, value in enumerate(dropout.limit.tolist()):
        total = 0.0
        for i in (0, 1):
            for j in (0, 1):
                q = float(dropout.probabilities[case, 0, i] * dropout.probabilities[case, 1, j])
                w = np.array([dropout.locations[case, 0, i], dropout.locations[case, 1, j]])
                z = (w - dropout.mean[case].numpy()) / dropout.sd[case].numpy()
                log_p = -0.5 * z @ z - math.log(2 * math.pi) - float(dropout.sd[case].log().sum())
                total += q * (math.log(q) - log_p)
        assert value == pytest.approx(total, rel=1e-13)
    theta, p = settings.theta[0], settings.retain_probability[0]
    assert dropout.locations[0].tolist() == [[0.0, theta[0]], [0.0, theta[1]]]
    assert dropout.probabilities[0, 0].tolist() == [1 - p, p]


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


def test_gap_of_equation_8_is_the_entropy_of_a_coin():
    assert limits.equation_8_gap(1e-4) == pytest.approx(math.log(2), rel=1e-14)
    with pytest.raises(ValueError, match="not to 0"):
        limits.equation_8_gap(0.5)


def test_lines_with_densities_along_them_differ_by_the_formula_alone():
    """The shift knows no orientation by convolution; at coarse cells discretisation is off its own limit, too."""
    settings = settings_of("hron2018-limits")
    lines = limits.lines(settings)
    assert lines["convolved"].abs().max() < 1e-9
    finest = lines[lines["width"] == min(settings.line_cells)][1:-1]
    close(f64(finest["left"].to_numpy()), f64(finest["formula"].to_numpy()), rtol=0, atol=0.01)
    laws = limits.Subspaces(f64([[[0.8], [0.0]], [[0.0], [-0.8]]]), f64([[0.0, 0.0]] * 2), f64([[[1, 0], [0, 1]]] * 2))
    expected = math.log(2 * math.pi) + 0.8**2 / 2 - 0.5 * (1 + math.log(2 * math.pi * 0.8**2))
    close(laws.quasi_kl(), f64([expected] * 2), rtol=1e-13, atol=0)


def test_subspaces_are_of_the_dimension_they_say():
    for K, laws in limits.random_subspaces(settings_of("hron2018-limits")).items():
        assert laws.factor.shape[1:] == (3, K)
        assert bool((torch.linalg.matrix_rank(laws.factor) == K).all())


# --- Figure 5 ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def plane():
    return fig5.Plane(settings_of("hron2018-fig5"))


@pytest.mark.parametrize("angle", [0.0, 0.6, 2.5])
def test_mass_of_a_line_and_the_gaussian_fitted_on_it(plane, angle):
    d = np.array([math.cos(angle), math.sin(angle)])
    precision = np.linalg.inv(plane.covariance.numpy())
    height = 1 / (2 * math.pi * math.sqrt(np.linalg.det(plane.covariance.numpy())))
    mass = integrate.quad(lambda t: height * math.exp(-0.5 * t * t * (d @ precision @ d)), -np.inf, np.inf)[0]
    fitted = plane.fit(angle)
    assert fitted["height"] == pytest.approx(-math.log(mass), rel=1e-10, abs=1e-12)
    assert fitted["mean"] == pytest.approx(0, abs=1e-6)
    assert fitted["sd"] == pytest.approx((d @ precision @ d) ** -0.5, rel=1e-6)


def test_ellipses_are_of_whole_standard_deviations(plane):
    drawn = fig5.ellipses(plane)
    for edge in ("low", "high"):
        w = drawn[["w1", edge]].to_numpy()
        distance = np.sqrt(((w @ np.linalg.inv(plane.covariance.numpy())) * w).sum(1))
        assert distance == pytest.approx(drawn["deviations"].to_numpy(), rel=1e-12)


@pytest.mark.parametrize("points", [5, 20, 73])
def test_best_angle_does_not_depend_on_the_grid(plane, points):
    (a, b), (_, c) = plane.covariance.tolist()
    assert plane.best_angle(points) == pytest.approx(0.5 * math.atan2(2 * b, a - c), abs=1e-7)


def test_the_most_that_minus_quasi_kl_can_be_by_integration_over_lines():
    (Phi, y), noise_sd = regression(20, 0.5, 0), 0.5
    found = prior_scales(Phi, y, noise_sd, f64([0.3, 0.9, 3.0]))
    t = np.linspace(-4, 4, 4001)
    for scale, evidence, bound in found[["scale", EVIDENCE, BOUND]].to_numpy():
        precision = Phi.T.numpy() @ Phi.numpy() / noise_sd**2 + np.eye(2) / scale**2
        mean = np.linalg.solve(precision, Phi.T.numpy() @ y.numpy()) / noise_sd**2
        masses = []
        for angle in np.linspace(0, math.pi, 721):
            w = mean[:, None] + np.array([math.cos(angle), math.sin(angle)])[:, None] * t
            residual = (y.numpy()[:, None] - Phi.numpy() @ w) / noise_sd
            log_joint = -0.5 * ((residual**2).sum(0) + (w**2).sum(0) / scale**2)
            masses.append(np.trapezoid(np.exp(log_joint + 50), t))
        constant = len(y) * math.log(2 * math.pi * noise_sd**2) / 2 + math.log(2 * math.pi * scale**2)
        # A grid of quarters of a degree misses the best angle by little: the mass is flat there.
        assert bound == pytest.approx(math.log(max(masses)) - 50 - constant, abs=1e-4)
        covariance = noise_sd**2 * np.eye(len(y)) + scale**2 * Phi.numpy() @ Phi.T.numpy()
        quadratic = y.numpy() @ np.linalg.solve(covariance, y.numpy())
        expected = -0.5 * (quadratic + np.linalg.slogdet(covariance)[1] + len(y) * math.log(2 * math.pi))
        assert evidence == pytest.approx(expected, rel=1e-11)


def test_where_a_vanishing_prior_beats_the_best_one():
    data = regression(20, 0.5, 0)
    found = prior_scales(*data, 0.5, torch.logspace(-2, 2, 31, dtype=torch.float64))
    overtakes = found.attrs["overtakes"]
    around = torch.logspace(overtakes - 0.01, overtakes + 0.01, 3, dtype=torch.float64)
    below, at, above = prior_scales(*data, 0.5, around)[BOUND] - found[BOUND].max()
    assert below > 0 > above
    assert at == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("noise_variance", [0.0, 0.1])
@pytest.mark.parametrize("choice", [(0, 1), (0, 2), (1, 3), (2, 3)])
def test_curvatures_at_a_choice_of_eigenvectors(choice, noise_variance):
    """With v = γ − τ: v_i(1/γ_j − 1/γ_i) between kept i and left-out j, from the trace; kept pairs add up; log v."""
    gammas = [4.0, 2.5, 1.5, 0.5]
    target = Target(gammas, torch.Generator().manual_seed(3))
    found = at_choice(target, choice, noise_variance)
    v = {i: gammas[i] - noise_variance for i in choice}
    left_out = set(range(4)) - set(choice)
    expected = [v[i] * (1 / gammas[j] - 1 / gammas[i]) for i in choice for j in left_out]
    i, j = choice
    expected.append((v[i] - v[j]) * (1 / gammas[j] - 1 / gammas[i]))
    # ½[v e^x/γ − log(v e^x + τ)] has the second derivative ½[v/γ − vτ/γ²] at x = 0.
    expected += [0.5 * (v[i] / gammas[i] - v[i] * noise_variance / gammas[i] ** 2) for i in choice]
    assert found.slope < 1e-13
    assert found.least_curvature == pytest.approx(min(expected), rel=1e-11)
    assert found.largest_curvature == pytest.approx(max(expected), rel=1e-11)


def test_descent_leaves_the_neighbourhood_of_another_choice():
    target = Target([4.0, 2.5, 1.5, 0.5], torch.Generator().manual_seed(3))
    start = target.eigenvectors[:, 2:] + 1e-3 * torch.ones(4, 2, dtype=torch.float64)
    end = descend(target.quasi_kl, start)
    assert largest_angle(end.basis, target.eigenvectors[:, :2]) < 1e-5
    expected = (target.eigenvectors[:, :2] * target.eigenvalues[:2]) @ target.eigenvectors[:, :2].mT
    close(outer(end), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("angle", [1.2, 0.3, 1e-9])
def test_largest_angle_between_subspaces(angle):
    basis = torch.eye(4, 2, dtype=torch.float64)
    c, s = math.cos(angle), math.sin(angle)
    turned = f64([[1, 0], [0, c], [0, 0], [0, s]])
    assert largest_angle(turned, basis) == pytest.approx(angle, rel=1e-7)


def test_noise_that_leaves_no_variance_is_refused():
    with pytest.raises(ValidationError, match="noise below the last one kept"):
        changed(settings_of("hron2018-fig5"), noise_variances=[3.0, 1.0])
    with pytest.raises(ValidationError, match="expected falling values"):
        changed(settings_of("hron2018-fig5"), eigenvalues=[3.0, 5.0])
