"""Joint densities of dropout and spike-and-slab against sums over all combinations of weights."""

import itertools
import math

import pytest
import torch
from scipy.stats import multivariate_normal

from fsvi_bench.maths.mixtures import bernoulli_dropout_weights, spike_and_slab_weights
from fsvi_bench.maths.switched_joint import component_log_density, log_density_ratio
from tests.maths.draws import eye, f64, normal


def exact_ratio(y, Phi, q, noise):
    """log q(y) − log g(y), by enumeration."""
    k, logs = len(q.mean), []
    for on in map(f64, itertools.product([0.0, 1.0], repeat=k)):
        mass = (on * q.retain_probability.log() + (1 - on) * q.drop_probability.log()).sum()
        law = multivariate_normal(Phi @ (on * q.mean), (Phi * (on * q.scale.square())) @ Phi.mT + noise * eye(len(Phi)))
        logs.append(mass + torch.as_tensor(law.logpdf(y)))
    p = q.retain_probability
    variance = p * (q.scale.square() + q.drop_probability * q.mean.square())
    moments = multivariate_normal(Phi @ (p * q.mean), (Phi * variance) @ Phi.mT + noise * eye(len(Phi)))
    return torch.stack(logs).logsumexp(0) - torch.as_tensor(moments.logpdf(y))


@pytest.mark.parametrize("kind", ["bernoulli", "spike-slab"])
def test_the_estimates_of_the_ratio_are_unbiased(kind):
    """4,000 independent groups at each of 3 targets: their mean ratio within 4 standard errors."""
    Phi, m, noise = normal(0, 4, 7), normal(1, 7), f64(0.3)
    q = bernoulli_dropout_weights(m, f64(0.7))
    if kind == "spike-slab":
        q = spike_and_slab_weights(normal(2, 7).sigmoid(), m, normal(3, 7).exp() / 2)
    y = 0.7 * (Phi @ m) + normal(4, 3, 4)
    generator = torch.Generator().manual_seed(0)
    found = log_density_ratio(y, Phi, q, noise, generator, 4000, 8)
    assert found.std() > 1e-3  # something is estimated
    ratio = (found - exact_ratio(y, Phi, q, noise)[:, None]).exp()
    error = (ratio.mean(-1) - 1) / (ratio.std(-1) / math.sqrt(4000))
    assert (error.abs() < 4).all()


def test_weights_that_are_never_dropped_leave_the_gaussian():
    Phi, y = normal(0, 4, 7), normal(1, 3, 4)
    for q in (
        bernoulli_dropout_weights(normal(2, 7), f64(1.0)),
        spike_and_slab_weights(f64(0.0), normal(2, 7), normal(3, 7).exp()),
    ):
        found = log_density_ratio(y, Phi, q, f64(0.3), torch.Generator().manual_seed(0), 2, 4)
        assert found.abs().max() < 1e-10


@pytest.mark.parametrize("slab", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("noise", [0.3, 1e-4])
def test_the_density_with_one_gaussian_is_that_of_the_best_where_the_search_ends(noise, slab):
    """Against all 128, at targets of one of them and far from all; none that differs by one weight is better."""
    Phi, m, noise = normal(0, 4, 7), normal(1, 7), f64(noise)
    scale = slab * normal(2, 7).exp()
    q = bernoulli_dropout_weights(m, f64([0.7, 0.5, 0.9, 0.2, 0.7, 0.6, 0.7]))._replace(scale=scale)
    near = (m + scale * normal(3, 3, 7)) * f64([1, 0, 1, 0, 0, 1, 1]) @ Phi.mT
    y = torch.cat([near + 0.1 * noise.sqrt() * normal(4, 3, 4), 5 * normal(5, 20, 4)])
    on = f64([*itertools.product([0.0, 1.0], repeat=7)])
    mass = on @ q.retain_probability.log() + (1 - on) @ q.drop_probability.log()
    covariance = (Phi * (on * scale.square())[:, None]) @ Phi.mT + noise * eye(4)
    laws = torch.distributions.MultivariateNormal((on * m) @ Phi.mT, covariance)
    logs = mass + laws.log_prob(y[:, None])
    best = logs.max(1).values
    rounding = 1e-9 + 1e-12 * best.abs()
    found = component_log_density(y, Phi, q, noise)
    assert (found <= best + rounding).all()
    assert (found > best - rounding).sum() >= 21  # of 23
    nearest = (logs - found[:, None]).abs().argmin(1)
    assert ((logs.gather(1, nearest[:, None])[:, 0] - found).abs() < rounding).all()
    for row, place in enumerate(nearest.tolist()):
        neighbours = (on - on[place]).abs().sum(1) == 1
        assert logs[row, neighbours].max() < found[row] + rounding[row]


def test_weights_that_are_never_dropped_have_one_gaussian():
    Phi, m, y = normal(0, 4, 7), normal(1, 7), normal(2, 3, 4)
    found = component_log_density(y, Phi, bernoulli_dropout_weights(m, f64(1.0)), f64(0.3))
    expected = torch.as_tensor(multivariate_normal(Phi @ m, 0.3 * eye(4)).logpdf(y))
    assert (found - expected).abs().max() < 1e-12
