"""Figures: each layer draws what its frame says, read back from the axes; panels, legends and spare axes."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from pydantic import ValidationError

from fsvi_bench.presenting.figures import BLUE, GREEN, VERMILLION
from fsvi_bench.presenting.plots import FigureSpec, Layer, Panel

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


def figure_of(*panels, drawings=None, **settings):
    return FigureSpec(**{"height": 2.0, "panels": panels, **settings}).of(FRAMES, drawings)


def axes_of(*layers, **settings):
    """The one panel with these layers."""
    (axes,) = figure_of({"layers": layers, **settings}).axes
    return axes


def points_of(line):
    return line.get_xydata().tolist()


A, B = ([[1.0, first], [2.0, second], [3.0, third]] for first, second, third in ((8.0, 5.0, 3.0), (4.0, 2.0, 1.0)))
OF_B = {**OF_CURVES, "where": {"method": "b"}}


@pytest.mark.parametrize(
    ("kind", "has_line", "has_markers"),
    [("line", True, False), ("points", False, True), ("linepoints", True, True)],
)
def test_lines_and_points_are_the_rows(kind, has_line, has_markers):
    (line,) = axes_of({**OF_B, "kind": kind, "marker": "s"}).lines
    assert points_of(line) == B
    assert (line.get_linestyle() == "-") == has_line
    assert (line.get_marker() == "s") == has_markers


def test_a_band_lies_between_low_and_high():
    (band,) = axes_of({**OF_B, "kind": "band"}).collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners == {(1, 3), (2, 1.5), (3, 0.5), (1, 6), (2, 3), (3, 1.5)}
    assert band.get_alpha() == 0.15
    (stronger,) = axes_of({**OF_B, "kind": "band", "alpha": 0.5}).collections
    assert stronger.get_alpha() == 0.5


def test_intervals_reach_from_low_to_high_through_a_point():
    axes = axes_of({**OF_B, "kind": "intervals", "label": "kl"})
    (bars,) = (each for each in axes.collections if isinstance(each, LineCollection))
    assert [segment.tolist() for segment in bars.get_segments()] == [
        [[1, 3], [1, 6]],
        [[2, 1.5], [2, 3]],
        [[3, 0.5], [3, 1.5]],
    ]
    (container,) = axes.containers
    assert points_of(container.lines[0]) == B
    assert container.get_label() == "kl"


def test_levels_are_numbers_or_a_columns_values_each_once():
    horizontal, *vertical = axes_of(
        {"kind": "hline", "y": 0.5, "colour": "black"}, {"kind": "vline", "frame": "curves", "x": "step"}
    ).lines
    assert horizontal.get_ydata() == [0.5, 0.5]
    assert horizontal.get_xdata() == [0, 1]  # shares of the axes
    assert [line.get_xdata() for line in vertical] == [[1, 1], [2, 2], [3, 3]]


def test_a_level_lies_behind_what_is_drawn_before_it():
    curve, level = axes_of(OF_B, {"kind": "hline", "y": 2.0}).lines
    assert level.get_zorder() < curve.get_zorder()


def test_by_draws_each_value_in_the_order_of_the_rows_and_looks_go_round():
    lines = axes_of(
        {
            **OF_CURVES,
            "kind": "linepoints",
            "by": "method",
            "label": "method {}",
            "colour": ["green", "0.5"],
            "marker": ["s", "^"],
            "style": ["--"],
        }
    ).lines
    assert [line.get_label() for line in lines] == ["method b", "method a"]
    assert [points_of(line) for line in lines] == [B, A]
    assert [to_hex(line.get_color()) for line in lines] == [GREEN.lower(), to_hex("0.5")]
    assert [line.get_marker() for line in lines] == ["s", "^"]
    assert [line.get_linestyle() for line in lines] == ["--", "--"]


def test_without_a_colour_the_first_is_blue_and_the_next_vermillion():
    lines = axes_of({**OF_CURVES, "by": "method"}).lines
    assert [line.get_color() for line in lines] == [BLUE, VERMILLION]


@pytest.mark.parametrize(
    ("take", "expected"), [("max", [8.0, 5.0, 3.0]), ("min", [4.0, 2.0, 1.0]), ("mean", [6.0, 3.5, 2.0])]
)
def test_take_leaves_one_point_for_each_x(take, expected):
    (line,) = axes_of({**OF_CURVES, "take": take}).lines
    assert points_of(line) == [[step, y] for step, y in zip([1, 2, 3], expected, strict=True)]


@pytest.mark.parametrize(("marker", "visible_edge"), [("o", False), ("|", True), ("x", True)])
def test_points_have_an_edge_only_if_they_are_nothing_else(marker, visible_edge):
    (line,) = axes_of({**OF_B, "kind": "points", "marker": marker}).lines
    assert (line.get_markeredgewidth() > 0) == visible_edge


def test_numbers_that_are_not_finite_are_left_out():
    frames = {"gaps": pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [1.0, math.nan, math.inf]})}
    figure = FigureSpec(height=2.0, panels=(Panel(layers=(Layer(frame="gaps"),)),)).of(frames)
    figure.draw_without_rendering()
    low, high = figure.axes[0].get_ylim()
    assert np.isfinite([low, high]).all()


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ({**OF_CURVES, "frame": "traces"}, "traces"),
        ({**OF_CURVES, "x": "epoch"}, "epoch"),
        ({**OF_CURVES, "y": "elbo"}, "elbo"),
        ({**OF_CURVES, "by": "family"}, "family"),
        ({**OF_CURVES, "where": {"family": "full"}}, "family"),
        ({**OF_CURVES, "take": "max", "y": "elbo"}, "elbo"),
        ({**OF_CURVES, "kind": "band", "low": "lowest"}, "lowest"),
        ({**OF_CURVES, "kind": "intervals", "high": "highest"}, "highest"),
        ({"kind": "hline", "frame": "curves", "y": "level"}, "level"),
        ({}, "x"),
    ],
)
def test_what_is_not_there_is_a_key_error(layer, name):
    with pytest.raises(KeyError, match=name):
        axes_of(layer)


def test_a_kind_or_a_setting_that_there_is_not_is_refused():
    with pytest.raises(ValidationError, match="kind"):
        Layer(kind="pie")
    with pytest.raises(ValidationError, match="colours"):
        Layer(colours="blue")


# --- Panels -----------------------------------------------------------------------------------------------------------


def test_a_panel_has_its_words_scales_limits_and_ticks():
    axes = axes_of(
        OF_B,
        title="t",
        x="steps",
        y="nats",
        xscale="log",
        yscale="log",
        xlim=(0.5, 8.0),
        ylim=(None, 10.0),
        xticks=[1, 4],
    )
    assert (axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()) == ("t", "steps", "nats")
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlim() == (0.5, 8.0)
    assert axes.get_ylim()[1] == 10.0
    assert axes.get_xticks().tolist() == [1, 4]


def test_equal_units_are_as_long():
    assert axes_of(OF_B, equal=True).get_aspect() == 1.0
    assert axes_of(OF_B).get_aspect() == "auto"


def legend_of(axes):
    return None if axes.get_legend() is None else [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_legend_has_what_is_labelled_and_is_left_out_otherwise():
    labelled = {**OF_CURVES, "by": "method", "label": "{}"}
    assert legend_of(axes_of(labelled)) == ["b", "a"]
    assert legend_of(axes_of(labelled, legend=None)) is None
    assert legend_of(axes_of(OF_CURVES)) is None
    titled = axes_of(labelled, legend="upper right", legend_columns=2, legend_title="method").get_legend()
    assert titled.get_title().get_text() == "method"


def test_a_drawing_draws_on_the_panels_axes_on_its_scale():
    seen = []

    def draw(axes):
        seen.append((axes.get_yscale(), len(axes.lines)))
        axes.plot([1, 2], [1, 2], label="drawn")

    (axes,) = figure_of({"layers": [OF_B], "yscale": "log", "draw": "diagonal"}, drawings={"diagonal": draw}).axes
    assert seen == [("log", 1)]
    assert legend_of(axes) == ["drawn"]
    with pytest.raises(KeyError, match="diagonal"):
        figure_of({"draw": "diagonal"})


# --- Figures ----------------------------------------------------------------------------------------------------------


def test_panels_fill_the_rows_and_spare_axes_are_hidden():
    figure = figure_of({"title": "1"}, {"title": "2"}, {"title": "3"}, columns=2, width=5.0, height=4.0, title="all")
    assert figure.get_size_inches().tolist() == [5.0, 4.0]
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["1", "2", "3", ""]
    assert [axes.get_visible() for axes in figure.axes] == [True, True, True, False]
    assert figure.get_suptitle() == "all"
    assert [axes.get_subplotspec().rowspan.start for axes in figure.axes] == [0, 0, 1, 1]


@pytest.mark.parametrize(("share", "shared"), [("none", False), ("row", True), ("all", True)])
def test_axes_of_a_row_may_share_their_scale(share, shared):
    left, right = figure_of(
        {"layers": [OF_B]}, {"layers": [{"kind": "hline", "y": 100.0}]}, columns=2, sharey=share
    ).axes
    assert (left.get_ylim() == right.get_ylim()) == shared


def test_the_figures_legend_has_every_label_once():
    labelled = {"layers": [{**OF_CURVES, "by": "method", "label": "{}"}], "legend": None}
    figure = figure_of(
        labelled, labelled, {"layers": [{**OF_B, "label": "other"}], "legend": None}, legend=3, columns=3
    )
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["b", "a", "other"]
    assert not figure_of(labelled).legends


def test_braces_other_than_those_of_the_value_are_tex_or_names_from_outside():
    lines = axes_of(
        {**OF_B, "label": "opt={'lr': 0.1} {}"},
        {**OF_B, "by": "method", "label": "$P_{D}$ of {}"},
        {**OF_B, "by": "step", "where": {"step": [2]}, "label": "$10^{{:.1f}}$"},
    ).lines
    assert [line.get_label() for line in lines] == ["opt={'lr': 0.1} {}", "$P_{D}$ of b", "$10^{2.0}$"]


@pytest.mark.parametrize("kind", [int, str])
def test_colours_by_value_may_be_keyed_by_numbers(kind):
    lines = axes_of({**OF_CURVES, "by": "step", "colour": {kind(1): "green", kind(2): "blue", kind(3): "black"}}).lines
    assert [line.get_color() for line in lines] == [GREEN, BLUE, "black"]


def test_an_opacity_by_row_needs_no_rows():
    (line,) = axes_of({**OF_CURVES, "where": {"method": "c"}, "optional": True, "alpha": "kl"}).lines
    assert points_of(line) == []


def test_a_panel_for_each_value_of_the_first_frame():
    layers = [{"kind": "hline", "y": 2.0}, {**OF_CURVES}]
    figure = figure_of({"layers": layers}, each="method", columns=2)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["b", "a"]
    assert [points_of(axes.lines[1]) for axes in figure.axes] == [B, A]
