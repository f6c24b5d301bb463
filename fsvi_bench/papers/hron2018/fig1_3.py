"""Hron, Matthews and Ghahramani (2018), figures 1 to 3: the log-uniform prior's infinite mass, and truncation."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from fsvi_bench.maths.gaussian import normal_log_density
from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.hron2018.log_uniform_mass import Likelihood, cumulative_log_uniform_mass
from fsvi_bench.papers.hron2018.panels import dress, least_step
from fsvi_bench.papers.hron2018.truncated_log_uniform import truncated_log_uniform_posterior
from fsvi_bench.presenting.figures import BLUE, GREEN, PAGE_WIDTH, PALETTE, SMALL, VERMILLION
from fsvi_bench.presenting.tables import Table

DECADE = math.log(10)
GAUSSIAN, LOGISTIC = "Gaussian, linear", "Bernoulli, linear"  #: figures 1 and 2
REACH = 4.0  #: of w in the drawings


class Settings(BaseModel):
    """Figure 1's likelihood is N(observation; w, noise_sd²), its r `share` of that at 0; figure 2's k is `tail_from`.

    Masses are followed over so many decades of |w|; `intervals` are figure 3's [a, b], each within the next.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    observation: float
    noise_sd: float = Field(gt=0)
    share: float = Field(gt=0, lt=1)
    tail_from: float = Field(gt=0)
    decades: int = Field(ge=2, le=300)
    per_decade: int = Field(ge=1)
    intervals: list[tuple[float, float]] = Field(min_length=2)
    points: int = Field(ge=2)

    @model_validator(mode="after")
    def _intervals_widen(self) -> Settings:
        pairs = zip(self.intervals[:-1], self.intervals[1:], strict=True)
        if not all(a > c and b < d for (a, b), (c, d) in pairs) or any(a >= b for a, b in self.intervals):
            raise ValueError("expected intervals [a, b] with a < b, each inside of the next")
        return self


class Growth(NamedTuple):
    """Mass between a fixed size of w and one that moves away from it by decades, and what bounds it below."""

    log_sizes: Tensor
    mass: Tensor
    bound: Tensor

    def last_decade(self, per_decade: int) -> float:
        """What the last decade adds over what the one before it did: 1 for a mass that grows without bound."""
        return last_decade_ratio(self.mass, per_decade)

    def least_over_bound(self) -> float:
        return float((self.mass[1:] / self.bound[1:]).min())


def last_decade_ratio(mass: Tensor, per_decade: int) -> float:
    """Mass of the last decade over that of the one before, from cumulated mass; under 1 the mass may converge."""
    last, before = mass[-1] - mass[-1 - per_decade], mass[-1 - per_decade] - mass[-1 - 2 * per_decade]
    return float(last / before)


def likelihoods(settings: Settings) -> dict[str, Likelihood]:
    """As functions of one weight of the model, all of one data point at x = 1; classes other than the first have 0."""

    def gaussian(f: Tensor) -> Tensor:
        y, variance = torch.full_like(f, settings.observation), torch.full_like(f, settings.noise_sd**2)
        return normal_log_density(y, f, variance).exp()

    return {
        GAUSSIAN: gaussian,
        "Gaussian, rectified linear unit": lambda w: gaussian(w.clamp(min=0)),
        "Gaussian, sigmoid unit": lambda w: gaussian(torch.sigmoid(w)),
        LOGISTIC: torch.sigmoid,
        "categorical of 3 classes, linear": lambda w: 1 / (1 + 2 * torch.exp(-w)),
    }


def around_zero(likelihood: Likelihood, delta: float, r: float, settings: Settings) -> Growth:
    """Mass of ε < |w| < δ as ε falls, and 2r log(δ/ε), under the prior 1/|w|."""
    towards_zero = torch.linspace(0, settings.decades, settings.decades * settings.per_decade + 1, dtype=torch.float64)
    log_sizes = math.log(delta) - DECADE * towards_zero
    from_below = torch.stack(
        [cumulative_log_uniform_mass(likelihood, log_sizes.flip(0), side=side) for side in (1, -1)]
    )
    mass = (from_below[:, -1:] - from_below).sum(0).flip(0)
    return Growth(log_sizes, mass, 2 * r * (math.log(delta) - log_sizes))


def tail(likelihood: Likelihood, settings: Settings, side: int) -> Growth:
    """Mass of k < ±w < K as K rises, and L(k) log(K/k)."""
    start = math.log(settings.tail_from)
    outwards = torch.linspace(0, settings.decades, settings.decades * settings.per_decade + 1, dtype=torch.float64)
    log_sizes = start + DECADE * outwards
    at_start = likelihood(torch.tensor(side * settings.tail_from, dtype=torch.float64))
    mass = cumulative_log_uniform_mass(likelihood, log_sizes, side=side)
    return Growth(log_sizes, mass, at_start * (log_sizes - start))


def neighbourhood(settings: Settings) -> tuple[float, float]:
    """δ and r: the Gaussian likelihood exceeds r where |w − y| < √(y² − 2σ² log share), so at least for |w| < δ."""
    y, sd = abs(settings.observation), settings.noise_sd
    at_zero = math.exp(-0.5 * (y / sd) ** 2) / (math.sqrt(2 * math.pi) * sd)
    return math.sqrt(y * y - 2 * sd * sd * math.log(settings.share)) - y, settings.share * at_zero


def _steepest_slope(likelihood: Likelihood, growth: Growth, per_decade: int) -> float:
    """d log(L(w)/|w|)/d log |w| over the last decade towards 0."""
    log_w = growth.log_sizes[-1 - per_decade :]
    log_density = likelihood(log_w.exp()).log() - log_w
    return float((log_density.diff() / log_w.diff()).min())


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """Masses that grow without bound, and how the truncated prior changes with its interval."""
    forms, (delta, r) = likelihoods(settings), neighbourhood(settings)
    inwards = {name: around_zero(form, delta, r, settings) for name, form in forms.items()}
    right, left = tail(forms[LOGISTIC], settings, 1), tail(lambda w: torch.sigmoid(-w), settings, -1)
    values = {
        **_mass_values(inwards, (right, left), settings.per_decade),
        "section 3.1: steepest slope of log density in log |w| at 0": _steepest_slope(
            forms[GAUSSIAN], inwards[GAUSSIAN], settings.per_decade
        ),
        **_truncation_values(settings),
    }
    return Findings(
        figure=_draw(settings, forms, inwards[GAUSSIAN], right),
        tables=_tables(settings, inwards, right, left),
        statistics={name: Statistic.exact(value) for name, value in values.items()},
        numbers={
            "delta": delta,
            "r": r,
            "figure 1": {name: values.tolist() for name, values in inwards[GAUSSIAN]._asdict().items()},
            "figure 2": {name: values.tolist() for name, values in right._asdict().items()},
        },
    )


def _mass_values(inwards: dict[str, Growth], tails: tuple[Growth, Growth], each: int) -> dict[str, float]:
    (right, left), last = tails, {name: growth.last_decade(each) for name, growth in inwards.items()}
    mirrored, sigmoid = left.last_decade(each), last[LOGISTIC]
    return {
        "figure 1: least mass around 0 over its lower bound": inwards[GAUSSIAN].least_over_bound(),
        "figure 1: mass of the last decade around 0 over that of the one before": last[GAUSSIAN],
        "proposition 1: the same, least over likelihoods": min(last.values()),
        "figure 2: least mass of the right tail over its lower bound": right.least_over_bound(),
        "figure 2: mass of the right tail's last decade over that of the one before": right.last_decade(each),
        "section 3.1: mass of the mirrored left tail's last decade over that of the one before": mirrored,
        "section 3.1: mass of the sigmoid's last decade around 0 over that of the one before": sigmoid,
    }


def _truncation_values(settings: Settings) -> dict[str, float]:
    a, b = torch.tensor(settings.intervals, dtype=torch.float64).T
    means, peaks = truncated_log_uniform_posterior(a, b).mean, -(2 * (b - a)).log() - a
    widening = min(least_step(-a), least_step(b))
    return {
        "figure 3: least narrowing of the gap and lengthening of the tails by a step": widening,
        "figure 3: least rise of the prior's peak by a step": least_step(peaks),
        "figure 3: least ratio of posterior means of successive intervals": math.exp(least_step(means.log())),
    }


def _tables(settings: Settings, inwards: dict[str, Growth], right: Growth, left: Growth) -> list[Table]:
    each = settings.per_decade
    places = {f"around 0: {name}": growth for name, growth in inwards.items()} | {
        "right tail: Bernoulli, x = 1": right,
        "left tail: Bernoulli, x = -1": left,
    }
    rows = [
        (name, *g.mass[each::each].tolist()[:3], float(g.mass[-1]), g.last_decade(each)) for name, g in places.items()
    ]
    columns = ("where", "1 decade", "2 decades", "3 decades", f"{settings.decades} decades", "last over one before")
    moments = truncated_log_uniform_posterior(*torch.tensor(settings.intervals, dtype=torch.float64).T)
    truncated = [
        (a, b, 2 * math.exp(a), math.exp(b), math.exp(-a) / (2 * (b - a)), mean, sd)
        for (a, b), mean, sd in zip(
            settings.intervals, moments.mean.tolist(), moments.variance.sqrt().tolist(), strict=True
        )
    ]
    return [
        Table(title="Mass under the prior 1/|w| over so many decades of |w|", columns=columns, rows=tuple(rows)),
        Table(
            title="Truncated prior; posterior after (x, y) = (1, 1)",
            columns=("a", "b", "width of gap", "end of tail", "peak of prior", "posterior mean", "posterior sd"),
            rows=tuple(truncated),
        ),
    ]


def _draw(settings: Settings, forms: dict[str, Likelihood], inwards: Growth, right: Growth) -> Figure:
    figure = Figure(figsize=(PAGE_WIDTH, 4.9), layout="constrained")
    panels = figure.subplots(2, 3)
    delta, r = neighbourhood(settings)
    w = torch.linspace(-REACH, REACH, settings.points, dtype=torch.float64)
    _draw_prior(panels[0, 0], w, forms[GAUSSIAN])
    panels[0, 0].fill_between([-delta, delta], r, color=GREEN, alpha=0.45, linewidth=0)
    _name_prior_and_likelihood(panels[0, 0], "r on (−δ, δ)")
    dress(panels[0, 0], "Figure 1", "w", "prior 1/|w|, likelihood")
    _draw_prior(panels[0, 1], w, torch.sigmoid)
    start = settings.tail_from
    height = 1 / (1 + math.exp(-start))
    panels[0, 1].fill_between([start, REACH], height, color=GREEN, alpha=0.45, linewidth=0)
    _name_prior_and_likelihood(panels[0, 1], "σ(k), w > k")
    dress(panels[0, 1], "Figure 2", "w", "prior 1/|w|, likelihood")
    _draw_truncated(panels[0, 2], settings)
    for axes, growth, symbol in ((panels[1, 0], inwards, "δ/ε"), (panels[1, 1], right, "K/k")):
        decades = (growth.log_sizes - growth.log_sizes[0]).abs() / DECADE
        axes.plot(decades, growth.mass, color=VERMILLION, linewidth=1.5, label="posterior mass")
        axes.plot(decades, growth.bound, color=GREEN, linewidth=1.5, linestyle="--", label="lower bound")
        where = "ε < |w| < δ" if growth is inwards else "k < w < K"
        dress(axes, f"Mass of {where}", f"log₁₀ {symbol}", "unnormalised mass")
    _draw_posteriors(panels[1, 2], settings)
    return figure


def _draw_prior(axes: Axes, w: Tensor, likelihood: Likelihood) -> None:
    axes.plot(w, torch.where(w.abs() < 0.2, torch.nan, 1 / w.abs()), color=BLUE, linewidth=1.5)
    axes.plot(w, likelihood(w), color=VERMILLION, linewidth=1.5)
    axes.set_xlim(-REACH, REACH)
    axes.set_ylim(0, 1.9)


def _name_prior_and_likelihood(axes: Axes, bound: str) -> None:
    """In the curves' colours, left of the prior's pole: a legend would not fit beside it."""
    for line, (words, colour) in enumerate((("prior", BLUE), ("likelihood", VERMILLION), (bound, GREEN))):
        axes.text(0.02, 0.98 - 0.1 * line, words, color=colour, fontsize=SMALL, va="top", transform=axes.transAxes)


def _pieces(settings: Settings) -> list[tuple[str, str, Tensor, float]]:
    """Label, colour, |w| on the support and b − a of each interval."""
    pieces = []
    for (a, b), colour in zip(settings.intervals, PALETTE, strict=False):
        size = torch.linspace(a, b, settings.points, dtype=torch.float64).exp()
        pieces.append((f"[{a:g}, {b:g}]".replace("-", "−"), colour, size, b - a))
    return pieces


def _draw_truncated(axes: Axes, settings: Settings) -> None:
    for label, colour, size, L in _pieces(settings):
        ends = torch.cat([-size.flip(0), size])
        height = 0.5 / (ends.abs() * L)
        # Straight down at the four ends, along 0 in the gap.
        x = torch.cat([ends[:1], ends[: len(size)], ends[len(size) - 1 : len(size) + 1], ends[len(size) :], ends[-1:]])
        zero = torch.zeros(1, dtype=torch.float64)
        y = torch.cat([zero, height[: len(size)], zero, zero, height[len(size) :], zero])
        axes.plot(x, y, color=colour, linewidth=1.2, label=label)
    axes.set_xlim(-3, 3)
    axes.set_ylim(0, 1.8)
    dress(axes, "Figure 3", "w", "truncated prior density")
    axes.legend(title="[a, b]", title_fontsize=SMALL, frameon=False, fontsize=SMALL, handlelength=1.2)


def _draw_posteriors(axes: Axes, settings: Settings) -> None:
    """In log |w|, where the prior is flat: mass moves to both ends, on the right all to w > 0."""
    for _, colour, size, L in _pieces(settings):
        axes.plot(size.log(), torch.sigmoid(size) / L, color=colour, linewidth=1.5)
        axes.plot(size.log(), torch.sigmoid(-size) / L, color=colour, linewidth=1.5, linestyle="--")
    axes.set_ylim(bottom=0)
    dress(axes, "Posterior, (x, y) = (1, 1)", "log |w|", "density of log |w|", legend=False)
    axes.plot([], [], color="black", linewidth=1.5, label="w > 0")
    axes.plot([], [], color="black", linewidth=1.5, linestyle="--", label="w < 0")
    axes.legend(frameon=False, fontsize=SMALL, handlelength=1.6)


HRON2018_FIG1_3 = Experiment("hron2018-fig1-3", Settings, investigate)
