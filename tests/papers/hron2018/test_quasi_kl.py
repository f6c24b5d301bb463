"""The quasi-KL of singular approximations against brute force and its identities."""

import itertools
import json
import math
import os
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy import integrate

from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import blr_posterior
from fsvi_bench.maths.features import inducing_tril, nystrom_features
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision, gaussian_log_density
from fsvi_bench.maths.linalg import logdet_of_tril
from fsvi_bench.papers.hron2018.pca import PrincipalSubspace, pca_optimum
from fsvi_bench.papers.hron2018.quasi_kl import (
    gaussian_cross_entropy,
    quasi_kl_affine_gaussian,
    quasi_kl_countable,
    quasi_kl_shared_gaussian_dropout,
    restrict_gaussian,
)
from fsvi_bench.papers.hron2018.quasi_kl_limits import centred_convolved_affine_kl, convolution_shift
from tests import reference
from tests.maths.draws import close, draw, f64, precision_tril


def target(rng, *shape):
    """mean_p, precision_tril_p, covariance_p."""
    mean, tril = draw(rng, *shape)
    return mean, precision_tril(tril), tril @ tril.mT


def orthonormal(rng, D, K):
    return torch.from_numpy(reference.random_orthogonal(rng, D)[:, :K].copy())


def two_output_posterior(rng, N, k):
    """θ near the exact posterior mean of two outputs that share Φ but not their noise."""
    Phi = torch.from_numpy(rng.standard_normal((N, k))).expand(2, N, k)
    y = torch.from_numpy(rng.standard_normal((2, N)))
    exact = blr_posterior(Phi, y, f64([0.3, 0.1]))
    theta = exact.mean + 0.1 * torch.from_numpy(rng.standard_normal((2, k)))
    return theta, exact


# --- Countable supports -----------------------------------------------------------------------------------------------


def test_countable_equals_the_sum_by_hand():
    q, p = f64([0.2, 0.8, 0.0]), f64([0.5, 0.3, 0.0])
    expected = 0.2 * math.log(0.2 / 0.5) + 0.8 * math.log(0.8 / 0.3)
    close(quasi_kl_countable(q, p.log()), expected, rtol=1e-15)
    close(quasi_kl_countable(torch.stack([q, q]), torch.stack([p, 2 * p]).log())[1], expected - math.log(2), rtol=1e-14)


def test_countable_is_least_at_the_restricted_target():
    """QKL = KL(q ‖ p_S) − log Z_S (eq. 9): at q = p_S it is −log Z_S."""
    density = f64([0.5, 0.3, 0.05])
    Z = density.sum()
    close(quasi_kl_countable(density / Z, density.log()), -Z.log(), rtol=1e-14)
    q = f64([0.3, 0.3, 0.4])
    kl = (q * (q / (density / Z)).log()).sum()
    close(quasi_kl_countable(q, density.log()), kl - Z.log(), rtol=1e-14)


# --- Affine supports --------------------------------------------------------------------------------------------------


def test_affine_equals_the_integral_along_a_line():
    """In arc length, with both densities written out."""
    rng = np.random.default_rng(0)
    mean_p, C, covariance = target(rng, 3)
    offset, factor = torch.from_numpy(rng.standard_normal(3)), torch.from_numpy(rng.standard_normal((3, 1)))
    length = float(factor.norm())
    unit = factor[:, 0].numpy() / length

    def integrand(t):
        log_q = -0.5 * (t / length) ** 2 - math.log(length) - 0.5 * math.log(2 * math.pi)
        log_p = reference.gaussian_log_density(offset.numpy() + t * unit, mean_p.numpy(), covariance.numpy())
        return math.exp(log_q) * (log_q - log_p)

    expected, _ = integrate.quad(integrand, -12 * length, 12 * length, epsabs=1e-12, epsrel=1e-12)
    close(quasi_kl_affine_gaussian(offset, factor, mean_p, C), expected, rtol=1e-10)


def test_affine_does_not_depend_on_the_coordinates_of_the_subspace():
    rng = np.random.default_rng(1)
    mean_p, C, _ = target(rng, 5)
    offset, factor = torch.from_numpy(rng.standard_normal(5)), torch.from_numpy(rng.standard_normal((5, 2)))
    turn = torch.from_numpy(reference.random_orthogonal(rng, 2))
    value = quasi_kl_affine_gaussian(offset, factor, mean_p, C)
    close(quasi_kl_affine_gaussian(offset, factor @ turn, mean_p, C), value)
    whole = torch.from_numpy(reference.random_orthogonal(rng, 5))
    # Turning q and p together; the precision CCᵀ turns with them.
    turned = torch.linalg.cholesky(whole @ C @ C.mT @ whole.mT)
    close(quasi_kl_affine_gaussian(whole @ offset, whole @ factor, whole @ mean_p, turned), value)


def test_affine_of_full_dimension_is_the_kl():
    rng = np.random.default_rng(2)
    mean_q, tril_q = draw(rng, 2, 4)
    mean_p, C, _ = target(rng, 2, 4)
    close(
        quasi_kl_affine_gaussian(mean_q, tril_q, mean_p, C), gaussian_kl_to_precision(mean_q, tril_q, mean_p, C).total
    )


def test_restricted_gaussian_is_the_target_on_the_subspace():
    """log p(offset + A z) = log P_S(z) + log Z_S at every z, which fixes mean, precision and mass."""
    rng = np.random.default_rng(3)
    mean_p, C, covariance = target(rng, 4)
    offset, basis = torch.from_numpy(rng.standard_normal(4)), orthonormal(rng, 4, 2)
    restricted = restrict_gaussian(offset, basis, mean_p, C)
    tril = torch.linalg.cholesky(torch.linalg.inv(restricted.precision_tril @ restricted.precision_tril.mT))
    for z in torch.from_numpy(rng.standard_normal((8, 2))):
        expected = reference.gaussian_log_density((offset + basis @ z).numpy(), mean_p.numpy(), covariance.numpy())
        close(gaussian_log_density(z, restricted.mean, tril) + restricted.log_mass, expected)


def test_affine_is_a_kl_within_the_subspace_less_its_log_mass():
    """Equation 9, the mass going with P's marginal density across the subspace."""
    rng = np.random.default_rng(4)
    mean_p, C, covariance = target(rng, 5)
    offset, basis = torch.from_numpy(rng.standard_normal(5)), orthonormal(rng, 5, 2)
    mean_z, tril_z = draw(rng, 2)
    restricted = restrict_gaussian(offset, basis, mean_p, C)
    inside = gaussian_kl_to_precision(mean_z, tril_z, restricted.mean, restricted.precision_tril).total
    value = quasi_kl_affine_gaussian(offset + basis @ mean_z, basis @ tril_z, mean_p, C)
    close(value, inside - restricted.log_mass)
    normal = torch.from_numpy(np.linalg.svd(basis.numpy())[0][:, 2:])
    across = reference.gaussian_log_density(
        (normal.mT @ offset).numpy(), (normal.mT @ mean_p).numpy(), (normal.mT @ covariance @ normal).numpy()
    )
    close(restricted.log_mass, across)


def test_cross_entropy_of_a_point_is_its_log_density():
    rng = np.random.default_rng(5)
    mean_p, C, covariance = target(rng, 3)
    x = torch.from_numpy(rng.standard_normal(3))
    expected = -reference.gaussian_log_density(x.numpy(), mean_p.numpy(), covariance.numpy())
    close(gaussian_cross_entropy(x, torch.zeros(3, 1, dtype=torch.float64), mean_p, C), expected)


# --- Dropout of type A with several outputs ---------------------------------------------------------------------------


def test_shared_dropout_equals_the_general_affine_form():
    """The Ok-dimensional posterior with block-diagonal precision, θ as offset and √α_i θ_·i as directions."""
    rng = np.random.default_rng(6)
    theta, exact = two_output_posterior(rng, 12, 4)
    alpha = f64(rng.uniform(0.1, 2, 4))
    factor = torch.cat([torch.diag(alpha.sqrt() * row) for row in theta])
    C = torch.block_diag(*exact.precision_tril)
    expected = quasi_kl_affine_gaussian(theta.flatten(), factor, exact.mean.flatten(), C)
    close(quasi_kl_shared_gaussian_dropout(theta, alpha, exact.mean, exact.precision_tril), expected)


def test_shared_dropout_equals_the_mean_over_its_samples():
    rng = np.random.default_rng(7)
    theta, exact = two_output_posterior(rng, 10, 3)
    alpha, n = np.array([0.3, 0.05, 1.2]), 100_000
    noise = rng.standard_normal((n, 3))
    # Arc length along feature i is √α_i ‖θ_·i‖ per standard deviation of the noise.
    lengths = np.sqrt(alpha) * np.linalg.norm(theta.numpy(), axis=0)
    log_q = (-0.5 * noise**2 - np.log(lengths) - 0.5 * math.log(2 * math.pi)).sum(-1)
    log_p = np.zeros(n)
    for o in range(2):
        w = theta[o].numpy() * (1 + np.sqrt(alpha) * noise)
        covariance = torch.linalg.inv(exact.precision_tril[o] @ exact.precision_tril[o].mT).numpy()
        log_p += reference.gaussian_log_density(w, exact.mean[o].numpy(), covariance)
    ratio = log_q - log_p
    value = quasi_kl_shared_gaussian_dropout(theta, f64(alpha), exact.mean, exact.precision_tril)
    assert abs(ratio.mean() - float(value)) < 4 * ratio.std() / math.sqrt(n)


def test_shared_dropout_equals_numerical_integration():
    """One feature, two outputs: a line in the plane, its density in arc length by a central difference of the law."""
    theta, alpha = np.array([0.8, -0.5]), 0.6
    mean, variance = np.array([0.7, -0.2]), np.array([0.2, 0.5])

    def integrand(eps):
        density_eps = mp.npdf(eps, 1, mp.sqrt(alpha))
        log_q = mp.log(density_eps / mp.sqrt(theta @ theta))
        log_p = sum(mp.log(mp.npdf(theta[o] * eps, mean[o], mp.sqrt(variance[o]))) for o in range(2))
        return density_eps * (log_q - log_p)

    expected = float(mp.quad(integrand, [-9, -3, 0, 1, 3, 6, 11]))
    C = f64(1 / np.sqrt(variance))[:, None, None]
    value = quasi_kl_shared_gaussian_dropout(f64(theta)[:, None], f64([alpha]), f64(mean)[:, None], C)
    close(value, expected, rtol=1e-12)


@pytest.mark.data
def test_shared_dropout_on_a_real_model_with_two_targets():
    """Naval's two decay coefficients on 20 features that they share: singular for the pair, a density along the noise.

    Σ_i α_i θ_oi² Λ_ii and the like against the general affine form in 40 dimensions; the features of every sixth row are
    nearly dependent (cond Λ about 1e6), which leaves 1e-9 of the sums.
    """
    table = np.loadtxt(Path(os.environ["FSVI_BENCH_DATA"]) / "UCI_Datasets/naval-propulsion-plant/data/data.txt")[::6]
    X, Y = f64(table[:, :16]), f64(table[:, 16:18])
    X = (X - X.mean(0)) / torch.where(X.std(0) > 0, X.std(0), 1.0)
    Y = (Y - Y.mean(0)) / Y.std(0)
    Z, lengthscales, one = X[::100], torch.full((16,), 4.0, dtype=torch.float64), f64(1.0)
    Phi = nystrom_features(X, Z, lengthscales, one, inducing_tril(Z, lengthscales, one, f64(1e-6)))
    exact = blr_posterior(Phi.expand(2, -1, -1), Y.T.contiguous(), f64([0.3, 0.5]))
    theta, alpha = exact.mean, torch.linspace(0.01, 0.5, 20, dtype=torch.float64)
    factor = torch.cat([torch.diag(alpha.sqrt() * row) for row in theta])
    precision_tril = torch.block_diag(*exact.precision_tril)
    expected = quasi_kl_affine_gaussian(theta.flatten(), factor, exact.mean.flatten(), precision_tril)
    value = quasi_kl_shared_gaussian_dropout(theta, alpha, exact.mean, exact.precision_tril)
    close(value, expected, rtol=1e-9)
    # Neither output alone is singular, and the pair's quasi-KL is no sum of theirs.
    alone = [
        quasi_kl_shared_gaussian_dropout(
            theta[o : o + 1], alpha, exact.mean[o : o + 1], exact.precision_tril[o : o + 1]
        )
        for o in range(2)
    ]
    assert abs(float(value) - float(sum(alone))) > 1


def test_shared_dropout_of_one_output_is_the_kl():
    rng = np.random.default_rng(8)
    theta, exact = two_output_posterior(rng, 12, 4)
    alpha = f64(rng.uniform(0.1, 2, (2, 4)))
    scale = torch.diag_embed(alpha.sqrt() * theta.abs())
    expected = gaussian_kl_to_precision(theta, scale, exact.mean, exact.precision_tril).total
    single = quasi_kl_shared_gaussian_dropout(theta[:, None], alpha, exact.mean[:, None], exact.precision_tril[:, None])
    close(single, expected)


@pytest.mark.data
def test_shared_dropout_of_one_output_equals_the_reference_kl(boston, reference):
    expected = json.loads((reference / "expected.json").read_text())["boston-00"]["gaussian_dropout"]
    exact = boston.truth.posterior
    for alpha, scores in expected.items():
        value = quasi_kl_shared_gaussian_dropout(
            exact.mean[None], torch.full_like(exact.mean, float(alpha)), exact.mean[None], exact.precision_tril[None]
        )
        close(value, scores["kl"], rtol=1e-8)


def test_shared_dropout_without_a_direction_is_infinite():
    rng = np.random.default_rng(9)
    theta, exact = two_output_posterior(rng, 12, 3)
    theta[:, 1] = 0
    assert quasi_kl_shared_gaussian_dropout(theta, f64([0.5] * 3), exact.mean, exact.precision_tril) == math.inf


# --- Principal subspaces ----------------------------------------------------------------------------------------------


def pca_problem(rng, D):
    turn = torch.from_numpy(reference.random_orthogonal(rng, D))
    eigenvalues = f64(np.geomspace(5, 0.2, D))
    covariance = turn @ torch.diag(eigenvalues) @ turn.mT
    return covariance, precision_tril(torch.linalg.cholesky(covariance)), turn, eigenvalues


def energy(basis, variances, precision_tril):
    """tr(AᵀΣ⁻¹A diag(v))."""
    return (variances * (precision_tril.mT @ basis).square().sum(-2)).sum(-1)


def pca_quasi_kl(basis, variances, precision_tril):
    """Proposition 6: c − ½ Σ log v_k + ½ tr(AᵀΣ⁻¹A diag(v)) with c = ½ log det Σ + ½(D − K) log 2π − ½K."""
    D, K = basis.shape[-2:]
    constant = 0.5 * ((D - K) * math.log(2 * math.pi) - K - logdet_of_tril(precision_tril))
    return constant + 0.5 * (energy(basis, variances, precision_tril) - variances.log().sum(-1))


def convolved_pca_kl(basis, variances, tau, precision_tril):
    """Proposition 7: KL(N(0, A diag(v) Aᵀ + τI) ‖ N(0, Σ)); log det is Σ log(v_k + τ) + (D − K) log τ."""
    D, K = basis.shape[-2:]
    trace = energy(basis, variances, precision_tril) + tau * precision_tril.square().sum((-2, -1))
    logdet_q = (variances + tau[..., None]).log().sum(-1) + (D - K) * tau.log()
    return 0.5 * (trace - D - logdet_of_tril(precision_tril) - logdet_q)


def convolved_pca_optimum(covariance, K, tau):
    """Proposition 7: the same subspace with variances γ_k − τ."""
    basis, eigenvalues = pca_optimum(covariance, K)
    return PrincipalSubspace(basis, eigenvalues - tau[..., None])


def test_pca_objectives_equal_the_general_forms():
    rng = np.random.default_rng(10)
    covariance, C, _, _ = pca_problem(rng, 4)
    basis, variances, tau = orthonormal(rng, 4, 2), f64([1.3, 0.4]), f64(0.07)
    zero = torch.zeros(4, dtype=torch.float64)
    close(pca_quasi_kl(basis, variances, C), quasi_kl_affine_gaussian(zero, basis * variances.sqrt(), zero, C))
    dense = (basis * variances) @ basis.mT + tau * torch.eye(4, dtype=torch.float64)
    expected = reference.gaussian_kl(zero.numpy(), dense.numpy(), zero.numpy(), covariance.numpy())
    close(convolved_pca_kl(basis, variances, tau, C), expected)
    convolved = centred_convolved_affine_kl(zero, basis * variances.sqrt(), tau, zero, C) + convolution_shift(tau, 2)
    close(convolved, expected)


def test_pca_optimum_is_the_principal_subspace():
    rng = np.random.default_rng(11)
    covariance, C, turn, eigenvalues = pca_problem(rng, 4)
    basis, variances = pca_optimum(covariance, 2)
    close(variances, eigenvalues[:2])
    close(basis @ basis.mT, turn[:, :2] @ turn[:, :2].mT)
    # The value at the optimum is −log Z_S = ½[(D − K) log 2π + Σ_{j > K} log γ_j].
    close(pca_quasi_kl(basis, variances, C), 0.5 * (2 * math.log(2 * math.pi) + float(eigenvalues[2:].log().sum())))


@pytest.mark.parametrize("tau", [0.0, 0.1])
def test_no_other_subspace_is_better(tau):
    rng = np.random.default_rng(12)
    covariance, C, turn, eigenvalues = pca_problem(rng, 4)

    def objective(basis, variances):
        if tau == 0:
            return pca_quasi_kl(basis, variances, C)
        return convolved_pca_kl(basis, variances, f64(tau), C)

    best = pca_optimum(covariance, 2) if tau == 0 else convolved_pca_optimum(covariance, 2, f64(tau))
    least = objective(*best)
    for _ in range(200):
        size = 10.0 ** rng.uniform(-3, 1)
        basis, _ = torch.linalg.qr(best.basis + size * torch.from_numpy(rng.standard_normal((4, 2))))
        variances = best.variances * torch.exp(0.5 * min(size, 1) * torch.from_numpy(rng.standard_normal(2)))
        assert objective(basis, variances) > least
    for pair in itertools.combinations(range(4), 2):
        if pair != (0, 1):
            assert objective(turn[:, pair], eigenvalues[list(pair)] - tau) > least


@pytest.mark.parametrize("tau", [0.0, 0.1])
def test_other_eigenvectors_are_saddles(tau):
    """Stationary, but downhill towards a larger eigenvalue: no local optima, as the paper has it."""
    rng = np.random.default_rng(13)
    _, C, turn, eigenvalues = pca_problem(rng, 4)

    def along(angle, start, end):
        basis = (math.cos(angle) * turn[:, start] + math.sin(angle) * turn[:, end])[:, None]
        return float(pca_quasi_kl(basis, v, C) if tau == 0 else convolved_pca_kl(basis, v, f64(tau), C))

    for start, end in ((1, 0), (1, 2)):
        v, step = eigenvalues[start : start + 1] - tau, 1e-3
        slope = (along(step, start, end) - along(-step, start, end)) / (2 * step)
        curvature = (along(step, start, end) - 2 * along(0, start, end) + along(-step, start, end)) / step**2
        assert abs(slope) < 1e-9
        # d²/dangle² of ½ v aᵀΣ⁻¹a is v (1/γ_end − 1/γ_start).
        assert curvature == pytest.approx(float(v * (1 / eigenvalues[end] - 1 / eigenvalues[start])), abs=1e-5)


def test_convolved_optimum_tends_to_the_principal_subspace():
    """Proposition 7 and theorem 5 together: argmin and minimum converge as τ → 0."""
    rng = np.random.default_rng(14)
    covariance, C, _, eigenvalues = pca_problem(rng, 4)
    limit = pca_optimum(covariance, 2)
    for tau in (1e-2, 1e-5):
        best = convolved_pca_optimum(covariance, 2, f64(tau))
        close(best.basis, limit.basis)
        close(best.variances, limit.variances - tau)
        shift = -0.5 * 2 * math.log(2 * math.pi * math.e * tau)
        # What is left is ½ τ Σ_{j > K} 1/γ_j.
        remainder = 0.5 * tau * float((1 / eigenvalues[2:]).sum())
        close(convolved_pca_kl(*best, f64(tau), C) - shift, pca_quasi_kl(*limit, C) + remainder)


def test_principal_subspaces_of_a_batch_are_those_of_its_members():
    rng = np.random.default_rng(15)
    covariance, C, *_ = (torch.stack(part) for part in zip(pca_problem(rng, 4), pca_problem(rng, 4), strict=True))
    tau = f64([0.1, 0.01])
    best = convolved_pca_optimum(covariance, 2, tau)
    together = torch.stack([pca_quasi_kl(*best, C), convolved_pca_kl(*best, tau, C)])
    for i in range(2):
        single = convolved_pca_optimum(covariance[i], 2, tau[i])
        close(together[0, i], pca_quasi_kl(*single, C[i]))
        close(together[1, i], convolved_pca_kl(*single, tau[i], C[i]))


def test_bad_input_is_refused():
    covariance = torch.diag(f64([3.0, 2.0, 1.0]))
    for K in (0, 4):
        with pytest.raises(InputError, match=f"K = {K} dimensions, expected 1 to D = 3"):
            pca_optimum(covariance, K)
