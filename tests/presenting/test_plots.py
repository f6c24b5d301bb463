"""Figures: each layer draws the rows that it names, panels and legends follow the specification, outliers have arrows."""

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection

from fsvi_bench.presenting.plots import FigureSpec, fence

CURVES = pd.DataFrame(
    {
        "step": [1, 2, 3, 1, 2, 3],
        "kl": [4.0, 2.0, 1.0, 8.0, 5.0, 3.0],
        "low": [3.0, 1.5, 0.5, 7.0, 4.5, 2.0],
        "high": [6.0, 3.0, 1.5, 9.0, 5.5, 4.5],
        "method": ["b", "b", "b", "a", "a", "a"],
    }
)
FRAMES = {"curves": CURVES}
OF_CURVES = {"frame": "curves", "x": "step", "y": "kl"}
OF_B = {**OF_CURVES, "where": {"method": "b"}}
A, B = [[1.0, 8.0], [2.0, 5.0], [3.0, 3.0]], [[1.0, 4.0], [2.0, 2.0], [3.0, 1.0]]


def figure_of(*panels, frames=FRAMES, **settings):
    return FigureSpec(**{"height": 2.0, "panels": panels, **settings}).of(frames)


def axes_of(*layers, frames=FRAMES, **settings):
    """The one panel with these layers."""
    (axes,) = figure_of({"layers": layers, **settings}, frames=frames).axes
    return axes


def points_of(line):
    return line.get_xydata().tolist()


@pytest.mark.parametrize("kind", ["line", "points", "linepoints"])
def test_lines_and_points_are_the_rows(kind):
    (line,) = axes_of({**OF_B, "kind": kind}).lines
    assert points_of(line) == B


def test_a_band_and_intervals_lie_between_low_and_high():
    (band,) = axes_of({**OF_B, "kind": "band"}).collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners == {(1, 3), (2, 1.5), (3, 0.5), (1, 6), (2, 3), (3, 1.5)}
    axes = axes_of({**OF_B, "kind": "intervals"})
    (bars,) = (each for each in axes.collections if isinstance(each, LineCollection))
    assert {tuple(end) for bar in bars.get_segments() for end in bar.tolist()} == corners
    assert points_of(axes.containers[0].lines[0]) == B


def test_by_draws_each_value_in_the_order_of_the_rows_and_looks_go_round():
    lines = axes_of({**OF_CURVES, "by": "method", "label": "method {}", "colour": ["black", "0.5"]}).lines
    assert [line.get_label() for line in lines] == ["method b", "method a"]
    assert [points_of(line) for line in lines] == [B, A]
    assert [line.get_color() for line in lines] == ["black", "0.5"]


@pytest.mark.parametrize(
    ("take", "expected"), [("max", [8.0, 5.0, 3.0]), ("min", [4.0, 2.0, 1.0]), ("mean", [6.0, 3.5, 2.0])]
)
def test_take_leaves_one_point_for_each_x(take, expected):
    (line,) = axes_of({**OF_CURVES, "take": take}).lines
    assert points_of(line) == [[step, y] for step, y in zip([1, 2, 3], expected, strict=True)]


def test_numbers_that_are_not_finite_are_left_out():
    axes = axes_of({"frame": "gaps"}, frames={"gaps": pd.DataFrame({"x": [1, 2, 3], "y": [1.0, math.nan, math.inf]})})
    axes.figure.draw_without_rendering()
    assert np.isfinite(axes.get_ylim()).all()


# --- Panels and figures -----------------------------------------------------------------------------------------------


def test_a_panel_for_each_value_of_the_first_frame_may_take_words_and_scales_from_its_rows():
    frames = {"curves": CURVES.assign(scale=["log"] * 3 + ["linear"] * 3)}
    figure = figure_of({"layers": [OF_CURVES], "yscale": "{scale}", "y": "{method}"}, frames=frames, each="method")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["b", "a"]
    assert [(axes.get_yscale(), axes.get_ylabel()) for axes in figure.axes] == [("log", "b"), ("linear", "a")]
    assert [points_of(axes.lines[0]) for axes in figure.axes] == [B, A]


# --- What has no place on the axis ------------------------------------------------------------------------------------


def said(axes):
    return sorted(text.get_text().strip() for text in axes.texts)


@pytest.mark.parametrize(("horizontal", "arrows"), [(True, "◂▸"), (False, "▾▴")])
def test_zero_and_infinity_are_arrows_at_the_edges_of_a_logarithmic_axis(horizontal, arrows):
    values = pd.DataFrame(
        {
            "value": [1e-14, 2.0, 8.0, math.inf, math.nan],
            "low": [-1e-15, 1.5, 0.0, math.nan, math.nan],
            "high": [2e-14, 2.5, 16.0, math.nan, math.nan],
            "place": [0.0, 1.0, 2.0, 3.5, 4.5],
        }
    )
    x, y = ("value", "place") if horizontal else ("place", "value")
    layer = {"kind": "intervals", "frame": "values", "beyond": "place", "x": x, "y": y}
    scale = {"xscale" if horizontal else "yscale": "log"}
    axes = axes_of(layer, frames={"values": values}, horizontal=horizontal, **scale)
    assert said(axes) == sorted([*arrows, "0", "∞"])
    low, high = axes.get_xlim() if horizontal else axes.get_ylim()
    assert 1e-3 < low < 1.5  # not stretched down to rounding errors, nor to an interval that reaches 0
    assert 16.0 < high < 1e4


def test_outliers_that_would_flatten_the_rest_are_cut_off():
    rest = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    far, nearer = np.append(rest, 90.0), np.append(rest, 22.0)
    q1, q3 = np.quantile(far, [0.25, 0.75])
    assert fence(far) == pytest.approx(q3 + 3 * (q3 - q1), rel=1e-15)
    assert fence(nearer) == math.inf  # far out, but six units of 21 are left to the rest
    assert fence(rest) == fence(rest[:1]) == fence(rest[:0]) == math.inf
    assert fence(np.append(np.ones(7), 1.1)) == math.inf  # the rest is one point, which nothing flattens
