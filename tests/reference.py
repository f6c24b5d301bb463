"""Slow twins of `fsvi_bench.maths`: loops, dense inverses, SciPy and 50-digit arithmetic. Used by the tests only.

Everything here takes covariances, not factors, and one problem at a time, so that it shares no step with the fast code.
"""

import math

import mpmath
import numpy as np
from scipy.linalg import orth, sqrtm
from scipy.stats import multivariate_normal, norm

# --- Draws ------------------------------------------------------------------------------------------------------------


def random_tril(rng, *shape, log_scale=0.0):
    """A well-conditioned lower factor of shape (*B, k, k), positive diagonal, scaled by exp(log_scale)."""
    draw = 0.5 * rng.standard_normal(shape)
    tril = np.tril(draw, -1)
    diagonal = np.arange(shape[-1])
    tril[..., diagonal, diagonal] = np.exp(draw[..., diagonal, diagonal])
    return math.exp(log_scale) * tril


def random_orthogonal(rng, k):
    return np.linalg.qr(rng.standard_normal((k, k)))[0]


# --- Gaussians --------------------------------------------------------------------------------------------------------


def kl_mean_term(mean_q, mean_p, covariance_p):
    difference = mean_q - mean_p
    return 0.5 * difference @ np.linalg.inv(covariance_p) @ difference


def kl_covariance_term(covariance_q, covariance_p):
    trace = np.trace(np.linalg.inv(covariance_p) @ covariance_q)
    return 0.5 * (trace - len(covariance_q) + np.linalg.slogdet(covariance_p)[1] - np.linalg.slogdet(covariance_q)[1])


def gaussian_kl(mean_q, covariance_q, mean_p, covariance_p):
    return kl_mean_term(mean_q, mean_p, covariance_p) + kl_covariance_term(covariance_q, covariance_p)


def gaussian_w2(mean_q, covariance_q, mean_p, covariance_p):
    """The textbook formula; it loses half its digits where q is close to p."""
    root = np.real(sqrtm(covariance_p))
    cross = np.real(sqrtm(root @ covariance_q @ root))
    return math.sqrt(np.sum((mean_q - mean_p) ** 2) + np.trace(covariance_q + covariance_p - 2 * cross))


def gaussian_log_density(x, mean, covariance):
    return multivariate_normal(mean, covariance).logpdf(x)


def gaussian_kl_many_digits(mean_q, tril_q, mean_p, tril_p, digits=700):
    """The dense formula with `digits` digits, in which a standard deviation of 1e-150 is nothing special."""
    with mpmath.workdps(digits):
        factor_q, factor_p = mpmath.matrix(tril_q.tolist()), mpmath.matrix(tril_p.tolist())
        covariance_q, covariance_p = factor_q * factor_q.T, factor_p * factor_p.T
        difference = mpmath.matrix(mean_q.tolist()) - mpmath.matrix(mean_p.tolist())
        precision_p = covariance_p**-1
        product = precision_p * covariance_q
        trace = mpmath.fsum(product[i, i] for i in range(product.rows))
        mahalanobis = (difference.T * precision_p * difference)[0]
        logdet = mpmath.log(mpmath.det(covariance_p)) - mpmath.log(mpmath.det(covariance_q))
        return float((trace + mahalanobis - product.rows + logdet) / 2)


def gaussian_w2_many_digits_2d(mean_q, factor_q, mean_p, factor_p, digits=60):
    """W2 in two dimensions, where tr (S_p^1/2 S_q S_p^1/2)^1/2 = (tr S_p S_q + 2 (det S_p det S_q)^1/2)^1/2."""
    with mpmath.workdps(digits):
        root_q, root_p = mpmath.matrix(factor_q.tolist()), mpmath.matrix(factor_p.tolist())
        covariance_q, covariance_p = root_q * root_q.T, root_p * root_p.T
        difference = mpmath.matrix(mean_q.tolist()) - mpmath.matrix(mean_p.tolist())
        product = covariance_p * covariance_q
        determinant = mpmath.det(covariance_p) * mpmath.det(covariance_q)
        cross = mpmath.sqrt(product[0, 0] + product[1, 1] + 2 * mpmath.sqrt(determinant))
        traces = covariance_q[0, 0] + covariance_q[1, 1] + covariance_p[0, 0] + covariance_p[1, 1]
        return float(mpmath.sqrt((difference.T * difference)[0] + traces - 2 * cross))


def normal_kl_many_digits(mean_q, variance_q, mean_p, variance_p, digits=60):
    with mpmath.workdps(digits):
        m_q, v_q, m_p, v_p = (mpmath.mpf(value) for value in (mean_q, variance_q, mean_p, variance_p))
        return float((v_q / v_p - 1 - mpmath.log(v_q / v_p) + (m_q - m_p) ** 2 / v_p) / 2)


# --- The functional KL ------------------------------------------------------------------------------------------------


def functional_kl_by_projection(Phi_A, mean_q, covariance_q, mean_p, covariance_p):
    """Onto an orthonormal basis of the row space, with the covariances formed."""
    V = orth(Phi_A.T, rcond=1e-9)
    return gaussian_kl(V.T @ mean_q, V.T @ covariance_q @ V, V.T @ mean_p, V.T @ covariance_p @ V)


def functional_kl_by_pseudo_determinant(Phi_A, mean_q, covariance_q, mean_p, covariance_p):
    """Between the degenerate Gaussians of function values, with respect to Lebesgue measure on their common support."""
    values_q, values_p = Phi_A @ covariance_q @ Phi_A.T, Phi_A @ covariance_p @ Phi_A.T
    rank = np.linalg.matrix_rank(Phi_A)
    difference = Phi_A @ (mean_q - mean_p)
    inverse = np.linalg.pinv(values_p, rcond=1e-10, hermitian=True)

    def log_pseudo_determinant(matrix):
        return np.log(np.linalg.eigvalsh(matrix)[-rank:]).sum()

    logdets = log_pseudo_determinant(values_p) - log_pseudo_determinant(values_q)
    return 0.5 * (np.trace(inverse @ values_q) + difference @ inverse @ difference - rank + logdets)


# --- Features ---------------------------------------------------------------------------------------------------------


def rbf_kernel(a, b, lengthscales, outputscale):
    kernel = np.empty((len(a), len(b)))
    for i, j in np.ndindex(kernel.shape):
        exponent = sum(((a[i, d] - b[j, d]) / lengthscales[d]) ** 2 for d in range(len(lengthscales)))
        kernel[i, j] = outputscale * math.exp(-0.5 * exponent)
    return kernel


def nystrom_features(x, Z, lengthscales, outputscale, jitter):
    """Row by row, L⁻¹ written out."""
    tril = np.linalg.cholesky(rbf_kernel(Z, Z, lengthscales, outputscale) + jitter * np.eye(len(Z)))
    rows = [np.linalg.inv(tril) @ rbf_kernel(Z, point[None], lengthscales, outputscale)[:, 0] for point in x]
    return np.array(rows)


# --- Bayesian linear regression ---------------------------------------------------------------------------------------


def blr_posterior(Phi, y, noise_variance):
    covariance = np.linalg.inv(Phi.T @ Phi / noise_variance + np.eye(Phi.shape[1]))
    return covariance @ Phi.T @ y / noise_variance, covariance


def blr_log_evidence(Phi, y, noise_variance):
    marginal = Phi @ Phi.T + noise_variance * np.eye(len(y))
    return multivariate_normal(np.zeros(len(y)), marginal).logpdf(y)


def expected_log_likelihood(Phi, y, noise_variance, mean, covariance):
    """Row by row by Gauss-Hermite quadrature, which is exact here: the log likelihood is quadratic in f."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    total = 0.0
    for row, target in zip(Phi, y, strict=True):
        values = row @ mean + math.sqrt(row @ covariance @ row) * nodes
        total += weights @ norm.logpdf(target, values, math.sqrt(noise_variance)) / weights.sum()
    return total


def blr_posterior_many_digits(Phi, y, noise_variance, digits=50):
    """Posterior mean and log det Λ."""
    with mpmath.workdps(digits):
        features, targets = mpmath.matrix(Phi.tolist()), mpmath.matrix(y.tolist())
        variance = mpmath.mpf(noise_variance)
        precision = features.T * features / variance + mpmath.eye(features.cols)
        mean = mpmath.lu_solve(precision, features.T * targets / variance)
        return np.array([float(value) for value in mean]), float(mpmath.log(mpmath.det(precision)))


# --- Sparse Gaussian processes ----------------------------------------------------------------------------------------


def gp_log_evidence(X, y, lengthscales, outputscale, noise_variance):
    marginal = rbf_kernel(X, X, lengthscales, outputscale) + noise_variance * np.eye(len(y))
    return multivariate_normal(np.zeros(len(y)), marginal).logpdf(y)


# --- The functional KL to the prior N(0, I), and its derivatives ------------------------------------------------------


def functional_kl_to_prior(Phi_A, mean, covariance, jitter=0.0):
    """With jitter between dense M×M Gaussians of function values; without it on the row space."""
    M, k = Phi_A.shape
    if jitter == 0:
        return functional_kl_by_projection(Phi_A, mean, covariance, np.zeros(k), np.eye(k))
    noise = jitter * np.eye(M)
    values_q, values_p = Phi_A @ covariance @ Phi_A.T + noise, Phi_A @ Phi_A.T + noise
    return gaussian_kl(Phi_A @ mean, values_q, np.zeros(M), values_p)


def measured_precision(Phi_A, covariance, jitter=0.0):
    """Φᵀ(ΦΣΦᵀ + jitter·I)⁻¹Φ, or its limit V(VᵀΣV)⁻¹Vᵀ: what the marginal's precision is in terms of the weights.

    At Σ = I it is ∂²KL/∂μ²; and 2 ∂KL/∂Σ is the one of the prior minus the one of q, since the trace is linear in Σ and
    d log det(ΦΣΦᵀ + jitter·I) = tr(Φᵀ(ΦΣΦᵀ + jitter·I)⁻¹Φ dΣ).
    """
    if jitter == 0:
        V = orth(Phi_A.T, rcond=1e-9)
        return V @ np.linalg.inv(V.T @ covariance @ V) @ V.T
    return Phi_A.T @ np.linalg.inv(Phi_A @ covariance @ Phi_A.T + jitter * np.eye(len(Phi_A))) @ Phi_A


# --- The spectral Stein gradient estimator ----------------------------------------------------------------------------


def median_distance(samples):
    pairs = [np.linalg.norm(samples[i] - samples[j]) for j in range(len(samples)) for i in range(j)]
    return float(np.median(pairs))


def spectral_stein_score(samples, queries, bandwidth=None, n_eigen=None, share=0.99):
    """Eigenfunction by eigenfunction, as in Shi, Sun and Zhu (2018), eqs. 4, 7 and 11; returns (score, J)."""
    S, h = len(samples), median_distance(samples) if bandwidth is None else bandwidth

    def kernel(a, b):
        return math.exp(-np.sum((a - b) ** 2) / (2 * h**2))

    eigenvalues, U = np.linalg.eigh(np.array([[kernel(a, b) for b in samples] for a in samples]))
    eigenvalues, U = eigenvalues[::-1], U[:, ::-1]
    if n_eigen is None:
        n_eigen = next(J for J in range(1, S + 1) if eigenvalues[:J].sum() >= share * eigenvalues.sum())
    score = np.zeros_like(queries)
    for j in range(n_eigen):
        scale = math.sqrt(S) / eigenvalues[j]
        gradients = [
            scale * sum(U[s, j] * kernel(x, samples[s]) * (samples[s] - x) / h**2 for s in range(S)) for x in samples
        ]
        beta = -np.mean(gradients, axis=0)
        for i, x in enumerate(queries):
            score[i] += beta * scale * sum(U[s, j] * kernel(x, samples[s]) for s in range(S))
    return score, n_eigen


# --- Adam -------------------------------------------------------------------------------------------------------------


def adam(gradient, start, learning_rates, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """The iterates after each step (Kingma and Ba 2015, algorithm 1); `gradient` takes and returns a vector."""
    x, first, second, iterates = start.copy(), np.zeros_like(start), np.zeros_like(start), []
    for t, learning_rate in enumerate(learning_rates, start=1):
        g = gradient(x)
        first, second = beta1 * first + (1 - beta1) * g, beta2 * second + (1 - beta2) * g**2
        x = x - learning_rate * (first / (1 - beta1**t)) / (np.sqrt(second / (1 - beta2**t)) + epsilon)
        iterates.append(x)
    return np.array(iterates)
