"""Joint predictive KLs: sums of single ones, dense matrices, estimates against closed forms and enumeration."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy
import torch
from scipy.integrate import quad
from scipy.stats import multivariate_normal

from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior
from fsvi_bench.posteriors.functions import FunctionSamplesPosterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.posteriors.samples import SamplesPosterior
from fsvi_bench.scoring.functions import functions_of
from fsvi_bench.scoring.joint import joint_predictive_kl, joint_scores
from fsvi_bench.scoring.predictive import predictive_kl
from fsvi_bench.tasks.task import Task
from tests.maths.draws import eye, f64, normal


def with_features(toy, Phi_test):
    """The toy with other features at its test inputs."""
    problem = Task(toy.frozen, toy.feature_map, toy.X, toy.y, toy.X_test[: len(Phi_test)], toy.y_test[: len(Phi_test)])
    problem.__dict__["Phi_test"] = Phi_test
    return problem


def laws(q, problem, Phi):
    """Mean and covariance of the targets under the exact posterior and under q's moments."""
    noise = problem.frozen.noise_variance * eye(len(Phi))
    tril = problem.truth.covariance_tril
    return (
        ((Phi @ problem.truth.posterior.mean).numpy(), (Phi @ tril @ tril.mT @ Phi.mT + noise).numpy()),
        ((Phi @ q.mean).numpy(), (Phi @ q.covariance @ Phi.mT + noise).numpy()),
    )


def dense_kl(p, q):
    (mean_p, S_p), (mean_q, S_q) = p, q
    gap, inverse = mean_q - mean_p, np.linalg.inv(S_q)
    logdets = np.linalg.slogdet(S_q)[1] - np.linalg.slogdet(S_p)[1]
    return 0.5 * (np.trace(inverse @ S_p) + gap @ inverse @ gap - len(gap) + logdets)


@pytest.fixture(scope="module")
def q(toy):
    return FullGaussian(toy.truth.posterior.mean + 0.05 * normal(0, 20), 1.3 * toy.truth.covariance_tril)


def test_a_gaussians_is_that_of_dense_matrices(toy, q):
    scores = joint_scores(q, toy)
    for place, Phi in (("test", toy.Phi_test), ("box", toy.Phi_box)):
        for count in (each for each in (1, 10, 100) if each <= len(Phi)):
            expected = dense_kl(*laws(q, toy, Phi[:count]))
            assert scores[f"joint_predictive_kl_{place}"][str(count)] == pytest.approx(expected, rel=1e-8)
        assert scores[f"joint_predictive_kl_{place}_error"] is None
    few = with_features(toy, toy.Phi_test[:12])
    assert joint_scores(q, few)["joint_predictive_kl_test"].keys() == {"1", "10", "100"}
    assert joint_scores(q, few)["joint_predictive_kl_test"]["100"] is None


def test_of_independent_inputs_it_is_the_sum_of_single_ones(toy):
    """Inputs that see one weight each, under q and an exact posterior whose weights are independent."""
    problem = with_features(toy, 3 * eye(20)[:10])
    truth = problem.truth
    independent = truth._replace(
        posterior=truth.posterior._replace(precision_tril=truth.posterior.precision_tril.diagonal().diag()),
        covariance_tril=truth.covariance_tril.diagonal().diag(),
    )
    problem.__dict__["truth"] = independent
    q = FactorisedGaussian(normal(0, 20), normal(1, 20).exp())
    total = float(predictive_kl(q, problem, problem.Phi_test).kl.sum())
    assert joint_predictive_kl(q, problem, "test", 10).value == pytest.approx(total, rel=1e-11)


def test_a_gaussian_handed_in_as_dropout_or_samples_has_its_value_within_the_error(toy, q):
    narrow = FactorisedGaussian(q.mean, torch.full_like(q.mean, 1e-12))
    point = BernoulliDropoutPosterior(q.mean, f64(1.0))
    wide = FactorisedGaussian(q.mean, q.covariance_tril().square().sum(-1).sqrt())
    samples = SamplesPosterior(wide.sample(20_000, 3))
    for count in (1, 10):
        for gaussian, mixture in ((narrow, point), (wide, samples)):
            found = joint_predictive_kl(mixture, toy, "box", count)
            expected = joint_predictive_kl(gaussian, toy, "box", count).value
            assert abs(found.value - expected) < 4 * found.error + 1e-9, count
    assert SpikeSlabPosterior(torch.zeros(20, dtype=torch.float64), wide.mean, wide.scale).singular is False


def test_of_one_target_it_is_the_integral_of_the_density(toy):
    """Against SciPy's quadrature. Estimates from draws missed the kinks of such densities, by up to 20 of their errors."""
    problem = with_features(toy, toy.Phi_test[:1] * torch.cat([torch.ones(3), torch.zeros(17)]).double())
    problem.__dict__["Phi_box"] = problem.Phi_test
    noise, m, f = problem.frozen.noise_variance, normal(1, 20), normal(2, 5, 1)
    (mean, S), _ = laws(FullGaussian(m, eye(20)), problem, problem.Phi_test)
    exact = scipy.stats.norm(mean.item(), S.item() ** 0.5)
    on = f64([*itertools.product([0.0, 1.0], repeat=3)])
    masses = on.sum(-1) * math.log(0.9) + (3 - on.sum(-1)) * math.log(0.1)
    for q, logs, centres in (
        (BernoulliDropoutPosterior(m, f64(0.9)), masses, on @ (problem.Phi_test[0, :3] * m[:3])),
        (FunctionSamplesPosterior(f, f), f64([-math.log(5)] * 5), f[:, 0]),
    ):

        def integrand(y, logs=logs, centres=centres):
            parts = logs - 0.5 * ((y - centres).square() / noise + (2 * math.pi * noise).log())
            return exact.pdf(y) * (exact.logpdf(y) - float(parts.logsumexp(0)))

        expected, _ = quad(integrand, *exact.interval(1 - 1e-14), epsabs=1e-11, limit=1000)
        for place in ("test", "box"):
            value, error = joint_predictive_kl(q, problem, place, 1)
            assert value == pytest.approx(expected, rel=1e-8)
            assert error < 1e-6


@pytest.mark.parametrize("kind", ["functions", "bernoulli", "spike-slab"])
def test_an_estimate_is_that_of_many_more_draws(toy, kind):
    """Five weights in use, so that all 32 combinations can be added up; 50,000 draws without control variates."""
    Phi = toy.Phi_test[:10] * torch.cat([torch.ones(5), torch.zeros(15)]).double()
    Phi[:, :5] += normal(5, 10, 5)
    problem, noise = with_features(toy, Phi), float(toy.frozen.noise_variance)
    problem.__dict__["frozen"] = replace(toy.frozen, noise_variance=f64(0.3 + noise))
    noise = float(problem.frozen.noise_variance)
    mean, scale = normal(1, 20) / 2, normal(2, 20).exp() / 4
    q = {
        "functions": FunctionSamplesPosterior(normal(3, 6, 10), normal(4, 6, 50)),
        "bernoulli": BernoulliDropoutPosterior(mean, f64(0.7)),
        "spike-slab": SpikeSlabPosterior(torch.full_like(mean, 0.3), mean, scale),
    }[kind]
    tril = problem.truth.covariance_tril
    exact = multivariate_normal(
        (Phi @ problem.truth.posterior.mean).numpy(), (Phi @ tril @ tril.mT @ Phi.mT + noise * eye(10)).numpy()
    )
    y = exact.rvs(50_000, random_state=0)
    if kind == "functions":
        parts = [(math.log(1 / 6), f.numpy(), noise * np.eye(10)) for f in q.f_test]
    else:
        slab = scale[:5] if kind == "spike-slab" else torch.zeros(5, dtype=torch.float64)
        parts = []
        for on in map(f64, itertools.product([0.0, 1.0], repeat=5)):
            used = Phi[:, :5]
            covariance = (used * (on * slab.square())) @ used.mT + noise * eye(10)
            mass = float((on * math.log(0.7) + (1 - on) * math.log(0.3)).sum())
            parts.append((mass, (used @ (on * mean[:5])).numpy(), covariance.numpy()))
    log_q = np.logaddexp.reduce([mass + multivariate_normal(m, S).logpdf(y) for mass, m, S in parts])
    values = exact.logpdf(y) - log_q
    found = joint_predictive_kl(q, problem, "test", 10)
    assert abs(found.value - values.mean()) < 4 * math.hypot(found.error, values.std() / math.sqrt(len(y)))
    assert 0 < found.error < 0.1 * found.value


def test_estimates_repeat_themselves_and_unreliable_ones_say_so(toy, q):
    """20,000 samples do not fill 10 dimensions of a law that is wide beside the noise."""
    dropout = BernoulliDropoutPosterior(q.mean, f64(0.8))
    assert joint_predictive_kl(dropout, toy, "box", 10) == joint_predictive_kl(dropout, toy, "box", 10)
    wide = SamplesPosterior(5 * normal(0, 10_000, 20))
    found = joint_predictive_kl(wide, toy, "box", 100)
    closed = joint_predictive_kl(
        FactorisedGaussian(torch.zeros(20).double(), torch.full((20,), 5.0).double()), toy, "box", 100
    )
    assert found.error >= found.value - closed.value
    assert found.error == pytest.approx(found.value, rel=0.01)


def with_noise(toy, noise_variance):
    """The toy with another noise, and its exact posterior."""
    problem = with_features(toy, toy.Phi_test)
    problem.__dict__["frozen"] = replace(toy.frozen, noise_variance=f64(noise_variance))
    return problem


@pytest.mark.parametrize("scale", [0.3, 0.5])
def test_samples_that_miss_a_few_targets_by_far_say_so(toy, scale):
    """A law that is narrower than the exact one and far wider than the noise: most targets have hundreds of samples near
    them, so that the mean of 1/(2Ŝ) is small, and a few have none."""
    problem = with_noise(toy, 1e-4)
    q = FullGaussian(problem.truth.posterior.mean, scale * problem.truth.covariance_tril)
    samples = SamplesPosterior(q.sample(10_000, 1))
    found, closed = (joint_predictive_kl(each, problem, "box", 1) for each in (samples, q))
    assert found.value > 2 * closed.value
    assert found.error == pytest.approx(found.value, rel=0.1)


@pytest.mark.parametrize("kind", ["bernoulli", "spike-slab"])
def test_dropout_whose_particles_all_miss_the_targets_says_so(toy, kind):
    """Eight weights in use, of which an exact posterior far wider than the noise is known only by its prior: most targets
    are far from all 256 atoms (or narrow slabs), and all groups of particles choose the same wrong ones."""
    problem = with_noise(toy, 1e-4)
    Phi = torch.cat([normal(3, 10, 8), torch.zeros(10, 12).double()], 1)
    problem.__dict__["Phi_test"] = Phi
    wide = problem.truth.posterior._replace(mean=normal(1, 20))
    problem.__dict__["truth"] = problem.truth._replace(posterior=wide, covariance_tril=eye(20))
    half, narrow = torch.full((20,), 0.5).double(), torch.full((20,), 1e-9).double()
    dropout, slabs = BernoulliDropoutPosterior(wide.mean, f64(0.5)), SpikeSlabPosterior(half, wide.mean, narrow)
    found = joint_predictive_kl(dropout if kind == "bernoulli" else slabs, problem, "test", 10)
    on = f64([*itertools.product([0.0, 1.0], repeat=8)])
    atoms = (on * wide.mean[:8]) @ Phi[:, :8].mT
    y = Phi @ wide.mean + normal(9, 4000, 20) @ Phi.mT + 0.01 * normal(8, 4000, 10)
    log_q = (8 * math.log(0.5) - 5 * math.log(2e-4 * math.pi) - 0.5e4 * torch.cdist(y, atoms).square()).logsumexp(-1)
    exact = multivariate_normal((Phi @ wide.mean).numpy(), (Phi @ Phi.mT + 1e-4 * eye(10)).numpy())
    values = -exact.entropy() - log_q
    assert found.value > values.mean() + 4 * values.std() / 4000**0.5
    assert found.error == pytest.approx(found.value, rel=0.1)


def test_equal_samples_have_the_density_of_a_point(toy, q):
    point, equal = FactorisedGaussian(q.mean, torch.full_like(q.mean, 1e-12)), SamplesPosterior(q.mean.expand(1000, -1))
    for count in (1, 10):
        expected = joint_predictive_kl(point, toy, "box", count).value
        assert joint_predictive_kl(equal, toy, "box", count).value == pytest.approx(expected, rel=1e-9)


def test_few_samples_have_the_bias_and_the_error_that_are_said(toy):
    """200 sets of 40 samples of a Gaussian: their mean is its closed form within 4 standard errors (0.7), from which it
    would be 6.5 and 5.5 away if the bias were not subtracted, or twice."""
    problem = with_noise(toy, 0.3)
    q = FullGaussian(problem.truth.posterior.mean + 0.3 * normal(2, 20), problem.truth.covariance_tril)
    closed = joint_predictive_kl(q, problem, "box", 1).value
    found = [joint_predictive_kl(SamplesPosterior(q.sample(40, seed)), problem, "box", 1) for seed in range(200)]
    values, errors = np.array(found).T
    assert abs(values.mean() - closed) < 4 * values.std() / 200**0.5
    assert 0.8 < errors.mean() / values.std() < 1.3


@pytest.mark.parametrize("scale", [1e12, 1e20, 1e30])
def test_the_kl_of_particles_far_from_the_truth_is_half_the_square_of_their_distance(toy, scale):
    """In noise deviations; only terms that rounding hides beside it are left out."""
    q = FullGaussian(toy.truth.posterior.mean, toy.truth.covariance_tril)
    particles = scale * q.sample(20, 0)
    found = joint_scores(functions_of(ParticlesPosterior(particles), toy), toy)
    for place, Phi in (("test", toy.Phi_test), ("box", toy.Phi_box)):
        squares = (particles @ Phi.mT).square() / toy.noise_variance
        for count, value in found[f"joint_predictive_kl_{place}"].items():
            assert value == pytest.approx(0.5 * float(squares[:, : int(count)].sum(1).min()), rel=1e-6)


def test_dropout_is_not_scored_where_rounding_hides_the_noise(toy, q):
    """The toy's noise deviation is 0.1, so the two spreads are about 1e5 and 1e8 noise deviations."""
    near, far = (BernoulliDropoutPosterior(size * q.mean / q.mean.abs().max(), f64(0.8)) for size in (1e4, 1e7))
    assert 0 < joint_predictive_kl(near, toy, "box", 10).value < math.inf
    assert joint_predictive_kl(far, toy, "box", 10) == (None, None)


def test_samples_beyond_the_root_of_the_largest_number_have_an_error(toy):
    value, error = joint_predictive_kl(SamplesPosterior(1e90 * normal(0, 1000, 20)), toy, "test", 10)
    assert value > 1e170
    assert error >= value
