"""Slow twins of the mixture densities and distribution functions: all 2ᵏ Gaussians added up; random problems for them."""

from __future__ import annotations

import math
from typing import NamedTuple

import mpmath
import numpy as np
import torch
from scipy.special import ndtr

from fsvi_bench.maths.mixtures import MixtureLogDensity, SwitchedWeights, mixture_log_density

LONG = np.longdouble  # 64 bits of mantissa on x86: the twin must have digits to spare for differences of 1e-15


class MixtureProblem(NamedTuple):
    y: np.ndarray
    Phi: np.ndarray
    drop_probability: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    noise_variance: float


def enumerated_log_density(problem: MixtureProblem) -> np.ndarray:
    """log Σ_c P(c) N(y; mean_c, variance_c + σ²), combination by combination."""
    return np.array([_one_point(problem, n) for n in range(len(problem.y))])


def enumerated_cdf(problem: MixtureProblem) -> np.ndarray:
    """Σ_c P(c) Φ((y − mean_c)/sd_c), combination by combination; rounding leaves 1e-15 or so."""
    values = []
    for n in range(len(problem.y)):
        means, variances, log_weights = _atoms(problem, n)
        z = np.array((LONG(problem.y[n]) - means) / np.sqrt(variances), dtype=float)
        values.append(float((np.exp(log_weights) * ndtr(z)).sum()))
    return np.array(values)


def _one_point(problem: MixtureProblem, n: int) -> float:
    means, variances, log_weights = _atoms(problem, n)
    terms = (
        log_weights - (LONG(problem.y[n]) - means) ** 2 / (2 * variances) - np.log(2 * LONG(math.pi) * variances) / 2
    )
    highest = terms.max()
    return float(highest + np.log(np.exp(terms - highest).sum()))


def _atoms(problem: MixtureProblem, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, variances and log weights of all Gaussians at one point."""
    means, variances, log_weights = np.zeros(1, LONG), np.full(1, LONG(problem.noise_variance)), np.zeros(1, LONG)
    for i in range(len(problem.mean)):
        phi, drop = LONG(problem.Phi[n, i]), LONG(problem.drop_probability[i])
        with np.errstate(divide="ignore"):
            off, on = np.log(drop), np.log1p(-drop)
        means = np.concatenate([means, means + phi * LONG(problem.mean[i])])
        variances = np.concatenate([variances, variances + (phi * LONG(problem.scale[i])) ** 2])
        log_weights = np.concatenate([log_weights + off, log_weights + on])
    return means, variances, log_weights


def many_digits_log_density(y, a, p, sigma, digits=40):
    """The same for Bernoulli variables with `digits` digits; arguments are decimal strings."""
    with mpmath.workdps(digits):
        y, p, sigma = mpmath.mpf(y), mpmath.mpf(p), mpmath.mpf(sigma)
        atoms = [(mpmath.mpf(0), mpmath.mpf(1))]
        for value in map(mpmath.mpf, a):
            atoms = [(s + c * value, w * (p if c else 1 - p)) for s, w in atoms for c in (0, 1)]
        total = mpmath.fsum(w * mpmath.npdf(y, s, sigma) for s, w in atoms)
        return float(mpmath.log(total))


def random_problem(seed: int, kind: str, deviations=(0, 0.3, -1, 3, 10, -10), max_k: int = 12) -> MixtureProblem:
    """Targets lie at the given numbers of predictive standard deviations from the predictive mean."""
    rng = np.random.default_rng(seed)
    k, N = int(rng.integers(1, max_k + 1)), len(deviations)
    Phi, mean, drop, scale = rng.standard_normal((N, k)), rng.standard_normal(k), rng.uniform(0, 0.98, k), np.zeros(k)
    sigma = 10 ** rng.uniform(-1.5, 0.5)
    if kind == "one probability":
        drop[:] = rng.choice([0.5, 0.2, 0.05, 1e-3])
    if kind == "some certain, some zero":
        drop[rng.random(k) < 0.5] = 0
        mean[rng.random(k) < 0.3] = 0
    if kind == "equal sizes":
        Phi, mean[:] = np.sign(Phi), 0.7
    if kind == "low noise":
        sigma = 1e-3
    if kind == "wide range of sizes":
        mean *= 10 ** rng.uniform(-4, 1, k)
    if kind.startswith("slab"):
        scale = np.exp(1.5 * rng.standard_normal(k) - 1)
    if kind == "slab, low noise":
        sigma, drop[rng.random(k) < 0.3] = 1e-3, 1e-12
    return at_deviations(MixtureProblem(np.zeros(N), Phi, drop, mean, scale, sigma**2), deviations)


def at_deviations(problem: MixtureProblem, deviations) -> MixtureProblem:
    Phi, p = problem.Phi, 1 - problem.drop_probability
    variance = Phi**2 @ (p * problem.scale**2 + p * (1 - p) * problem.mean**2) + problem.noise_variance
    return problem._replace(y=Phi @ (p * problem.mean) + np.sqrt(variance) * np.array(deviations))


def weights_of(problem: MixtureProblem) -> SwitchedWeights:
    drop = torch.from_numpy(problem.drop_probability)
    return SwitchedWeights(1 - drop, drop, torch.from_numpy(problem.mean), torch.from_numpy(problem.scale))


def fast(problem: MixtureProblem) -> MixtureLogDensity:
    y, Phi = torch.from_numpy(problem.y), torch.from_numpy(problem.Phi)
    return mixture_log_density(y, Phi, weights_of(problem), problem.noise_variance)
