"""The losses that traces follow, with all their constants: against exact divergences, slow twins, and by hand."""

import math

import numpy as np
import pytest
import torch

from fsvi_bench.maths.bernoulli_dropout import bernoulli_quasi_kl
from fsvi_bench.maths.blr import blr_posterior, log_evidence
from fsvi_bench.maths.log_uniform import gaussian_dropout_kl, ksw_cubic_kl, ksw_lower_bound_kl, molchanov_kl
from fsvi_bench.methods.bernoulli_dropout import BernoulliDropout, dropout_terms
from fsvi_bench.methods.concrete_dropout import ConcreteDropout
from fsvi_bench.methods.data import HELD_OUT_SETS, MeasurementDesign, MeasurementStream, Streams
from fsvi_bench.methods.gaussian_dropout import GaussianDropout
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.sparse_variational_dropout import SparseVariationalDropout
from fsvi_bench.methods.variational_dropout import VariationalDropout
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.trainable import Multiplicative
from fsvi_bench.seeds import derive_seed
from fsvi_bench.training.trace import TRACED_SETS
from fsvi_bench.training.trainer import train
from tests import reference as twin
from tests.maths.draws import dense, f64, linspace, ones, zeros
from tests.methods.table import terms
from tests.scoring.objectives import (
    FAMILIES,
    WEIGHT_SPACE,
    expected,
    fixed,
    kl,
    problem_of,
    random_features,
    random_q,
)


def multiplicative(q):
    """A factorised Gaussian as N(θ, αθ²)."""
    return Multiplicative(q.mean[None], q.scale[None], 2 * (q.scale.log() - q.mean.abs().log())[None])


def negative_log_likelihood(q, problem):
    covariance = dense(q.covariance_tril())
    model = problem.Phi.numpy(), problem.y.numpy(), float(problem.frozen.noise_variance)
    return -twin.expected_log_likelihood(*model, q.mean.numpy(), covariance)


def kl_at(q, Phi_A, jitter=0.0):
    return twin.functional_kl_to_prior(Phi_A.numpy(), q.mean.numpy(), dense(q.covariance_tril()), jitter)


# --- In weight space --------------------------------------------------------------------------------------------------


@FAMILIES
def test_loss_plus_log_evidence_is_the_kl_to_the_posterior(toy, small, family):
    """To 1e-12 of the loss, which on the toy is of order 1e5."""
    for problem in (toy, small):
        q = random_q(family, problem.frozen.k)
        loss = WEIGHT_SPACE.loss(problem)(q)
        evidence = float(problem.truth.log_evidence)
        assert loss + evidence == pytest.approx(kl(q, problem.truth.posterior), rel=1e-11)
        if family == "ffg":
            scaled = VariationalDropout(problem, prior="task", free_alpha=True)
            assert scaled.objective(0, problem, q=multiplicative(q)) == pytest.approx(loss, rel=1e-13)
            halved = VariationalDropout(problem, prior="task", free_alpha=True, kl_scale=0.5)
            half = 0.5 * (loss + negative_log_likelihood(q, problem))
            assert halved.objective(0, problem, q=multiplicative(q)) == pytest.approx(half, rel=1e-12)
            additive = SparseVariationalDropout(problem, prior="task")
            assert additive.objective(0, problem, q=terms(q)) == pytest.approx(loss, rel=1e-13)
    exact = problem.truth.posterior
    at_exact = FullGaussian(exact.mean, problem.truth.covariance_tril)
    assert WEIGHT_SPACE.loss(problem)(at_exact) == pytest.approx(-evidence, rel=1e-12)


# --- At measurement sets ----------------------------------------------------------------------------------------------


@FAMILIES
@pytest.mark.parametrize(("M", "c", "jitter"), [(3, 1.0, 0.0), (7, 2.0, 0.0), (13, 0.5, 0.0), (5, 2.0, 1e-2)])
def test_fixed_a_is_its_slow_twin(small, family, M, c, jitter):
    q, Phi_A = random_q(family, 8), random_features(M, 8)
    by_hand = negative_log_likelihood(q, small) + c * kl_at(q, Phi_A, jitter)
    assert fixed(Phi_A, c, kl_jitter=jitter).loss(small)(q) == pytest.approx(by_hand, rel=1e-10)


@FAMILIES
@pytest.mark.parametrize("jitter", [0.0, 1e-3])
def test_rand_a_is_the_mean_over_the_first_held_out_sets(grid, family, jitter):
    """Drawn here as the gap's 256 are. Features of the grid are badly conditioned: the twin's own digits are 1e-8."""
    assert TRACED_SETS < HELD_OUT_SETS
    design, q = MeasurementDesign(6, kl_jitter=jitter), random_q(family, 8)
    seed = derive_seed(grid.frozen.sha256, "held-out measurement sets")
    sets = MeasurementStream(TrainingData.of([grid]), design, Streams((seed,))).draw(range(HELD_OUT_SETS))[
        :TRACED_SETS, 0, :, :8
    ]
    by_hand = negative_log_likelihood(q, grid) + 2.0 * np.mean([kl_at(q, Phi_A, jitter) for Phi_A in sets])
    assert expected(6, 2.0, kl_jitter=jitter).loss(grid)(q) == pytest.approx(by_hand, rel=1e-8)


def test_sets_that_see_every_weight_give_the_weight_space_loss(toy):
    q = random_q("full", 20)
    loss = expected(60).loss(toy)(q)
    assert fixed(random_features(25, 20)).loss(toy)(q) == pytest.approx(WEIGHT_SPACE.loss(toy)(q), rel=1e-12)
    # The toy's features lose rank to the tolerance: its sets do not see quite every weight, and see no more.
    assert loss <= WEIGHT_SPACE.loss(toy)(q) * (1 + 1e-12)


def test_without_a_kl_the_loss_is_the_likelihoods(small):
    q = random_q("ffg", 8)
    by_hand = pytest.approx(negative_log_likelihood(q, small), rel=1e-12)
    for objective in (fixed(random_features(3, 8), 0.0), expected(3, 0.0)):
        assert objective.loss(small)(q) == by_hand
    method = GaussianDropout(small, alpha=0.25)
    assert method.objective(0, small, q=multiplicative(q)) == by_hand


# --- Dropout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengthscale", [1.0, 1.5])
@pytest.mark.parametrize("shared", [True, False])
def test_bernoullis_loss_plus_log_evidence_is_its_quasi_kl(small, lengthscale, shared):
    rng = np.random.default_rng(3)
    m = torch.from_numpy(rng.standard_normal(8))
    p = f64(0.7) if shared else torch.from_numpy(rng.uniform(0.2, 0.9, 8))
    # The prior N(0, l⁻²I) is the task's after Φ → Φ/l, w → l w.
    model = small.Phi / lengthscale, small.y, small.frozen.noise_variance
    scaled = blr_posterior(*model)
    evidence = float(log_evidence(*model, scaled))
    quasi = float(bernoulli_quasi_kl(m, p.expand(8), scaled.mean / lengthscale, scaled.precision_tril * lengthscale))
    at_q = dropout_terms(BernoulliDropoutPosterior(m[None], p[None]))
    for method in (BernoulliDropout(small, l=lengthscale), ConcreteDropout(small, l=lengthscale)):
        assert method.objective(0, small, q=at_q) + evidence == pytest.approx(quasi, rel=1e-11)


OF_ALPHA = {
    "exact": gaussian_dropout_kl,
    "cubic": ksw_cubic_kl,
    "lower-bound": ksw_lower_bound_kl,
    "sigmoid": molchanov_kl,
}


@pytest.mark.parametrize("name", OF_ALPHA)
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_log_uniform_losses_are_likelihood_and_kl(small, name, scale):
    """The sigmoid is sparse variational dropout's, which has no scale; both have the exact one."""
    rng = np.random.default_rng(5)
    theta, alpha = torch.from_numpy(rng.standard_normal(8)), torch.from_numpy(rng.uniform(0.05, 0.99, 8))
    q, got = FactorisedGaussian(theta, alpha.sqrt() * theta.abs()), []
    if name != "sigmoid":
        method = VariationalDropout(small, kl=name, kl_scale=scale)
        got.append(method.objective(0, small, q=multiplicative(q)))
    if name in ("sigmoid", "exact") and scale == 1:
        got.append(SparseVariationalDropout(small, kl=name).objective(0, small, q=terms(q)))
    by_hand = negative_log_likelihood(q, small) + scale * float(OF_ALPHA[name](alpha).sum())
    assert got == pytest.approx([by_hand] * len(got), rel=1e-12)
    assert got or (name, scale) == ("sigmoid", 1 / 3)


@pytest.mark.parametrize("name", ["cubic", "lower-bound"])
def test_an_alpha_at_its_bound_has_a_loss(toy, name):
    """Started there, and kept there by data that say next to nothing, as an average of iterates too."""
    faint = problem_of(toy, linspace(-1, 1, 30), Phi=torch.full((30, 8), 1e-3).double())
    method = VariationalDropout(faint, kl=name, alpha=1.0, minibatch=7, max_steps=20, averaging=0.5, lr=0.5)
    assert math.isfinite(method.objective(0, faint))
    train(method, "cpu")
    assert float(method.q.log_alpha.detach().max()) == 0.0
    assert math.isfinite(method.objective(0, faint))
    assert method.divergences() == [None]


def test_a_mean_of_zero_costs_no_log_uniform_kl(small):
    """As at the start of sparse variational dropout, where α is infinite."""
    q = FactorisedGaussian(zeros(8), ones(8))
    for name in ("exact", "sigmoid"):
        method, by_hand = SparseVariationalDropout(small, kl=name), negative_log_likelihood(q, small)
        assert method.objective(0, small, q=terms(q)) == pytest.approx(by_hand, rel=1e-12)
        assert method.objective(0, small) == pytest.approx(by_hand, rel=1e-12)  # which is where it starts
