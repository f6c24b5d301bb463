"""Scores of particles and of functions: naive twins, draws of the exact posterior, Gaussians in disguise, refusals."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from fsvi_bench import InputError, score
from fsvi_bench.posteriors.functions import FunctionSamplesPosterior
from fsvi_bench.posteriors.gaussian import FactorGaussian, FullGaussian
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.scoring import distances
from fsvi_bench.scoring.distances import draws_distances, gaussian_distances
from fsvi_bench.scoring.functions import functions_of
from fsvi_bench.scoring.points import points_mmd2
from fsvi_bench.scoring.scores import not_a_number, trace_scores
from fsvi_bench.scoring.scores import score as scores_of
from fsvi_bench.tasks.task import Task
from tests.maths.draws import normal


@pytest.fixture(scope="module")
def problem(toy):
    """The toy with 50 points of its box."""
    small = Task(toy.frozen, toy.feature_map, toy.X, toy.y, toy.X_test, toy.y_test)
    small.__dict__["Phi_box"] = toy.Phi_box[:50]
    return small


def exact(problem):
    return FullGaussian(problem.truth.posterior.mean, problem.truth.covariance_tril)


def test_mmd2_and_energy_distance_of_the_exact_posteriors_draws_are_0_on_average(problem):
    """Means over 200 repeats of 5 draws, within 3 standard errors; those of other draws are not."""
    q = exact(problem)
    for shift, unbiased in ((0.0, True), (1.0, False)):
        f = [(q.sample(5, seed) + shift * q.covariance_tril()[0, 0]) @ problem.Phi_test.mT for seed in range(200)]
        found = [draws_distances(each, problem) for each in f]
        for name in ("mmd2_test", "energy_distance_test"):
            values = np.array([each[name] for each in found])
            assert (abs(values.mean()) < 3 * stats.sem(values)) == unbiased, name
        assert min(each["mmd2_test"] for each in found) < 0


@pytest.mark.parametrize("n", [2, 7])
def test_mmd2_of_points_has_the_stated_mean_and_deviation_for_draws_of_the_exact_posterior(problem, n):
    """Over 2,000 repeats; the sampling error of the deviation is found by the bootstrap."""
    q, rng = exact(problem), np.random.default_rng(0)
    found = [points_mmd2(q.sample(n, seed) @ problem.Phi_test.mT, problem) for seed in range(2000)]
    values = np.array([each.value for each in found])
    assert abs(values.mean() - found[0].of_draws) < 3 * stats.sem(values)
    resampled = rng.choice(values, (200, len(values))).std(1)
    assert abs(values.std() - found[0].deviation) < 3 * resampled.std()
    assert values.min() > 0


def test_two_points_that_were_placed_gain_nothing_in_mmd2_of_points(problem):
    """Without the pairs i = i, two points at opposite sides of the mean are better than the exact posterior itself."""
    f, exact_draws = problem.truth.posterior.mean, exact(problem).sample(100, 1)
    placed = torch.stack([f + step * problem.truth.covariance_tril[:, 0] for step in (-1.5, 1.5)]) @ problem.Phi_test.mT
    assert draws_distances(placed, problem)["mmd2_test"] < 0
    found, of_draws = (points_mmd2(each, problem) for each in (placed, exact_draws @ problem.Phi_test.mT))
    assert found.value > 10 * of_draws.value


def test_distances_of_many_functions_are_means_over_parts_of_them(problem, monkeypatch):
    f = exact(problem).sample(7, 2) @ problem.Phi_test.mT
    parts = [draws_distances(part, problem) for part in (f[:3], f[3:5], f[5:])]
    monkeypatch.setattr(distances, "PART", 3)
    for name, value in draws_distances(f, problem).items():
        assert value == pytest.approx(np.mean([part[name] for part in parts]), rel=1e-12)


def test_distances_are_those_of_many_draws(problem):
    """6 particles, and 20,000 draws of the exact posterior for the terms with Y: 5 standard errors."""
    w = 1.3 * exact(problem).sample(6, 1) + 0.2
    Phi, rng = problem.Phi_test[:20].numpy(), np.random.default_rng(0)
    x = w.numpy() @ Phi.T
    factor = Phi @ problem.truth.covariance_tril.numpy()
    draws = (Phi @ problem.truth.posterior.mean.numpy()) + rng.standard_normal((40_000, 20)) @ factor.T
    y, other = draws[:20_000], draws[20_000:]
    squared_length = np.square(factor).sum()
    pairs = [(i, j) for i in range(6) for j in range(6) if i != j]
    found = draws_distances(w @ problem.Phi_test.mT, problem)
    for name, measure, sign in (
        ("mmd2_test", lambda a, b: np.exp(-np.square(a - b).sum(-1) / (2 * squared_length)), 1),
        ("energy_distance_test", lambda a, b: np.linalg.norm(a - b, axis=-1), -1),
    ):
        within = np.mean([measure(x[i], x[j]) for i, j in pairs])
        per_draw = sign * (
            within + measure(y, other) - np.mean([measure(each, y) + measure(each, other) for each in x], 0)
        )
        assert abs(found[name] - per_draw.mean()) < 5 * stats.sem(per_draw), name


def test_a_gaussians_distances_are_what_its_draws_have_on_average(problem):
    truth = exact(problem)
    q = FullGaussian(truth.mean + 0.1, 1.5 * truth.scale_tril)
    expected = gaussian_distances(q.mean, q.covariance_tril(), problem)
    found = [draws_distances(q.sample(10, seed) @ problem.Phi_test.mT, problem) for seed in range(200)]
    for name in ("mmd2_test", "energy_distance_test"):
        values = np.array([each[name] for each in found])
        assert abs(values.mean() - expected[name]) < 4 * stats.sem(values), name
    nothing = gaussian_distances(truth.mean, truth.covariance_tril(), problem)
    assert all(abs(value) < 1e-12 for value in nothing.values())


@pytest.mark.parametrize("far", [20.0, 200.0])
def test_far_from_all_inducing_points_there_is_no_mmd2_but_every_other_score(toy, far):
    """There features are 0 or have squares that are; so has the variance that is the kernel's squared length."""
    there = Task(toy.frozen, toy.feature_map, toy.X, toy.y, toy.X_test + far, toy.y_test)
    q = exact(there)
    for posterior in (q, ParticlesPosterior(q.sample(5, 0))):
        scores = score(posterior, there)
        assert scores["mmd2_test"] is None
        assert scores["energy_distance_test"] == pytest.approx(0, abs=1e-12)
        assert math.isfinite(scores["nlpd"])


def test_predictions_of_particles_are_those_of_a_mixture(problem):
    """SciPy's mixture densities and quadrature, target by target."""
    q = ParticlesPosterior(exact(problem).sample(4, 3))
    scores, sigma = scores_of(q, problem), float(problem.frozen.noise_variance.sqrt())
    f = (problem.Phi_test @ q.particles.mT).numpy()
    density = stats.norm.pdf(problem.y_test.numpy()[:, None], f, sigma).mean(1)
    expected = -np.log(density).mean() + math.log(problem.frozen.target_std)
    assert scores.nlpd == pytest.approx(expected, rel=1e-12)
    below = stats.norm.cdf(problem.y_test.numpy()[:, None], f, sigma).mean(1)
    assert scores.coverage["90"] == np.mean(np.abs(2 * below - 1) <= 0.9)
    means = (problem.Phi_box @ problem.truth.posterior.mean).numpy()
    sds = np.sqrt((problem.Phi_box @ problem.truth.covariance_tril).square().sum(-1).numpy() + sigma**2)
    values = (problem.Phi_box @ q.particles.mT).numpy()

    def kl(mean, sd, atoms):
        def integrand(y):
            log_q = np.logaddexp.reduce(stats.norm.logpdf(y, atoms, sigma)) - math.log(4)
            return stats.norm.pdf(y, mean, sd) * (stats.norm.logpdf(y, mean, sd) - log_q)

        return quad(integrand, mean - 9 * sd, mean + 9 * sd, epsabs=1e-11, limit=300)[0]

    expected = np.mean([kl(*each) for each in zip(means, sds, values, strict=True)])
    assert abs(scores.predictive_kl_box - expected) < 1e-8 + scores.predictive_kl_box_imprecision
    assert scores.predictive_kl_box_imprecision < 2e-6
    assert scores.kl == scores.reverse_kl == math.inf
    assert scores.singular is True
    assert (scores.w2, scores.qkl) == (None, None)


def test_equal_particles_are_a_point(problem):
    """A collapsed ensemble predicts what a Gaussian without variance does."""
    w = normal(0, 20) / 5
    scores = score(ParticlesPosterior(w.expand(30, 20).clone()), problem)
    point = score(FactorGaussian(w, torch.zeros(20, 1, dtype=torch.float64)), problem)
    for name in (
        "nlpd",
        "rmse",
        "predictive_kl_test",
        "predictive_kl_box",
        "w2_test",
        "w2_box",
        "mmd2_test",
        "energy_distance_test",
    ):
        assert scores[name] == pytest.approx(point[name], rel=1e-8, abs=1e-10), name
    for name in ("joint_predictive_kl_test.10", "joint_predictive_kl_box.10"):
        error = scores[name.replace(".", "_error.")]
        assert abs(scores[name] - point[name]) <= 3 * error
        assert point[f"{name.removesuffix('.10')}_error"] is None
    assert scores["kl_moment_matched"] == math.inf


def test_particles_score_as_their_functions_do(problem):
    q = ParticlesPosterior(exact(problem).sample(7))
    of_weights, of_functions = score(q, problem), score(functions_of(q, problem), problem)
    arrays = {"f_test": functions_of(q, problem).f_test.numpy(), "f_box": functions_of(q, problem).f_box.numpy()}
    assert score(arrays, problem) == of_functions
    for name, value in of_functions.items():
        weights_only = name in ("kl_mean_term", "kl_moment_matched", "w2_moments") or name.startswith("overconf")
        if weights_only:
            assert value is None, name
        else:
            assert of_weights[name] == (value if value is None else pytest.approx(value, rel=1e-12)), name
    assert not_a_number(scores_of(functions_of(q, problem), problem)) == []


@pytest.mark.parametrize("n", [150, 4000])
def test_scores_of_moments_are_those_of_the_particles_however_many_there_are(problem, n):
    """So two sets are compared by the same quantity: for draws of the exact posterior, k(k + 3)/4n and more."""
    q = ParticlesPosterior(exact(problem).sample(n, 5))
    found, moments = scores_of(q, problem), FullGaussian(q.mean, q.covariance_tril())
    assert found.intervals is None
    assert found.kl_moment_matched == pytest.approx(scores_of(moments, problem).kl, rel=1e-12)
    assert found.kl_moment_matched == pytest.approx(q.k * (q.k + 3) / (4 * n), rel=0.5)
    assert trace_scores(q, problem).kl_moment_matched == pytest.approx(found.kl_moment_matched, rel=1e-12)


def test_fewer_particles_than_weights_have_no_moments_with_a_density(problem):
    q = ParticlesPosterior(exact(problem).sample(20))
    assert scores_of(q, problem).kl_moment_matched == trace_scores(q, problem).kl_moment_matched == math.inf


@pytest.mark.parametrize(
    ("f_test", "f_box", "message"),
    [
        ((1, 9), (1, 50), "it has 1 function, expected 2 or more; draw more"),
        ((3, 9), (4, 50), "its f_box has 4 rows, expected the 3 of f_test, one for each function"),
        ((9,), (3, 50), "'f_test' has shape [9], expected [n, inputs]"),
        ((3, 9), (3, 50), "f_test has values at 9 inputs, expected the task's"),
    ],
)
def test_functions_of_wrong_shapes_are_refused(problem, f_test, f_box, message):
    with pytest.raises(InputError) as refused:
        score({"f_test": np.zeros(f_test), "f_box": np.zeros(f_box)}, problem)
    assert message in str(refused.value)
    with pytest.raises(InputError, match="'f_box' contains NaN or infinity"):
        score({"f_test": np.zeros((3, 9)), "f_box": np.full((3, 50), np.nan)}, problem)


@pytest.mark.filterwarnings("error")
def test_huge_functions_are_refused(problem):
    """Up to the limit every score can be computed; -1 makes the values differ."""
    signs = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    f_test, f_box = (signs * torch.ones(1, n, dtype=torch.float64) for n in (len(problem.y_test), 50))
    with pytest.raises(InputError, match=r"f_test has values up to 1.0e\+100, expected below 1e\+70"):
        scores_of(FunctionSamplesPosterior(1e100 * f_test, f_box), problem)
    scores = scores_of(FunctionSamplesPosterior(9e69 * f_test, 9e69 * f_box), problem)
    assert all(math.isfinite(getattr(scores, name)) for name in ("nlpd", "w2_test", "energy_distance_test"))
