"""Samplers of networks' posteriors against the torch model, quadrature, and each other."""

from __future__ import annotations

import dataclasses
import math

import arviz as az
import jax
import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

from fsvi_bench.errors import InputError
from fsvi_bench.maths.networks import Network
from fsvi_bench.networks.sampling.agreement import monte_carlo_errors
from fsvi_bench.networks.sampling.build import largest_z
from fsvi_bench.networks.sampling.evidence import (
    Estimate,
    bennett,
    equal_means,
    ladder_evidence,
    ladder_run,
    smc_evidence,
)
from fsvi_bench.networks.sampling.models import LogitTarget, Model, Target, function_draws
from fsvi_bench.networks.sampling.nuts import sample_chain, thin
from fsvi_bench.networks.sampling.quadrature import quadrature
from fsvi_bench.networks.sampling.simulated import (
    bidirectional,
    calibration_p_values,
    calibration_ranks,
    mean_gap,
)
from fsvi_bench.networks.sampling.smc import Schedule, pool, smc_run


def target(H: int, N: int, P: int = 50, noise: float = 0.5, D: int = 1) -> Target:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((N, D))
    y = np.sin(1.5 * x[:, 0]) + noise * generator.standard_normal(N)
    x_new = np.linspace(-2.5, 2.5, P)[:, None].repeat(D, 1)
    return Target(x, y, np.float64(noise**2), Network(D, H, 1.3, 0.7), x_new)


def logit_target() -> LogitTarget:
    generator = np.random.default_rng(1)
    Phi = generator.standard_normal((30, 2))
    y = (Phi @ [1.5, -1.0] + generator.logistic(size=30) > 0).astype(float)
    return LogitTarget(Phi, y, generator.standard_normal((50, 2)))


def torch_log_likelihood(of: Target, u: torch.Tensor) -> torch.Tensor:
    return of.network.log_likelihood(u, *(torch.as_tensor(part) for part in (of.x_train, of.y, of.noise_variance)))


def test_the_twin_has_the_torch_models_likelihood_and_gradient() -> None:
    of = target(5, 30, D=3, noise=0.1)
    u = np.random.default_rng(2).standard_normal((4, of.dim))
    values, gradients = jax.vmap(jax.value_and_grad(of.log_likelihood))(u)
    expected = torch_log_likelihood(of, leaf := torch.tensor(u, requires_grad=True))
    expected.sum().backward()
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, expected.detach(), rtol=1e-9)
    np.testing.assert_allclose(gradients, leaf.grad, rtol=1e-9, atol=1e-9 * leaf.grad.abs().max())


def test_the_logistic_likelihood_is_bernoullis() -> None:
    of, u = logit_target(), np.array([0.3, -2.0])
    logits = of.Phi @ u
    expected = stats.bernoulli.logpmf(of.y, 1 / (1 + np.exp(-logits))).sum()
    assert float(of.log_likelihood(u)) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(function_draws(of, jax.random.key(0), u), of.x_new @ u, rtol=1e-12)


def test_functions_given_the_hidden_weights_have_the_torch_models_moments() -> None:
    of, n = target(3, 20, P=4), 20000
    u = np.random.default_rng(3).standard_normal(of.dim)
    f = function_draws(of, jax.random.key(0), np.broadcast_to(u, (n, of.dim)))
    data = (torch.as_tensor(part) for part in (of.x_train, of.y, of.noise_variance))
    posterior = of.network.output_posterior(torch.tensor(u), *data)
    Psi = of.network.features(torch.tensor(u), torch.tensor(of.x_new)).numpy()
    C = posterior.precision_tril.numpy()
    covariance = Psi @ np.linalg.inv(C @ C.T) @ Psi.T
    sd = np.sqrt(np.diagonal(covariance))
    np.testing.assert_array_less(np.abs(f.mean(0) - Psi @ posterior.mean.numpy()), 4 * sd / math.sqrt(n))
    # Errors of the n draws' covariances are at most √(2/n) of the product of the sds, 0.01.
    np.testing.assert_allclose(np.cov(f.T) / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.04)


@pytest.mark.parametrize("of", [target(3, 400), LogitTarget(np.ones((4000, 1)), np.zeros(4000), np.ones((1, 1)))])
def test_simulated_targets_come_from_the_simulated_function(of: Model) -> None:
    x_train = of.x_train if isinstance(of, Target) else of.Phi
    simulated = dataclasses.replace(of, x_new=x_train).simulate(jax.random.key(1))
    new, f = simulated.target, np.asarray(simulated.f)
    if isinstance(of, Target):
        residual = (np.asarray(new.y) - f) / math.sqrt(of.noise_variance)
        assert stats.kstest(residual, "norm").pvalue > 1e-3
    else:
        p = 1 / (1 + math.exp(-f[0]))
        assert stats.binomtest(int(np.sum(new.y)), 4000, p).pvalue > 1e-3


def torch_moments(of: Target, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean and variance [S, P] of f at `x_new`, given hidden weights [S, k]."""
    posterior = of.network.output_posterior(
        u, *(torch.as_tensor(part) for part in (of.x_train, of.y, of.noise_variance))
    )
    Psi = of.network.features(u, torch.tensor(of.x_new))
    spread = torch.linalg.solve_triangular(posterior.precision_tril, Psi.mT, upper=False).square().sum(-2)
    return (Psi @ posterior.mean[..., None])[..., 0], spread


def test_one_units_quadrature_is_gauss_legendres() -> None:
    of = target(1, 12, P=3)
    nodes, weights = np.polynomial.legendre.leggauss(300)  # on [−9, 9]²
    u = torch.tensor(9 * np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2))
    log_w = torch_log_likelihood(of, u) + torch.tensor(
        stats.norm.logpdf(u).sum(1) + np.log(81 * np.outer(weights, weights).ravel())
    )
    w, (means, spread) = torch.softmax(log_w, 0), torch_moments(of, u)
    got = quadrature(of)
    assert got.log_evidence == pytest.approx(torch.logsumexp(log_w, 0).item(), abs=2e-6)
    np.testing.assert_allclose(got.mean, w @ means, atol=2e-6)
    np.testing.assert_allclose(got.variance, w @ (spread + means.square()) - (w @ means).square(), atol=2e-6)


@pytest.mark.parametrize("of", [target(2, 6, P=3, noise=0.7), target(1, 6, P=3, noise=0.7, D=2)], ids=["H=2", "D=2"])
def test_quadrature_is_the_priors_mean(of: Target) -> None:
    n = 200_000
    u = torch.randn(n, of.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_w = torch_log_likelihood(of, u)
    w = torch.softmax(log_w, 0)
    means, spread = torch_moments(of, u)
    mean = w @ means
    got = quadrature(of, tolerance=1e-3)
    worth = 1 / w.square().sum().item()
    assert worth > 20_000
    assert got.log_evidence == pytest.approx(torch.logsumexp(log_w, 0).item() - math.log(n), abs=4 / math.sqrt(worth))
    np.testing.assert_allclose(got.mean, mean, atol=4 * got.variance.max() ** 0.5 / math.sqrt(worth))
    variance = w @ (spread + means.square()) - mean.square()
    np.testing.assert_allclose(got.variance, variance, rtol=4 * 2 / math.sqrt(worth))


def test_a_schedule_of_more_temperatures_lies_between_its_own() -> None:
    found = Schedule(np.array([0, 0.2, 1]), np.array([1.0, 0.25, 0.01]), np.array([1, 4, 9])).refine(4)
    np.testing.assert_allclose(found.betas, [0, 0.1, 0.2, 0.6, 1])
    np.testing.assert_allclose(found.step_sizes, [1, 0.5, 0.25, 0.05, 0.01])  # geometric
    assert found.leapfrogs.tolist() == [1, 3, 4, 7, 9]  # rounded up


@pytest.mark.parametrize("sign", [1, -1])
def test_moments_are_as_many_errors_off_as_they_were_moved(sign: int) -> None:
    """Of 8,000 independent standard normal draws, moved by 7 standard errors 1/√8000."""
    errors = np.random.default_rng(0).standard_normal((4, 2000, 3))
    errors -= errors.mean((0, 1))
    errors[..., 1] += sign * 7 / math.sqrt(8000)
    np.testing.assert_allclose(monte_carlo_errors(errors), 1 / math.sqrt(8000), rtol=0.1)
    assert largest_z(errors) == pytest.approx(7, rel=0.1)


def test_what_quadrature_cannot_do_is_refused() -> None:
    with pytest.raises(InputError, match="expected at most 4"):
        quadrature(target(3, 5))


def test_bennetts_ratio_of_tilted_gaussians() -> None:
    """Where Δ ~ N(m, s²) below, it is N(m + s², s²) above, and the log ratio is m + s²/2."""
    generator, n = np.random.default_rng(4), 20000
    below, above = -3 + generator.standard_normal(n), -2 + generator.standard_normal(n)
    assert bennett(below, above) == pytest.approx(-2.5, abs=4 / math.sqrt(n))
    assert math.isnan(bennett(below, np.append(above[1:], np.nan)))


def test_errors_of_log_z() -> None:
    values = np.log([1.0, 2.0, 6.0])
    got = smc_evidence(values)
    assert got.value == pytest.approx(math.log(3))
    without = np.log([4.0, 3.5, 1.5])
    assert got.error == pytest.approx(math.sqrt(2 / 3 * ((without - without.mean()) ** 2).sum()))
    assert math.isnan(smc_evidence([1.0]).error)
    a, b = Estimate(1.0, 0.2, 5), Estimate(1.9, 0.3, 9)
    welch = stats.ttest_ind_from_stats(1.0, 0.2 * 5**0.5, 5, 1.9, 0.3 * 9**0.5, 9, equal_var=False).pvalue
    assert equal_means(a, b) == pytest.approx(welch)
    assert math.isnan(equal_means(a, smc_evidence([1.0])))


def test_draws_are_thinned_evenly_and_pooled_by_evidence() -> None:
    draws = np.arange(20.0)[:, None]
    assert thin(draws, 4).ravel().tolist() == [2, 7, 12, 17]
    assert thin(draws, 0).shape == (0, 1)
    with pytest.raises(InputError, match="20 draws cannot be thinned to 21"):
        thin(draws, 21)


@pytest.mark.parametrize(
    ("log_evidences", "n", "counts"),
    [
        ([0.0, math.log(3)], 40, [10, 30]),
        ([1000.0, 1000.0], 40, [20, 20]),
        ([0.0, math.log(3)], 400, [33, 100]),  # the heavy run has no more to give
        ([-800.0, 0.0], 15, [0, 15]),
    ],
)
def test_pooled_particles_have_the_evidence_of_their_runs(log_evidences: list, n: int, counts: list) -> None:
    particles = np.arange(200.0).reshape(2, 100, 1)
    drawn = pool(list(particles), log_evidences, n, np.random.default_rng(5))
    assert len(drawn) == len(np.unique(drawn)) == sum(counts)
    assert (np.diff(drawn[:, 0]) < 0).any()  # in random order
    np.testing.assert_allclose([(drawn < 100).sum(), (drawn >= 100).sum()], counts, atol=1)


@pytest.mark.parametrize("lost", [math.nan, -math.inf])
def test_an_evidence_that_is_no_number_leaves_no_particles(lost: float) -> None:
    drawn = pool([np.zeros((9, 2))] * 2, [lost, 0.0], 5, np.random.default_rng(0))
    assert drawn.shape == (5, 2)
    assert np.isnan(drawn).all()


def assert_moments(f: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> None:
    """Draws [chains, draws, P] have these moments, to three standard errors."""
    for values, expected in ((f, mean), ((f - mean) ** 2, variance)):
        data = az.convert_to_dataset({"f": values})
        error = az.mcse(data, method="mean").f.to_numpy()
        np.testing.assert_array_less(np.abs(values.mean((0, 1)) - expected), 3 * error)


def assert_all_routes(of: Model, log_evidence: float, mean: np.ndarray, variance: np.ndarray) -> None:
    """NUTS and particles have the moments; the ladder and the particles have log Z."""
    chains = [sample_chain(of, jax.random.key(i), 500, 2000) for i in range(2)]
    assert sum(chain.divergent.sum() for chain in chains) < 40
    np.testing.assert_allclose(chains[0].log_likelihood[-1], of.log_likelihood(chains[0].u[-1]), rtol=1e-9)
    assert_moments(
        np.stack([function_draws(of, jax.random.key(2 + i), c.u) for i, c in enumerate(chains)]), mean, variance
    )
    runs = [smc_run(of, jax.random.key(10 + i), 400) for i in range(6)]
    smc = smc_evidence([run.log_evidence for run in runs])
    particles = pool([run.u for run in runs], [run.log_evidence for run in runs], 600, np.random.default_rng(0))
    assert_moments(function_draws(of, jax.random.key(4), particles)[None], mean, variance)
    betas = runs[0].schedule.betas
    ladder = ladder_evidence([ladder_run(of, jax.random.key(20 + i), betas, 50, 300) for i in range(6)])
    for estimate in (smc, ladder):
        assert estimate.error < 0.1
        assert abs(estimate.value - log_evidence) < 3 * estimate.error
    assert equal_means(smc, ladder) > 0.01


@pytest.mark.slow
def test_all_routes_agree_with_quadrature_on_two_units() -> None:
    of = target(2, 20)
    assert_all_routes(of, *quadrature(of, 1e-4)[:3])  # far below the errors of the samplers


@pytest.mark.slow
def test_all_routes_agree_with_a_grid_on_two_logistic_weights() -> None:
    of = logit_target()
    line = np.linspace(-8, 8, 401)
    u = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    logits = u @ of.Phi.T
    log_w = (of.y * logits - np.logaddexp(0, logits)).sum(1) + stats.norm.logpdf(u).sum(1)
    log_evidence = logsumexp(log_w) + 2 * math.log(line[1] - line[0])
    w, f = np.exp(log_w - logsumexp(log_w)), u @ of.x_new.T
    mean = w @ f
    assert_all_routes(of, log_evidence, mean, w @ f**2 - mean**2)


@pytest.mark.slow
def test_annealing_from_both_ends_brackets_log_z() -> None:
    of = target(1, 12, P=1)
    pilot = smc_run(of.simulate(jax.random.key(99)).target, jax.random.key(0), 200).schedule
    simulated = [of.simulate(jax.random.key(i)) for i in range(20)]
    truth = np.array([quadrature(each.target, 1e-4).log_evidence for each in simulated])
    gaps = []
    for steps, chains in ((3, 1), (200, 4)):
        schedule = pilot.refine(steps)
        bounds = [
            bidirectional(each.target, each.u, jax.random.key(100 + i), schedule, chains)
            for i, each in enumerate(simulated)
        ]
        below, above = truth - [b.lower for b in bounds], np.array([b.upper for b in bounds]) - truth
        assert below.mean() > -3 * stats.sem(below)
        assert above.mean() > -3 * stats.sem(above)
        gaps.append(mean_gap(bounds))
    assert gaps[0].mean > 0.3  # a crude schedule shows
    assert -0.05 < gaps[1].mean < gaps[1].upper < 0.5 < gaps[0].upper  # the certificate's limit


@pytest.mark.slow
def test_calibration_tells_a_sampler_of_the_wrong_noise() -> None:
    of = target(1, 10, P=20)

    def p_values(factor: float, data_sets: int) -> np.ndarray:
        ranks = []
        for i in range(data_sets):
            simulated = of.simulate(jax.random.key(1000 + i))
            assumed = dataclasses.replace(simulated.target, noise_variance=factor * of.noise_variance)
            ranks.append(calibration_ranks(assumed, simulated.f, jax.random.key(2000 + i), 200, 380))
        return calibration_p_values(np.stack(ranks))

    assert p_values(1.0, 100).min() > 0.01
    assert p_values(1 / 16, 60).min() < 1e-6  # far below; rounding, so the CPU, changes every chain


def test_calibrations_bins_are_equal() -> None:
    ranks = np.arange(20)[:, None].repeat(5, 0)
    assert calibration_p_values(ranks).tolist() == [1.0]
    assert calibration_p_values(ranks // 4).min() < 1e-6
    with pytest.raises(InputError, match="20 ranks do not fill 3 bins"):
        calibration_p_values(ranks, bins=3)
