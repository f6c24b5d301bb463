"""Chains of the No-U-Turn Sampler (Hoffman and Gelman 2014), by NumPyro, at any inverse temperature β.

Chains run one after the other: on one core, a vectorised step lasts as long as the longest tree of all chains.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from numpyro.infer.hmc import hmc

from fsvi_bench.errors import InputError
from fsvi_bench.networks.sampling.models import Array, Model, log_prior


class Chain(NamedTuple):
    """The draws of one chain, in order."""

    u: np.ndarray  #: unknowns [n, dim]
    log_likelihood: np.ndarray  #: log p(y | u) [n]
    log_joint: np.ndarray  #: log p(y, u) [n], at β = 1 whatever the chain's
    energy: np.ndarray  #: the Hamiltonian after each transition [n]
    divergent: np.ndarray  #: whether the transition diverged [n]
    step_size: float


def sample_chain(target: Model, key: Array, warmup: int, draws: int) -> Chain:
    """A chain from a draw of the prior; the warm-up adapts the step size and a diagonal mass matrix."""
    of_start, of_chain = jax.random.split(key)
    return continue_chain(target, of_chain, jax.random.normal(of_start, (target.dim,)), 1.0, warmup, draws)


def continue_chain(
    target: Model,
    key: Array,
    start: Array,
    beta: float,
    warmup: int,
    draws: int,
    *,
    step_size: float = 1.0,
    adapt_mass: bool = True,
) -> Chain:
    """A chain of p(u) p(y | u)^β from the given unknowns."""
    out = _chain(target, beta, key, start, step_size, warmup, draws, adapt_mass)
    u, values, joint, energy, divergent, final = map(np.asarray, out)
    return Chain(u, values, joint, energy, divergent, float(final))


@partial(jax.jit, static_argnames=("warmup", "draws", "adapt_mass"))
def _chain(
    target: Model, beta: Array, key: Array, start: Array, step_size: Array, warmup: int, draws: int, adapt_mass: bool
) -> tuple[Array, ...]:
    def potential(target: Model, beta: Array) -> Callable[[Array], Array]:
        return lambda u: -log_prior(u) - beta * target.log_likelihood(u)

    def transition(state: Array, _: None) -> tuple[Array, tuple[Array, ...]]:
        state = step(state, of)
        value = target.log_likelihood(state.z)
        kept = (state.z, value, value + log_prior(state.z), state.energy, state.diverging)
        return state, kept

    of = (target, beta)
    prepare, step = hmc(potential_fn_gen=potential, algo="NUTS")
    state = prepare(start, warmup, step_size, adapt_mass_matrix=adapt_mass, model_args=of, rng_key=key)
    state = jax.lax.fori_loop(0, warmup, lambda _, state: step(state, of), state)
    state, kept = jax.lax.scan(transition, state, length=draws)
    return *kept, state.adapt_state.step_size


def thin(draws: np.ndarray, n: int) -> np.ndarray:
    """n of the draws [N, *S], evenly spaced.

    Raises:
        InputError: there are fewer draws than n.
    """
    if len(draws) < n:
        raise InputError(f"{len(draws)} draws cannot be thinned to {n}; run longer chains")
    return draws[((np.arange(n) + 0.5) * (len(draws) / max(n, 1))).astype(int)]
