"""The picture of propositions 3 to 9."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fsvi_bench.papers.burt2020.theory.data_processing import Nested
from fsvi_bench.papers.burt2020.theory.networks import PRUNED, Pieces
from fsvi_bench.papers.burt2020.theory.singular import Case
from fsvi_bench.papers.hron2018.panels import dress
from fsvi_bench.presenting.figures import BLUE, GREEN, PAGE_WIDTH, PALETTE, PURPLE, SMALL, VERMILLION, Array

Shown = TypeVar("Shown")
BAR = 0.2  #: a bar's width, of the distance between ticks
COLOURS, MARKS = (*PALETTE, "black"), ("o", "s", "^", "D", "v")


def draw(nested: Nested, cases: list[Case], pieces: Pieces) -> Figure:
    """Six panels, two rows."""
    figure = Figure(figsize=(PAGE_WIDTH, 5.6), layout="constrained")
    panels = figure.subplots(2, 3)
    _data_processing(panels[0, 0], nested)
    _forward(panels[0, 1], cases)
    _reverse(panels[0, 2], cases)
    _singular(panels[1, 0], cases)
    _pieces(panels[1, 1], pieces)
    _seen(panels[1, 2], pieces)
    return figure


def _looks(shown: Sequence[Shown]) -> Iterator[tuple[Shown, str, str]]:
    """Each with a colour and a mark, which come round again if there are more."""
    for place, each in enumerate(shown):
        yield each, COLOURS[place % len(COLOURS)], MARKS[place % len(MARKS)]


def _data_processing(axes: Axes, nested: Nested) -> None:
    shown = {"total variation": "TV", "squared Hellinger": "H²", "KL(Q, P)": "KL", "alpha = 2": "α = 2"}
    points = np.arange(1, nested.values.shape[-1] + 1)
    axes.axvline(nested.k, color="0.8", linewidth=1)
    for (name, words), colour, mark in _looks(list(shown.items())):
        place = next(i for i, f in enumerate(nested.generators) if f.name == name)
        share = (nested.values[place] / nested.weights[place][:, None]).numpy()
        axes.fill_between(points, share.min(0), share.max(0), color=colour, alpha=0.12, linewidth=0)
        axes.plot(points, np.median(share, 0), color=colour, marker=mark, markersize=3, linewidth=1.2, label=words)
    axes.set_ylim(0, 1.05)
    axes.set_xticks([1, 4, 8, 12])
    dress(
        axes,
        "Props 3, 6: data processing",
        "points M  (line: k; bands: all draws)",
        "functional / weight divergence",
        legend=False,
    )
    axes.legend(frameon=False, fontsize=SMALL, handlelength=1.2, loc="lower right", borderaxespad=0.1)


def _log_noise(case: Case) -> Array:
    return np.asarray(-case.noise.log10())


def _forward(axes: Axes, cases: list[Case]) -> None:
    highest = 0.0
    for case, colour, mark in _looks(cases):
        x, share = _log_noise(case), case.kl / case.missing
        words = f"k = {case.parameters}, M = {case.points}"
        axes.plot(x, share, color=colour, linewidth=1.2, **_marked(mark, len(x)), label=words)
        line = (case.leading.slope * math.log(10) * x + case.leading.constant) / case.missing
        axes.plot(x, line, color="0.5", linewidth=0.8, linestyle=":")
        highest = max(highest, float(share.max()))
    axes.set_ylim(0, 1.85 * highest)
    dress(axes, "Prop. 4: KL(Q$_ε$, P)", "log$_{10}$ 1/ε²  (dotted: ½ log 1/ε²)", "KL / (M − k) [nats]", legend=False)
    axes.legend(frameon=False, fontsize=SMALL, handlelength=1.6, loc="upper left", borderaxespad=0.1)


def _marked(mark: str, steps: int) -> dict[str, Any]:
    return {"marker": mark, "markersize": 3, "markevery": max(1, steps // 6)}


def _reverse(axes: Axes, cases: list[Case]) -> None:
    for case, colour, mark in _looks(cases):
        x = _log_noise(case)
        axes.semilogy(x, case.reverse_kl, color=colour, linewidth=1.2, **_marked(mark, len(x)))
        axes.semilogy(x, case.leading.reverse * 10**x, color="0.5", linewidth=0.8, linestyle=":")
    axes.set_ylim(bottom=1e-1)
    dress(axes, "Prop. 4: KL(P, Q$_ε$)", "log$_{10}$ 1/ε²  (dotted: c/ε²)", "KL [nats]")


def _singular(axes: Axes, cases: list[Case]) -> None:
    """A case with few directions missing: with many, everything is at the bottom at once."""
    case = sorted(cases, key=lambda each: each.missing)[min(1, len(cases) - 1)]
    x = _log_noise(case)
    look: dict[str, Any] = {"linewidth": 1.3}
    shown = np.array([1 - event.total_variation for event in case.events])
    axes.semilogy(x, case.log_affinities[0.5].exp(), color=GREEN, label="1 − H²", **look)
    axes.semilogy(x, shown, color=BLUE, linestyle="--", label="1 − what an event shows", **look)
    axes.semilogy(x, case.log_overlap.exp(), color=VERMILLION, label="1 − TV", **look)
    axes.set_ylim(1e-15, 2)
    dress(axes, f"Prop. 8: k = {case.parameters}, M = {case.points}", "log$_{10}$ 1/ε²", "below the largest value")
    axes.legend(frameon=False, fontsize=SMALL, handlelength=1.6, loc="lower left", borderaxespad=0.1)


def _pieces(axes: Axes, pieces: Pieces) -> None:
    """Where the condition holds all is in one place; where it does not, laws of different width overlap."""
    groups = (
        (pieces.whole, BLUE, f"width {PRUNED}"),
        (pieces.counts.get(PRUNED - 1), VERMILLION, f"width {PRUNED - 1}"),
        (pieces.pruned, PURPLE, f"{PRUNED}, weights may be 0"),
        (pieces.without_biases.get(PRUNED - 1), GREEN, f"{PRUNED - 1}, no hidden biases"),
    )
    shown = [(counts, colour, words) for counts, colour, words in groups if counts is not None]
    for place, (counts, colour, words) in enumerate(shown):
        numbers = sorted(counts)
        # Those that share a number stand side by side, and their middle on its tick.
        at = [number + _aside([other for other, *_ in shown], place, number) for number in numbers]
        axes.bar(at, [counts[n] / counts.total() for n in numbers], width=BAR, color=colour, label=words)
    axes.set_xticks(range(1, PRUNED + 2))
    axes.set_ylim(0, 1.65)
    axes.set_yticks([0, 0.5, 1])
    dress(axes, "Prop. 9: ReLU networks", "linear pieces", "share of networks", legend=False)
    axes.legend(frameon=False, fontsize=SMALL, handlelength=1.0, loc="upper left", borderaxespad=0.1)


def _aside(groups: Sequence[Counter[int]], place: int, number: int) -> float:
    """How far from its tick a group's bar stands, among those that have one there."""
    present = [other for other, counts in enumerate(groups) if counts[number]]
    return BAR * (present.index(place) - (len(present) - 1) / 2)


def _seen(axes: Axes, pieces: Pieces) -> None:
    for each, colour, mark in _looks(pieces.seen):
        values = np.array([share.value for share in each.shares])
        low, high = (np.array([share[bound] for share in each.shares]) for bound in (1, 2))
        axes.fill_between(each.points, low, high, color=colour, alpha=0.12, linewidth=0)
        words = f"{each.narrow} and {each.wide}"
        axes.plot(each.points, values, color=colour, marker=mark, markersize=3, linewidth=1.2, label=words)
    axes.set_xscale("log")
    labels = [str(points) for points in each.points]
    axes.set_xticks(each.points, [*labels[:-2], "", labels[-1]] if len(labels) > 2 else labels)  # 127 and 255 touch
    axes.minorticks_off()
    axes.set_ylim(0, 1.4)
    axes.set_yticks([0, 0.5, 1])
    dress(axes, "Props 7, 9: at M points", "points M", "total variation, at least (95%)", legend=False)
    look: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "handlelength": 1.0, "ncols": 2}
    axes.legend(title="widths", title_fontsize=SMALL, loc="upper left", labelspacing=0.25, borderaxespad=0.1, **look)
