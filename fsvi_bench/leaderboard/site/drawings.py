"""Small drawings as SVG markup: numbers in, no texts of strangers but labels, which are escaped.

Colours are classes of the style sheet, so that they follow light and dark; a drawing beside its own numbers is hidden
from screen readers, one that stands alone has a title and a description.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fsvi_bench.leaderboard.site.scales import LogScale, fit
from fsvi_bench.presenting.plots import readable

BAR_WIDTH, BAR_HEIGHT = 84, 10
STRIP_LEFT, STRIP_WIDTH, STRIP_ROW = 92, 640, 24
LOWEST_RATIO, HIGHEST_RATIO = 1e-6, 1e6  #: of variances; beyond them a strip ends at the edge
LETTER, NAME_HEIGHT = 6.6, 13  #: of a label's letters, about


def rank_bar(mean: float, low: float, high: float, most: int) -> Markup:
    """A mean rank and its interval on an axis from 1 to `most`."""
    span = max(most - 1, 1)

    def at(rank: float) -> float:
        return 5 + (BAR_WIDTH - 10) * (rank - 1) / span

    return _bar(at(mean), at(low), at(high))


def score_bar(value: float, ends: tuple[float, float] | None, scale: LogScale) -> Markup:
    """A score and its interval on a logarithmic axis; an infinite one is an arrow at its end."""
    if math.isinf(value):
        x = scale.end
        return Markup(
            f'<svg class="dots" viewBox="0 0 {scale.end + 6:g} {BAR_HEIGHT}" aria-hidden="true">'
            f'<path class="beyond" d="M{x - 3:.1f} 1l5 4-5 4z"/></svg>'
        )
    low, high = ends if ends is not None else (value, value)
    return _bar(scale(value), scale(max(low, scale.low)), scale(max(high, scale.low)), scale.end + 6, "dots")


def _bar(middle: float, low: float, high: float, width: float = BAR_WIDTH, name: str = "bar") -> Markup:
    return Markup(
        f'<svg class="{name}" viewBox="0 0 {width:g} {BAR_HEIGHT}" aria-hidden="true">'
        f'<path d="M{low:.1f} 5H{high:.1f}"/><circle cx="{middle:.1f}" cy="5" r="3.4"/></svg>'
    )


def score_axis(scale: LogScale) -> Markup:
    """The axis above a column of `score_bar`."""
    marks = "".join(
        f'<path d="M{x:.1f} 13v4"/><text x="{x:.1f}" y="10" text-anchor="middle">{readable(tick)}</text>'
        for tick in scale.ticks(5)
        for x in [scale(tick)]
    )
    return Markup(f'<svg class="dots axis" viewBox="0 0 {scale.end + 6:g} 17" aria-hidden="true">{marks}</svg>')


@dataclass(frozen=True)
class Strip:
    """A data set's spectrum: 21 quantiles, ascending; empty where nothing finished."""

    label: str
    quantiles: tuple[float, ...]


def spectrum(strips: Sequence[Strip], name: str, colour: str) -> Markup:
    """A line per data set: all of the spectrum thin, its middle half thick, a dot at the median, a line at 1.

    What is 0, or otherwise beyond the axis, has an arrow at its edge.
    """
    values = [q for strip in strips for q in strip.quantiles if LOWEST_RATIO < q < HIGHEST_RATIO]
    scale = fit([0.2, 5.0, *values], STRIP_LEFT, STRIP_WIDTH - 12)
    bottom = STRIP_ROW * len(strips)
    rows = [_strip(strip, STRIP_ROW * place + STRIP_ROW / 2, scale) for place, strip in enumerate(strips)]
    axis = _axis_below(scale, bottom, "variance of q over the exact one, by direction")
    one = f'<path class="one" d="M{scale(1):.1f} 0V{bottom}"/>'
    words = "; ".join(_in_words(strip) for strip in strips)
    content = "".join([axis, one, *rows])
    return _figure(content, name, "Over- and underconfidence by data set", words, STRIP_WIDTH, bottom + 40, colour)


def _strip(strip: Strip, y: float, scale: LogScale) -> str:
    label = f'<text class="label" x="{STRIP_LEFT - 10}" y="{y + 4:g}" text-anchor="end">{escape(strip.label)}</text>'
    if not strip.quantiles:
        return f'{label}<text x="{STRIP_LEFT + 6}" y="{y + 4:g}">none finished</text>'
    values = [strip.quantiles[place] for place in (0, 5, 10, 15, 20)]
    least, lower, median, upper, greatest = map(scale, values)
    # No place on a logarithmic axis is that of 0: an arrow says that there is more beyond the edge.
    left = f'<path class="beyond" d="M{scale.start:.1f} {y - 5:g}l-7 5 7 5z"/>' if values[0] < scale.low else ""
    right = f'<path class="beyond" d="M{scale.end:.1f} {y - 5:g}l7 5-7 5z"/>' if values[4] > scale.high else ""
    dot = f'<circle class="dot" cx="{median:.1f}" cy="{y:g}" r="4"/>' if scale.low <= values[2] <= scale.high else ""
    return (
        f'{label}<path class="thin" d="M{least:.1f} {y:g}H{greatest:.1f}"/>'
        f'<path class="thick" d="M{lower:.1f} {y:g}H{upper:.1f}"/>{left}{right}{dot}'
    )


def _in_words(strip: Strip) -> str:
    if not strip.quantiles:
        return f"{strip.label}: none finished"
    least, median, greatest = (f"{strip.quantiles[place]:.2g}" for place in (0, 10, 20))
    return f"{strip.label}: from {least} to {greatest}, median {median}"


def _axis_below(scale: LogScale, y: float, label: str, most: int = 7) -> str:
    marks = "".join(
        f'<path class="grid" d="M{scale(tick):.1f} 0V{y:g}"/>'
        f'<text x="{scale(tick):.1f}" y="{y + 16:g}" text-anchor="middle">{readable(tick)}</text>'
        for tick in scale.ticks(most)
    )
    middle = (scale.start + scale.end) / 2
    return f'{marks}<text x="{middle:.1f}" y="{y + 35:g}" text-anchor="middle">{escape(label)}</text>'


@dataclass(frozen=True)
class Curve:
    """KL along the way of one re-run cell: (steps or seconds, KL), ascending."""

    label: str
    points: tuple[tuple[float, float], ...]


def curves(drawn: Sequence[Curve], name: str, across: str, up: str, colour: str) -> Markup:
    """Curves in one panel, both axes logarithmic; points at 0 are left out, an infinite KL stands at the top."""
    width, height, left, top = 560, 280, 58, 12
    room = 16 + LETTER * max((len(curve.label) for curve in drawn), default=0)
    bottom = height - 46
    kept = [Curve(c.label, tuple(p for p in c.points if p[0] > 0 and not math.isnan(p[1]))) for c in drawn]
    points = [point for curve in kept for point in curve.points]
    x = fit((at for at, _ in points), left + 6, width - room, smallest=1e-9)
    y = fit((value for _, value in points), bottom - 6, top + 4)
    found = [curve for curve in kept if curve.points]
    lines = "".join(_curve(curve, x, y) for curve in found) + _names(found, x, y)
    side = "".join(
        f'<path class="grid" d="M{left} {y(tick):.1f}H{width - room + 4}"/>'
        f'<text x="{left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{readable(tick)}</text>'
        for tick in y.ticks(6)
    )
    words = "; ".join(_course(curve, across) for curve in found)
    content = side + _axis_below(x, bottom, across, 5) + lines
    return _figure(content, name, f"{up} against {across}", words, width, height, colour)


def _curve(curve: Curve, x: LogScale, y: LogScale) -> str:
    places = [(x(at), y(value)) for at, value in curve.points]
    line = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    dots = "".join(f'<circle class="dot" cx="{a:.1f}" cy="{b:.1f}" r="2.6"/>' for a, b in places)
    return f'<g><title>{escape(curve.label)}</title><path class="curve" d="M{line}"/>{dots}</g>'


def _names(drawn: Sequence[Curve], x: LogScale, y: LogScale) -> str:
    """Each curve's name beside its end, pushed down where it would stand on the one above, all up from the axis."""
    places = sorted((y(curve.points[-1][1]) + 4, curve.label, x(curve.points[-1][0]) + 8) for curve in drawn)
    heights: list[float] = []
    for at, _, _ in places:
        heights.append(max(at, heights[-1] + NAME_HEIGHT) if heights else at)
    too_low = max(0.0, heights[-1] - y.start) if heights else 0.0
    return "".join(
        f'<text x="{side:.1f}" y="{height - too_low:.1f}">{escape(label)}</text>'
        for height, (_, label, side) in zip(heights, places, strict=True)
    )


def _course(curve: Curve, across: str) -> str:
    (first, start), (last, end) = curve.points[0], curve.points[-1]
    return f"{curve.label}: {start:.3g} at {first:.3g} {across}, {end:.3g} at {last:.3g}"


def _figure(content: str, name: str, title: str, words: str, width: float, height: float, colour: str) -> Markup:
    """`colour` is a class of the style sheet."""
    return Markup(
        f'<svg class="figure {escape(colour)}" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" '
        f'role="img" aria-labelledby="{name}-title {name}-words"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-words">{escape(words)}</desc>{content}</svg>'
    )
