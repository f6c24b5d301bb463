"""The picture of propositions 3 to 9: all is drawn, in its place, and nothing lies upon it."""

from collections import Counter

import pytest
from matplotlib.figure import Figure

from fsvi_bench.papers.burt2020.theory import figure, networks, singular
from fsvi_bench.papers.burt2020.theory.data_processing import measure_nested
from tests.papers.burt2020.test_theory import settings_of


def test_more_cases_than_colours_are_all_drawn():
    """Six of each, with five colours."""
    case, seen = singular.follow(settings_of(steps=3), 1, 2), networks.Seen(1, 2, [3, 7], [9, 9], 10, 0)
    pieces = networks.Pieces(
        {2: Counter({3: 10})}, {2: Counter({2: 10})}, Counter({6: 4}), Counter({7: 10}), [seen] * 6
    )
    panels = figure.draw(measure_nested(settings_of(draws=1)), [case] * 6, pieces).axes
    assert [len(panels[place].lines) for place in (1, 2, 5)] == [12, 12, 6]


def test_bars_of_one_number_stand_side_by_side_with_their_middle_on_its_tick():
    pieces = networks.Pieces(
        {5: Counter({6: 10})}, {5: Counter({2: 10})}, Counter({7: 3, 6: 4, 5: 3}), Counter({7: 10}), []
    )
    axes = Figure().subplots()
    figure._pieces(axes, pieces)
    middles = sorted(bar.get_x() + bar.get_width() / 2 for bar in axes.patches)
    assert middles == pytest.approx([2, 5, 5.9, 6.1, 6.9, 7.1], abs=1e-12)


def test_the_legend_of_the_last_panel_covers_no_line():
    """Widths 5 and 6 at the quick scale's points: a line that rises late."""
    seen = [networks.Seen(1, 2, [3, 7, 15], [0, 8, 10], 10, 0), networks.Seen(5, 6, [3, 7, 15], [0, 0, 1], 10, 0)]
    drawn = Figure(figsize=(2.3, 2.8), layout="constrained")
    axes = drawn.subplots()
    figure._seen(axes, networks.Pieces({}, {}, Counter(), Counter(), seen))
    drawn.draw_without_rendering()
    assert axes.get_legend().get_window_extent().y0 > axes.transData.transform((3, 1.0))[1]
