"""Curves of many traces, against the statistics module and by hand; their figure draws these."""

import math
import statistics

import numpy as np
import pytest

from fsvi_bench.presenting.traces import MAX_SECONDS, TRACED, Spread, curves_figure, spread_along, spread_of
from fsvi_bench.training.trace import Trace, TracePoint


def point(steps, kl, nlpd=0.0, seconds=0.0, loss=None):
    return TracePoint(steps, seconds, kl, nlpd, kl + 1, 0.0, loss)


def means(traces, score="kl", along="steps"):
    return spread_along(traces, score, along)["mean"].to_dict()


def test_a_spread_is_what_the_statistics_module_says():
    """`inclusive` quartiles are linear interpolations between order statistics."""
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    expected = (statistics.fmean(values), statistics.stdev(values), 1.0, low, middle, high, 9.0)
    assert spread_of(np.array(values)) == pytest.approx(expected, rel=1e-15)
    assert str(spread_of(np.array([2.0]))[1]) == "nan"


def test_infinite_scores_spoil_only_what_they_must():
    """Five cells: the upper quartile is the fourth, between none; of four, between 3 and infinity it is infinite."""
    spread = spread_of(np.array([1.0, 2.0, 3.0, math.inf, 4.0]))
    assert (spread.lower_quartile, spread.median, spread.upper_quartile) == (2.0, 3.0, 4.0)
    assert spread.mean == spread.largest == math.inf
    assert math.isnan(spread.standard_deviation)
    assert spread_of(np.array([1.0, 2.0, 3.0, math.inf])).upper_quartile == math.inf
    assert spread_of(np.array([1.0, 2.0, math.inf, math.inf])).upper_quartile == math.inf


def test_a_method_that_ended_early_keeps_its_last_point():
    early, late = Trace([point(0, 8.0), point(2, 6.0)]), Trace([point(0, 4.0), point(2, 2.0), point(5, 1.0)])
    assert means([early, late]) == {0: 6.0, 2: 4.0, 5: 3.5}
    assert Spread(*spread_along([early, late], "kl").loc[5]) == (3.5, statistics.stdev([6, 1]), 1, 2.25, 3.5, 4.75, 6)
    assert means([early, late], "kl_moment_matched") == {0: 7.0, 2: 5.0, 5: 4.5}


def test_between_its_points_a_trace_keeps_the_last_one():
    one = Trace([point(0, 8.0, seconds=0.0), point(1, 4.0, seconds=1.0), point(2, 2.0, seconds=3.0)])
    two = Trace([point(0, 8.0, seconds=0.0), point(1, 6.0, seconds=2.0)])
    assert means([one, two], along="seconds") == {0.0: 8.0, 1.0: 6.0, 2.0: 5.0, 3.0: 4.0}


def test_places_that_some_trace_lacks_and_those_before_it_begins_are_left_out():
    traces = [Trace([point(0, 1.0, None), point(end, 1.0, 5.0)]) for end in (2, 4)]
    assert [*means(traces, "nlpd")] == [4]
    assert [*means(traces)] == [0, 2, 4]
    assert means(traces, "loss") == means([*traces, Trace([point(0, 1.0, loss=7.0)])], "loss") == {}
    assert means([Trace([point(0, 1.0), point(3, 1.0)]), Trace([point(1, 3.0)])]) == {1: 2.0, 3: 2.0}
    assert means([]) == means([], along="seconds") == means([Trace([point(0, 1.0)]), Trace()]) == {}


def test_a_cell_that_diverged_counts_as_infinite():
    spread = spread_along([Trace([point(0, kl)]) for kl in (1.0, 2.0, math.nan)], "kl").loc[0]
    assert spread[["smallest", "median", "largest", "mean"]].tolist() == [1.0, 2.0, math.inf, math.inf]


def test_many_times_are_thinned_and_keep_both_ends():
    """100 traces with 10 times of their own each; all have begun at 0.99 only."""
    traces = [Trace([point(i, 1.0, seconds=i + t / 100) for i in range(10)]) for t in range(100)]
    times = [*means(traces, along="seconds")]
    assert len(times) <= MAX_SECONDS
    assert times[0] >= 0.99
    assert times[-1] == 9.99
    assert times == sorted(set(times))


# --- Their figure -----------------------------------------------------------------------------------------------------


def trace(kls, nlpd=1.0, moments=None, loss=None):
    return Trace([TracePoint(s, 0.0, kl, nlpd, moments or kl, nlpd or 2.0, loss) for s, kl in enumerate(kls)])


def lines_of(*kls):
    """Median and mean."""
    return [[*line.get_ydata()] for line in curves_figure([trace(each) for each in kls], "title").axes[0].lines]


def test_median_and_mean_are_those_of_the_cells_one_cell_is_a_line_and_infinity_is_left_out():
    assert lines_of([8.0, 4.0, 1.0], [8.0, 5.0, 2.0], [8.0, 9.0, 6.0]) == [[8.0, 5.0, 2.0], [8.0, 6.0, 3.0]]
    assert lines_of([800.0, 4.0, 1.0]) == [[800.0, 4.0, 1.0]]
    for line in lines_of([3.0, math.inf, 1.0], [3.0, math.nan, 2.0]):
        assert [math.isnan(y) for y in line] == [False, True, False]


@pytest.mark.parametrize(
    ("traces", "expected"),
    [
        ([trace([3.0, 2.0], loss=4.0)], ["kl", "nlpd", "loss"]),
        ([trace([math.inf] * 2, nlpd=None, moments=5.0)], ["kl_moment_matched", "nlpd_moment_matched"]),
        ([trace([3.0])], None),
        ([], None),
    ],
)
def test_a_panel_for_each_score_that_has_a_curve(traces, expected):
    figure = curves_figure(traces, "title")
    titles = figure and [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == (expected and [TRACED[score] for score in expected])
