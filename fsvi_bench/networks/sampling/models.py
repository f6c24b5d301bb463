"""What is sampled: the hidden weights of `collapsed-H`, or the weights of `logit-100`; both standard normal a priori.

Targets are pytrees of arrays: a compiled sampler serves every target of one shape.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jax.tree_util import register_dataclass

from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.maths.networks import Network

Array = Any  #: a NumPy or JAX array, a tracer, or what JAX puts in its place
CHUNK = 64  #: draws whose functions are computed at once


class Model(ABC):
    """The posterior of unknowns u with the prior N(0, I), and of the function f that they determine or leave Gaussian.

    Attributes:
        x_new: the inputs [P, D], or rows of features [P, k], at which functions are judged.
    """

    x_new: Array

    @property
    @abstractmethod
    def dim(self) -> int:
        """The number of unknowns."""

    @abstractmethod
    def log_likelihood(self, u: Array) -> Array:
        """log p(y | u), in nats."""

    @abstractmethod
    def draw(self, key: Array, u: Array) -> Array:
        """A joint draw of f at `x_new` [P], given u and the targets: exact."""

    @abstractmethod
    def simulate(self, key: Array) -> Simulated:
        """Targets drawn from the model at the same training inputs."""


class Simulated(NamedTuple):
    """Simulated targets and what they come from, which is one exact draw from their posterior."""

    target: Model
    u: Array  #: the unknowns [dim]
    f: Array  #: the function at `x_new` [P]


def log_prior(u: Array) -> Array:
    """log N(u; 0, I), in nats."""
    return -0.5 * (jnp.square(u).sum() + u.shape[-1] * LOG_2PI)


@dataclasses.dataclass(frozen=True)
class Target(Model):
    """`collapsed-H`: the whitened hidden weights, with the output weights integrated out.

    Args:
        x_train: training inputs [N, D].
        y: their targets [N].
        noise_variance: σ².
        network: the architecture and the priors.
        x_new: the inputs [P, D] at which functions are judged.
    """

    x_train: Array
    y: Array
    noise_variance: Array
    network: Network
    x_new: Array

    @property
    def dim(self) -> int:
        return self.network.k_hidden

    def features(self, u: Array, x: Array) -> Array:
        """Ψ [n, H + 1], as `Network.features`."""
        net = self.network
        units = u.reshape(net.H, net.D + 1)
        hidden = jnp.tanh(x @ units[:, :-1].T / math.sqrt(net.D) + units[:, -1])
        bias = jnp.full((len(x), 1), net.bias_scale)
        return jnp.concatenate([hidden * (net.output_scale / math.sqrt(net.H)), bias], axis=1)

    def log_likelihood(self, u: Array) -> Array:
        return collapsed(self.features(u, self.x_train), self.y, self.noise_variance)

    def draw(self, key: Array, u: Array) -> Array:
        tril, mean, _ = regression(self.features(u, self.x_train), self.y, self.noise_variance)
        noise = jax.random.normal(key, mean.shape)
        return self.features(u, self.x_new) @ (mean + jsl.solve_triangular(tril, noise, trans=1, lower=True))

    def simulate(self, key: Array) -> Simulated:
        of_u, of_output, of_noise = jax.random.split(key, 3)
        u = jax.random.normal(of_u, (self.dim,))
        output = jax.random.normal(of_output, (self.network.H + 1,))
        noise = jax.random.normal(of_noise, (len(self.x_train),)) * jnp.sqrt(self.noise_variance)
        y = self.features(u, self.x_train) @ output + noise
        return Simulated(dataclasses.replace(self, y=y), u, self.features(u, self.x_new) @ output)


register_dataclass(Target, ["x_train", "y", "noise_variance", "x_new"], ["network"])


@dataclasses.dataclass(frozen=True)
class LogitTarget(Model):
    """`logit-100`: the weights of a logistic regression, whose posterior is log-concave.

    Args:
        Phi: features of the training inputs [N, k].
        y: targets [N], each 0 or 1.
        x_new: features [P, k] of the inputs at which logits are judged.
    """

    Phi: Array
    y: Array
    x_new: Array

    @property
    def dim(self) -> int:
        return self.Phi.shape[-1]

    def log_likelihood(self, u: Array) -> Array:
        logits = self.Phi @ u
        return (self.y * logits - jax.nn.softplus(logits)).sum()

    def draw(self, key: Array, u: Array) -> Array:
        return self.x_new @ u

    def simulate(self, key: Array) -> Simulated:
        of_u, of_y = jax.random.split(key)
        u = jax.random.normal(of_u, (self.dim,))
        y = jax.random.bernoulli(of_y, jax.nn.sigmoid(self.Phi @ u)).astype(float)
        return Simulated(dataclasses.replace(self, y=y), u, self.x_new @ u)


register_dataclass(LogitTarget, ["Phi", "y", "x_new"], [])


def regression(Psi: Array, y: Array, noise_variance: Array) -> tuple[Array, Array, Array]:
    """Of y = Ψβ + N(0, σ²), β ~ N(0, I): the factor C of the precision CCᵀ, the mean, and (y − Ψ mean)/σ²."""
    tril = jnp.linalg.cholesky(Psi.T @ Psi / noise_variance + jnp.eye(Psi.shape[1]), symmetrize_input=False)
    mean = jsl.cho_solve((tril, True), Psi.T @ y / noise_variance)
    return tril, mean, (y - Psi @ mean) / noise_variance


@jax.custom_vjp
def collapsed(Psi: Array, y: Array, noise_variance: Array) -> Array:
    """log N(y; 0, K) for K = ΨΨᵀ + σ²I, in nats, as `maths.blr.log_evidence`; differentiable in Ψ alone.

    With α = K⁻¹y and the regression's mean μ = Ψᵀα, the gradient is (ααᵀ − K⁻¹)Ψ = αμᵀ − ΨΛ⁻¹/σ² for the precision
    Λ = ΨᵀΨ/σ² + I: half the time of differentiating the Cholesky factor.
    """
    return _value(Psi, y, noise_variance)[0]


def _value(Psi: Array, y: Array, noise_variance: Array) -> tuple[Array, tuple[Array, ...]]:
    tril, mean, alpha = regression(Psi, y, noise_variance)
    quadratic = jnp.square(alpha).sum() * noise_variance + jnp.square(mean).sum()
    logdet = 2 * jnp.log(jnp.diagonal(tril)).sum() + len(y) * jnp.log(noise_variance)
    return -0.5 * (len(y) * LOG_2PI + logdet + quadratic), (Psi, tril, mean, alpha, noise_variance)


def _gradient(saved: tuple[Array, ...], scale: Array) -> tuple[Array, None, None]:
    Psi, tril, mean, alpha, noise_variance = saved
    covariance = jsl.cho_solve((tril, True), jnp.eye(len(mean)))
    return scale * (jnp.outer(alpha, mean) - Psi @ covariance / noise_variance), None, None


collapsed.defvjp(_value, _gradient)


@jax.jit
def _functions(target: Model, key: Array, u: Array) -> Array:
    keys = jax.random.split(key, len(u))
    return jax.lax.map(lambda each: target.draw(*each), (keys, u), batch_size=CHUNK)


def function_draws(target: Model, key: Array, u: Array) -> np.ndarray:
    """f [*S, P] at `x_new`, one exact draw for each of the unknowns [*S, dim]."""
    u = np.asarray(u)
    f = np.asarray(_functions(target, key, u.reshape(-1, u.shape[-1])))
    return f.reshape(*u.shape[:-1], f.shape[-1])
