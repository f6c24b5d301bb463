"""What objectives ask for: their optima and gaps against closed forms, naive loops, and long optimiser runs."""

import math
from functools import partial

import mpmath
import numpy as np
import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import expected_log_likelihood
from fsvi_bench.maths.gaussian import gaussian_kl_standard_normal
from fsvi_bench.maths.linalg import tril_of_gram
from fsvi_bench.maths.projection import row_space
from fsvi_bench.methods.fsp_laplace import FspLaplace
from fsvi_bench.methods.registry import load_method
from fsvi_bench.methods.spike_and_slab import SpikeAndSlab
from fsvi_bench.methods.vip import Vip
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.training.trainer import train
from tests.maths.draws import close, eye, f64, normal, zeros
from tests.scoring.objectives import (
    FAMILIES,
    WEIGHT_SPACE,
    ObjectiveScores,
    expected,
    fixed,
    fixed_a,
    kl,
    loss_by_hand,
    nearest,
    problem_of,
    random_features,
    random_q,
    tempered,
)

# --- In weight space --------------------------------------------------------------------------------------------------


@FAMILIES
def test_the_weight_space_gap_is_the_difference_of_elbos(toy, family):
    """Λ's condition number on the toy is 2e3/σ² = 2e5: KLs are good to 1e-9 or so."""
    optimum, q = nearest(family, toy.truth.posterior), random_q(family, 20)

    def elbo(g):
        fit = expected_log_likelihood(toy.Phi, toy.y, toy.frozen.noise_variance, g.mean, g.covariance_tril())
        return float(fit - gaussian_kl_standard_normal(g.mean, g.covariance_tril()))

    scores = WEIGHT_SPACE.scores(q, toy)
    assert scores.objective_gap == pytest.approx(elbo(optimum) - elbo(q), rel=1e-10)
    assert scores.kl_at_objective_optimum == pytest.approx(float(toy.truth.log_evidence) - elbo(optimum), abs=1e-8)
    assert WEIGHT_SPACE.scores(optimum, toy) == (pytest.approx(kl(optimum, toy.truth.posterior), abs=1e-9), 0.0)
    if family == "full":
        assert scores.kl_at_objective_optimum == pytest.approx(0.0, abs=1e-8)
    else:
        assert scores.kl_at_objective_optimum > 10


# --- At a fixed set that sees every weight ----------------------------------------------------------------------------


@FAMILIES
@pytest.mark.parametrize("c", [0.5, 2.0])
def test_another_kl_weight_asks_for_the_tempered_posterior(toy, family, c):
    """The optimum is the posterior under the noise variance cσ²; the gap is the loss's own difference."""
    Phi_A, q = random_features(25, 20), random_q(family, 20)
    optimum, objective = nearest(family, tempered(toy, c)), fixed(random_features(25, 20), c)
    scores = objective.scores(q, toy)
    assert scores.kl_at_objective_optimum == pytest.approx(kl(optimum, toy.truth.posterior), rel=1e-9)
    losses = [loss_by_hand(g, toy, row_space(Phi_A), c) for g in (q, optimum)]
    assert scores.objective_gap == pytest.approx(losses[0] - losses[1], rel=1e-9)
    assert objective.value(q, toy) - objective.value(optimum, toy) == pytest.approx(losses[0] - losses[1], rel=1e-9)
    assert objective.scores(optimum, toy).objective_gap == pytest.approx(0.0, abs=1e-9)
    assert scores.kl_at_objective_optimum > WEIGHT_SPACE.scores(q, toy).kl_at_objective_optimum + 0.1


# --- At a fixed set that does not -------------------------------------------------------------------------------------


def collapsing(problem, basis, c, epsilon):
    """q at the optimal mean and the optimal covariance on A, collapsed elsewhere to standard deviations of epsilon.

    Written with dense inverses in the coordinates of [V, N]: the unseen part follows the seen one as −G_NN⁻¹G_NV.
    """
    V, r = basis.numpy(), basis.shape[1]
    N = np.linalg.svd(V.T)[2][r:].T
    Phi, y, variance = problem.Phi.numpy(), problem.y.numpy(), float(problem.frozen.noise_variance)
    G = Phi.T @ Phi / variance
    follow = V - N @ np.linalg.solve(N.T @ G @ N, N.T @ G @ V)
    S = np.linalg.inv(follow.T @ G @ follow / c + np.eye(r))
    columns = np.concatenate([follow @ np.linalg.cholesky(S), epsilon * N], axis=1)
    mean = np.linalg.solve(G + c * V @ V.T, Phi.T @ y / variance)
    return FullGaussian(torch.from_numpy(mean), tril_of_gram(torch.from_numpy(columns.T.copy()))), np.trace(N.T @ G @ N)


@pytest.mark.parametrize("c", [1.0, 2.0])
@pytest.mark.parametrize("M", [1, 3, 7])
def test_the_infimum_is_approached_as_q_collapses_where_a_does_not_see(small, M, c):
    """A spread of ε in the unseen directions costs ½ε² tr G_NN of likelihood and nothing else, so that is the gap; and
    the KL to the posterior goes to infinity meanwhile. ε = 1e-4 is about where a factor's own rounding begins."""
    Phi_A = random_features(M, 8)
    objective, basis, kls = fixed(Phi_A, c), row_space(Phi_A), []
    for epsilon in (0.1, 1e-2, 1e-4):
        q, unseen = collapsing(small, basis, c, epsilon)
        scores = objective.scores(q, small)
        assert scores.objective_gap == pytest.approx(0.5 * epsilon**2 * unseen, rel=1e-4, abs=1e-9)
        assert scores.kl_at_objective_optimum == math.inf
        kls.append(kl(q, small.truth.posterior))
    assert kls[0] + 1 < kls[1] < kls[2] - 1


def infimum_in_60_digits(problem, basis, c):
    """N/2 log 2πσ² + min over m of ‖y − Φm‖²/2σ² + c/2 ‖Vᵀm‖², less c/2 log det(c VᵀH⁻¹V), H = ΦᵀΦ/σ² + c VVᵀ."""
    with mpmath.workdps(60):
        Phi, y, V = (mpmath.matrix(part.tolist()) for part in (problem.Phi, problem.y, basis))
        variance = mpmath.mpf(float(problem.noise_variance))
        H_inverse, moment = (Phi.T * Phi / variance + c * V * V.T) ** -1, Phi.T * y / variance
        misfit = (y.T * y)[0] / variance - (moment.T * H_inverse * moment)[0]
        marginal = mpmath.log(mpmath.det(c * (V.T * H_inverse * V)))
        return float((len(problem.y) * mpmath.log(2 * mpmath.pi * variance) + misfit - c * marginal) / 2)


@pytest.mark.parametrize("c", [1.0, 1e-3])
def test_dependent_features_do_not_lift_the_infimum(toy, c):
    """Φ's singular values fall from 10 to 1e-9, so that H's least eigenvalues are beneath its rounding; a pseudo-inverse
    of H itself ends 1.7 nats too high. Ours is 3.5e-9 off, by the features' own condition of 1e10."""
    generator = np.random.default_rng(5)
    left, right = (np.linalg.qr(generator.standard_normal((n, 20)))[0] for n in (30, 20))
    Phi = torch.from_numpy(left * np.logspace(1, -9, 20) @ right.T)
    problem = problem_of(toy, torch.from_numpy(generator.standard_normal(30)), k=20, Phi=Phi)
    Phi_A = random_features(5, 20)
    found = fixed_a(problem, "full", Phi_A, kl_weight=c).optimum(0, problem)
    assert found.value == pytest.approx(infimum_in_60_digits(problem, row_space(Phi_A), c), abs=1e-7)
    assert found.kl == math.inf


def by_lbfgs(problem, Phi_A, family, c, steps):
    method = fixed_a(problem, family, Phi_A, kl_weight=c, max_steps=steps)
    train(method, "cpu")
    return method.posterior()[0]


@pytest.mark.parametrize("c", [1.0, 2.0])
def test_a_factorised_q_may_have_an_optimum_where_a_does_not_see_everything(toy, c):
    """Three weights seen through two sums at 120° to each other, a fourth alone, ΦᵀΦ/σ² = 8 I: by symmetry the optimal
    variances are v/(8/c + v), v = [VVᵀ]_ii = 2/3 for the three and 1 for the fourth. No scale vanishes."""
    problem = problem_of(toy, f64([1.0, -2.0, 0.5, 1.0]), k=4, Phi=2 * eye(4))
    angles = f64([0.0, 2 * math.pi / 3, 4 * math.pi / 3, 0.0])
    Phi_A = torch.stack([angles.cos(), angles.sin(), zeros(4)])
    Phi_A[:, 3] = f64([0.0, 0.0, 1.0])
    V, v = row_space(Phi_A), f64([2 / 3, 2 / 3, 2 / 3, 1.0])
    close((V @ V.mT).diagonal(), v, rtol=1e-14)
    mean = torch.linalg.solve(8 * eye(4) + c * V @ V.mT, 4 * problem.y)
    optimum = FactorisedGaussian(mean, (v / (8 / c + v)).sqrt())
    scores = fixed(Phi_A, c).scores(optimum, problem)
    assert scores.objective_gap == pytest.approx(0.0, abs=1e-6)
    assert scores.kl_at_objective_optimum == pytest.approx(kl(optimum, problem.truth.posterior), rel=1e-5)
    worse = FactorisedGaussian(mean, optimum.scale * f64([1.1, 1.0, 0.9, 1.0]))
    losses = [loss_by_hand(q, problem, V, c) for q in (worse, optimum)]
    assert fixed(Phi_A, c).scores(worse, problem).objective_gap == pytest.approx(losses[0] - losses[1], abs=1e-6)


def test_a_factorised_q_keeps_one_scale_where_a_sees_one_sum(small):
    """In d = s² the objective is linear less c log Σ v_i² d_i, so its minimum has all d in the cheapest weight, the one
    with the least a_i/v_i², a_i = [ΦᵀΦ/σ²]_ii/c + v_i², where d_i = 1/a_i. To leave s = 1e-4 elsewhere costs 1e-6."""
    Phi_A = random_features(1, 8)
    V = row_space(Phi_A)
    G = small.Phi.mT @ small.Phi / small.frozen.noise_variance
    a = G.diagonal() + V[:, 0].square()
    cheapest = int((a / V[:, 0].square()).argmin())
    scale = torch.full((8,), 1e-4, dtype=torch.float64)
    scale[cheapest] = a[cheapest].rsqrt()
    mean = torch.linalg.solve(G + V @ V.mT, small.Phi.mT @ small.y / small.frozen.noise_variance)
    scores = fixed(Phi_A).scores(FactorisedGaussian(mean, scale), small)
    assert scores.kl_at_objective_optimum == math.inf
    assert scores.objective_gap == pytest.approx(0.0, abs=5e-6)
    scale[cheapest] *= 1.5
    worse = fixed(Phi_A).scores(FactorisedGaussian(mean, scale), small)
    assert worse.objective_gap == pytest.approx(0.5 * (1.5**2 - 1) - math.log(1.5), abs=5e-6)


@pytest.mark.parametrize("M", [4, 7])
def test_lbfgs_comes_near_the_factorised_optimum_and_never_below(small, M):
    """The optimum itself is known to 1e-6 nats."""
    Phi_A = random_features(M, 8)
    scores = fixed(Phi_A).scores(by_lbfgs(small, Phi_A, "ffg", 1.0, 300), small)
    assert -1e-6 < scores.objective_gap < 1e-5


@pytest.mark.parametrize("objective", [partial(fixed, kl_weight=0.0), partial(fixed, kl_jitter=1e-6)])
@FAMILIES
def test_no_numbers_where_there_is_no_closed_form(small, objective, family):
    """But that a full q collapses where A does not look, jitter or none."""
    for M in (3, 9):
        scores = objective(random_features(M, 8)).scores(random_q(family, 8), small)
        collapses = M == 3 and family == "full" and "kl_jitter" in objective.keywords
        assert scores == ObjectiveScores(math.inf if collapses else None, None)


def test_the_rank_tolerance_says_what_a_fixed_set_sees(small):
    """Eight weights, of which the last one by 1e-8 of the others."""
    Phi_A, q = torch.diag(f64([1.0] * 7 + [1e-8])), random_q("full", 8)
    seen, unseen = fixed(Phi_A, rank_tolerance=1e-9), fixed(Phi_A, rank_tolerance=1e-7)
    expected = WEIGHT_SPACE.scores(q, small)
    assert seen.scores(q, small).objective_gap == pytest.approx(expected.objective_gap, rel=1e-10)
    assert seen.scores(q, small).kl_at_objective_optimum == pytest.approx(0.0, abs=1e-10)
    assert unseen.scores(q, small).kl_at_objective_optimum == math.inf
    without = fixed(Phi_A[:7]).scores(q, small).objective_gap
    assert unseen.scores(q, small).objective_gap == pytest.approx(without, rel=1e-10)


# --- With any number of features --------------------------------------------------------------------------------------

K = 7  #: features are filled up to 8 columns (`maths.batching`); posteriors in closed form are not


@pytest.fixture(scope="module")
def seven(toy):
    """30 rows and seven features."""
    return problem_of(toy, normal(3, 30), K)


@FAMILIES
def test_seven_features_have_the_weight_space_objective(seven, family):
    optimum = nearest(family, seven.truth.posterior)
    assert WEIGHT_SPACE.value(optimum, seven) + float(seven.truth.log_evidence) == pytest.approx(
        kl(optimum, seven.truth.posterior), abs=1e-10
    )
    assert WEIGHT_SPACE.scores(optimum, seven).objective_gap == 0.0


@FAMILIES
@pytest.mark.parametrize("M", [3, 10])
def test_seven_features_have_the_objective_at_a_fixed_set(seven, family, M):
    Phi_A, q = random_features(M, K), random_q(family, K)
    by_hand = loss_by_hand(q, seven, row_space(Phi_A), 1.0)
    assert fixed(Phi_A).value(q, seven) == pytest.approx(by_hand, rel=1e-12)
    assert fixed(Phi_A).scores(q, seven).objective_gap > 0


@FAMILIES
def test_seven_features_have_the_expected_objective(seven, family):
    """Ten inputs determine all seven weights, so RANDA's optimum is that of weight space, up to its optimiser."""
    scores = expected(10).scores(nearest(family, seven.truth.posterior), seven)
    assert scores.kl_at_objective_optimum == pytest.approx(
        kl(nearest(family, seven.truth.posterior), seven.truth.posterior), abs=1e-3
    )
    assert scores.objective_gap == pytest.approx(0.0, abs=1e-3)


def test_seven_features_have_the_objective_of_draws_of_the_prior(seven):
    """VIP infers exactly under the drawn prior N(w̄, RRᵀ), so its objective is minus that model's log evidence."""
    method = Vip(seven, draws=5)
    mean, root = method.prior_mean[0], method.prior_root[0]
    F = seven.Phi @ root
    marginal = torch.distributions.MultivariateNormal(
        seven.Phi @ mean, F @ F.mT + seven.frozen.noise_variance * eye(30)
    )
    assert method.objective(0, seven) == pytest.approx(-float(marginal.log_prob(seven.y)), rel=1e-10)


def test_seven_features_have_the_objective_of_a_context(seven):
    """−log p(y|μ) + ½ of the prior's squared norm at the context, by a pseudo-inverse."""
    method = FspLaplace(seven, context="box", context_points=5)
    mean, C = method.solved.mean[0], method.context(method.problems)
    noise = seven.frozen.noise_variance
    residual, f = seven.y - seven.Phi @ mean, C @ mean
    by_hand = 0.5 * (
        30 * (2 * math.pi * noise).log() + residual.square().sum() / noise + f @ torch.linalg.pinv(C @ C.mT) @ f
    )
    assert method.objective(0, seven) == pytest.approx(float(by_hand), rel=1e-9)


def test_a_mixed_context_needs_as_many_rows_when_the_class_is_called(seven):
    with pytest.raises(InputError, match="a mixed context needs 500 distinct training inputs, but a split has only 30"):
        FspLaplace(seven, context="mixed", context_points=1000).posterior()


@pytest.mark.parametrize("name", ["gwi", "gfsvi", "bernoulli-dropout", "rand-a-ngd", "ssge", "ivon"])
def test_seven_features_have_an_optimum_in_every_method(seven, name):
    cls = load_method(name).cls
    method = cls(seven, **({"M": 5} if "M" in cls.Options.model_fields else {}))
    (optimum,) = method.optima([seven])
    assert -1e-9 <= method.objective(0, seven) - optimum.value < math.inf


def test_a_method_without_a_loss_has_no_objective(seven):
    with pytest.raises(NotImplementedError, match="SpikeAndSlab minimises no loss"):
        SpikeAndSlab(seven).objective(0, seven)
