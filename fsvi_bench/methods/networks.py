"""Networks, or other differentiable models of flat weights, as problems of methods: B data sets side by side.

Most methods need no more of a network than the values of f and their Jacobian in the weights; a linear model's Jacobian
is Φ. Others ask for more (`require_part`). A network's own linear model, its tangent, is `Linearised`. Every weight is
standard normal under the prior. Targets have Gaussian noise, or are 0 and 1 with the logits f.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import grad, vmap

from fsvi_bench.errors import InputError
from fsvi_bench.maths.batching import Stacked, matvec, one_by_one, products
from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.maths.likelihood import LARGEST_CURVATURE, log_density, working
from fsvi_bench.maths.networks import Network, draw_outputs
from fsvi_bench.methods.lbfgs import LBFGS
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.seeds import derive_seed

MODE_STEPS = 2000  #: most iterations of the search for a mode


class Model(Protocol):
    """f as a function of k weights, such as `maths.networks.Network`, of which some methods use more: GFSVI and f-SVGD
    its `prior_covariance`, the Kronecker Laplace approximation its `kronecker_gram`, and dropout its hidden units."""

    @property
    def k(self) -> int:
        """The number of weights."""

    def values(self, w: Float[Tensor, "*S k"], x: Float[Tensor, "n D"]) -> Float[Tensor, "*S n"]:
        """f at each input."""


def require_part(model: Model, part: str, method: str) -> None:
    """Raises InputError if the model lacks a method that an inference method needs beside those of `Model`."""
    if not hasattr(model, part):
        raise InputError(
            f"{method} needs {part}() of a network's model, and {type(model).__name__} has none; define it as in "
            "fsvi_bench.maths.networks.Network, or choose another method"
        )


@dataclass(frozen=True, eq=False)
class NetworkData(Stacked):
    """B problems with one model, of which these are the training rows; or a minibatch of them.

    On a CPU problems are computed one by one, since rounding depends on shape and alignment; on a GPU together.
    """

    X: Float[Tensor, "B N D"]
    y: Float[Tensor, "B N"]
    noise_variance: Float[Tensor, " B"] | None  #: None: y is 0 or 1, and f its logit
    low: Float[Tensor, "B D"]  #: lower corner of the bounding box of the training inputs
    high: Float[Tensor, "B D"]
    model: Any  #: a `Model`
    stand_for: int | None = None  #: the number of training rows, in a minibatch

    @staticmethod
    def of(model: Model, problems: Sequence[tuple[Tensor, Tensor, Tensor | None]]) -> NetworkData:
        """Stacks problems (X, y, σ²) of equal shape; without σ² for targets of 0 and 1.

        Raises:
            InputError: there are none, one has other parts, the shapes of X differ, only some have a variance, or a
                target without one is neither 0 nor 1. NaN passes, so that what it affects can be tested.
        """
        if not all(isinstance(problem, tuple | list) and len(problem) == 3 for problem in problems):
            raise InputError(
                "the problems are not a list of (X, y, noise variance); for one network task, give "
                "[(*task.training(), task.noise_variance)]"
            )
        for X, y, variance in problems:
            _require_rows(X, y, variance)
        shapes = sorted({tuple(X.shape) for X, _, _ in problems})
        if len(shapes) != 1:
            got = " and ".join(f"N={N}, D={D}" for N, D in shapes) or "none"
            raise InputError(
                f"networks that are trained side by side must have equal shapes, got {got}; train them one by one"
            )
        X, y = (torch.stack(parts) for parts in ([X for X, _, _ in problems], [y for _, y, _ in problems]))
        variances = [torch.as_tensor(each, dtype=X.dtype) for *_, each in problems if each is not None]
        if 0 < len(variances) < len(problems):
            raise InputError(
                f"networks that are trained side by side must have one likelihood, got {len(variances)} of "
                f"{len(problems)} with a noise variance; train those without one, whose targets are 0 or 1, separately"
            )
        return NetworkData(X, y, torch.stack(variances) if variances else None, X.amin(1), X.amax(1), model)

    @property
    def k(self) -> int:
        return int(self.model.k)

    @property
    def N(self) -> int:
        return int(self.y.shape[1])

    def minibatch(self, index: Int[Tensor, "B n"]) -> NetworkData:
        """These rows, to stand for all."""
        place = torch.arange(len(index), device=index.device)[:, None]
        return replace(self, X=self.X[place, index], y=self.y[place, index], stand_for=self.N)

    def values(self, w: Float[Tensor, "B S more"], x: Float[Tensor, "B n D"]) -> Float[Tensor, "B S n"]:
        """f at each input; weights beyond k, which fill up a cache line, are ignored."""
        return _each(self.model.values, w[..., : self.k], x)

    def jacobian(self, w: Float[Tensor, "B more"], x: Float[Tensor, "B n D"]) -> Float[Tensor, "B n k"]:
        """∂f/∂w at each input."""
        return _each(vmap(grad(self._value), (None, 0)), w[..., : self.k], x)

    def _value(self, w: Tensor, x: Tensor) -> Tensor:
        return self.model.values(w, x[None])[0]  # type: ignore[no-any-return]

    def prior_covariance(self, x: Float[Tensor, "B n D"]) -> Float[Tensor, "B n n"]:
        """Of f at inputs."""
        return _each(self.model.prior_covariance, x)

    def nll(self, w: Float[Tensor, "B S more"]) -> Float[Tensor, "B S"]:
        """−log p(y | f) for each of S weight vectors, scaled to all training rows."""
        return self._nll(self.values(w, self.X))

    def nll_by_row(self, w: Float[Tensor, "B n more"]) -> Float[Tensor, " B"]:
        """The same with weights of its own for each row."""
        return self._nll(_each(vmap(self._value), w[..., : self.k], self.X)[:, None])[:, 0]

    def _nll(self, f: Float[Tensor, "B S n"]) -> Float[Tensor, "B S"]:
        all_rows = self.stand_for or self.N
        if self.noise_variance is None:
            return -all_rows / self.N * _each(lambda y, f: log_density(y, f, None).sum(-1), self.y, f)
        squares, variance = (self.y[:, None] - f).square().sum(-1), self.noise_variance[:, None]
        return 0.5 * all_rows * (LOG_2PI + variance.log() + squares / (self.N * variance))

    def slope(self, f: Float[Tensor, "B S n"]) -> Float[Tensor, "B S n"]:
        """∂ log p(y | f)/∂f at each row."""
        if self.noise_variance is None:
            return self.y[:, None] - _each(torch.sigmoid, f)
        return (self.y[:, None] - f) / self.noise_variance[:, None, None]

    @property
    def least_variance(self) -> Float[Tensor, " B"]:
        """The noise variance with the largest curvature that the likelihood of a row has in f."""
        if self.noise_variance is None:
            return torch.full_like(self.y[:, 0], 1 / LARGEST_CURVATURE)
        return self.noise_variance

    def functions(self, w: Float[Tensor, "1 S k"], x: Float[Tensor, "1 n D"], seed: int) -> Float[Tensor, "1 S n"]:
        """f of draws of a posterior over the weights."""
        return self.values(w, x)

    @property
    def inputs_as_features(self) -> TrainingData:
        """With φ(x) = x, so that measurement sets consist of inputs."""
        return TrainingData(self.X, self.y, self.X, self.least_variance, self.low, self.high, _Identity())  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class CollapsedData(NetworkData):
    """Problems over the hidden weights u of a `Network` alone: its output weights are integrated out.

    The likelihood of u is no product over rows, so there are no minibatches.
    """

    noise_variance: Float[Tensor, " B"]

    @staticmethod
    def collapse(problems: Any, rows_per_step: int) -> CollapsedData:
        """The same problems, collapsed.

        Raises:
            InputError: the model is linear, or no `Network`, or targets are 0 or 1, or a step does not take all rows.
        """
        if not isinstance(getattr(problems, "model", None), Network):
            raise InputError("collapsed=true needs a network with one hidden layer; leave it out for any other model")
        if problems.noise_variance is None:
            raise InputError(
                "collapsed=true needs targets with Gaussian noise, got targets of 0 and 1, with which output weights "
                "have no closed form; leave it out"
            )
        if rows_per_step != problems.N:
            raise InputError(
                f"collapsed=true needs all {problems.N} training rows at each step, got a minibatch of "
                f"{rows_per_step}; set minibatch=full"
            )
        return CollapsedData(
            problems.X, problems.y, problems.noise_variance, problems.low, problems.high, problems.model
        )

    @property
    def k(self) -> int:
        return int(self.model.k_hidden)

    def nll(self, w: Float[Tensor, "B S more"]) -> Float[Tensor, "B S"]:
        """−log p(y | u), NaN where u is not finite: its Cholesky factor would raise an error for the whole batch."""

        def alone(u: Tensor, *data: Tensor) -> Tensor:
            finite = u.isfinite().all(-1)
            value = self.model.log_likelihood(torch.where(finite[:, None], u, 0.0), *data)
            return -torch.where(finite, value, torch.nan)

        return _each(alone, w[..., : self.k], self.X, self.y, self.noise_variance)

    def functions(self, w: Float[Tensor, "1 S k"], x: Float[Tensor, "1 n D"], seed: int) -> Float[Tensor, "1 S n"]:
        """f with output weights drawn from their posterior given u."""
        output = self.model.output_posterior(w[0], self.X[0], self.y[0], self.noise_variance[0])
        generator = torch.Generator(w.device).manual_seed(derive_seed("output weights", seed) % 2**63)
        noise = torch.empty_like(output.mean).normal_(generator=generator)
        return self.model.values(torch.cat([w[0], draw_outputs(output, noise)], -1), x[0])[None]  # type: ignore[no-any-return]


class _Identity:
    """φ(x) = x for any number of problems."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def __getitem__(self, problem: int) -> _Identity:
        return self


def _require_rows(X: object, y: object, variance: object) -> None:
    """Raises InputError if these are not the training rows of a network."""
    for name, part in (("X", X), ("y", y)):
        if not isinstance(part, Tensor) or part.dtype != torch.float64:
            got = part.dtype if isinstance(part, Tensor) else type(part).__name__
            raise InputError(f"{name} is {got}, expected a tensor of float64; convert it")
    assert isinstance(X, Tensor)
    assert isinstance(y, Tensor)
    if X.ndim != 2 or y.shape != X.shape[:1]:
        raise InputError(f"X has shape {list(X.shape)} and y {list(y.shape)}, expected [N, D] and [N]")
    if variance is None:
        if bool(((y != 0) & (y != 1) & ~y.isnan()).any()):
            raise InputError("a target is neither 0 nor 1, which targets without a noise variance must be; recode them")
    elif not isinstance(variance, float | int | Tensor) or torch.as_tensor(variance).shape != () or not variance > 0:
        raise InputError(f"the noise variance is {variance!r}, expected one positive number")


def _each(function: Callable[..., Tensor], *batches: Tensor) -> Tensor:
    """A function of one problem's tensors, applied to every problem."""
    if batches[0].device.type != "cpu":
        return vmap(function)(*batches)
    return one_by_one(lambda *parts: function(*(part[0] for part in parts))[None], *batches)


# --- Tangents ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tangent(Stacked):
    """φ(x) = ∂f(x)/∂w at weights w₀."""

    at: Float[Tensor, "B k"]
    network: NetworkData

    def __call__(self, x: Float[Tensor, "B n D"]) -> Float[Tensor, "B n k"]:
        return self.network.jacobian(self.at, x)


@dataclass(frozen=True, eq=False)
class Linearised(TrainingData):
    """The linear model f(x) = f₀(x) + J(x)(w − w₀) of each network around weights w₀; its targets are y − f₀ + Jw₀.

    At a mode of the network's posterior it has the same mode, and its exact posterior is Laplace's approximation with
    the Gauss-Newton curvature JᵀJ/σ² + I. Rows with targets of 0 and 1 are weighted by the roots of their curvatures in
    f, so that their noise has variance 1 (see `maths.likelihood.working`).
    """

    feature_map: Tangent  # type: ignore[assignment]

    @staticmethod
    def at(network: NetworkData, w: Float[Tensor, "B k"]) -> Linearised:
        """Around these weights; if they are not finite, the targets are NaN, and the problem counts as diverged."""
        found = w.isfinite().all(-1, keepdim=True)
        w = torch.where(found, w, 0.0)
        J, f = network.jacobian(w, network.X), network.values(w[:, None], network.X)[:, 0]
        if (variance := network.noise_variance) is None:
            root, residual = (_each(lambda y, f, part=part: working(y, f)[part], network.y, f) for part in (0, 1))
            J, variance = root[..., None] * J, torch.ones_like(f[:, 0])
        else:
            residual = network.y - f
        y = torch.where(found, residual + one_by_one(matvec, J, w), torch.nan)
        return Linearised(network.X, y, J, variance, network.low, network.high, Tangent(w, network))

    def functions(self, w: Float[Tensor, "1 S k"], x: Float[Tensor, "1 n D"], seed: int) -> Float[Tensor, "1 S n"]:
        at, network = self.feature_map.at[:, None], self.feature_map.network
        return network.values(at, x) + products(self.feature_map(x), w - at)


@torch.enable_grad()
def modes(network: NetworkData, starts: Float[Tensor, "B k"]) -> Float[Tensor, "B k"]:
    """A mode of each posterior (a network has many), found by at most `MODE_STEPS` iterations of L-BFGS from these
    weights; NaN where the search fails.

    On the larger official networks the search ends with gradients of up to 0.04, and 0.001 nats above the mode.
    """
    return torch.cat([_mode(network.only(place), start) for place, start in enumerate(starts)])


def _mode(network: NetworkData, start: Float[Tensor, " k"]) -> Float[Tensor, "1 k"]:
    w = nn.Parameter(start[None].clone())
    optimizer = LBFGS([w])
    for _ in range(MODE_STEPS):
        value = optimizer.step(lambda: network.nll(w[:, None]).sum() + 0.5 * w.square().sum())
        if not math.isfinite(value):
            return torch.full_like(w, torch.nan)
        if optimizer.converged:
            break
    return w.detach()
