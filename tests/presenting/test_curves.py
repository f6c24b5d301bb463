"""Figures of curves: what is drawn are the spreads of the scores that have a curve."""

from __future__ import annotations

import math

import pytest
from fsvi_bench.presenting.curves import LABELS, curves_figure

from fsvi_bench.training.trace import Trace, TracePoint


def trace(kls, nlpd=1.0, moments=None, loss=None):
    return Trace([TracePoint(s, 0.0, kl, nlpd, moments or kl, nlpd or 2.0, loss) for s, kl in enumerate(kls)])


def lines_of(*kls):
    """Median and mean."""
    return [[*line.get_ydata()] for line in curves_figure([trace(each) for each in kls], "title").axes[0].lines]


def test_median_and_mean_are_those_of_the_cells_and_one_cell_is_a_line():
    assert lines_of([8.0, 4.0, 1.0], [8.0, 5.0, 2.0], [8.0, 9.0, 6.0]) == [[8.0, 5.0, 2.0], [8.0, 6.0, 3.0]]
    assert lines_of([800.0, 4.0, 1.0]) == [[800.0, 4.0, 1.0]]


def test_what_is_infinite_is_left_out():
    for line in lines_of([3.0, math.inf, 1.0], [3.0, math.nan, 2.0]):
        assert [math.isnan(y) for y in line] == [False, True, False]


@pytest.mark.parametrize(
    ("traces", "expected"),
    [
        ([trace([3.0, 2.0])], ["kl", "nlpd"]),
        ([trace([3.0, 2.0], loss=4.0)], ["kl", "nlpd", "loss"]),
        ([trace([math.inf] * 2, nlpd=None, moments=5.0)], ["kl_moment_matched", "nlpd_moment_matched"]),
        ([trace([3.0])], None),
        ([], None),
    ],
)
def test_a_panel_for_each_score_that_has_a_curve(traces, expected):
    figure = curves_figure(traces, "title")
    titles = figure and [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == (expected and [LABELS[score] for score in expected])
