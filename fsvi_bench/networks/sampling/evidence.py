"""log Z, the log evidence, from particle runs and from NUTS along a ladder of temperatures.

The ladder: let Z_β = E_prior p(y | u)^β, so that log Z_0 = 0 and log Z_1 = log Z. Its rungs are NUTS at β_0 = 0 < … <
β_K = 1, the first of them exact draws of the prior. log Z is the sum of log Z_{k+1}/Z_k, each from Bennett's (1976)
acceptance ratio: with Δ = (β_{k+1} − β_k) log p(y | u) and as many draws from both rungs, c = log Z_{k+1}/Z_k solves

    Σ_{draws of rung k} s(Δ − c) = Σ_{draws of rung k+1} s(c − Δ),  s(t) = 1/(1 + e^(−t)).

Only the scalar log p(y | u) enters. It is the same for all 2^H·H! labellings of the hidden units, so that its law under
one labelling is its law under the posterior: a chain that sees one labelling costs nothing, where bridge sampling
between the posterior and a density of u would have to be symmetrised. What a chain can miss is modes of the function.
Independent repetitions then disagree, which is what the error is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit, logsumexp

from fsvi_bench.networks.sampling.models import Array, Model
from fsvi_bench.networks.sampling.nuts import continue_chain


class Estimate(NamedTuple):
    """log Z in nats with a standard error; NaN with one repetition."""

    value: float
    error: float
    repetitions: int


class LadderRun(NamedTuple):
    """One repetition of the ladder."""

    betas: np.ndarray  #: [K + 1]
    log_likelihood: np.ndarray  #: log p(y | u) of each rung's draws [K + 1, n]


def ladder_run(target: Model, key: Array, betas: Array, warmup: int, draws: int) -> LadderRun:
    """Draws at each inverse temperature, from 0 to 1; each rung's chain starts at the last draw of the one below it.

    The betas may come from a particle run: `smc_run(...).schedule.betas` are spaced by effective sample sizes.
    """
    keys = jax.random.split(key, len(betas))
    u = jax.random.normal(keys[0], (draws, target.dim))
    values = [np.asarray(jax.lax.map(target.log_likelihood, u))]
    start, size = u[-1], target.dim**-0.25
    for of_rung, beta in zip(keys[1:], betas[1:], strict=True):
        chain = continue_chain(target, of_rung, start, beta, warmup, draws, step_size=size, adapt_mass=False)
        start, size = chain.u[-1], chain.step_size
        values.append(chain.log_likelihood)
    return LadderRun(np.asarray(betas), np.stack(values))


def bennett(below: np.ndarray, above: np.ndarray) -> float:
    """log of the ratio of normalisers of two rungs, from Δ of as many draws of each."""
    both = np.concatenate([below, above])
    if not np.isfinite(both).all():
        return np.nan

    def excess(c: float) -> float:
        return expit(below - c).sum() - expit(c - above).sum()

    return brentq(excess, both.min() - 50, both.max() + 50, xtol=1e-10)


def ladder_evidence(runs: Sequence[LadderRun]) -> Estimate:
    """log Z from the draws of all repetitions together, with the jackknife's error over repetitions."""
    gaps = np.diff(runs[0].betas)[:, None]
    values = np.stack([run.log_likelihood for run in runs])  # [R, K + 1, n]

    def log_z(chosen: np.ndarray) -> float:
        pooled = np.concatenate(list(values[chosen]), axis=1)
        return sum(map(bennett, gaps * pooled[:-1], gaps * pooled[1:]))

    return _jackknife(log_z, len(runs))


def smc_evidence(log_evidences: Sequence[float] | np.ndarray) -> Estimate:
    """The log of the mean of the runs' Ẑ, with the jackknife's error over runs: of order 1/R if errors exceed a nat."""
    values = np.asarray(log_evidences, dtype=float)
    return _jackknife(lambda chosen: float(logsumexp(values[chosen]) - np.log(len(chosen))), len(values))


def _jackknife(statistic: Array, n: int) -> Estimate:
    """A statistic of n repetitions, given their indices, with its standard error from leaving out one at a time."""
    every = np.arange(n)
    value = statistic(every)
    if n < 2:
        return Estimate(value, np.nan, n)
    without = np.array([statistic(np.delete(every, i)) for i in every])
    return Estimate(value, float(np.sqrt((n - 1) * without.var())), n)


def equal_means(a: Estimate, b: Estimate) -> float:
    """The p-value of Welch's test that both estimates have one mean; NaN if an error is unknown or both are 0."""
    variances = np.square([a.error, b.error])
    if not variances.sum() > 0:
        return np.nan
    freedom = variances.sum() ** 2 / (variances**2 / np.array([a.repetitions - 1, b.repetitions - 1])).sum()
    return float(2 * stats.t.sf(abs(a.value - b.value) / np.sqrt(variances.sum()), freedom))
