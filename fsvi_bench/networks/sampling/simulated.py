"""Certificate C1, on simulated targets: bidirectional Monte Carlo and simulation-based calibration.

`Model.simulate` draws unknowns from the prior and targets given them. The unknowns are then one exact draw from the
posterior. Annealed importance sampling from the prior gives lower bounds of log Z, and annealing one of the chains from
the exact draw gives upper bounds (Grosse, Ghahramani and Adams 2015; Grosse, Ancha and Roy 2016), both in expectation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc import hmc
from scipy import stats
from scipy.special import logsumexp

from fsvi_bench.errors import InputError
from fsvi_bench.networks.sampling.models import Array, Model, function_draws, log_prior
from fsvi_bench.networks.sampling.nuts import sample_chain, thin
from fsvi_bench.networks.sampling.smc import Schedule
from fsvi_bench.statistics.ranks import holm


class Bounds(NamedTuple):
    """Bounds of one data set's log Z in nats, each in expectation."""

    lower: float
    upper: float

    @property
    def gap(self) -> float:
        return self.upper - self.lower


def bidirectional(target: Model, u: Array, key: Array, schedule: Schedule, chains: int) -> Bounds:
    """Bounds from two independent means Ẑ over `chains` annealed chains; `u` is an exact draw from the posterior.

    In the second mean, one chain is replaced by one that is annealed backwards from u: E Ẑ = Z for the first, and
    E 1/Ẑ = 1/Z for the second. The sampler that draws one of the first mean's ends in proportion to its weight has a
    symmetrised KL from the posterior of at most the expected gap. The schedule must not depend on these chains: take it
    from a particle run, refined.
    """
    of_start, forwards, backwards = jax.random.split(key, 3)
    starts, keys = jax.random.normal(of_start, (2 * chains - 1, target.dim)), jax.random.split(forwards, 2 * chains - 1)
    up = np.asarray(_anneal(target, keys, starts, *schedule, backwards=False))
    down = np.asarray(_anneal(target, backwards[None], jnp.asarray(u)[None], *schedule, backwards=True))
    first, second = up[:chains], np.concatenate([up[chains:], down])
    return Bounds(*(float(logsumexp(each) - np.log(chains)) for each in (first, second)))


@partial(jax.jit, static_argnames=("backwards",))
def _anneal(
    target: Model, keys: Array, starts: Array, betas: Array, sizes: Array, leapfrogs: Array, *, backwards: bool
) -> Array:
    """Σ_t (β_t − β_{t−1}) log p(y | u_{t−1}) of each chain; transitions at β_t lead from u_{t−1} to u_t, or back.

    HMC's transitions are reversible, so that the same ones serve in both directions.
    """
    kernel, masses = hmc.build_kernel(), jnp.ones(target.dim)

    def one(key: Array, start: Array) -> Array:
        def step(u: Array, at: tuple[Array, ...]) -> tuple[Array, Array]:
            key, beta, gap, size, leaps = at
            of_size, of_move = jax.random.split(key)

            def density(u: Array) -> Array:
                return log_prior(u) + beta * target.log_likelihood(u)

            jittered = size * jax.random.uniform(of_size, minval=0.8, maxval=1.2)
            moved = kernel(of_move, hmc.init(u, density), density, jittered, masses, leaps)[0].position
            return moved, gap * target.log_likelihood(moved if backwards else u)

        times = jax.random.split(key, len(betas) - 1), betas[1:], jnp.diff(betas), sizes[1:], leapfrogs[1:]
        return jax.lax.scan(step, start, times, reverse=backwards)[1].sum()

    return jax.vmap(one)(keys, starts)


class Gap(NamedTuple):
    """The mean gap over data sets in nats, and the upper end of its two-sided 95% interval by Student's t."""

    mean: float
    upper: float


def mean_gap(bounds: Sequence[Bounds]) -> Gap:
    """The mean gap over data sets, at least two."""
    gaps = np.array([each.gap for each in bounds])
    half = stats.t.ppf(0.975, len(gaps) - 1) * stats.sem(gaps)
    return Gap(float(gaps.mean()), float(gaps.mean() + half))


def calibration_ranks(target: Model, f: Array, key: Array, warmup: int, draws: int, kept: int = 19) -> np.ndarray:
    """Ranks [P], from 0 to `kept`, of the true f among `kept` thinned draws of the posterior, by NUTS, at each input.

    If the sampler is right and the kept draws are independent, ranks over simulated data sets are uniform (Talts et al.
    2018).
    """
    of_chain, of_f = jax.random.split(key)
    u = thin(sample_chain(target, of_chain, warmup, draws).u, kept)
    return (function_draws(target, of_f, u) < np.asarray(f)).sum(0)


def calibration_p_values(ranks: np.ndarray, kept: int = 19, bins: int = 5) -> np.ndarray:
    """Chi-square p-values of uniformity at each input [P], Holm-adjusted, from ranks [n, P] of n data sets.

    Raises:
        InputError: the ranks 0 to `kept` do not fill the bins equally.
    """
    if (kept + 1) % bins:
        raise InputError(f"{kept + 1} ranks do not fill {bins} bins equally; choose bins that divide {kept + 1}")
    place = np.asarray(ranks) * bins // (kept + 1)
    counts = (place[..., None] == np.arange(bins)).sum(0)
    return holm(stats.chisquare(counts, axis=1).pvalue)
