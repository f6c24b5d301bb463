"""The figure of `gal2016-6.3`: nine panels, one for each thing that Gal says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fsvi_bench.papers.gal2016.section_6_3.data import Settings
from fsvi_bench.papers.gal2016.section_6_3.masks import ATOMS, WIDTHS
from fsvi_bench.papers.gal2016.section_6_3.priors import FINENESS
from fsvi_bench.presenting.figures import BLUE, GREEN, NORMAL, PAGE_WIDTH, PALETTE, SMALL, VERMILLION, tidy

if TYPE_CHECKING:
    from fsvi_bench.papers.gal2016.section_6_3.experiment import All

SHOWN = 0  #: the data set whose profiles and bounds are drawn
FLOOR = 1e-17  #: a relative distance below this is drawn there
LEGEND: dict[str, Any] = {"fontsize": SMALL, "frameon": False, "handlelength": 1.5, "labelspacing": 0.25}


def draw(settings: Settings, found: All) -> Figure:
    """Rows: what data do to p*, profile and spread; m* and the priors' KLs; masks and spikes."""
    figure = Figure(figsize=(PAGE_WIDTH, 7.2), layout="constrained")
    panels: list[Callable[[Axes, Settings, All], None]] = [
        _logits, _profiles, _spreads, _distances, _prior_kls, _bounds, _masks, _slabs, _dropout,
    ]  # fmt: skip
    for axes, letter, panel in zip(figure.subplots(3, 3).flat, "abcdefghi", panels, strict=True):
        panel(axes, settings, found)
        tidy(axes, SMALL)
        axes.minorticks_off()  # over many decades they are a grey bar, and most of the time it takes to draw
        axes.set_title(f"{letter}  {axes.get_title()}", loc="left", fontsize=NORMAL)
        axes.set_title("", loc="center")
    return figure


def _logits(axes: Axes, settings: Settings, found: All) -> None:
    _by_points(axes, settings, found.growth.logit, VERMILLION, "o", "optimum")
    law = found.growth.law.median(-1).values
    axes.plot(settings.points, law, color="black", linewidth=1, linestyle="--", label="½N mean(w²Λ)", zorder=3)
    axes.set_yscale("log")
    axes.set_ylim(top=1e7)
    _words(axes, "retain probability", "N (data points)", "logit p*")
    axes.legend(loc="upper left", **LEGEND)


def _profiles(axes: Axes, settings: Settings, found: All) -> None:
    profiles = found.profiles
    shades = torch.linspace(0.75, 0.2, len(settings.points)).tolist()
    for N, values, shade in zip(settings.points, profiles.values[:, SHOWN], shades, strict=True):
        label = f"N = {N:,}" if N in (settings.points[0], settings.points[-1]) else None
        axes.plot(profiles.p, values - profiles.limit[SHOWN, -1], color=str(shade), linewidth=1.2, label=label)
        least = int(values.argmin())
        axes.plot(profiles.p[least], (values - profiles.limit[SHOWN, -1])[least], ".", color=str(shade))
    axes.plot(profiles.p, profiles.limit[SHOWN] - profiles.limit[SHOWN, -1], color=VERMILLION, linestyle="--",
        linewidth=1.5, label="limit")  # fmt: skip
    _words(axes, r"$\mathcal{L}(m^*, p)/N$", "retain probability p", "less the limit at p = 1")
    axes.legend(loc="upper right", **LEGEND)


def _spreads(axes: Axes, settings: Settings, found: All) -> None:
    _by_points(axes, settings, found.growth.spread, VERMILLION, "o", "dropout at p*")
    _by_points(axes, settings, found.growth.spike_slab_spread, BLUE, "s", "spike and slab")
    axes.set_yscale("log")
    axes.set_ylim(1e-30, 1e16)
    axes.set_yticks([1e-30, 1e-20, 1e-10, 1])
    axes.axhline(1, color="black", linewidth=0.8)
    _words(axes, "spread of q", "N (data points)", "sd / exact sd")
    axes.legend(loc="upper right", **LEGEND)


def _by_points(axes: Axes, settings: Settings, values: Tensor, colour: str, marker: str, label: str) -> None:
    """Every data set faintly, and their median."""
    axes.plot(settings.points, values, color=colour, alpha=0.15, linewidth=0.6)
    axes.plot(settings.points, values.median(-1).values, marker + "-", color=colour, markersize=3.5, label=label)
    axes.set_xscale("log")


def _distances(axes: Axes, settings: Settings, found: All) -> None:
    drop = 1 - found.distances.p[:-1]
    styles = {"general": (GREEN, "-"), "Λ constant": (VERMILLION, "--"), "Σ diagonal": (BLUE, ":")}
    for design, values in found.distances.by_design.items():
        colour, style = styles[design]
        shown = values[:, :-1].clamp(min=FLOOR)
        axes.fill_between(drop, *shown.aminmax(dim=0), color=colour, alpha=0.15, linewidth=0)
        axes.plot(drop, shown.median(0).values, color=colour, linestyle=style, linewidth=1.5, label=design)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(1e-17, 1e2)
    _words(axes, "m*(p) and the MAP", "1 − p", "‖m* − MAP‖ / ‖MAP‖")
    axes.legend(loc="center right", **LEGEND)


def _prior_kls(axes: Axes, settings: Settings, found: All) -> None:
    axes.plot(FINENESS, found.kls.continuous, "s-", color=BLUE, markersize=3.5, label="continuous, over σ")
    axes.plot(FINENESS, found.kls.discrete, "o-", color=VERMILLION, markersize=3.5, label="discrete, over step")
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_ylim(0, 12.5)
    _words(axes, "KL(q ‖ prior), one weight", "atoms' σ, or grid's step", "KL [nats]")
    axes.legend(loc="upper left", **LEGEND)


def _bounds(axes: Axes, settings: Settings, found: All) -> None:
    bounds = found.bounds
    axes.plot(bounds.lengthscale, bounds.evidence[SHOWN], color="black", linewidth=1.5, label="evidence")
    for spread, continuous, discrete, colour in zip(
        settings.spreads, bounds.continuous[:, SHOWN], bounds.discrete[:, SHOWN], PALETTE, strict=False
    ):
        label = f"σ = $10^{{{math.log10(spread):.3g}}}$"
        axes.plot(bounds.lengthscale, continuous, color=colour, linewidth=1.3, label=label)
        axes.plot(bounds.lengthscale, discrete, color=colour, linewidth=1.3, linestyle=":")
    axes.plot([], [], color="0.3", linestyle=":", label="grid, step = σ")
    axes.set_xscale("log")
    axes.set_ylim(bottom=-450)
    _words(axes, "bounds, by length-scale", "prior's length-scale l", "log evidence, bound [nats]")
    axes.legend(loc="upper right", **LEGEND)


def _masks(axes: Axes, settings: Settings, found: All) -> None:
    masks = found.masks
    x = masks.size.flatten()
    axes.plot(x, masks.enumerated.flatten(), "o", color="black", markersize=4, markerfacecolor="none",
        markeredgewidth=0.5, label="all masks")  # fmt: skip
    axes.plot(x, masks.retain.flatten(), ".", color=VERMILLION, markersize=3, label="CAVI")
    _words(axes, "masks at m = MAP", "|MAP| / sd given the others", "P(kept)")
    axes.legend(loc="center right", **LEGEND)
    if float((masks.retain - masks.enumerated).abs().max()) > 0.5:
        axes.text(0.97, 0.14, "CAVI's local minima", transform=axes.transAxes, fontsize=SMALL, ha="right")


def _slabs(axes: Axes, settings: Settings, found: All) -> None:
    smooth = found.spike_slab
    axes.plot(smooth.size.flatten(), smooth.slab_weight.flatten(), ".", color=BLUE, markersize=3)
    _words(axes, f"spike and slab, f = {settings.prior_spike:g}", "|slab mean| / slab sd", "slab weight")


def _dropout(axes: Axes, settings: Settings, found: All) -> None:
    for m, values, colour in zip(ATOMS, found.spike_slab.dropout_probability, ("black", *PALETTE), strict=False):
        axes.plot(WIDTHS, values, color=colour, linewidth=1.5, label=f"m = {m:g}")
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_ylim(top=1.05)
    _words(axes, "eq. 6.8 as σ → 0", "σ", "dropout probability")
    axes.legend(loc="center right", **LEGEND)


def _words(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
