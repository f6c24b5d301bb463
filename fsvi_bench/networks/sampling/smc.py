"""Tempered sequential Monte Carlo from the prior to the posterior, by BlackJAX, moved by HMC with unit masses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc import hmc
from blackjax.smc import adaptive_tempered, resampling
from scipy.special import softmax

from fsvi_bench.networks.sampling.models import Array, Model, log_prior

ACCEPTANCE = 0.8  #: sought by the step size
GAIN = 1.5  #: the step size's factor is exp(GAIN (acceptance − ACCEPTANCE)) per temperature
MOST_STEPS = 128  #: leapfrog steps of one move
BATCH = 4  #: particles moved at once: more fall out of the cache


class Schedule(NamedTuple):
    """Inverse temperatures from 0 to 1 [T + 1], and at each the HMC's step size and leapfrog steps."""

    betas: np.ndarray
    step_sizes: np.ndarray
    leapfrogs: np.ndarray

    def refine(self, steps: int) -> Schedule:
        """A schedule of `steps` temperatures above 0: betas interpolated linearly, step sizes geometrically.

        A schedule of equal effective sample sizes stays one of equal speed, but for the corners.
        """
        old, new = np.linspace(0, 1, len(self.betas)), np.linspace(0, 1, steps + 1)
        sizes = np.exp(np.interp(new, old, np.log(self.step_sizes)))
        leapfrogs = np.ceil(np.interp(new, old, self.leapfrogs)).astype(int)
        return Schedule(np.interp(new, old, self.betas), sizes, leapfrogs)


class SmcRun(NamedTuple):
    """Equally weighted particles of one run, after resampling and moving at β = 1."""

    u: np.ndarray  #: unknowns [n, dim]
    log_evidence: float  #: log Ẑ in nats; Ẑ is consistent, with a bias of order 1/n as the schedule is adaptive
    schedule: Schedule


def smc_run(
    target: Model, key: Array, particles: int, *, moves: int = 4, path: float = 1.0, target_ess: float = 0.5
) -> SmcRun:
    """One run: at each temperature resample, make `moves` HMC transitions of length `path`, and reweight.

    The next temperature gives the weights of a share `target_ess` of the particles as effective sample size. BlackJAX
    chooses it before it moves the particles, so that the weights' own share is larger.
    """
    of_start, key = jax.random.split(key)
    state = adaptive_tempered.init(jax.random.normal(of_start, (particles, target.dim)))
    state = state._replace(tempering_param=jnp.zeros(()))
    log_evidence, size = 0.0, target.dim**-0.25
    rows: list[tuple[float, float, int]] = []
    while not rows or rows[-1][0] < 1:  # the last pass starts at β = 1: weights are equal after it
        beta = float(state.tempering_param)
        leapfrogs = int(np.clip(np.ceil(path / size), 1, MOST_STEPS))
        of_step, key = jax.random.split(key)
        state, increment, acceptance = _step(target, of_step, state, size, leapfrogs, moves, target_ess)
        log_evidence += float(increment)
        rows.append((beta, size, leapfrogs))
        if not np.isfinite(log_evidence):
            break
        size *= float(np.exp(GAIN * (float(acceptance) - ACCEPTANCE)))
    return SmcRun(np.asarray(state.particles), log_evidence, Schedule(*map(np.array, zip(*rows, strict=True))))


@partial(jax.jit, static_argnames=("moves", "target_ess"))
def _step(
    target: Model, key: Array, state: Array, size: Array, leapfrogs: Array, moves: int, target_ess: float
) -> tuple[Array, Array, Array]:
    kernel = adaptive_tempered.build_kernel(
        log_prior,
        target.log_likelihood,
        hmc.build_kernel(),
        hmc.init,
        resampling.systematic,
        target_ess,
        batch_size=BATCH,
    )
    of_sizes, of_step = jax.random.split(key)
    n, dim = state.particles.shape
    parameters = {
        "step_size": size * jax.random.uniform(of_sizes, (n,), minval=0.8, maxval=1.2),  # against resonance
        "inverse_mass_matrix": jnp.ones((1, dim)),
        "num_integration_steps": jnp.asarray(leapfrogs)[None],
    }
    state, info = kernel(of_step, state, moves, parameters)
    return state, info.log_likelihood_increment, info.update_info.acceptance_rate.mean()


def pool(
    particles: Sequence[np.ndarray], log_evidences: Sequence[float], n: int, generator: np.random.Generator
) -> np.ndarray:
    """At most n particles [n, P] of runs of equal length, in random order and each at most once.

    They are NaN if an evidence is not finite. Each run gives a share Ẑ / Σ Ẑ of them, to within one particle. They are
    fewer than n where a run would have to give more than it has.
    """
    if not np.isfinite(log_evidences).all():
        return np.full((n, particles[0].shape[-1]), np.nan)
    shares = softmax(log_evidences)
    n = min(n, int(len(particles[0]) / shares.max()))
    ends = np.floor(n * np.cumsum(shares / shares.sum()) + generator.random())  # systematic: each count is within 1
    counts = np.diff(ends, prepend=0).astype(int)
    drawn = [generator.permutation(of_run)[:count] for of_run, count in zip(particles, counts, strict=True)]
    return generator.permutation(np.concatenate(drawn))
