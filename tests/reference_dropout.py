"""Slow twins of the dropout family's mathematics: enumeration, quadrature and 60-digit arithmetic. Used by the tests only."""

import itertools
import math

import mpmath
import numpy as np
import torch
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm
from torch.nn.functional import logsigmoid

from fsvi_bench.maths.bernoulli_dropout import bernoulli_objective
from fsvi_bench.maths.blr import expected_log_likelihood
from fsvi_bench.maths.spike_slab import SpikeSlab, spike_slab_moments


def masks(k):
    """All 2^k of them, as rows."""
    return np.array(list(itertools.product([0.0, 1.0], repeat=k)))


def log_masses(eps, p):
    """log probability of each mask under independent Bernoulli(p_i); 0 log 0 never enters, as p stays inside (0, 1)."""
    return (eps * np.log(p) + (1 - eps) * np.log1p(-p)).sum(1)


def log_joint(Phi, y, noise_variance, w, lengthscale=1.0):
    """log N(y; Φw, σ²I) + log N(w; 0, l⁻²I)."""
    prior = norm.logpdf(w, 0, 1 / lengthscale).sum()
    return norm.logpdf(y, Phi @ w, math.sqrt(noise_variance)).sum() + prior


def negative_elbo(Phi, y, noise_variance, m, p, lengthscale=1.0):
    """Σ over masks of q (log q − log joint), constants and all."""
    eps = masks(len(m))
    log_q = log_masses(eps, p)
    joint = [log_joint(Phi, y, noise_variance, mask * m, lengthscale) for mask in eps]
    return np.exp(log_q) @ (log_q - joint)


def log_restricted_evidence(Phi, y, noise_variance, m, lengthscale=1.0):
    """log Σ over masks of the joint density at m∘ε, and the log probabilities of the masks that it normalises."""
    joint = np.array([log_joint(Phi, y, noise_variance, mask * m, lengthscale) for mask in masks(len(m))])
    return logsumexp(joint), joint - logsumexp(joint)


def quasi_kl(m, p, mean, covariance):
    """Atom by atom, those that are the same point gathered first."""
    mass = {}
    for mask, log_mass in zip(masks(len(m)), log_masses(masks(len(m)), p), strict=True):
        atom = tuple(mask * m + 0.0)  # −0 and 0 are one
        mass[atom] = mass.get(atom, 0.0) + math.exp(log_mass)
    density = multivariate_normal(mean, covariance)
    return sum(q * (math.log(q) - density.logpdf(atom)) for atom, q in mass.items())


def free_form_logit(Phi, y, noise_variance, m, p, i, lengthscale=1.0):
    """Lemma 1 read literally: the expectation of the log joint over the other masks, at ε_i = 1 minus at ε_i = 0."""
    others = masks(len(m) - 1)
    weights = np.exp(log_masses(others, np.delete(p, i)))
    expected = []
    for kept in (0.0, 1.0):
        eps = np.insert(others, i, kept, axis=1)
        expected.append(weights @ [log_joint(Phi, y, noise_variance, mask * m, lengthscale) for mask in eps])
    return expected[1] - expected[0]


def optimal_m(Phi, y, noise_variance, p, lengthscale=1.0):
    """The linear equations ∂/∂m = 0 written out weight by weight: Gal's eq. 6.5 before p is cancelled."""
    k = Phi.shape[1]
    matrix, right = np.empty((k, k)), np.empty(k)
    for i, j in np.ndindex(k, k):
        inner = Phi[:, i] @ Phi[:, j]
        matrix[i, j] = p[i] * p[j] * inner if i != j else p[i] * (inner + noise_variance * lengthscale**2)
    for i in range(k):
        right[i] = p[i] * Phi[:, i] @ y
    return np.linalg.solve(matrix, right)


def widened_kl(m, p, spread, lengthscale):
    """KL of p N(m, s²) + (1−p) N(0, s²) to N(0, l⁻²) in one dimension, by quadrature."""

    def integrand(w):
        log_q = np.logaddexp(math.log(p) + norm.logpdf(w, m, spread), math.log1p(-p) + norm.logpdf(w, 0, spread))
        return math.exp(log_q) * (log_q - norm.logpdf(w, 0, 1 / lengthscale))

    pieces = [(centre - 12 * spread, centre, centre + 12 * spread) for centre in (0.0, m)]
    return sum(quad(integrand, a, b, epsabs=1e-13)[0] for x in pieces for a, b in itertools.pairwise(x))


def spike_slab_row(m, sigma, f, lengthscale, digits=60):
    """(log odds, mean, variance, spike weight, KL to the prior) of Gal's eqs. 6.8 and 6.9 as printed."""
    with mpmath.workdps(digits):
        m, (sigma, f, scale) = [mpmath.mpf(x) for x in m], map(mpmath.mpf, (sigma, f, 1 / mpmath.mpf(lengthscale)))
        K, square = len(m), mpmath.fsum(x**2 for x in m)

        def density(variance):
            return (2 * mpmath.pi * variance) ** (-mpmath.mpf(K) / 2) * mpmath.exp(-square / (2 * variance))

        alpha = f * density(sigma**2) / ((1 - f) * density(sigma**2 + scale**2))
        s, shrinkage = alpha / (1 + alpha), 1 + (sigma / scale) ** 2
        mean, variance = [x / shrinkage for x in m], sigma**2 / shrinkage
        ratio, distance = variance / scale**2, mpmath.fsum(x**2 for x in mean) / scale**2
        slab = (K * (ratio - 1 - mpmath.log(ratio)) + distance) / 2
        kl = s * mpmath.log(s / f) + (1 - s) * (mpmath.log((1 - s) / (1 - f)) + slab)
        return float(mpmath.log(alpha)), [float(x) for x in mean], float(variance), float(s), float(kl)


def spike_slab_log_evidence(Phi, y, noise_variance, f, lengthscale=1.0):
    """Pattern by pattern: given which weights are zero the model is a Gaussian."""
    terms = []
    for pattern in masks(Phi.shape[1]).astype(bool):
        used = Phi[:, pattern] / lengthscale
        marginal = used @ used.T + noise_variance * np.eye(len(y))
        prior = pattern.sum() * math.log1p(-f) + (~pattern).sum() * math.log(f)
        terms.append(prior + multivariate_normal(np.zeros(len(y)), marginal).logpdf(y))
    return logsumexp(terms)


def objective_gradient(Phi, y, noise_variance, m, p, lengthscale=1.0):
    """Derivatives of `bernoulli_objective` in m and p by autograd, tensors in and out."""
    m, p = m.detach().requires_grad_(), p.detach().requires_grad_()
    return torch.autograd.grad(bernoulli_objective(Phi, y, noise_variance, m, p, lengthscale), (m, p))


def free_form_logits(Phi, y, noise_variance, m, p):
    """`free_form_logit` of every weight without enumeration; tensors in and out."""
    gram, mean = Phi.square().sum(-2), p * m
    others = Phi.mT @ (y - Phi @ mean) + gram * mean
    return m * others / noise_variance - 0.5 * m.square() * (gram / noise_variance + 1)


def spike_slab_kl(log_odds, mean, scale, f, lengthscale=1.0):
    """KL of one row's q to the spike-and-slab prior, Σ over states of q log(q/prior); tensors in and out."""
    log_s, log_slab = logsigmoid(log_odds), logsigmoid(-log_odds)
    ratio = lengthscale * scale
    slab = 0.5 * (ratio.square() - 1 - 2 * ratio.log() + (lengthscale * mean).square()).sum(-1)
    spike = torch.where(log_odds == -math.inf, 0.0, log_s.exp() * (log_s - math.log(f)))
    return spike + log_slab.exp() * (log_slab - math.log1p(-f) + slab)


def spike_slab_elbo(Phi, y, noise_variance, q, f, lengthscale=1.0):
    """E_q[log N(y; Φw, σ²I)] − KL(q ‖ prior), constants and all; tensors in and out."""
    mean, scale = spike_slab_moments(q.spike_weight, q.mean, q.scale)
    likelihood = expected_log_likelihood(Phi, y, noise_variance, mean, torch.diag_embed(scale))
    return likelihood - spike_slab_kl(q.log_odds, q.mean[..., None], q.scale[..., None], f, lengthscale).sum(-1)


def spike_slab_free_form(Phi, y, noise_variance, weight_mean, f, lengthscale=1.0):
    """Each weight's free-form optimum, the others held at their means (Gal 2016, corollary 1): N(h/λ, 1/λ) · prior."""
    information = Phi.square().sum(0) / noise_variance
    h = Phi.mT @ (y - Phi @ weight_mean) / noise_variance + information * weight_mean
    precision = information + lengthscale**2
    log_odds = math.log(f) - math.log1p(-f) + 0.5 * ((precision / lengthscale**2).log() - h.square() / precision)
    return SpikeSlab(log_odds, h / precision, precision.rsqrt())
