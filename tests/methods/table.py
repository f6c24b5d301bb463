"""What the tests of `methods/` share: problems of several shapes, the table of methods, a q and its parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from fsvi_bench.conformance.subject import odd_problems, take, toy_problems
from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import load_method
from fsvi_bench.posteriors.base import Family
from fsvi_bench.tasks.task import Task
from fsvi_bench.training.trainer import train
from tests.maths.draws import zeros

f64 = torch.float64
__all__ = ["odd_problems", "take"]  # the suite's, for those who import them from here
STEPS = 10  # one more than a chunk of measurement sets, and some to average
Settings = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A method and a family.

    Args:
        variants: settings for problems with k = 20 and N = 40, one for each way that the method's arithmetic can take
            (batched, one by one, more or fewer measurement points than weights, ...). `max_steps` is the suite's.
        one_go: nothing is trained, as in a closed form, but draws are made.
        starts_at_prior: False where q cannot be the prior to the last bit: it is no Gaussian, has no spread without a
            mean, or is the sum of two covariances.
        closed_form: nothing is trained and nothing is drawn: no prior to start from, no seed, no step to name.
        drawn: nothing is trained either, but what the formula takes is drawn.
    """

    method: str
    family: Family
    variants: tuple[Settings, ...] = ({},)
    closed_form: bool = False
    drawn: bool = False
    one_go: bool = False
    starts_at_prior: bool = True

    @property
    def trains(self) -> bool:
        """Whether there are steps to look at."""
        return not (self.closed_form or self.one_go)


# M = 10 is projected on the span of Φ_A, M = 15 on its complement, M = 30 sees all; 13 and 15 are no multiples of 4.
SEES_ALL = 30
BY_ADAM = (
    {"M": 10, "minibatch": "full"},
    {"M": 10, "minibatch": 7},
    {"M": 15, "minibatch": 7, "averaging": 0.5, "lr_schedule": "cosine"},
    {"M": SEES_ALL, "minibatch": "full", "draw_A": "data"},
    {"M": 13, "minibatch": "full", "draw_A": "box", "kl_jitter": 1e-6, "kl_weight": "N/B"},
    {"M": 15, "minibatch": 7, "parametrisation": "eigenbasis", "averaging": 0.5},
    {"M": 10, "minibatch": "full", "parametrisation": "eigenbasis", "off_diagonal_lr": 0.1},
)
BY_LBFGS = (
    {"M": 10},
    {"M": 13, "kl_weight": 0.5, "kl_jitter": 1e-4},
    {"M": SEES_ALL},
    {"M": 15, "parametrisation": "eigenbasis"},
)
BY_NATURAL_GRADIENTS = ({"M": 10}, {"M": 15, "kl_weight": 2.0, "averaging": 0.0}, {"M": SEES_ALL, "decay": 0.0})
BY_SAMPLES = (
    *({**settings, "S": 12} for settings in BY_ADAM),
    {"M": 10, "minibatch": 7, "S": 9, "prior_score": "ssge", "injected_noise": 0.01},
    {"M": 13, "minibatch": "full", "S": 16, "prior_score": "ssge", "bandwidth": 2.0},
    {"M": 13, "minibatch": 7, "S": 9, "score_estimator": "stein", "kl_jitter": 1e-4},
    {"M": 10, "minibatch": "full", "S": 8, "score_estimator": "kef", "regularisation": 1e-2, "prior_score": "ssge"},
    {"M": 10, "minibatch": 7, "S": 9, "score_estimator": "nu", "regularisation": 1e-2, "bandwidth": 2.0},
    {"M": 15, "minibatch": 7, "S": 16, "score_estimator": "gaussian-oracle", "injected_noise": 0.01},
    {"M": SEES_ALL, "minibatch": 7, "S": 50, "score_estimator": "gaussian-oracle", "prior_score": "ssge"},
)
BY_FORMULA = ({}, {"retain_probability": 1.0, "l": 2.0}, {"optimise": "shared"}, {"optimise": "per-weight"})
BY_NOISE = (
    {"minibatch": "full", "estimator": "exact"},
    {"minibatch": 7},
    {"minibatch": 8, "noise": "A", "averaging": 0.5, "lr_schedule": "cosine"},
    {"minibatch": "full", "estimator": "per-minibatch"},
    {"minibatch": 7, "parametrisation": "eigenbasis"},
)
BY_MASKS = tuple({**each, "training": "masks"} for each in BY_NOISE if "noise" not in each)
BY_LEARNED_NOISE = (
    *BY_NOISE,
    {"minibatch": 7, "alphas": "layer", "kl": "cubic"},
    {"minibatch": 7, "kl": "lower-bound", "kl_scale": 1 / 3},
    {"minibatch": 7, "free_alpha": True, "alpha": 2.0},
    {"minibatch": 7, "prior": "task"},
)
BY_LAW = ({}, {"rho": "box"}, {"rho": "mixed"})
BY_DISTANCE = (*BY_LAW, *({**s, "distance": "w2"} for s in BY_LAW), {"weight": 30.0})
BY_ADAM_UNDER_A_LAW = (
    {"training": "adam", "minibatch": 7},
    {"training": "adam", "minibatch": 8, "rho": "box", "averaging": 0.5, "lr_schedule": "cosine"},
    {"training": "adam", "minibatch": 7, "rho": "mixed"},
    {"training": "adam", "minibatch": 7, "parametrisation": "eigenbasis"},
)
BY_CONTEXT = (
    {}, {"context": "box", "context_points": 9}, {"context": "mixed", "context_points": 9},
    {"context": "inducing-points"}, {"context": "box", "context_points": 9, "truncation": "context-span"},
)  # fmt: skip
BY_RELAXED_MASKS = ({"minibatch": "full"}, {"minibatch": 7, "probabilities": "weight", "estimator": "per-minibatch"},
    {"minibatch": 7, "parametrisation": "eigenbasis"})  # fmt: skip
BY_NEWTON = ({"minibatch": "full", "S": 3}, {"minibatch": 7, "averaging": 0.5, "beta2": 0.9})
BY_SGD = ({"minibatch": 7, "every": 1, "rank": 3}, {"minibatch": "full", "momentum": 0.0, "burn_in": 0.0})
BY_CHAINS = ({"particles": 12}, {"minibatch": 7, "particles": 9})
BY_ANCHORS = (*BY_CHAINS, {"minibatch": 7, "particles": 9, "parametrisation": "eigenbasis"})
BY_REPULSION = (
    {"minibatch": "full", "particles": 9},
    {"minibatch": 7},
    {"minibatch": 7, "parametrisation": "eigenbasis"},
)
BY_DRAWS = ({"minibatch": "full"}, {"minibatch": 7, "S": 3}, {"minibatch": "full", "parametrisation": "eigenbasis"})
BY_RANK = (
    *({"minibatch": 7, "rank": rank} for rank in (1, 5, 10, 40)),
    {"minibatch": 7, "rank": 5, "parametrisation": "eigenbasis"},
)
BY_FUNCTIONS = (
    {"M": 10, "minibatch": 7, "particles": 9},
    {"M": 13, "minibatch": "full", "draw_A": "mixed", "averaging": 0.5},
    {"M": 25, "minibatch": 7, "draw_A": "data", "particles": 5},
    {"M": 10, "minibatch": 7, "parametrisation": "eigenbasis", "particles": 9},
)
BY_ENERGIES = (
    {"minibatch": "full"},
    {"minibatch": 7, "averaging": 0.5},
    {"minibatch": 7, "parametrisation": "eigenbasis"},
)
TABLE = (
    Row("bernoulli-dropout", "bernoulli", BY_FORMULA, closed_form=True),
    Row("bernoulli-dropout", "bernoulli", BY_MASKS, starts_at_prior=False),
    Row("concrete-dropout", "bernoulli", BY_RELAXED_MASKS, starts_at_prior=False),
    Row("ensemble", "particles", BY_ENERGIES, starts_at_prior=False),
    Row("exact", "full", closed_form=True),
    Row("exact", "ffg", closed_form=True),
    Row("f-svgd", "particles", BY_FUNCTIONS, starts_at_prior=False),
    Row("fbnn", "full", BY_SAMPLES[:1]),
    Row("fbnn", "ffg", BY_SAMPLES[1:2]),
    Row("fixed-a", "full", BY_LBFGS + tuple({**settings, "optimizer": "adam"} for settings in BY_ADAM)),
    Row("fixed-a", "ffg", BY_LBFGS + tuple({**settings, "optimizer": "adam"} for settings in BY_ADAM)),
    Row("fsp-laplace", "factor", BY_CONTEXT, closed_form=True),
    Row("gaussian-dropout", "ffg", BY_NOISE, starts_at_prior=False),
    Row("gfsvi", "factor", (*BY_LAW, {"gamma": 1e-6}, {"gamma": 10.0, "rho": "box"}), closed_form=True),
    Row("gfsvi", "factor", (*BY_ADAM_UNDER_A_LAW, {"training": "adam", "minibatch": 7, "gamma": 1e-3})),
    *(Row("gwi", family, BY_DISTANCE, closed_form=True) for family in ("full", "ffg")),
    *(
        Row("gwi", family, (*BY_ADAM_UNDER_A_LAW, {"training": "adam", "minibatch": 7, "distance": "w2"}))
        for family in ("full", "ffg")
    ),
    Row("hmc", "particles", ({"burn_in": 0.4},), one_go=True),
    Row("ivon", "ffg", BY_NEWTON, starts_at_prior=False),
    Row("laplace", "full", ({}, {"structure": "diag"}, {"structure": "low-rank", "rank": 3}), closed_form=True),
    Row("low-rank-vi", "full", BY_RANK, starts_at_prior=False),
    Row("mean-field-vi", "ffg", BY_DRAWS),
    Row("rand-a", "full", BY_ADAM),
    Row("rand-a", "ffg", BY_ADAM),
    Row("rand-a-ngd", "full", BY_NATURAL_GRADIENTS),
    Row("rand-a-ngd", "ffg", BY_NATURAL_GRADIENTS),
    Row("sample-then-optimise", "particles", BY_ANCHORS, starts_at_prior=False),
    Row("sghmc", "particles", BY_CHAINS, starts_at_prior=False),
    Row("sgld", "particles", BY_CHAINS, starts_at_prior=False),
    Row("sparse-variational-dropout", "ffg", (*BY_NOISE, {"kl": "sigmoid"})),
    Row("spike-and-slab", "spike-slab", ({}, {"f": 0.9, "l": 2.0}), closed_form=True),
    Row("ssge", "full", BY_SAMPLES),
    Row("ssge", "ffg", BY_SAMPLES),
    Row("svgd", "particles", BY_REPULSION, starts_at_prior=False),
    Row("swag", "full", BY_SGD),
    Row("variational-dropout", "ffg", BY_LEARNED_NOISE, starts_at_prior=False),
    Row("vip", "factor", ({}, {"draws": 5}, {"draws": 40}), closed_form=True, drawn=True),
)


def label(value: object) -> str | None:
    if isinstance(value, Row):
        return f"{value.method}-{value.family}"
    if isinstance(value, dict):
        return ",".join(f"{name}={setting}" for name, setting in value.items()) or "defaults"
    return None


rows = pytest.mark.parametrize("row", TABLE, ids=label)
trained_rows = pytest.mark.parametrize("row", [row for row in TABLE if row.trains], ids=label)
variants = pytest.mark.parametrize(
    ("row", "settings"), [(row, settings) for row in TABLE for settings in row.variants], ids=label
)
trained_variants = pytest.mark.parametrize(
    ("row", "settings"),
    [(row, settings) for row in TABLE for settings in row.variants if row.trains],
    ids=label,
)


def toys() -> tuple[Task, ...]:
    """20 problems with k = 20 and N = 40, whose weights differ as well as their data."""
    return toy_problems(20)


def twenty_targets(problem: Task) -> TrainingData:
    """One problem's inputs and features, 20 times, with targets drawn from its own model."""
    g = torch.Generator().manual_seed(0)
    data = TrainingData.of([problem] * 20)
    weights = torch.randn(20, data.k, 1, generator=g, dtype=f64)
    noise = torch.randn(data.y.shape, generator=g, dtype=f64) * problem.frozen.noise_variance.sqrt()
    return replace(data, y=(data.Phi @ weights)[..., 0] + noise)


def from_the_prior(name, settings):
    """The settings with the weights as coordinates and a start at the prior, unless they say otherwise: what a test is
    about must not depend on what the search for defaults chose."""
    fields = load_method(name).cls.Options.model_fields
    own = {each: fields[each].default for each in ("parametrisation", "initial_scale") if each in fields}
    return own | settings


def method_on(name, data, family, settings=None, seeds=None, **options):
    """A method that is not yet trained."""
    entry = load_method(name)
    seeds = list(range(1, len(data) + 1)) if seeds is None else seeds
    return entry.cls(data, family, seeds, entry.options(from_the_prior(name, settings or {})), **options)


def trained_method(name, data, family, settings, observe=None, at=(), **options):
    method = method_on(name, data, family, settings, **options)
    train(method, "cpu", observe, at)
    assert list(method.divergences()) == [None] * len(data)
    return method


def random_q(family, k, seed=0):
    """Mean, and a covariance factor far from the prior's."""
    g = torch.Generator().manual_seed(seed)
    mean, draw = torch.randn(k, generator=g, dtype=f64), torch.randn(k, k, generator=g, dtype=f64)
    scale = torch.exp(0.5 * draw.diagonal())
    return mean, torch.diag(scale) + (0.3 * draw.tril(-1) if family == "full" else 0)


def of_objective(method, place, task, q=None):
    """(KL(q* ‖ P_D) at the objective's optimum q*, how far above it q is), as records have them; q as `loss` takes it."""
    tasks = [task] * len(method.problems)
    optimum = method.optima(tasks)[place]
    return optimum.kl, method.objective(place, task, q=q) - optimum.value


def terms(q):
    """A Gaussian posterior of one problem as losses take a batch of them."""
    return Gaussian(q.mean[None], q.root[None])


def first_batch(method):
    """What the first step sees."""
    return next(iter(method.data().train_dataloader()))


def place(q, mean, tril):
    """Moves a `TrainableGaussian` (of one problem) to a given q; dummy weights stay at the prior."""
    k = len(mean)
    q.mean.data[0, :k] = mean
    if hasattr(q, "lower"):
        q.lower.data[0, :k, :k] = tril.tril(-1) + torch.diag(tril.diagonal().log())
    else:
        q.log_scale.data[0, :k] = tril.diagonal().log()


def gradients(q, loss):
    """∂loss/∂mean, ∂/∂(strictly lower L) and ∂/∂(log diagonal) of a `TrainableGaussian`; zero for dummy weights."""
    k = q.k
    in_mean, last = (part[0] for part in torch.autograd.grad(loss.sum(), list(q.parameters())))
    assert not in_mean[k:].any()
    assert not last[k:].any()
    if last.ndim == 1:
        return in_mean[:k], zeros(0), last[:k]
    assert not last.triu(1).any()
    return in_mean[:k], last[:k, :k][tuple(torch.tril_indices(k, k, -1))], last.diagonal()[:k]


def rank(Phi_A):
    values = torch.linalg.svdvals(Phi_A)
    return int((values > 1e-9 * values[0]).sum())
