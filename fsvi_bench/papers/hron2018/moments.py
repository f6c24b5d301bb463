"""Hron, Matthews and Ghahramani (2018), section 3.2: under a truncated prior the posterior mean can have any limit."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from pydantic import Field, PositiveFloat
from scipy.special import expit

from fsvi_bench.papers.experiment import ExperimentContext, Frames
from fsvi_bench.papers.hron2018.log_uniform import (
    Likelihood,
    Numbers,
    log_uniform_mass,
    posterior_mean,
    posterior_variance,
)
from fsvi_bench.strict import Plain

LOWEST = -45.0  #: lower limit of log |w| in quadratures: the rest contributes e^−90 to a first or second moment
#: Logarithms of the smallest and the largest normal number; and the intervals printed in appendix A of KSW, whom the
#: paper cites: 2^±8 and 2^±11, the exponents' widths in bits instead of the exponents.
FORMATS = {"single": (-126, 128), "double": (-1022, 1024), "single, in KSW": (-8, 8), "double, in KSW": (-11, 11)}


class Settings(Plain):
    """The range of each sequence (|a| up to `largest_size`; b), the limits c of the mean, and points per sequence."""

    largest_size: float = Field(gt=100)
    constants: list[PositiveFloat] = Field(min_length=1, max_length=4)
    largest_b_constant: float = Field(gt=5, le=30)
    largest_b_infinity: float = Field(gt=2, le=350)
    points: int = Field(ge=6)


def quadrature_moment(power: int, a: Numbers, b: Numbers, likelihood: Likelihood) -> Numbers:
    """E w^power by integration of likelihood/|w|. The mass is b − a, since a logistic likelihood's sides add to 1."""
    unit = np.exp(b)  # makes moments of all intervals of similar size, as the quadrature's tolerance requires
    mass = log_uniform_mass(lambda w: (w / unit) ** power * likelihood(w), np.maximum(a, LOWEST), b, sides=[1, -1])
    return unit**power * mass / (b - a)


def follow(tends: str, a: Numbers, b: Numbers, c: float = math.nan) -> pd.DataFrame:
    """The moments along a sequence of intervals by equations 1 and 2, and by quadrature; `c` is the mean's limit.

    `mirrored` is the mean after (x, y) = (−1, 1). Logarithms are used since some values exceed the range of a
    logarithmic axis.
    """
    mean, variance = posterior_mean(a, b), posterior_variance(a, b)
    first, second = (quadrature_moment(power, a, b, expit) for power in (1, 2))
    return pd.DataFrame(
        {
            "tends": tends,
            "a": a,
            "b": b,
            "size": -a,
            "c": c,
            "mean": mean,
            "variance": variance,
            "mirrored": quadrature_moment(1, a, b, lambda w: expit(-w)),
            "quadrature": np.maximum(np.abs(first / mean - 1), np.abs(second / (variance + mean**2) - 1)),
            "log_c": math.log10(c),
            "log_mean": np.log10(mean),
            "log_variance": np.log10(variance),
            "log_growth": np.log10(np.exp(b) / (2 * b)),
        }
    )


def sequences(settings: Settings) -> list[pd.DataFrame]:
    """The paper's three sequences, by the mean's limit; the second for each constant c."""
    size = np.geomspace(10, settings.largest_size, settings.points)
    followed = [follow("to 0", -size, np.log(np.log(size)))]
    for c in settings.constants:
        start = max(0.0, math.log(c)) + 0.5  # a decreases if b exceeds log c
        b = np.linspace(start, settings.largest_b_constant, settings.points)
        followed.append(follow(f"to {c:g}", b - np.exp(b) / c, b, c))
    b = np.linspace(1, settings.largest_b_infinity, settings.points)
    return [*followed, follow("to infinity", -b, b)]


def end_of(steps: pd.DataFrame) -> pd.Series:
    """A sequence's last step with indicators of its limits: changes of logarithms and spread in its second half."""
    end, late = steps.iloc[-1], steps[len(steps) // 2 :]
    widening = steps[["a", "b"]].diff()[1:] * [-1, 1]
    log_change = math.log(10) * late[["log_mean", "log_variance"]].diff()[1:]
    ratio = 10 ** (late["log_mean"] - late["log_growth"]).to_numpy()
    return pd.Series(
        {
            **end,
            "quadrature": steps["quadrature"].max(skipna=False),
            "widening": widening.to_numpy().min(),
            "largest_change": log_change.to_numpy().max(),
            "least_growth": (log_change["log_variance"] / late["b"].diff()[1:]).min(skipna=False),
            "spread": np.ptp(ratio) / ratio.mean(),
            "distance": end["mean"] / end["c"] - 1,
            "mirrored_distance": end["mirrored"] / end["c"] + 1,
            "log_mirrored": math.log10(-end["mirrored"]),
        }
    )


def formats() -> pd.DataFrame:
    """The normal numbers of floating-point formats as intervals [a, b]."""
    a, b = math.log(2) * np.transpose(list(FORMATS.values()))
    mean = posterior_mean(a, b)
    growth, asymmetry = mean * b / np.exp(b), b / -a - 1
    return pd.DataFrame(
        {"format": list(FORMATS), "a": a, "b": b, "mean": mean, "over_growth": growth, "asymmetry": asymmetry}
    )


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """Frames of the three sequences and their last steps."""
    followed = sequences(settings)
    steps, by_format = pd.concat(followed), formats()
    places = [0, settings.points // 2, settings.points - 1]
    single, double, *_ = np.log10(by_format["mean"])
    a = -settings.largest_size
    h = np.logaddexp(0, [math.exp(a), -math.exp(a)])  # h(e^a) and h(−e^a), h(x) = log(1 + e^x)
    return {
        "steps": steps,
        "places": steps[steps.index.isin(places)],
        "ends": pd.DataFrame([end_of(each) for each in followed]),
        "formats": by_format,
        "whole": pd.DataFrame([{"second_term": h.sum() / (1 - a), "log_ratio": double - single}]),
    }
