"""Scores of functions drawn from an approximation q of a network's posterior, against the task's reference.

Every score has a standard error, which includes the reference's, and a floor: the score of one half of the reference
against the other, thinned to about as many draws as q has functions. Exact draws score at the floor, within the errors,
as long as there are no more of them than in half the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict

from fsvi_bench.errors import InputError
from fsvi_bench.maths.likelihood import log_density
from fsvi_bench.networks.comparison import (
    JOINT_INPUTS,
    Estimate,
    Groups,
    joint_distances,
    predictive_distances,
    rank_agreement,
    wasserstein_distances,
)
from fsvi_bench.networks.reference import Functions
from fsvi_bench.networks.task import PLACES, NetworkTask

OVERFLOW = 1e70  #: fourth powers of smaller values are finite


def _or_none(number: Any) -> Any:
    return None if isinstance(number, float) and math.isnan(number) else number


Number = Annotated[float | None, BeforeValidator(_or_none)]


class Score(BaseModel):
    """A score with its standard error, and both for one half of the reference against the other.

    They are null where they do not exist: functions that are all equal have no order of variances.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    value: Number
    error: Number
    floor: Number
    floor_error: Number


class NetworkScores(BaseModel):
    """Scores by name and place, such as `predictive_kl_test`; lower is better except for `variance_ranks`.

    predictive_kl: mean over the 20 inputs of KL(reference ‖ q) between predictive densities, with noise, in nats;
        for targets of 0 and 1 between the predictive probabilities.
    total_variation: the same of their total variation. w1, w2: of Wasserstein distances between distributions of f.
    energy_distance_n, mmd2_n: of f at the first n inputs jointly, unbiased, so they may be negative.
    variance_ranks: Spearman's correlation over inputs between the variances of f.
    nlpd: at the 20 test inputs, in the target's original unit, or the mean log loss; descriptive, its floor is the
        whole reference's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    task: str
    functions: int
    scores: dict[str, Score]


def score_functions(q: Functions, task: NetworkTask, reference: Functions) -> NetworkScores:
    """All scores of q, with floors.

    Raises:
        InputError: values of q are so large that scores overflow.
    """
    largest = float(torch.stack([tensor.abs().max() for tensor in q.tensors.values()]).max())  # NaN if one is
    if not largest < OVERFLOW:
        raise InputError(f"function values reach {largest:.1e}, expected below {OVERFLOW:g}; rescale them")
    floor = _floor(reference, task, len(q))
    found = {
        name: Score(value=value, error=error, floor=floor[name].value, floor_error=floor[name].error)
        for name, (value, error) in _compare(q, reference, task)
    }
    nlpd, at_best = (_nlpd(of, task) for of in (q, reference))
    found["nlpd"] = Score(value=nlpd.value, error=nlpd.error, floor=at_best.value, floor_error=at_best.error)
    return NetworkScores(task=task.name, functions=len(q), scores=found)


@lru_cache(8)  # a run scores many approximations of one posterior
def _floor(reference: Functions, task: NetworkTask, functions: int) -> dict[str, Estimate]:
    """Scores of one half of the reference against the other."""
    half = len(reference) // 2
    # As many exact draws as q has functions: distances between finite sets grow as the sets get smaller.
    exact = reference[: half : max(1, half // functions)]
    return dict(_compare(exact, reference[half:], task))


def _compare(q: Functions, reference: Functions, task: NetworkTask) -> Iterator[tuple[str, Estimate]]:
    for place in PLACES:
        groups = Groups.split(q.at(place)), Groups.split(reference.at(place))
        kl, variation = predictive_distances(*groups, task.noise_variance)
        w1, w2 = wasserstein_distances(*groups)
        found = {"predictive_kl": kl, "total_variation": variation, "w1": w1, "w2": w2}
        for n in JOINT_INPUTS:
            found[f"energy_distance_{n}"], found[f"mmd2_{n}"] = joint_distances(*groups, n)
        found["variance_ranks"] = rank_agreement(*groups)
        yield from ((f"{name}_{place}", estimate) for name, estimate in found.items())


def _nlpd(q: Functions, task: NetworkTask) -> Estimate:
    """Mean over the test inputs; the error is that of drawing q's functions."""
    density = log_density(task.targets_test, q.at("test"), task.noise_variance)
    of_all = density.logsumexp(0)
    # The delta method for the log of a mean, summed over inputs function by function.
    influence = ((density - of_all).exp() * len(density)).mean(1)
    error = float(influence.std()) / math.sqrt(len(density))
    return Estimate(math.log(task.unit) - float((of_all - math.log(len(density))).mean()), error)
