"""Scores of posteriors without a density, and of samples: reference values, quadrature, limits, intervals that cover."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from fsvi_bench.errors import InputError
from fsvi_bench.maths import mixture_enumeration
from fsvi_bench.maths.bernoulli_dropout import optimal_m
from fsvi_bench.maths.gaussian import normal_kl, normal_log_density
from fsvi_bench.maths.mixtures import mixture_log_density, mixture_log_density_along
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES, SamplesPosterior
from fsvi_bench.scoring import predictive
from fsvi_bench.scoring.predictive import (
    MAX_SPREAD_IN_INTEGRALS,
    Predictive,
    exact_predictive,
    kl_from_normal,
    predictive_kl,
    spread_in_noise,
)
from fsvi_bench.scoring.samples import _jackknife
from fsvi_bench.scoring.scores import not_a_number, score, trace_scores
from fsvi_bench.tasks.task import Task
from tests.maths.draws import EXPECTED, PUBLISHED, close, eye, f64, normal, published, zeros
from tests.maths.mixtures import MixtureProblem, enumerated_log_density
from tests.scoring.objectives import problem_of

NAMES = {
    "qkl": "qkl",
    "kl_moment_matched": "moment_matched_kl",
    "w2_moments": "w2_of_moments",
    "nlpd": "nlpd_exact_mixture",
    "nlpd_moment_matched": "nlpd_moment_matched",
    "predictive_kl_test": "predictive_kl_test",
}


@pytest.fixture(scope="module")
def small_box(toy):
    """The toy with 50 test points, as many as marginals need, and 20 of its box: 10,000 densities at each node of each
    of them take their time."""
    problem = Task(toy.frozen, toy.feature_map, toy.X, toy.y, toy.X_test[::4], toy.y_test[::4])
    problem.__dict__["Phi_box"] = toy.Phi_box[:20]
    return problem


def dropout_on(problem, p):
    task = problem.frozen
    return BernoulliDropoutPosterior(optimal_m(problem.Phi, problem.y, task.noise_variance, f64([p])), f64(p))


# --- Bernoulli dropout ------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize("p", ["0.5", "0.8", "0.95"])
@PUBLISHED
def test_bernoulli_dropout_has_the_reference_scores(name, p):
    scores, values = (
        score(dropout_on(published(name), float(p)), published(name)),
        EXPECTED[name]["bernoulli_dropout"][p],
    )
    assert len(values.keys() & set(NAMES.values())) >= 5
    for ours, theirs in NAMES.items():
        if theirs in values:
            rounding = {"predictive_kl_test": 1e-9, "nlpd": 1e-12}.get(ours, 1e-11)
            assert getattr(scores, ours) == pytest.approx(values[theirs], rel=rounding), ours
    assert scores.singular is True
    assert scores.kl == scores.reverse_kl == scores.kl_cov_term == scores.elbo_gap == math.inf
    assert scores.elbo == -math.inf
    assert scores.w2 is None
    assert set(scores.kl_marginals.values()) == {math.inf}
    assert scores.nlpd_imprecision < 1e-9
    assert json.loads(scores.model_dump_json())["kl"] == "Infinity"


def test_marginals_that_have_a_density_though_the_weights_have_none_are_unknown(toy, small_box):
    """Two weights that are always on reach one direction of function values, and not five."""
    spike = torch.full((20,), 0.5, dtype=torch.float64)
    spike[:2] = 0
    found = score(SpikeSlabPosterior(spike, toy.truth.posterior.mean, torch.ones_like(spike)), toy).kl_marginals
    assert (found["1"], found["5"]) == (None, math.inf)


def test_dropping_nothing_is_the_point_mass_at_m(small_box):
    q = BernoulliDropoutPosterior(small_box.truth.posterior.mean, f64(1.0))
    scores = score(q, small_box)
    assert scores.kl == scores.kl_moment_matched == math.inf
    assert scores.nlpd == pytest.approx(scores.nlpd_moment_matched, rel=1e-12)
    narrow = FactorisedGaussian(q.m, torch.full_like(q.m, 1e-9))
    assert scores.predictive_kl_test == pytest.approx(score(narrow, small_box).predictive_kl_test, rel=1e-9)


def test_the_predictive_kl_of_a_mixture_is_its_integral(toy):
    """SciPy's adaptive quadrature over a sum over all atoms; four weights that are not 0, noise far below the jumps, so
    that log q has kinks: a halving's change of 1e-6 is allowed to stay."""
    places, values = [3, 8, 12, 17], f64([1.0, -2.0, 0.7, 1.5])
    m = zeros(20).index_put((torch.tensor(places),), values)
    rows, noise = toy.Phi_test[[0, 40, 80]], float(toy.frozen.noise_variance)
    exact, got = exact_predictive(toy, rows), predictive_kl(BernoulliDropoutPosterior(m, f64(0.7)), toy, rows).kl
    switched = MixtureProblem(None, None, np.full(4, 0.3), values.numpy(), np.zeros(4), noise)
    for row, mean, sd, kl in zip(rows[:, places].numpy(), exact.mean, exact.variance.sqrt(), got, strict=True):

        def integrand(z, row=row, mean=float(mean), sd=float(sd)):
            y = mean + sd * z
            (log_q,) = enumerated_log_density(switched._replace(y=np.array([y]), Phi=row[None]))
            return stats.norm.pdf(z) * (stats.norm.logpdf(y, mean, sd) - log_q)

        expected = quad(integrand, -9, 9, epsabs=1e-11, epsrel=1e-11, limit=500)[0]
        assert float(kl) == pytest.approx(expected, abs=2e-6)
        assert expected > 0.01


@pytest.mark.slow
def test_an_integral_that_takes_too_much_work_is_not_computed(toy, monkeypatch):
    """Weights that are off by some 30 noise deviations and hardly ever dropped: what the exact predictive expects lies
    between the atoms of two and three drops. The spread tells nothing of it."""
    rng = np.random.default_rng(0)
    Phi, off = torch.from_numpy(rng.standard_normal((30, 20))), torch.from_numpy(rng.standard_normal(20))
    problem = problem_of(toy, torch.from_numpy(rng.standard_normal(30)), Phi=Phi)
    noise = problem.frozen.noise_variance
    m = problem.truth.posterior.mean + 30 * noise.sqrt() * off
    q, rows = BernoulliDropoutPosterior(m, f64(1 - 1e-6)), Phi[:2]
    assert spread_in_noise(q, problem, rows) < 2 < MAX_SPREAD_IN_INTEGRALS
    assert predictive_kl(q, problem, rows).kl.min() > 27  # two drops are 2 log 1e6 = 27.6 nats
    targets = exact_predictive(problem, rows).at(torch.arange(2), predictive.nodes(predictive.COARSE))
    work = mixture_log_density_along(targets, rows, q.switches(), noise).work
    singly = mixture_log_density(targets.flatten(), rows.repeat_interleave(15, 0), q.switches(), noise)
    assert torch.equal(work.flatten(), singly.work)
    assert 0 < float(work.mean()) < mixture_enumeration.BUDGET
    for limit, given_up in ((1.001, False), (0.999, True)):
        monkeypatch.setattr(predictive, "MAX_WORK", limit * float(work.mean()))
        assert (predictive_kl(q, problem, rows) is None) == given_up


def test_the_rule_integrates_smooth_densities_to_rounding_and_halves_where_it_must():
    exact = Predictive(f64([0.0, 3.0, -1.0]), f64([1.0, 4.0, 0.25]))
    calls = []

    def log_density(y, rows):
        calls.append(len(y))
        return normal_log_density(y, others[rows, :1].expand_as(y), others[rows, 1:].expand_as(y))

    others = f64([[0.5, 2.0], [0.0, 1.0], [-1.0, 0.3]])
    kl, imprecision = kl_from_normal(exact, log_density)
    expected = normal_kl(*exact, *others.mT)
    close(kl, expected, rtol=1e-10, atol=1e-10)  # 6e-14 of the mass, where z² is 56, is left out
    assert ((kl - expected).abs() <= imprecision).all()
    assert imprecision.max() < 1e-6
    assert len(calls) == 2  # a parabola needs no more than one halving, by which it is found out

    def wiggly(y, rows):
        return log_density(y, rows) + (9 * y).cos()

    calls.clear()
    # E cos(9(μ + sd z)) = cos 9μ · exp(−81 sd²/2)
    shift = (9 * exact.mean).cos() * (-40.5 * exact.variance).exp()
    close(kl_from_normal(exact, wiggly).kl, expected - shift, rtol=1e-10, atol=1e-10)


def test_atoms_too_far_apart_to_be_summed_are_reported(toy):
    """Without a word the density would take minutes; what needs moments only is there."""
    scores = score(BernoulliDropoutPosterior(1e6 * normal(0, 20), f64(0.5)), toy)
    for name in ("nlpd", "nlpd_gap", "predictive_kl_test", "predictive_kl_box", "coverage"):
        assert getattr(scores, name) is None, name
    assert len(scores.coverage_exact) == 3
    assert math.isfinite(scores.nlpd_moment_matched)
    assert math.isfinite(scores.kl_moment_matched)


# --- Spike-and-slab ---------------------------------------------------------------------------------------------------


def test_a_spike_and_slab_without_spikes_is_its_slab_and_with_them_loses_their_mass(small_box):
    mean, scale, spike = normal(0, 20), normal(1, 20).abs(), normal(2, 20).sigmoid()
    gaussian = score(FactorisedGaussian(mean, scale), small_box)
    slab = score(SpikeSlabPosterior(torch.zeros_like(mean), mean, scale), small_box).model_dump()
    for name, value in gaussian.model_dump().items():
        if name in ("nlpd", "predictive_kl_test", "predictive_kl_box", "nlpd_gap"):
            assert slab[name] == pytest.approx(value, rel=1e-9), name
        elif "imprecision" not in name:
            assert slab[name] == value, name
    scores = score(SpikeSlabPosterior(spike, mean, scale), small_box)
    assert scores.reverse_kl == pytest.approx(gaussian.reverse_kl - float(torch.log1p(-spike).sum()), rel=1e-12)
    assert (scores.kl, scores.qkl, scores.singular) == (math.inf, None, True)
    assert math.isfinite(scores.kl_moment_matched)
    assert scores.nlpd_imprecision < 1e-9


@pytest.mark.slow
def test_a_trace_leaves_a_mixtures_nlpd_for_the_end(small_box):
    q = dropout_on(small_box, 0.8)
    early, late, scores = (
        trace_scores(q, small_box, mixtures=False), trace_scores(q, small_box), score(q, small_box),
    )  # fmt: skip
    assert early.nlpd is None
    assert late.nlpd == scores.nlpd
    assert early.kl == math.inf
    assert early.kl_moment_matched == scores.kl_moment_matched
    assert early.nlpd_moment_matched == scores.nlpd_moment_matched


# --- Samples ----------------------------------------------------------------------------------------------------------

ESTIMATED = (
    "kl_moment_matched",
    "kl_mean_term",
    "nlpd",
    "nlpd_moment_matched",
    "predictive_kl_test",
    "predictive_kl_box",
)


@pytest.fixture(scope="module")
def wide(toy):
    """A full Gaussian that is not the posterior; 20 weights."""
    g = torch.Generator().manual_seed(2)
    turn = eye(20) + 0.1 * torch.randn(20, 20, generator=g, dtype=torch.float64).tril(-1)
    shift = 0.1 * torch.randn(20, generator=g, dtype=torch.float64)
    return FullGaussian(toy.truth.posterior.mean + shift, 1.2 * toy.truth.covariance_tril @ turn)


@pytest.mark.slow
@pytest.mark.usefixtures("short_scores")  # distances and joint scores have no intervals
def test_scores_of_samples_are_near_those_of_what_they_were_drawn_from(small_box, wide):
    """20 sets of 10,000: t-statistics of the errors have mean 0 and variance 19/17 if estimates are unbiased and
    intervals right; 4 standard errors of either (of 20 values) are allowed."""
    truth = score(wide, small_box)
    half_width = 2.093  # t(0.975; 19)
    errors = {name: [] for name in (*ESTIMATED, "w2_moments")}
    for seed in range(20):
        q = SamplesPosterior(wide.sample(10_000, seed=100 + seed))
        scores = score(q, small_box)
        for name in errors:
            low, high = scores.intervals[name]
            assert low < getattr(scores, name) < high
            errors[name].append((getattr(scores, name) - getattr(truth, name)) / ((high - low) / (2 * half_width)))
    for name, values in errors.items():
        t = np.array(values)
        assert abs(t.mean()) < 4 / np.sqrt(20), name
        assert 0.2 < t.var() < 3.0, name
    assert (scores.kl, scores.singular, scores.reverse_kl, scores.qkl, scores.elbo) == (None,) * 5


@pytest.mark.usefixtures("short_scores")
@pytest.mark.parametrize("flat", ["constant", "repeated"])
def test_samples_without_a_spread_in_some_direction_have_moments_infinitely_far_off(small_box, flat):
    samples = torch.randn(10_000, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if flat == "constant":
        samples[:, 7] = 0.3
    else:
        samples = samples[:10].repeat(1000, 1)
    scores = score(SamplesPosterior(samples), small_box)
    assert scores.kl_moment_matched == math.inf
    assert scores.intervals["kl_moment_matched"] == (math.inf, math.inf)
    assert not_a_number(scores) == []
    assert math.isfinite(scores.nlpd)


def test_the_jackknife_of_a_mean_is_the_textbooks_interval():
    """Groups of equal size: no bias, and the standard error of the mean of the groups' means with G − 1 degrees."""
    groups = np.random.default_rng(0).standard_normal(20)
    without = [float(np.delete(groups, g).mean()) for g in range(20)]
    interval = stats.t(19, groups.mean(), stats.sem(groups)).interval(0.95)
    assert _jackknife(groups.mean(), without) == pytest.approx((groups.mean(), *interval), rel=1e-12)


@pytest.mark.usefixtures("short_scores")
@pytest.mark.parametrize("size", [0.1, 1e3])
def test_samples_that_do_not_show_the_density_have_no_score_of_it(toy, size):
    """Too narrow, none reaches the tails of the exact predictive; too wide, few come near a target. (By the jackknife the
    predictive KL would be 7.2 and 5.4, where it is 5.1 and 7.8 nats.)"""
    found = score(SamplesPosterior(toy.truth.posterior.mean + size * normal(0, MINIMUM_SAMPLES, 20)), toy)
    assert found.predictive_kl_test is None
    assert found.predictive_kl_box is None
    assert {"predictive_kl_test", "predictive_kl_box"}.isdisjoint(found.intervals)
    assert (found.nlpd is None) == (found.nlpd_gap is None) == (size > 1)
    assert math.isfinite(found.kl_moment_matched)


@pytest.mark.usefixtures("short_scores")
def test_samples_that_show_it_have_the_score_of_their_gaussian(toy):
    found = score(SamplesPosterior(toy.truth.posterior.mean + normal(0, MINIMUM_SAMPLES, 20)), toy)
    law = score(FactorisedGaussian(toy.truth.posterior.mean, torch.ones(20).double()), toy)
    for name in ("nlpd", "predictive_kl_test", "predictive_kl_box"):
        low, high = found.intervals[name]
        assert low < getattr(law, name) < high
        assert high - low < 0.05


def test_too_few_samples_for_their_covariance_are_refused(toy):
    with pytest.raises(InputError, match="21 samples of 20 weights, too few"):
        score(SamplesPosterior(torch.randn(21, 20, dtype=torch.float64)), toy)
