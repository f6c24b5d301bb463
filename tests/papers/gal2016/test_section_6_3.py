"""Every statistic of `gal2016-6.3` against loops, quadrature, enumeration and limits that are known."""

import math

import mpmath
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from fsvi_bench.maths.bernoulli_dropout import bernoulli_objective
from fsvi_bench.maths.spike_slab import spike_slab_optimum
from fsvi_bench.papers.gal2016.section_6_3 import masks
from fsvi_bench.papers.gal2016.section_6_3.data import (
    Problems,
    draw_problem,
    draw_problems,
    growing_problems,
    population_covariance,
    redesign,
)
from fsvi_bench.papers.gal2016.section_6_3.experiment import GAL2016_63
from fsvi_bench.papers.gal2016.section_6_3.growth import (
    compare_with_map,
    follow_growth,
    follow_profiles,
    limit_profile,
    slope,
)
from fsvi_bench.papers.gal2016.section_6_3.masks import (
    ATOMS,
    WIDTHS,
    compare_masks,
    descend,
    dropout_probability,
    enumerate_masks,
    examine_spike_slab,
)
from fsvi_bench.papers.gal2016.section_6_3.priors import compare_prior_kls, gridded_kl, scan_lengthscales, widened_kl
from tests import reference_dropout as slow
from tests.maths.draws import close, f64

SMALL = {
    "inputs": 3, "points": [4, 20, 100], "repeats": 3, "profile_points": 20, "design_points": 12, "mask_weights": 4,
    "mask_points": 10, "mask_starts": 3, "lengthscale_points": 6, "lengthscales_per_decade": 2, "spreads": [1e-2, 1e-3],
}  # fmt: skip


@pytest.fixture(scope="module")
def small():
    return GAL2016_63._settings(True).model_copy(update=SMALL)


def numpy(problems, repeat):
    return problems.X[repeat].numpy(), problems.y[repeat].numpy(), problems.w[repeat].numpy()


# --- Data -------------------------------------------------------------------------------------------------------------


def test_more_data_begin_with_the_fewer_and_no_two_repeats_are_alike(small):
    X, y, w = draw_problem(small, 0, 50)
    fewer = draw_problem(small, 0, 20)
    assert torch.equal(X[:20], fewer[0])
    assert torch.equal(y[:20], fewer[1])
    assert torch.equal(w, fewer[2])
    assert not torch.equal(draw_problem(small, 1, 20)[0], fewer[0])


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


def test_compressed_rows_keep_every_inner_product(small):
    for N, problems in growing_problems(small).items():
        for repeat in range(small.repeats):
            X, y, _ = draw_problem(small, repeat, N)
            full, kept = torch.cat([X, y[:, None]], 1), torch.cat([problems.X, problems.y[..., None]], -1)[repeat]
            assert len(kept) <= small.inputs + 1
            close(kept.mT @ kept, full.mT @ full, rtol=1e-12, atol=1e-11)


def test_designs_are_what_they_are_called(small):
    problems = draw_problems(small, 30)
    grams = {design: redesign(problems, design).X for design in ("general", "Λ constant", "Σ diagonal")}
    grams = {design: X.mT @ X for design, X in grams.items()}
    diagonals = {design: gram.diagonal(dim1=-2, dim2=-1) for design, gram in grams.items()}
    close(grams["Σ diagonal"], torch.diag_embed(diagonals["general"]), rtol=1e-12, atol=1e-12)
    close(diagonals["Λ constant"], torch.full((3, 3), 30.0, dtype=torch.float64), rtol=1e-13)
    assert (diagonals["general"].amax(-1) > 4 * diagonals["general"].amin(-1)).all()
    assert (grams["Λ constant"][:, 0, 1].abs() > 3).all()
    for design in grams:
        other = redesign(problems, design)
        noise = other.y - (other.X @ other.w[..., None])[..., 0]
        close(noise, problems.y - (problems.X @ problems.w[..., None])[..., 0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("change", [{"points": (10, 100, 50)}, {"spreads": (0.1, 0.0)}, {"design_points": 5}])
def test_settings_that_contradict_themselves_are_refused(change):
    sound = GAL2016_63._settings(True).model_dump()
    with pytest.raises(ValidationError):
        GAL2016_63.settings.model_validate({**sound, **change})


# --- §6.3 -------------------------------------------------------------------------------------------------------------


def test_growth_is_that_of_a_scan_over_p(small):
    """Gal's eq. 6.5 solved weight by weight, the objective scanned by SciPy, covariances by inversion."""
    found = follow_growth(small, growing_problems(small))
    for repeat in range(small.repeats):
        X, y, w = (each.numpy() for each in draw_problem(small, repeat, 20))
        gram = X.T @ X

        def least(logit, X=X, y=y):
            p = f64(logit).sigmoid()
            m = torch.from_numpy(slow.optimal_m(X, y, 1.0, np.full(3, float(p))))
            data = torch.from_numpy(X), torch.from_numpy(y), f64(1.0), m
            return float(bernoulli_objective(*data, p.view(1))), m.numpy()

        at = float(found.logit[1, repeat])
        local = minimize_scalar(lambda logit: least(logit)[0], bounds=(at - 3, at + 3), options={"xatol": 1e-10})
        value, m = least(at)
        assert value <= local.fun + 1e-11
        exact = np.linalg.solve(gram + np.eye(3), X.T @ y)
        p, drop = 1 / (1 + math.exp(-at)), 1 / (1 + math.exp(at))
        spread = math.sqrt(p * drop * (m @ m) / np.trace(np.linalg.inv(gram + np.eye(3))))
        entropy_free = 0.5 * np.sum((y - X @ exact) ** 2) + 0.5 * exact @ exact
        assert float(found.spread[1, repeat]) == pytest.approx(spread, rel=1e-9)
        assert float(found.at_one[1, repeat]) == pytest.approx(entropy_free - value, rel=1e-9, abs=1e-11)
        distance = np.linalg.norm(m - exact) / np.linalg.norm(exact)
        assert float(found.distance[1, repeat]) == pytest.approx(distance, rel=1e-9, abs=1e-12)
        assert float(found.log10_drop[1, repeat]) == pytest.approx(math.log10(drop), rel=1e-12)
        assert float(found.law[1, repeat]) == pytest.approx(10 * np.mean(w**2 * [0.25, 1, 4]), rel=1e-12)
        assert 0.3 < float(found.spike_slab_spread[1, repeat]) < 1


def test_growth_stays_finite_where_p_rounds_to_one(small):
    found = follow_growth(small, growing_problems(small.model_copy(update={"points": (4, 20, 20_000)})))
    assert (found.logit[-1] > 40).all()
    assert found.log10_drop.isfinite().all()
    close(found.logit[-1] / found.law[-1], torch.ones(3).double(), rtol=0.1, atol=0)


def test_limit_is_that_of_exact_moments(small):
    """X with XᵀX = NΣ and noise orthogonal to it: then 𝓛/N differs from the limit by O(1/N) alone."""
    N, covariance = 1e10, population_covariance(small)
    factor = torch.linalg.cholesky(N * covariance).mT
    X = torch.cat([factor, torch.zeros(1, 3).double()]).expand(3, 4, 3)
    w = draw_problems(small, 5).w
    y = (X @ w[..., None])[..., 0]
    y[:, 3] = N**0.5
    profiles = follow_profiles(small, {10**10: Problems(X, y, w)})
    close(profiles.values[0], profiles.limit, rtol=1e-8, atol=1e-8)
    S, L = covariance.numpy(), np.diag(np.diag(covariance.numpy()))
    for repeat, weights in enumerate(w.numpy()):
        b = S @ weights
        for i, p in enumerate(profiles.p.numpy()):
            expected = weights @ b + 1 - b @ np.linalg.inv(S + (1 / p - 1) * L) @ b
            assert float(profiles.limit[repeat, i]) == pytest.approx(expected, rel=1e-11)
    close(profiles.limit[:, -1], torch.ones(3).double(), rtol=1e-11)  # at p = 1 only the noise is left
    rises = [(row[:-1] - row[-1]) / (1 - profiles.p.numpy()[:-1]) for row in profiles.limit.numpy()]
    close(profiles.least_rise, [rise.min() for rise in rises], rtol=1e-12)
    errors = (profiles.values[0] - profiles.limit).numpy()
    left = [math.log(math.sqrt(math.fsum(row**2) / len(row))) for row in errors]
    close(profiles.log_error[0], left, rtol=1e-12)


def test_limit_profile_of_orthogonal_inputs_is_linear_in_p():
    """Σ = Λ: b'(Λ/p)⁻¹b = p wᵀΛw, so that the limit is 1 + (1 − p) wᵀΛw."""
    scales, w, p = f64([0.5, 2.0]), f64([[1.0, -3.0]]), f64([0.1, 0.5, 1.0])
    close(limit_profile(torch.diag(scales), w, p), 1 + (1 - p[None]) * (0.5 + 18), rtol=1e-13)


def test_distance_from_the_map_is_that_of_eq_6_5(small):
    problems = draw_problems(small, small.design_points)
    found = compare_with_map(small, problems)
    for design, distances in found.by_design.items():
        data = redesign(problems, design)
        for repeat in range(small.repeats):
            X, y, _ = numpy(data, repeat)
            gram = X.T @ X
            exact = np.linalg.solve(gram + np.eye(3), X.T @ y)
            for i, p in enumerate(found.p.tolist()):
                m = np.linalg.solve(p * gram + (1 - p) * np.diag(np.diag(gram)) + np.eye(3), X.T @ y)  # as printed
                expected = np.linalg.norm(m - exact) / np.linalg.norm(exact)
                assert float(distances[repeat, i]) == pytest.approx(expected, rel=1e-8, abs=1e-13)
    assert found.p[-1] == 1.0
    assert (found.p == 0.5).any()
    assert (found.by_design["Λ constant"][:, 4] > 0.01).all()


def test_slope():
    x, y = f64([0.0, 1.0, 3.0, 7.0]), torch.from_numpy(np.random.default_rng(0).standard_normal((4, 2)))
    close(slope(x, y), np.polyfit(x.numpy(), y.numpy(), 1)[0], rtol=1e-12)


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
    assert widened_kl(m, p, spread, scale) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("step", "scale"), [(0.5, 1.0), (0.125, 2.0), (1.0, 3.0)])
def test_gridded_kl_is_the_sum_over_its_points(step, scale):
    """Point by point; the last case is a grid so coarse that eq. 6.6 no longer holds."""
    m, p = 2.0, 0.7
    points = [i * step for i in range(-200, 201)]
    prior = {w: math.exp(-0.5 * scale**2 * w**2) for w in points}
    total = math.fsum(prior.values())
    expected = sum(q * math.log(q * total / prior[w]) for w, q in ((m, p), (0.0, 1 - p)))
    assert gridded_kl(m, p, step, scale) == pytest.approx(expected, rel=1e-13)


def test_the_two_constants_grow_alike_and_differ_by_an_entropy():
    found = compare_prior_kls()
    for column in (found.continuous, found.discrete):
        assert column[-1] - column[-2] == pytest.approx(math.log(2), abs=1e-6)
    gap = 0.5 * math.log(2 * math.pi * math.e)  # of a Gaussian of unit variance, over a cell of unit length
    assert found.discrete[-1] - found.continuous[-1] == pytest.approx(gap, abs=1e-6)
    assert found.error < 1e-12
    assert found.dependence < 1e-10


def test_bounds_lie_below_their_evidences_by_enumeration(small):
    """At l = 1: Σ over masks of q (log joint − log q), then what each prior's constant makes of it."""
    problems = draw_problems(small, small.lengthscale_points)
    found = scan_lengthscales(small, problems)
    at = int((found.lengthscale - 1).abs().argmin())
    assert float(found.lengthscale[at]) == pytest.approx(1.0, rel=1e-12)
    for repeat in range(small.repeats):
        X, y, _ = numpy(problems, repeat)
        marginal = multivariate_normal(np.zeros(len(y)), X @ X.T + np.eye(len(y)))
        assert float(found.evidence[repeat, at]) == pytest.approx(marginal.logpdf(y), rel=1e-11)

        def loss(logit, X=X, y=y):
            p = np.full(3, 1 / (1 + math.exp(-logit)))
            return slow.negative_elbo(X, y, 1.0, slow.optimal_m(X, y, 1.0, p), p)

        near = min(range(26), key=loss)
        best = -minimize_scalar(loss, bounds=(near - 1, near + 1), options={"xatol": 1e-7}).fun
        for i, fineness in enumerate(small.spreads):
            # On a grid of step Δ the prior's mass is its density times Δ; widened atoms have 1.419 nats of entropy more.
            on_grid = best + 3 * math.log(fineness)
            assert float(found.discrete[i, repeat, at]) == pytest.approx(on_grid, abs=1e-10)
            widened = on_grid + 3 * (0.5 * math.log(2 * math.pi * math.e) - 0.5 * fineness**2)
            assert float(found.continuous[i, repeat, at]) == pytest.approx(widened, abs=1e-10)
            assert (found.continuous[i, repeat] < found.evidence[repeat])[: at + 1].all()


def test_length_scales_are_compared_where_each_is_highest(small):
    found = scan_lengthscales(small, draw_problems(small, small.lengthscale_points))
    assert found.lengthscale[0] == pytest.approx(0.01)
    for i, fineness in enumerate(small.spreads):
        valid = found.lengthscale <= 1.0001 / fineness
        assert found.continuous[i][:, valid].isfinite().all()
        assert (found.continuous[i][:, ~valid] == -math.inf).all()
    curve = torch.zeros_like(found.evidence)
    curve[:, 5] = 1.0
    ratios = [math.log10(found.lengthscale[5] / found.lengthscale[int(row.argmax())]) for row in found.evidence.numpy()]
    close(found.log10_ratio(curve), ratios, rtol=1e-12, atol=1e-12)


# --- §6.6 -------------------------------------------------------------------------------------------------------------


def test_masks_are_weighted_by_the_joint_density(small):
    X, y, w = draw_problem(small, 0, 10, 4)
    target = enumerate_masks(X, y, w)
    _, log_posterior = slow.log_restricted_evidence(X.numpy(), y.numpy(), 1.0, w.numpy())
    close(target.log_mass, log_posterior, rtol=1e-11)
    close(target.retain, np.exp(log_posterior) @ slow.masks(4), rtol=1e-11)
    logit = f64([0.3, -1.0, 2.0, 0.0])
    log_q = slow.log_masses(slow.masks(4), logit.sigmoid().numpy())
    close(target.kl(logit), np.exp(log_q) @ (log_q - log_posterior), rtol=1e-11)


def test_direct_minimisation_would_show_a_cavi_that_stops_early(small):
    X, y, w = draw_problem(small, 0, 10, 4)
    target = enumerate_masks(X, y, w)
    unfinished = torch.zeros(4, dtype=torch.float64)
    assert float(target.kl(unfinished) - descend(target, unfinished)) > 0.1
    found = compare_masks(small, draw_problems(small, 10, 4))
    assert found.gain.abs().max() < 1e-8
    assert (found.kl > 0).all()
    assert (found.best_start > -1e-9).all()


def test_spike_slab_findings(small):
    problems = draw_problems(small, 10, 4)
    found = examine_spike_slab(small, problems)
    optimum = spike_slab_optimum(problems.X, problems.y, problems.unit, small.prior_spike)
    for repeat in range(small.repeats):
        X = problems.X[repeat].numpy()
        # No ties, so that Spearman's is 1 − 6 Σd²/(n³ − n).
        pair = optimum.mean[repeat].abs().numpy(), -optimum.log_odds[repeat].numpy()
        ranks = [values.argsort().argsort() for values in pair]
        expected = 1 - 6 * np.sum((ranks[0] - ranks[1]) ** 2) / (4**3 - 4)
        assert float(found.rank_correlation[repeat]) == pytest.approx(expected, abs=1e-12)
        precision = X.T @ X + np.eye(4)
        for i in range(4):
            assert float(found.size[repeat, i]) == pytest.approx(
                abs(float(optimum.mean[repeat, i])) * math.sqrt(precision[i, i]), rel=1e-12
            )
    close(found.slab_weight, (-optimum.log_odds).sigmoid(), rtol=1e-12)


def test_the_gaussian_limit_of_spike_and_slab_is_seen_to_fail_where_spikes_are_not_rare(small, monkeypatch):
    problems = draw_problems(small, 10, 4)
    assert examine_spike_slab(small, problems).gaussian_error.max() < 1e-5
    monkeypatch.setattr(masks, "RARE_SPIKE", 0.3)
    found = examine_spike_slab(small, problems).gaussian_error
    optimum = spike_slab_optimum(problems.X, problems.y, problems.unit, 0.3)
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
    found = dropout_probability(0.3)
    for i, m in enumerate(ATOMS):
        for j in range(0, len(WIDTHS), 4):
            expected = slow.spike_slab_row([m], WIDTHS[j], 0.3, 1.0)[3]
            assert float(found[i, j]) == pytest.approx(expected, rel=1e-10, abs=1e-300)
    assert found[0, -1] > 0.99  # m = 0: dropped ever more surely
    assert found[1:, -1].max() < 1e-100  # m ≠ 0: kept
