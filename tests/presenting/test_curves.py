"""Figures of curves: what is drawn are the spreads, on axes that show them."""

from __future__ import annotations

import math

import pytest

from fsvi_bench.presenting.curves import LABELS, curves_figure
from fsvi_bench.training.trace import Trace, TracePoint


def trace(kls, nlpd=1.0, moments=None, loss=None):
    return Trace([TracePoint(s, 0.0, kl, nlpd, moments or kl, nlpd or 2.0, loss) for s, kl in enumerate(kls)])


def drawn(traces):
    return curves_figure(traces, "title").axes[0]


def labels(axes):
    (legend,) = axes.figure.legends
    return {text.get_text() for text in legend.get_texts()}


def test_median_mean_and_bands_are_the_spreads():
    traces = [trace([8.0, 4.0, 1.0]), trace([8.0, 5.0, 2.0]), trace([8.0, 9.0, 6.0])]
    axes = drawn(traces)
    median, mean = axes.get_lines()
    assert list(median.get_ydata()) == [8.0, 5.0, 2.0]
    assert list(mean.get_ydata()) == [8.0, 6.0, 3.0]
    assert list(mean.get_xdata()) == list(median.get_xdata()) == [0, 1, 2]
    extremes, quartiles = (band.get_paths()[0].get_extents() for band in axes.collections)
    assert (extremes.ymin, extremes.ymax) == (1.0, 9.0)
    assert (quartiles.ymin, quartiles.ymax) == (1.5, 8.0)
    assert axes.get_xscale() == "symlog"
    assert axes.get_yscale() == "linear"


def test_one_cell_is_a_line():
    axes = drawn([trace([800.0, 4.0, 1.0])])
    assert len(axes.get_lines()) == 1
    assert not axes.collections
    assert axes.get_yscale() == "log"


def test_one_cell_has_no_quartiles_even_where_it_is_infinite():
    axes = drawn([trace([3.0, math.inf, 1.0, 0.5])])
    assert labels(axes) == {"median"}
    assert not axes.collections


def test_two_cells_of_which_one_is_infinite_are_several():
    axes = drawn([trace([3.0, 2.0, 1.0]), trace([3.0, 2.0, math.inf])])
    assert labels(axes) == {"quartiles, extremes", "mean", "median"}


def test_what_is_infinite_is_left_out():
    axes = drawn([trace([3.0, math.inf, 1.0]), trace([3.0, math.nan, 2.0])])
    median, mean = axes.get_lines()
    assert [math.isnan(y) for y in median.get_ydata()] == [False, True, False]
    assert [math.isnan(y) for y in mean.get_ydata()] == [False, True, False]


@pytest.mark.parametrize(
    ("traces", "expected"),
    [
        ([trace([3.0, 2.0])], ["kl", "nlpd"]),
        ([trace([3.0, 2.0], loss=4.0)], ["kl", "nlpd", "loss"]),
        ([trace([math.inf] * 2, nlpd=None, moments=5.0)], ["kl_moment_matched", "nlpd_moment_matched"]),
        ([trace([3.0])], []),
        ([], []),
    ],
)
def test_a_panel_for_each_score_that_has_a_curve(traces, expected):
    figure = curves_figure(traces, "title")
    assert (figure is None) == (not expected)
    if figure is not None:
        assert len(figure.axes) == len(expected)
        assert [axes.get_title(loc="left") for axes in figure.axes] == [LABELS[score] for score in expected]
        assert {axes.get_xlabel() for axes in figure.axes} == {"steps"}
