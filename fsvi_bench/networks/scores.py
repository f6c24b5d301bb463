"""Scores of functions drawn from an approximation q of a network's posterior, against the task's reference.

Every score has a standard error, which includes the reference's except for `nlpd`, and a floor, which is what exact
draws score: one half of the reference against the other. Distances between finite sets grow as the sets get smaller:
KLs near 0 with the sum of both inverse sizes, the others with its root. That sum is the same for n draws and the whole
reference, of S draws, as for a set of nS/(S − n) draws and half the reference, which is what the floor compares. So
exact draws score at the floor, within the errors, if they are at most S/3; of more, the floor is that of S/2 draws, so
floors of distances are too high, for KLs by a third at S/2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any

import torch
from jaxtyping import Int
from pydantic import BeforeValidator
from torch import Tensor

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
from fsvi_bench.strict import Plain

FLOOR_SETS = 8  #: at most, of exact draws
OVERFLOW = 1e70  #: fourth powers of smaller values are finite


def _or_none(number: Any) -> Any:
    return None if isinstance(number, float) and math.isnan(number) else number


Number = Annotated[float | None, BeforeValidator(_or_none)]


class Score(Plain):
    """A score with its standard error, and both for one half of the reference against the other.

    They are null where they do not exist: functions that are all equal have no order of variances.
    """

    value: Number
    error: Number
    floor: Number
    floor_error: Number


class NetworkScores(Plain):
    """Scores by name and place, such as `predictive_kl_test`; lower is better except for `variance_ranks`.

    predictive_kl: mean over the 20 inputs of KL(reference ‖ q) between predictive densities, with noise, in nats;
        for targets of 0 and 1 between the predictive probabilities.
    total_variation: the same of their total variation. w1, w2: of Wasserstein distances between distributions of f.
    energy_distance_n, mmd2_n: of f at the first n inputs jointly, unbiased, so they may be negative.
    variance_ranks: Spearman's correlation over inputs between the variances of f.
    nlpd: at the 20 test inputs, in the target's original unit, or the mean log loss; descriptive, its floor is the
        whole reference's.
    """

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
    floor = _floor(reference, task, len(q)) | _joint_floor(reference)
    found = {
        name: Score(value=value, error=error, floor=floor[name].value, floor_error=floor[name].error)
        for name, (value, error) in _compare(q, reference, task)
    }
    nlpd, at_best = (_nlpd(of, task) for of in (q, reference))
    found["nlpd"] = Score(value=nlpd.value, error=nlpd.error, floor=at_best.value, floor_error=at_best.error)
    return NetworkScores(task=task.name, functions=len(q), scores=found)


@lru_cache(8)  # a run scores many approximations of one posterior
def _floor(reference: Functions, task: NetworkTask, functions: int) -> dict[str, Estimate]:
    """Scores by input of sets of one half of the reference against the other half: means over the sets."""
    sets, others = floor_sets(len(reference), functions), reference[len(reference) // 2 :]
    found: dict[str, Estimate] = {}
    for place in PLACES:
        estimates = [_by_input(*_groups(reference[each], others, place), task) for each in sets]
        for name in estimates[0]:
            found[f"{name}_{place}"] = _mean([each[name] for each in estimates], len(sets[0]) / len(others))
    return found


def floor_sets(S: int, functions: int) -> list[Int[Tensor, " n"]]:
    """Disjoint sets of draws from the first half of a reference of S draws, at most `FLOOR_SETS`, evenly spaced.

    Their size makes up for the other half being smaller than the reference, with which q is compared.
    """
    half = S // 2
    count = round(1 / max(1 / functions + 1 / S - 1 / (S - half), 1 / half))
    evenly, apart = torch.arange(count) * half // count, half // count
    return [evenly + first for first in range(0, apart, -(-apart // FLOOR_SETS))]


@lru_cache(8)
def _joint_floor(reference: Functions) -> dict[str, Estimate]:
    """Joint distances of one half of the reference from the other.

    They are unbiased, so any number of draws serves; all of them would take four times as long as every second one.
    """
    half = len(reference) // 2
    found = {place: _joint(*_groups(reference[:half:2], reference[half::2], place)) for place in PLACES}
    return {f"{name}_{place}": each for place, of in found.items() for name, each in of.items()}


def _mean(estimates: list[Estimate], ratio: float) -> Estimate:
    """The mean of scores of disjoint sets of draws against the same other draws, with its standard error.

    The variance of one score has a part of the set and one of the other draws. To first order, the second is `ratio`
    times the first, `ratio` being the number of draws of a set over that of the others. Only the first averages out.
    Distances that are nearly 0 have no first order: their errors come out too large rather than too small.
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
