"""Scores of functions drawn from an approximation q of a network's posterior, against the task's reference.

Every score has a standard error, which includes the reference's, and a floor, which is what exact draws score: one half
of the reference against the other. Distances between finite sets grow as the sets get smaller, so the first half is
divided into sets of about as many draws as q has functions. Exact draws score at the floor, within the errors, as long
as there are no more of them than in half the reference.
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
from fsvi_bench.networks.task import PLACES, NetworkTask, Place

FLOOR_SETS = 16  #: at most, of exact draws
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
    """Scores of one half of the reference against the other, as means over sets of as many draws as q has functions.

    Joint distances are unbiased for sets of any size, so that they need no sets.
    """
    half = len(reference) // 2
    exact, other = reference[:half], reference[half:]
    apart = max(1, half // functions)
    sets = [exact[first::apart] for first in range(0, apart, -(-apart // FLOOR_SETS))]
    found: dict[str, Estimate] = {}
    for place in PLACES:
        estimates = [_by_input(*_groups(each, other, place), task) for each in sets]
        for name in estimates[0]:
            found[f"{name}_{place}"] = _mean([each[name] for each in estimates], len(sets[0]) / len(other))
        found |= {f"{name}_{place}": each for name, each in _joint(*_groups(exact, other, place)).items()}
    return found


def _mean(estimates: list[Estimate], ratio: float) -> Estimate:
    """The mean of scores of disjoint sets of draws against the same other draws.

    To first order, a set's part of an error's variance is to the other draws' as their number is to the set's, whose
    ratio is given. Only the sets' parts average out.
    """
    value, variance = torch.tensor([(each.value, each.error**2) for each in estimates], dtype=torch.float64).mean(0)
    return Estimate(float(value), float((variance * (1 / len(estimates) + ratio) / (1 + ratio)).sqrt()))


def _compare(q: Functions, reference: Functions, task: NetworkTask) -> Iterator[tuple[str, Estimate]]:
    for place in PLACES:
        groups = _groups(q, reference, place)
        found = _by_input(*groups, task) | _joint(*groups)
        yield from ((f"{name}_{place}", estimate) for name, estimate in found.items())


def _groups(q: Functions, reference: Functions, place: Place) -> tuple[Groups, Groups]:
    return Groups.split(q.at(place)), Groups.split(reference.at(place))


def _by_input(q: Groups, reference: Groups, task: NetworkTask) -> dict[str, Estimate]:
    """Scores of the distributions at single inputs."""
    kl, variation = predictive_distances(q, reference, task.noise_variance)
    w1, w2 = wasserstein_distances(q, reference)
    ranks = rank_agreement(q, reference)
    return {"predictive_kl": kl, "total_variation": variation, "w1": w1, "w2": w2, "variance_ranks": ranks}


def _joint(q: Groups, reference: Groups) -> dict[str, Estimate]:
    """Scores of the joint distributions at several inputs."""
    found: dict[str, Estimate] = {}
    for n in JOINT_INPUTS:
        found[f"energy_distance_{n}"], found[f"mmd2_{n}"] = joint_distances(q, reference, n)
    return found


def _nlpd(q: Functions, task: NetworkTask) -> Estimate:
    """Mean over the test inputs; the error is that of drawing q's functions."""
    density = log_density(task.targets_test, q.at("test"), task.noise_variance)
    of_all = density.logsumexp(0)
    # The delta method for the log of a mean, summed over inputs function by function.
    influence = ((density - of_all).exp() * len(density)).mean(1)
    error = float(influence.std()) / math.sqrt(len(density))
    return Estimate(math.log(task.unit) - float((of_all - math.log(len(density))).mean()), error)
