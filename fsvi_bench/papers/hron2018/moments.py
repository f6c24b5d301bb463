"""Hron, Matthews and Ghahramani (2018), section 3.2: wherever one likes, a posterior mean under a truncated prior."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.hron2018.log_uniform_mass import Likelihood, log_uniform_mass
from fsvi_bench.papers.hron2018.panels import dress, least_slope, least_step, second_half
from fsvi_bench.papers.hron2018.truncated_log_uniform import (
    Interval,
    sequence_to_constant,
    sequence_to_infinity,
    sequence_to_zero,
    truncated_log_uniform_posterior,
)
from fsvi_bench.presenting.figures import BLUE, PAGE_WIDTH, PALETTE, VERMILLION
from fsvi_bench.presenting.tables import Cell, Table

LOG_2 = math.log(2)
LOWEST = -45.0  #: of log |w| in quadratures: what lies below adds e^−90 to a first or second moment
#: Log of the smallest and the largest normal number; and the intervals that KSW, whom the paper cites, print in their
#: appendix A: 2^±8 and 2^±11, the exponents' widths in bits in the place of the exponents.
FORMATS = {
    "single": (-126 * LOG_2, 128 * LOG_2),
    "double": (-1022 * LOG_2, 1024 * LOG_2),
    "single, in KSW": (-8 * LOG_2, 8 * LOG_2),
    "double, in KSW": (-11 * LOG_2, 11 * LOG_2),
}


class Settings(BaseModel):
    """How far each sequence goes (|a| to `largest_size`; b), the constants to reach, points per sequence."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    largest_size: float = Field(gt=100)
    constants: list[Annotated[float, Field(gt=0)]] = Field(min_length=1, max_length=4)
    largest_b_constant: float = Field(gt=5, le=30)
    largest_b_infinity: float = Field(gt=2, le=350)
    points: int = Field(ge=6)


class Sequence(NamedTuple):
    """An interval per step, the parameter that drives it, and the posterior's moments."""

    parameter: Tensor
    a: Tensor
    b: Tensor
    mean: Tensor
    variance: Tensor


def follow(parameter: Tensor, interval: Interval) -> Sequence:
    """The moments by equations 1 and 2."""
    return Sequence(parameter, *interval, *truncated_log_uniform_posterior(*interval))


def quadrature_moments(a: float, b: float, likelihood: Likelihood) -> tuple[float, float]:
    """E w and E w² by integration of likelihood/|w|, whose mass is b − a as both sides of a logistic one add to 1."""
    low = max(a, LOWEST)

    def moment(power: int) -> float:
        # Both sides in one integrand: apart, they would cancel near 0.
        return float(
            log_uniform_mass(lambda w: w**power * (likelihood(w) + (-1) ** power * likelihood(-w)), low, b) / (b - a)
        )

    return moment(1), moment(2)


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """The three sequences, and what they end at."""
    sizes = torch.logspace(1, math.log10(settings.largest_size), settings.points, dtype=torch.float64)
    zero = follow(sizes, sequence_to_zero(sizes))
    constants = {}
    for c in settings.constants:
        # Where b exceeds log c, a falls.
        b = torch.linspace(
            max(0.0, math.log(c)) + 0.5, settings.largest_b_constant, settings.points, dtype=torch.float64
        )
        constants[c] = follow(b, sequence_to_constant(b, c))
    b = torch.linspace(1, settings.largest_b_infinity, settings.points, dtype=torch.float64)
    infinity = follow(b, sequence_to_infinity(b))
    values = {
        **_common_values(settings, [zero, *constants.values(), infinity]),
        **_zero_values(zero),
        **_constant_values(constants),
        **_infinity_values(infinity),
        **_float_values(),
    }
    sequences = {"to 0": zero, **{f"to {c:g}": s for c, s in constants.items()}, "to infinity": infinity}
    return Findings(
        figure=_draw(zero, constants, infinity),
        tables=_tables(sequences),
        statistics={name: Statistic.exact(value) for name, value in values.items()},
        numbers={name: {n: v.tolist() for n, v in s._asdict().items()} for name, s in sequences.items()},
    )


def _common_values(settings: Settings, sequences: list[Sequence]) -> dict[str, float]:
    a = torch.tensor(-settings.largest_size, dtype=torch.float64)
    # h(e^a) + h(−e^a) with h(x) = log(1 + e^x), over b − a at b = 1.
    second_term = torch.nn.functional.softplus(torch.stack([a.exp(), -a.exp()])).sum() / (1 - a)
    differences = []
    for s in sequences:
        for low, high, mean, variance in zip(*(v.tolist() for v in (s.a, s.b, s.mean, s.variance)), strict=True):
            first, second = quadrature_moments(low, high, torch.sigmoid)
            differences += [abs(first / mean - 1), abs(second / (variance + mean**2) - 1)]
    return {
        "equations 1 and 2: largest relative difference from quadrature": max(differences),
        "all sequences: least widening by a step": min(min(least_step(-s.a), least_step(s.b)) for s in sequences),
        "fixed b: second term of equation 1 at the lowest a": float(second_term),
    }


def _zero_values(zero: Sequence) -> dict[str, float]:
    logs = [second_half(zero.mean.log()), second_half(zero.variance.log())]
    return {
        "to 0: mean at the end": float(zero.mean[-1]),
        "to 0: variance at the end": float(zero.variance[-1]),
        "to 0: largest change of log mean or log variance by a step of the second half": max(
            float(v.diff().max()) for v in logs
        ),
    }


def _constant_values(constants: dict[float, Sequence]) -> dict[str, float]:
    distances = [abs(float(s.mean[-1]) / c - 1) for c, s in constants.items()]
    mirrored = [abs(_mirrored_mean(s) / -c - 1) for c, s in constants.items()]
    return {
        "to c: largest relative distance of the mean from c at the end": max(distances),
        "to c: least growth of log variance per unit of b in the second half": min(
            least_slope(s.variance.log(), s.b) for s in constants.values()
        ),
        "footnote 3: largest relative distance of the mirrored mean from -c": max(mirrored),
    }


def _mirrored_mean(sequence: Sequence) -> float:
    """After (x, y) = (−1, 1), at the end of the sequence."""
    return quadrature_moments(float(sequence.a[-1]), float(sequence.b[-1]), lambda w: torch.sigmoid(-w))[0]


def _infinity_values(infinity: Sequence) -> dict[str, float]:
    ratio = second_half(infinity.mean * infinity.b / infinity.b.exp())
    return {
        "to infinity: log10 of the mean at the end": float(infinity.mean[-1].log10()),
        "to infinity: relative spread of mean/(exp(b)/b) over the second half": float(
            (ratio.max() - ratio.min()) / ratio.mean()
        ),
        "to infinity: least growth of log variance per unit of b in the second half": least_slope(
            infinity.variance.log(), infinity.b
        ),
        "footnote 3: log10 of minus the mirrored mean at the end of the sequence to infinity": math.log10(
            -_mirrored_mean(infinity)
        ),
    }


def _formats() -> dict[str, Sequence]:
    """The posterior under each format's interval."""
    found = {}
    for name, ends in FORMATS.items():
        a, b = (torch.tensor(end, dtype=torch.float64) for end in ends)
        found[name] = follow(b, Interval(a, b))
    return found


def _float_values() -> dict[str, float]:
    formats = _formats()
    return {
        "floating point: largest asymmetry of the ends, |b/(-a) - 1|": max(
            abs(float(formats[name].b / -formats[name].a) - 1) for name in ("single", "double")
        ),
        "floating point: log10 of the ratio of posterior means, double over single": float(
            formats["double"].mean.log10() - formats["single"].mean.log10()
        ),
    }


def _tables(sequences: dict[str, Sequence]) -> list[Table]:
    rows: list[tuple[Cell, ...]] = []
    for name, s in sequences.items():
        for place in (0, len(s.a) // 2, -1):
            rows.append((name, *(float(v[place]) for v in (s.a, s.b, s.mean, s.variance))))
    floats: list[tuple[Cell, ...]] = [
        (name, *(float(v) for v in (s.a, s.b, s.mean, s.mean * s.b / s.b.exp()))) for name, s in _formats().items()
    ]
    return [
        Table(
            title="Posterior after (x, y) = (1, 1) at the start, in the middle and at the end of each sequence",
            columns=("mean tends", "a", "b", "mean", "variance"),
            rows=tuple(rows),
        ),
        Table(
            title="Floating-point formats as intervals: normal numbers, and as printed by KSW",
            columns=("format", "a", "b", "mean", "mean b/exp(b)"),
            rows=tuple(floats),
        ),
    ]


def _draw(zero: Sequence, constants: dict[float, Sequence], infinity: Sequence) -> Figure:
    figure = Figure(figsize=(PAGE_WIDTH, 4.4), layout="constrained")
    panels = figure.subplots(2, 3, sharex="col")
    _draw_pair(panels[:, 0], zero, BLUE, "")
    for (c, sequence), colour in zip(constants.items(), PALETTE, strict=False):
        _draw_pair(panels[:, 1], sequence, colour, f"c = {c:g}")
        panels[0, 1].axhline(math.log10(c), color="0.6", linewidth=0.8, linestyle=":", zorder=0)
    _draw_pair(panels[:, 2], infinity, VERMILLION, "mean")
    growth = (infinity.b - (2 * infinity.b).log()) / math.log(10)
    panels[0, 2].plot(infinity.b, growth, color="black", linewidth=1.2, linestyle=":", label="exp(b)/(2b)")
    panels[0, 0].set_xscale("log")
    titles = ("To 0: b = log log |a|", "To c: a = b − exp(b)/c", "To infinity: a = −b")
    for column, (title, x) in enumerate(zip(titles, ("|a|", "b", "b"), strict=True)):
        dress(panels[0, column], title, "", "" if column else "log₁₀ posterior mean", legend=column == 2)
        dress(panels[1, column], "", x, "" if column else "log₁₀ posterior variance", legend=column == 1)
    return figure


def _draw_pair(panels: list[Axes], sequence: Sequence, colour: str, label: str) -> None:
    """Logarithms on a linear axis: some of the values exceed what a logarithmic one can take."""
    for axes, values in zip(panels, (sequence.mean, sequence.variance), strict=True):
        axes.plot(sequence.parameter, values.log10(), color=colour, linewidth=1.5, label=label or None)


HRON2018_MOMENTS = Experiment("hron2018-moments", Settings, investigate)
