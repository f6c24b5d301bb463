"""Hron, Matthews and Ghahramani (2018), figures 1 to 3: the log-uniform prior's infinite mass, and truncation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field, PositiveFloat, PositiveInt
from scipy import stats
from scipy.special import expit

from fsvi_bench.papers.experiment import ExperimentContext, Frames
from fsvi_bench.papers.hron2018.log_uniform import Likelihood, log_uniform_mass, posterior_mean, posterior_variance
from fsvi_bench.strict import Plain

GAUSSIAN = "around 0: Gaussian, linear"  #: figure 1
REACH = 4.0  #: of w in the plots


class Settings(Plain):
    """Figure 1's likelihood is N(observation; w, noise_sd²), and its r is `share` times the value at 0; figure 2's k is
    `tail_from`.

    Masses are computed over `decades` of |w|; `intervals` are figure 3's [a, b], each inside the next.
    """

    observation: float
    noise_sd: PositiveFloat
    share: float = Field(gt=0, lt=1)
    tail_from: PositiveFloat
    decades: int = Field(ge=3, le=300)
    per_decade: PositiveInt
    intervals: list[tuple[float, float]] = Field(min_length=2)
    points: int = Field(ge=2)


def likelihoods(settings: Settings) -> dict[str, Likelihood]:
    """Likelihoods as functions of one weight, each for one data point at x = 1; the other classes have logit 0."""
    gaussian = stats.norm(settings.observation, settings.noise_sd).pdf
    return {
        GAUSSIAN: gaussian,
        "around 0: Gaussian, rectified linear unit": lambda w: gaussian(np.maximum(w, 0)),
        "around 0: Gaussian, sigmoid unit": lambda w: gaussian(expit(w)),
        "around 0: Bernoulli, linear": expit,
        "around 0: categorical of 3 classes, linear": lambda w: 1 / (1 + 2 * np.exp(-w)),
    }


def neighbourhood(settings: Settings) -> tuple[float, float]:
    """δ and r: the Gaussian likelihood exceeds r where |w − y| < √(y² − 2σ² log share), so at least for |w| < δ."""
    y, sd = abs(settings.observation), settings.noise_sd
    at_zero = likelihoods(settings)[GAUSSIAN](0)
    return math.sqrt(y * y - 2 * sd * sd * math.log(settings.share)) - y, settings.share * at_zero


def growth(
    likelihood: Likelihood, start: float, height: float, settings: Settings, *, sides: Sequence[int], away: int
) -> pd.DataFrame:
    """Mass under the prior 1/|w| between |w| = `start` and |w| some decades inwards (away = −1) or outwards (1).

    `bound` is the mass for a constant likelihood of `height`.
    """
    decades = np.linspace(0, settings.decades, settings.decades * settings.per_decade + 1)
    log_size = math.log(start) + away * math.log(10) * decades
    mass = log_uniform_mass(likelihood, log_size[:1], log_size, sides=sides)
    return pd.DataFrame(
        {
            "decades": decades,
            "mass": away * mass,
            "bound": len(sides) * height * math.log(10) * decades,
            "log_size": log_size,
            "log_density": np.log(likelihood(sides[0] * np.exp(log_size))) - log_size,
        }
    )


def convergence(grown: pd.DataFrame, per_decade: int) -> dict[str, Any]:
    """Masses after 1, 2, 3 and all decades, and indicators of their convergence.

    `last_ratio` is the mass of the last decade divided by that of the previous one; it is below 1 if the mass may
    converge.
    """
    mass, slope = grown["mass"][::per_decade], grown["log_density"].diff() / grown["log_size"].diff()
    before, last = mass.diff()[-2:]
    return {
        "decades": len(mass) - 1,
        **{f"decade_{n}": mass.iloc[n] for n in (1, 2, 3)},
        "in_all": mass.iloc[-1],
        "last_ratio": last / before,
        "over_bound": (grown["mass"] / grown["bound"])[1:].min(skipna=False),
        "steepest": slope[-per_decade:].min(skipna=False),
        "around_zero": grown["log_size"].is_monotonic_decreasing,
    }


def outline(a: float, b: float, points: int) -> pd.DataFrame:
    """The outline of the truncated prior, and the posterior's density of log |w| on both sides of 0."""
    log_size = np.linspace(a, b, points)
    prior = np.pad(0.5 * np.exp(-log_size) / (b - a), 1)  # vertical at both ends
    half = pd.DataFrame({"log_size": np.pad(log_size, 1, "edge"), "prior": prior})
    both = pd.concat(half.assign(side=side)[::side] for side in (-1, 1))
    w = both["side"] * np.exp(both["log_size"])
    return both.assign(w=w, posterior=expit(w) / (b - a))


def truncations(intervals: list[tuple[float, float]]) -> pd.DataFrame:
    """Each interval's prior and posterior after (x, y) = (1, 1), and the changes from the previous interval."""
    found = pd.DataFrame(intervals, columns=["a", "b"])
    a, b = found["a"], found["b"]
    peak, mean = np.exp(-a) / (2 * (b - a)), posterior_mean(a, b)
    return found.assign(
        interval=[f"[{low:g}, {high:g}]".replace("-", "−") for low, high in intervals],
        gap=2 * np.exp(a),
        end=np.exp(b),
        peak=peak,
        mean=mean,
        sd=np.sqrt(posterior_variance(a, b)),
        widening=np.minimum(-a.diff(), b.diff()),
        peak_rise=np.log(peak).diff(),
        mean_ratio=mean / mean.shift(),
    )


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """Masses that grow without bound, and the dependence of the truncated prior on its interval."""
    forms, (delta, r), k = likelihoods(settings), neighbourhood(settings), settings.tail_from
    height = expit(k)
    grown = {name: growth(form, delta, r, settings, sides=[1, -1], away=-1) for name, form in forms.items()}
    grown["right tail: Bernoulli, x = 1"] = growth(expit, k, height, settings, sides=[1], away=1)
    grown["left tail: Bernoulli, x = -1"] = growth(lambda w: expit(-w), k, height, settings, sides=[-1], away=1)
    w = pd.Series(np.linspace(-REACH, REACH, settings.points))
    curves = pd.DataFrame(
        {
            "w": w,
            "prior": 1 / w.abs(),
            "figure_1": forms[GAUSSIAN](w),
            "figure_2": expit(w),
            "zero": 0.0,
            "bound_1": r * (w.abs() < delta),
            "bound_2": height * (w > k),
        }
    )
    truncated = truncations(settings.intervals)
    named = zip(truncated["interval"], settings.intervals, strict=True)
    outlines = {name: outline(*ends, settings.points) for name, ends in named}
    return {
        "growth": pd.concat(grown, names=["where"]).reset_index("where"),
        "masses": pd.DataFrame([{"where": name} | convergence(g, settings.per_decade) for name, g in grown.items()]),
        "curves": curves,
        "outlines": pd.concat(outlines, names=["interval"]).reset_index("interval"),
        "truncated": truncated,
        "wider": truncated[1:],
    }
