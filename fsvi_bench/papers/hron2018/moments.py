"""Hron, Matthews and Ghahramani (2018), section 3.2: wherever one likes, a posterior mean under a truncated prior."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.hron2018.log_uniform import (
    Likelihood,
    log_uniform_mass,
    sequence_to_constant,
    sequence_to_infinity,
    sequence_to_zero,
    truncated_log_uniform_posterior,
)

LOWEST = -45.0  #: of log |w| in quadratures: what lies below adds e^−90 to a first or second moment
#: Log of the smallest and the largest normal number; and the intervals that KSW, whom the paper cites, print in their
#: appendix A: 2^±8 and 2^±11, the exponents' widths in bits in the place of the exponents.
FORMATS = {"single": (-126, 128), "double": (-1022, 1024), "single, in KSW": (-8, 8), "double, in KSW": (-11, 11)}


class Settings(BaseModel):
    """How far each sequence goes (|a| to `largest_size`; b), the constants to reach, points per sequence."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    largest_size: float = Field(gt=100)
    constants: list[Annotated[float, Field(gt=0)]] = Field(min_length=1, max_length=4)
    largest_b_constant: float = Field(gt=5, le=30)
    largest_b_infinity: float = Field(gt=2, le=350)
    points: int = Field(ge=6)


def quadrature_moments(a: float, b: float, likelihood: Likelihood) -> tuple[float, float]:
    """E w and E w² by integration of likelihood/|w|, whose mass is b − a as both sides of a logistic one add to 1."""

    def moment(power: int) -> float:
        def both_sides(w: Tensor) -> Tensor:
            """In one integrand: apart, they would cancel near 0."""
            return w**power * (likelihood(w) + (-1) ** power * likelihood(-w))

        return float(log_uniform_mass(both_sides, max(a, LOWEST), b)) / (b - a)

    return moment(1), moment(2)


def follow(tends: str, a: Tensor, b: Tensor, **others: Tensor | float) -> pd.DataFrame:
    """The moments by equations 1 and 2. Logarithms, since some values exceed what a logarithmic axis can take."""
    mean, variance = truncated_log_uniform_posterior(a, b)
    columns = {
        "a": a,
        "b": b,
        "mean": mean,
        "variance": variance,
        "log_mean": mean.log10(),
        "log_variance": variance.log10(),
        "over_growth": mean * b / b.exp(),
        "asymmetry": b / -a - 1,
    }
    return pd.DataFrame({"tends": tends, **columns, **others})


def sequences(settings: Settings) -> list[pd.DataFrame]:
    """The paper's three, by what the mean tends to; the second for each constant."""
    sizes = torch.logspace(1, math.log10(settings.largest_size), settings.points, dtype=torch.float64)
    followed = [follow("to 0", *sequence_to_zero(sizes), size=sizes)]
    for c in settings.constants:
        start = max(0.0, math.log(c)) + 0.5  # where b exceeds log c, a falls
        b = torch.linspace(start, settings.largest_b_constant, settings.points, dtype=torch.float64)
        followed.append(follow(f"to {c:g}", *sequence_to_constant(b, c), c=c, log_c=math.log10(c)))
    b = torch.linspace(1, settings.largest_b_infinity, settings.points, dtype=torch.float64)
    growth = (b - (2 * b).log()) / math.log(10)
    return [*followed, follow("to infinity", *sequence_to_infinity(b), log_growth=growth)]


def end_of(steps: pd.DataFrame) -> pd.Series:
    """A sequence's last step with what tells of limits there.

    `mirrored` is the mean after (x, y) = (−1, 1); slopes and spread are those of the second half.
    """
    end, change, late = steps.iloc[-1], steps[["a", "b"]].diff()[1:], steps[len(steps) // 2 :]
    quadrature = [quadrature_moments(a, b, torch.sigmoid) for a, b in zip(steps["a"], steps["b"], strict=True)]
    closed = np.stack([steps["mean"], steps["variance"] + steps["mean"] ** 2], axis=1)
    mirrored, _ = quadrature_moments(end["a"], end["b"], lambda w: torch.sigmoid(-w))
    logs = math.log(10) * late[["log_mean", "log_variance"]].diff()[1:]
    ratio = late["over_growth"].to_numpy()
    found = {
        "quadrature": np.abs(quadrature / closed - 1).max(),
        "widening": (change * [-1, 1]).to_numpy().min(),
        "largest_change": logs.to_numpy().max(),
        "least_growth": (logs["log_variance"] / late["b"].diff()[1:]).min(skipna=False),
        "spread": (ratio.max() - ratio.min()) / ratio.mean(),
        "distance": end["mean"] / end.get("c", math.nan) - 1,
        "mirrored_distance": mirrored / end.get("c", math.nan) + 1,
        "log_mirrored": math.log10(-mirrored),
    }
    return pd.concat([end, pd.Series(found)])


def second_term(a: float) -> float:
    """Of equation 1 at b = 1: h(e^a) + h(−e^a) with h(x) = log(1 + e^x), over b − a."""
    return np.logaddexp(0, [math.exp(a), -math.exp(a)]).sum() / (1 - a)


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """The three sequences, and what they end at."""
    followed = sequences(settings)
    steps = pd.concat(followed)
    places = [0, settings.points // 2, settings.points - 1]
    intervals = math.log(2) * torch.tensor(list(FORMATS.values()), dtype=torch.float64)
    formats = follow("", *intervals.T).assign(format=list(FORMATS))
    single, double, *_ = formats["log_mean"]
    return Findings(
        frames={
            "steps": steps,
            "places": steps[steps.index.isin(places)],
            "ends": pd.DataFrame([end_of(each) for each in followed]),
            "formats": formats,
        },
        statistics={
            "fixed b: second term of equation 1 at the lowest a": second_term(-settings.largest_size),
            "floating point: log10 of the ratio of posterior means, double over single": double - single,
        },
    )


HRON2018_MOMENTS = Experiment("hron2018-moments", Settings, investigate)
