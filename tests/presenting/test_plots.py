"""Figures: each layer draws what its frame says, read back from the axes; panels, legends and spare axes."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgba
from pydantic import ValidationError

from fsvi_bench.presenting.figures import BLUE, GREEN, VERMILLION
from fsvi_bench.presenting.plots import FigureSpec, Layer, fence, readable

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


def figure_of(*panels, frames=FRAMES, **settings):
    return FigureSpec(**{"height": 2.0, "panels": panels, **settings}).of(frames)


def axes_of(*layers, frames=FRAMES, **settings):
    """The one panel with these layers."""
    (axes,) = figure_of({"layers": layers, **settings}, frames=frames).axes
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
    axes = axes_of({"frame": "gaps"}, frames={"gaps": pd.DataFrame({"x": [1, 2, 3], "y": [1.0, math.nan, math.inf]})})
    axes.figure.draw_without_rendering()
    assert np.isfinite(axes.get_ylim()).all()


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


def legend_of(axes):
    return None if axes.get_legend() is None else [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_legend_has_what_is_labelled_and_is_left_out_otherwise():
    labelled = {**OF_CURVES, "by": "method", "label": "{}"}
    assert legend_of(axes_of(labelled)) == ["b", "a"]
    assert legend_of(axes_of(labelled, legend=None)) is None
    assert legend_of(axes_of(OF_CURVES)) is None
    titled = axes_of(labelled, legend={"loc": "upper right", "ncols": 2, "title": "method"}).get_legend()
    assert titled.get_title().get_text() == "method"


def test_a_symmetric_logarithmic_axis_is_linear_around_zero():
    (axes,) = figure_of({"layers": [OF_B], "xscale": "symlog", "linthresh": 0.5}).axes
    transform = axes.xaxis.get_transform()
    assert (axes.get_xscale(), transform.linthresh) == ("symlog", 0.5)


# --- Figures ----------------------------------------------------------------------------------------------------------


def test_panels_fill_the_rows_and_spare_axes_are_hidden():
    figure = figure_of({"title": "1"}, {"title": "2"}, {"title": "3"}, columns=2, width=5.0, height=4.0, title="all")
    assert figure.get_size_inches().tolist() == [5.0, 4.0]
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["1", "2", "3", ""]
    assert [axes.get_visible() for axes in figure.axes] == [True, True, True, False]
    assert figure.get_suptitle() == "all"
    assert [axes.get_subplotspec().rowspan.start for axes in figure.axes] == [0, 0, 1, 1]


@pytest.mark.parametrize(("panels", "rows"), [(3, [3]), (4, [4]), (5, [3, 2]), (9, [3, 3, 3])])
def test_rows_are_of_nearly_equal_length(panels, rows):
    figure = figure_of(*[{}] * panels, columns=4)
    shown = [axes.get_subplotspec().rowspan.start for axes in figure.axes if axes.get_visible()]
    assert [shown.count(row) for row in range(len(rows))] == rows


def test_words_and_scales_may_be_those_of_the_panels_rows():
    frames = {"curves": CURVES.assign(scale=["log"] * 3 + ["linear"] * 3)}
    figure = figure_of({"layers": [OF_CURVES], "yscale": "{scale}", "y": "{method}"}, frames=frames, each="method")
    assert [(axes.get_yscale(), axes.get_ylabel()) for axes in figure.axes] == [("log", "b"), ("linear", "a")]


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


def test_points_may_be_outlines_or_tinted_by_row():
    layer = {**OF_CURVES, "kind": "points", "fill": "fill", "colour": "green", "label": "kl"}
    axes = axes_of(layer, frames={"curves": CURVES.assign(fill=[0.0, 0.35, 1.0] * 2)})
    faces = {line.get_xdata()[0]: line.get_markerfacecolor() for line in axes.lines}
    assert faces == {1: "white", 2: to_rgba(GREEN, 0.35), 3: GREEN}
    assert {line.get_markeredgecolor() for line in axes.lines} == {GREEN}
    assert legend_of(axes) == ["kl"]


def test_a_look_may_be_a_column():
    curves = CURVES.assign(shade=["green"] * 3 + ["0.5"] * 3, sign=["s"] * 3 + ["^"] * 3)
    layer = {**OF_CURVES, "kind": "linepoints", "colour": "shade", "marker": "sign"}
    lines = axes_of(layer, frames={"curves": curves}).lines
    assert sorted((line.get_color(), line.get_marker(), points_of(line)) for line in lines) == sorted(
        [(GREEN, "s", B), ("0.5", "^", A)]
    )


def test_words_stand_at_their_places():
    words = {"kind": "words", "frame": "curves", "text": "method", "where": {"step": 2}}
    across = axes_of({**words, "x": "kl", "at": 1.0})
    assert [(text.get_text(), text.get_position(), text.get_va()) for text in across.texts] == [
        ("b", (2.0, 1.0), "top"), ("a", (5.0, 1.0), "top")
    ]  # fmt: skip
    beside = axes_of({**words, "y": "kl", "at": 1.02}, horizontal=True)
    assert [(text.get_position(), text.get_ha()) for text in beside.texts] == [
        ((1.02, 2.0), "left"),
        ((1.02, 5.0), "left"),
    ]


# --- What has no place on the axis ------------------------------------------------------------------------------------

VALUES = pd.DataFrame(
    {
        "value": [1e-14, 2.0, 8.0, math.inf, math.nan],
        "low": [-1e-15, 1.5, 0.0, math.nan, math.nan],
        "high": [2e-14, 2.5, 16.0, math.nan, math.nan],
        "place": [0.0, 1.0, 2.0, 3.5, 4.5],
        "name": ["exact", "rand-a", "rand-a ffg", "ssge", "none"],
        "method": ["exact", "rand-a", "rand-a", "ssge", "none"],
    }
)


def strip(values=VALUES, horizontal=True, kind="intervals", **settings):
    """The axes of a panel of these values with a place each."""
    at = {"x": "value", "y": "place"} if horizontal else {"x": "place", "y": "value"}
    layer = {"kind": kind, "frame": "values", "colour": "blue", "beyond": "place", **at}
    settings |= {"xscale" if horizontal else "yscale": settings.pop("scale", "log"), "horizontal": horizontal}
    return axes_of(layer, frames={"values": values}, names="name", groups="method", **settings)


def said(axes):
    return [text.get_text().strip() for text in axes.texts]


@pytest.mark.parametrize(("horizontal", "arrows"), [(True, "◂▸"), (False, "▾▴")])
@pytest.mark.parametrize("room", [0.0, 0.3])
def test_zero_and_infinity_are_arrows_at_the_edges_of_a_logarithmic_axis(horizontal, arrows, room):
    axes = strip(horizontal=horizontal, room=room)
    assert sorted(said(axes)) == sorted([*arrows, "0", "∞"])
    places = {text.get_text().strip(): text.get_position() for text in axes.texts}
    assert places["0"] == ((0, 0.0) if horizontal else (0.0, 0))
    assert places["∞"] == ((1, 3.5) if horizontal else (3.5, 1))
    low, high = axes.get_xlim() if horizontal else axes.get_ylim()
    assert 1e-3 < low < 1.5  # not stretched down to rounding errors, nor to an interval that reaches 0
    assert 16.0 < high < 1e4
    free = np.log([1.5 / low, high / 16]) / np.log(high / low)  # as shares of the axis
    assert (free > room / 2).all()


def test_a_linear_axis_has_a_place_for_zero():
    axes = strip(scale="linear")
    assert sorted(said(axes)) == ["∞", "▸"]
    assert axes.get_xlim()[0] < 0


def test_outliers_are_written_with_few_digits():
    found = [1.8, 1.9, 2.0, 2.05, 2.1, 2.15, 2.2, 901.234, 20345.0]
    values = pd.DataFrame({"value": found, "place": range(9), "name": "", "method": ""})
    axes = strip(values, kind="points", scale="linear", fence=True)
    assert {"900", "2·10⁴"} <= set(said(axes))
    assert axes.get_xlim()[1] < 3


def test_a_group_beyond_the_axis_has_one_pair_of_numbers_and_layers_that_do_not_stretch_it_lie_there():
    values = pd.DataFrame({"x": [0, 1, 2], "y": [1.0, 2.0, 3.0], "far": [0.1, 50.0, 700.0], "of": ["a", "b", "b"]})
    of = {"frame": "values", "kind": "points", "beyond": "of"}
    far = {**of, "shift": 0.1, "alpha": 0.5, "stretches": False, "y": "far"}
    axes = axes_of(of, far, frames={"values": values})
    assert sorted(said(axes)) == sorted(["▾", "0.1", "▴", "▴", "50 to\n700"])
    assert axes.get_ylim()[1] < 4
    assert {text.get_alpha() for text in axes.texts if text.get_text() in "▾▴"} == {0.5}


def test_nothing_to_show_is_an_axis_without_numbers():
    axes = strip(VALUES.iloc[4:])
    assert list(axes.get_xticks()) == []
    assert not said(axes)


def test_panels_that_share_an_axis_have_room_for_the_values_of_both():
    layer = {"kind": "points", "frame": "values", "x": "value", "y": "place", "beyond": "place"}
    values = pd.DataFrame({"value": [1.0, 2.0, 1e3, 1e4], "place": [0, 1, 0, 1], "set": ["a", "a", "b", "b"]})
    panel = {"horizontal": True, "xscale": "log", "layers": [layer]}
    left, right = figure_of(panel, frames={"values": values}, each="set", columns=2, sharex="all").axes
    assert left.get_xlim() == right.get_xlim()
    assert (left.get_xlim()[0] < 1.0, left.get_xlim()[1] > 1e4) == (True, True)
    assert not [*said(left), *said(right)]


@pytest.mark.parametrize("horizontal", [True, False])
def test_places_have_names_and_lines_between_groups(horizontal):
    axes = strip(horizontal=horizontal)
    labels = axes.get_yticklabels() if horizontal else axes.get_xticklabels()
    assert [label.get_text() for label in labels] == [*VALUES["name"]]
    axis = axes.yaxis if horizontal else axes.xaxis
    assert axis.get_minorticklocs().tolist() == [0.5, 2.75, 4.0]
    assert all(tick.gridline.get_visible() for tick in axis.get_minor_ticks())
    assert (axes.get_ylim() if horizontal else axes.get_xlim()[::-1]) == (5.0, -0.5)


def test_outliers_that_would_flatten_the_rest_are_cut_off():
    rest = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    far, nearer = np.append(rest, 90.0), np.append(rest, 22.0)
    q1, q3 = np.quantile(far, [0.25, 0.75])
    assert fence(far) == pytest.approx(q3 + 3 * (q3 - q1), rel=1e-15)
    assert fence(nearer) == math.inf  # far out, but six units of 21 are left to the rest
    assert fence(rest) == fence(rest[:1]) == fence(rest[:0]) == math.inf
    assert fence(np.append(np.ones(7), 1.1)) == math.inf  # the rest is one point, which nothing flattens


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01, "0.01"), (1.0, "1"), (-0.5, "−0.5"), (5000.0, "5000"), (1e4, "10⁴"), (1e-3, "10⁻³"), (3e5, "3·10⁵"), (0, "0"),
     (math.inf, "∞")],
)  # fmt: skip
def test_numbers_are_written_as_they_are_read(value, text):
    assert readable(value) == text


@pytest.mark.parametrize(
    ("values", "scale", "labels"),
    [
        ([12.0, 90.0], "log", {"20", "50"}),
        ([1.0, 1e5], "log", {"1", "100", "10⁴"}),
        ([-0.2, 0.2], "linear", {"−0.2", "0"}),
    ],
)
def test_an_axis_has_several_readable_labels(values, scale, labels):
    frames = {"values": pd.DataFrame({"x": [0, 1], "y": values})}
    axes = axes_of({"frame": "values", "kind": "points"}, frames=frames, yscale=scale, ticks=5)
    axes.figure.draw_without_rendering()
    assert labels <= {label.get_text() for label in axes.get_yticklabels()}
