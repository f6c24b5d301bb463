"""Curves of many traces, against the statistics module and by hand."""

from __future__ import annotations

import math
import statistics
from dataclasses import astuple

import numpy as np
import pytest

from fsvi_bench.presenting.traces import MAX_SECONDS, Spread, spread_by_second, spread_by_step, spread_of
from fsvi_bench.training.trace import Trace, TracePoint


def point(steps, kl, nlpd=0.0, seconds=0.0, loss=None):
    return TracePoint(steps, seconds, kl, nlpd, kl + 1, 0.0, loss)


def test_a_spread_is_what_the_statistics_module_says():
    """`inclusive` quartiles are linear interpolations between order statistics."""
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    expected = (statistics.fmean(values), statistics.stdev(values), 1.0, low, middle, high, 9.0)
    assert astuple(spread_of(np.array(values))) == pytest.approx(expected, rel=1e-15)


def test_a_single_cell_has_no_standard_deviation():
    spread = spread_of(np.array([2.0]))
    assert math.isnan(spread.standard_deviation)
    assert {spread.mean, spread.smallest, spread.lower_quartile, spread.median, spread.largest} == {2.0}


def test_infinite_scores_spoil_only_what_they_must():
    """Five cells: the upper quartile is the fourth, between none; of four, between 3 and infinity it is infinite."""
    spread = spread_of(np.array([1.0, 2.0, 3.0, math.inf, 4.0]))
    assert (spread.lower_quartile, spread.median, spread.upper_quartile) == (2.0, 3.0, 4.0)
    assert spread.mean == spread.largest == math.inf
    assert math.isnan(spread.standard_deviation)
    assert spread_of(np.array([1.0, 2.0, 3.0, math.inf])).upper_quartile == math.inf
    assert spread_of(np.array([1.0, 2.0, math.inf, math.inf])).upper_quartile == math.inf


def test_a_method_that_ended_early_keeps_its_last_point():
    early = Trace([point(0, 8.0), point(2, 6.0)])
    late = Trace([point(0, 4.0), point(2, 2.0), point(5, 1.0)])
    curve = spread_by_step([early, late], "kl")
    assert [(step, spread.mean) for step, spread in curve] == [(0, 6.0), (2, 4.0), (5, 3.5)]
    assert curve[2][1] == Spread(3.5, statistics.stdev([6, 1]), 1.0, 2.25, 3.5, 4.75, 6.0)
    assert [spread.mean for _, spread in spread_by_step([early, late], "kl_moment_matched")] == [7.0, 5.0, 4.5]
    assert all(type(step) is int for step, _ in curve)


def test_between_its_points_a_trace_keeps_the_last_one():
    one = Trace([point(0, 8.0, seconds=0.0), point(1, 4.0, seconds=1.0), point(2, 2.0, seconds=3.0)])
    two = Trace([point(0, 8.0, seconds=0.0), point(1, 6.0, seconds=2.0)])
    means = [(second, spread.mean) for second, spread in spread_by_second([one, two], "kl")]
    assert means == [(0.0, 8.0), (1.0, 6.0), (2.0, 5.0), (3.0, 4.0)]


def test_a_score_is_left_out_where_some_trace_lacks_it():
    traces = [Trace([point(0, 1.0, None), point(end, 1.0, 5.0)]) for end in (2, 4)]
    assert [step for step, _ in spread_by_step(traces, "nlpd")] == [4]
    assert [step for step, _ in spread_by_step(traces, "kl")] == [0, 2, 4]
    assert spread_by_step(traces, "loss") == []
    with_loss = Trace([point(0, 1.0, loss=7.0)])
    assert spread_by_step([*traces, with_loss], "loss") == []
    assert [(step, s.mean) for step, s in spread_by_step([with_loss], "loss")] == [(0, 7.0)]


def test_steps_before_some_trace_begins_are_left_out():
    traces = [Trace([point(0, 1.0), point(3, 1.0)]), Trace([point(1, 3.0)])]
    assert [(step, s.mean) for step, s in spread_by_step(traces, "kl")] == [(1, 2.0), (3, 2.0)]


def test_an_empty_trace_has_no_score_anywhere():
    assert spread_by_step([], "kl") == spread_by_second([], "kl") == []
    assert spread_by_step([Trace([point(0, 1.0)]), Trace()], "kl") == []


def test_a_cell_that_diverged_counts_as_infinite():
    traces = [Trace([point(0, kl)]) for kl in (1.0, 2.0, math.nan)]
    ((_, spread),) = spread_by_step(traces, "kl")
    assert (spread.smallest, spread.median, spread.largest, spread.mean) == (1.0, 2.0, math.inf, math.inf)


def test_a_score_that_no_trace_follows_is_refused():
    with pytest.raises(ValueError, match="no trace follows 'rmse', expected one of kl, nlpd"):
        spread_by_step([], "rmse")


def test_many_times_are_thinned_and_keep_both_ends():
    """100 traces with 10 times of their own each."""
    traces = [Trace([point(i, 1.0, seconds=i + t / 100) for i in range(10)]) for t in range(100)]
    times = [second for second, _ in spread_by_second(traces, "kl")]
    assert len(times) <= MAX_SECONDS
    # All traces have begun at 0.99 only.
    assert times[0] >= 0.99
    assert times[-1] == 9.99
    assert times == sorted(set(times))
