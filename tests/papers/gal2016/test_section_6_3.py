"""Every statistic of `gal2016-6.3` against loops, quadrature, enumeration and limits that are known."""

import math

import mpmath
import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from scipy.optimize import minimize_scalar
from scipy.stats import linregress, multivariate_normal

from fsvi_bench.maths.bernoulli_dropout import bernoulli_objective
from fsvi_bench.maths.spike_slab import spike_slab_optimum
from fsvi_bench.papers.gal2016 import section_6_3
from fsvi_bench.papers.gal2016.linear_model import (
    Problems,
    draw_problem,
    draw_problems,
    enumerate_masks,
    gridded_kl,
    limit_profile,
    population_covariance,
    profile,
    redesign,
    widened_kl,
)
from fsvi_bench.papers.gal2016.section_6_3 import (
    at_optimum,
    best_lengthscales,
    compare_masks,
    compare_prior_kls,
    compare_with_map,
    examine_spike_slab,
    follow_eq_6_8,
    follow_growth,
    scan_lengthscales,
)
from fsvi_bench.papers.registry import REPRODUCTIONS
from tests import reference_dropout as slow
from tests.maths.draws import close, f64

SMALL = {
    "inputs": 3, "points": [4, 20, 100], "repeats": 3, "profile_points": 20, "design_points": 12, "mask_weights": 4,
    "mask_points": 10, "mask_starts": 3, "lengthscale_points": 6, "lengthscales_per_decade": 2, "spreads": [1e-2, 1e-3],
}  # fmt: skip


@pytest.fixture(scope="module")
def small():
    return REPRODUCTIONS["gal2016-6.3"]._settings("quick").model_copy(update=SMALL)


def masked(settings):
    """The same with as many weights as have their masks enumerated."""
    return settings.model_copy(update={"inputs": settings.mask_weights})


def numpy(problems, repeat):
    return problems.X[repeat].numpy(), problems.y[repeat].numpy(), problems.w[repeat].numpy()


# --- Data -------------------------------------------------------------------------------------------------------------


def test_inputs_and_noise_have_the_stated_moments(small):
    N = 200_000
    X, y, w = draw_problem(small, 0, N)
    covariance, expected = (X.mT @ X / N).numpy(), population_covariance(small).numpy()
    # Entries of a Wishart matrix: sd √((Σ_ij² + Σ_ii Σ_jj)/N).
    deviation = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / N)
    assert (np.abs(covariance - expected) < 4 * deviation).all()
    np.testing.assert_allclose(np.diag(expected), [0.25, 1, 4], rtol=1e-14)
    assert expected[0, 2] == pytest.approx(0.5 * 0.5 * 2)
    noise = y - X @ w
    assert abs(float(noise.var()) - 1) < 4 * math.sqrt(2 / N)
    assert (X.mT @ noise / N).abs().max() < 4 * 2 / math.sqrt(N)


def test_designs_are_what_they_are_called(small):
    problems = draw_problems(small, 30)
    general, constant, diagonal = (redesign(problems, name) for name in ("general", "Λ constant", "Σ diagonal"))
    lengths = general.X.square().sum(-2)
    close(diagonal.X.mT @ diagonal.X, torch.diag_embed(lengths), rtol=1e-12, atol=1e-12)
    close(constant.X.square().sum(-2), torch.full((3, 3), 30.0), rtol=1e-13)
    assert ((constant.X.mT @ constant.X)[:, 0, 1].abs() > 3).all()
    noises = [each.y - (each.X @ each.w[..., None])[..., 0] for each in (general, constant, diagonal)]
    close(torch.stack(noises), noises[0].expand(3, -1, -1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("change", [{"points": (10, 100, 50)}, {"spreads": (0.1, 0.0)}, {"design_points": 5}])
def test_settings_that_contradict_themselves_are_refused(change):
    sound = REPRODUCTIONS["gal2016-6.3"]._settings("quick").model_dump()
    with pytest.raises(ValidationError):
        REPRODUCTIONS["gal2016-6.3"].settings.model_validate({**sound, **change})


# --- §6.3 -------------------------------------------------------------------------------------------------------------


def test_growth_is_that_of_a_scan_over_p(small):
    """Gal's eq. 6.5 solved weight by weight, the objective scanned by SciPy, covariances by inversion."""
    for repeat, found in at_optimum(small, 20, draw_problems(small, 20, compressed=True)).iterrows():
        X, y, w = (each.numpy() for each in draw_problem(small, repeat, 20))
        gram = X.T @ X

        def least(logit, X=X, y=y):
            p = f64(logit).sigmoid()
            m = torch.from_numpy(slow.optimal_m(X, y, 1.0, np.full(3, float(p))))
            data = torch.from_numpy(X), torch.from_numpy(y), f64(1.0), m
            return float(bernoulli_objective(*data, p.view(1))), m.numpy()

        at = found.logit
        local = minimize_scalar(lambda logit: least(logit)[0], bounds=(at - 3, at + 3), options={"xatol": 1e-10})
        value, m = least(at)
        assert value <= local.fun + 1e-11
        exact = np.linalg.solve(gram + np.eye(3), X.T @ y)
        p, drop = 1 / (1 + math.exp(-at)), 1 / (1 + math.exp(at))
        spread = math.sqrt(p * drop * (m @ m) / np.trace(np.linalg.inv(gram + np.eye(3))))
        entropy_free = 0.5 * np.sum((y - X @ exact) ** 2) + 0.5 * exact @ exact
        assert found.spread == pytest.approx(spread, rel=1e-9)
        assert found.log10_spread == pytest.approx(math.log10(spread), rel=1e-9)
        assert found.at_one == pytest.approx(entropy_free - value, rel=1e-9, abs=1e-11)
        distance = np.linalg.norm(m - exact) / np.linalg.norm(exact)
        assert found.distance == pytest.approx(distance, rel=1e-9, abs=1e-12)
        assert found.log10_drop == pytest.approx(math.log10(drop), rel=1e-12)
        assert found.law == pytest.approx(10 * np.mean(w**2 * [0.25, 1, 4]), rel=1e-12)
        assert 0.3 < found.spike_slab_spread < 1


def test_growth_stays_finite_where_p_rounds_to_one(small):
    found = at_optimum(small, 20_000, draw_problems(small, 20_000, compressed=True))
    assert (found.logit > 40).all()
    assert np.isfinite(found.log10_drop).all()
    assert (found.logit / found.law).to_numpy() == pytest.approx(1, rel=0.1)


def test_limit_is_that_of_exact_moments(small):
    """X with XᵀX = NΣ and noise orthogonal to it: then 𝓛/N differs from the limit by O(1/N) alone."""
    N, covariance = 10**10, population_covariance(small)
    factor = torch.linalg.cholesky(N * covariance).mT
    X = torch.cat([factor, torch.zeros(1, 3).double()]).expand(3, 4, 3)
    w, p = draw_problems(small, 5).w, torch.linspace(0.05, 1, 20, dtype=torch.float64)
    y = (X @ w[..., None])[..., 0]
    y[:, 3] = N**0.5
    limit = limit_profile(covariance, w, p)
    close(profile(Problems(X, y, w), N, p), limit, rtol=1e-8, atol=1e-8)
    close(limit[:, -1], torch.ones(3).double(), rtol=1e-11)  # at p = 1 only the noise is left


def test_how_the_profile_tends_to_its_limit(small):
    """Root mean squares and rises by loops; slopes over the logarithms of N."""
    found, p = follow_growth(small), torch.linspace(0.05, 1, small.profile_points, dtype=torch.float64)
    limit = limit_profile(population_covariance(small), draw_problems(small, 4).w, p).numpy()
    left = profile(draw_problems(small, 20, compressed=True), 20, p).numpy() - limit
    growth = found["growth"].pivot(index="N", columns="repeat")
    for repeat, (row, of_repeat) in enumerate(zip(limit, found["growth_repeats"].itertuples(), strict=True)):
        rises = [(value - row[-1]) / (1 - float(at)) for value, at in zip(row[:-1], p, strict=False)]
        assert of_repeat.least_rise == pytest.approx(min(rises), rel=1e-11)
        assert growth["rms"][repeat][20] == pytest.approx(math.sqrt(math.fsum(left[repeat] ** 2) / len(p)), rel=1e-11)
        error, logit = (np.log(growth[name][repeat]) for name in ("rms", "logit"))
        assert of_repeat.error_slope == pytest.approx(linregress(np.log(small.points), error).slope, rel=1e-9)
        assert of_repeat.least_growth == pytest.approx(logit.diff().min(), rel=1e-12)


def test_distance_from_the_map_is_that_of_eq_6_5(small):
    problems = draw_problems(small, small.design_points)
    found = compare_with_map(problems)["distances"]
    for row in found.itertuples():
        X, y, _ = numpy(redesign(problems, row.design), row.repeat)
        gram, p = X.T @ X, 1 - row.drop
        exact = np.linalg.solve(gram + np.eye(3), X.T @ y)
        m = np.linalg.solve(p * gram + (1 - p) * np.diag(np.diag(gram)) + np.eye(3), X.T @ y)  # as printed
        expected = np.linalg.norm(m - exact) / np.linalg.norm(exact)
        assert row.distance == pytest.approx(expected, rel=1e-8, abs=1e-13)
    assert len(found) == 3 * small.repeats * len(section_6_3.DROPS)
    assert (found.distance[(found.design == "Λ constant") & (found["drop"] == 0.5)] > 0.01).all()


# --- §6.5 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "p", "spread", "scale"), [(1.0, 0.9, 0.05, 1.0), (0.5, 0.5, 0.3, 2.0), (2.0, 0.99, 0.01, 0.5)]
)
def test_widened_kl_is_that_of_quadrature_in_25_digits(m, p, spread, scale):
    """In the second case the atoms overlap."""
    with mpmath.workdps(25):

        def integrand(w):
            q = p * mpmath.npdf(w, m, spread) + (1 - p) * mpmath.npdf(w, 0, spread)
            return q * mpmath.log(q / mpmath.npdf(w, 0, 1 / scale))

        pieces = sorted({centre + reach * spread for centre in (0, m) for reach in range(-12, 13)})
        pieces = [w for w in pieces if abs(w) <= 12 * spread or abs(w - m) <= 12 * spread]
        expected = float(mpmath.quad(integrand, pieces))
    assert widened_kl(scale * m, p, scale * spread) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("step", "scale"), [(0.5, 1.0), (0.125, 2.0), (1.0, 3.0)])
def test_gridded_kl_is_the_sum_over_its_points(step, scale):
    """Point by point; the last case is a grid so coarse that eq. 6.6 no longer holds."""
    m, p = 2.0, 0.7
    points = [i * step for i in range(-200, 201)]
    prior = {w: math.exp(-0.5 * scale**2 * w**2) for w in points}
    total = math.fsum(prior.values())
    expected = sum(q * math.log(q * total / prior[w]) for w, q in ((m, p), (0.0, 1 - p)))
    assert gridded_kl(scale * m, p, scale * step) == pytest.approx(expected, rel=1e-13)


def test_the_two_constants_grow_alike_and_differ_by_an_entropy():
    found = compare_prior_kls()
    kls, summary = found["prior_kls"], found["prior_summary"].iloc[0]
    for column in ("continuous", "discrete"):
        assert kls[column].diff().iloc[-1] == pytest.approx(math.log(2), abs=1e-6)
        assert summary[column] == pytest.approx(1, abs=1e-6)
    # The entropy of a Gaussian of unit variance, over a cell of unit length.
    entropy = 0.5 * math.log(2 * math.pi * math.e)
    assert summary.gap == pytest.approx(entropy, abs=1e-6)
    assert summary.gap_if_narrow == pytest.approx(entropy - 20 * math.log(2), abs=1e-6)
    assert summary.error < 1e-12
    assert summary.range < 1e-10


def test_bounds_lie_below_their_evidences_by_enumeration(small):
    """At l = 1: Σ over masks of q (log joint − log q), then what each prior's constant makes of it."""
    problems = draw_problems(small, small.lengthscale_points)
    bounds = scan_lengthscales(small, problems)
    at_one = bounds[np.isclose(bounds.lengthscale, 1.0, rtol=1e-12)].set_index(["spread", "repeat"])
    for repeat in range(small.repeats):
        X, y, _ = numpy(problems, repeat)
        marginal = multivariate_normal(np.zeros(len(y)), X @ X.T + np.eye(len(y)))
        assert at_one.evidence[small.spreads[0], repeat] == pytest.approx(marginal.logpdf(y), rel=1e-11)

        def loss(logit, X=X, y=y):
            p = np.full(3, 1 / (1 + math.exp(-logit)))
            return slow.negative_elbo(X, y, 1.0, slow.optimal_m(X, y, 1.0, p), p)

        near = min(range(26), key=loss)
        best = -minimize_scalar(loss, bounds=(near - 1, near + 1), options={"xatol": 1e-7}).fun
        for fineness in small.spreads:
            # On a grid of step Δ the prior's mass is its density times Δ; widened atoms have 1.419 nats of entropy more.
            on_grid = best + 3 * math.log(fineness)
            assert at_one.discrete[fineness, repeat] == pytest.approx(on_grid, abs=1e-10)
            widened = on_grid + 3 * (0.5 * math.log(2 * math.pi * math.e) - 0.5 * fineness**2)
            assert at_one.continuous[fineness, repeat] == pytest.approx(widened, abs=1e-10)
    shorter = bounds[bounds.lengthscale < 1.1]
    assert (shorter.continuous < shorter.evidence).all()
    ends = bounds.groupby("spread").lengthscale.agg(["min", "max"])
    assert ends.to_dict("split")["data"] == [[pytest.approx(0.01), pytest.approx(1 / spread)] for spread in ends.index]


def test_length_scales_are_compared_where_each_is_highest():
    rows = [(0, 1.0, 5, 0, 1), (0, 10.0, 4, 9, 1), (0, 100.0, 3, 0, 2), (1, 1.0, 0, 0, 9), (1, 10.0, 9, 9, 0)]
    bounds = pd.DataFrame(rows, columns=["repeat", "lengthscale", "evidence", "continuous", "discrete"])
    assert best_lengthscales(bounds).to_dict("list") == {"evidence": [0, 0], "continuous": [1, 0], "discrete": [2, -1]}


# --- §6.6 -------------------------------------------------------------------------------------------------------------


def test_masks_are_weighted_by_the_joint_density(small):
    X, y, w = draw_problem(masked(small), 0, 10)
    target = enumerate_masks(X, y, w)
    _, log_posterior = slow.log_restricted_evidence(X.numpy(), y.numpy(), 1.0, w.numpy())
    close(target.log_mass, log_posterior, rtol=1e-11)
    close(target.masks, slow.masks(4))
    logit = f64([0.3, -1.0, 2.0, 0.0])
    log_q = slow.log_masses(slow.masks(4), logit.sigmoid().numpy())
    close(target.kl(logit), np.exp(log_q) @ (log_q - log_posterior), rtol=1e-11)


def test_direct_minimisation_would_show_a_cavi_that_stops_early(small):
    X, y, w = draw_problem(masked(small), 0, 10)
    target = enumerate_masks(X, y, w)
    unfinished = torch.zeros(4, dtype=torch.float64)
    assert float(target.kl(unfinished)) - target.descend(unfinished) > 0.1
    problems = draw_problems(masked(small), 10)
    found = compare_masks(small, problems)["masks"]
    X, y, _ = numpy(problems, 0)
    _, log_posterior = slow.log_restricted_evidence(X, y, 1.0, np.linalg.solve(X.T @ X + np.eye(4), X.T @ y))
    assert found.enumerated[:4].to_numpy() == pytest.approx(np.exp(log_posterior) @ slow.masks(4), rel=1e-9)
    assert found.gain.abs().max() < 1e-8
    assert (found.kl > 0).all()
    assert (found.best_start > -1e-9).all()


def test_spike_slab_findings(small):
    problems = draw_problems(masked(small), 10)
    found = examine_spike_slab(small, problems)
    optimum = spike_slab_optimum(*problems.data, small.prior_spike)
    slabs = found["slabs"].to_numpy().reshape(small.repeats, 4, 2)
    for repeat in range(small.repeats):
        X = problems.X[repeat].numpy()
        precision = X.T @ X + np.eye(4)
        for i in range(4):
            size = abs(float(optimum.mean[repeat, i])) * math.sqrt(precision[i, i])
            assert slabs[repeat, i, 0] == pytest.approx(size, rel=1e-12)
    np.testing.assert_allclose(slabs[..., 1], (-optimum.log_odds).sigmoid(), rtol=1e-12)


def test_the_gaussian_limit_of_spike_and_slab_is_seen_to_fail_where_spikes_are_not_rare(small, monkeypatch):
    problems = draw_problems(masked(small), 10)
    assert examine_spike_slab(small, problems)["slab_sets"].gaussian_error.max() < 1e-5
    monkeypatch.setattr(section_6_3, "RARE_SPIKE", 0.3)
    found = examine_spike_slab(small, problems)["slab_sets"].gaussian_error
    optimum = spike_slab_optimum(*problems.data, 0.3)
    for repeat in range(small.repeats):
        X, y, _ = numpy(problems, repeat)
        precision, s = X.T @ X + np.eye(4), optimum.spike_weight[repeat].numpy()
        exact, scale = np.linalg.solve(precision, X.T @ y), np.diag(precision) ** -0.5
        mean, slab = optimum.mean[repeat].numpy(), optimum.scale[repeat].numpy()
        deviation = np.sqrt((1 - s) * (slab**2 + s * mean**2))
        worst = max(*np.abs((1 - s) * mean - exact) / scale, *np.abs(deviation / scale - 1))
        assert float(found[repeat]) == pytest.approx(worst, rel=1e-9)
        assert worst > 0.01


def test_dropout_probability_is_eq_6_8_as_printed():
    found = follow_eq_6_8(0.3)
    rows = found["eq_6_8"]
    for row in rows[::4].itertuples():
        expected = slow.spike_slab_row([row.m], row.sigma, 0.3, 1.0)[3]
        assert row.probability == pytest.approx(expected, rel=1e-10, abs=1e-300)
    at_last = rows[rows.sigma == rows.sigma.min()].set_index("m").probability
    assert at_last[0.0] > 0.99  # dropped ever more surely
    assert found["eq_6_8_limit"].probability.tolist() == [at_last[at_last.index > 0].max()]
    assert at_last[at_last.index > 0].max() < 1e-100  # kept
