"""Numbers as they are shown, axes, and the small drawings: places in them against places computed by hand."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest

from fsvi_bench.leaderboard.site.drawings import Curve, Strip, curves, rank_bar, score_bar, spectrum
from fsvi_bench.leaderboard.site.scales import LogScale, fit
from fsvi_bench.leaderboard.site.words import digits, fixed, full, interval, join, ordinal, signed, visible


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.0, "1.00"), (12.345, "12.3"), (9.996, "10.0"), (999.6, "1,000"), (123456.7, "123,457"),
        (0.00123456, "0.00123"), (0.0009996, "1.0·10⁻³"), (3.21e-5, "3.2·10⁻⁵"), (9.999e-5, "1.0·10⁻⁴"), (-2.5, "−2.50"),
        (1.5e6, "1.5·10⁶"), (-4.2e-9, "−4.2·10⁻⁹"), (math.inf, "∞"), (-math.inf, "−∞"), (None, "–"), (math.nan, "–"),
    ],
)  # fmt: skip
def test_three_digits(value, text):
    assert digits(value) == text


def test_other_ways_to_write_a_number():
    assert digits(1.23456789, 6) == "1.23457"
    assert [signed(each) for each in (0.5, -0.5, 0.0, None, math.inf)] == ["+0.500", "−0.500", "0", "–", "+∞"]
    assert interval((0.5, 12.0)) == "0.500 to 12.0"
    assert interval(None) == ""
    assert [fixed(each, 1) for each in (2.25, -1.04, None, math.inf)] == ["2.2", "−1.0", "–", "∞"]
    assert [full(each) for each in (0.1, 3, None, math.nan, math.inf)] == ["0.1", "3.0", "", "", "Infinity"]
    assert [ordinal(each) for each in (1, 2, 3, 4, 11, 12, 13, 21, 112)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th"]
    )
    assert [join(each) for each in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]


@pytest.mark.parametrize(
    "hidden", ["\u202e", "\u2066", "\u200b", "\x00", "\x1b", "\u2028", "\ufeff", "\r", "\U000e0041"]
)
def test_what_cannot_be_seen_is_spelled_out(hidden):
    shown = visible(f"a{hidden}b\n\tß日")
    assert hidden not in shown
    assert re.fullmatch(r"a\\[uU][0-9a-f]{4,8}b\n\tß日", shown)


def test_a_logarithmic_axis():
    scale = LogScale(1.0, 100.0, 0.0, 200.0)
    assert [scale(each) for each in (1.0, 10.0, 100.0, 0.0, 1e9)] == pytest.approx([0, 100, 200, 0, 200])
    assert scale.ticks(5) == [1.0, 10.0, 100.0]
    assert LogScale(1e-6, 1e6, 0, 1).ticks(7) == [1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6]
    assert LogScale(1.5, 30.0, 0, 1).ticks(5) == [2.0, 5.0, 10.0, 20.0]
    assert LogScale(0.9, 60.0, 0, 1).ticks(4) == [1.0, 3.0, 10.0, 30.0]


def test_an_axis_shows_every_finite_number_and_at_least_a_decade():
    wide = fit([0.5, 2000.0, math.inf, 0.0, 1e-12], 0, 1)
    assert wide.low < 0.5
    assert wide.high > 2000
    assert wide.low > 0.1
    narrow = fit([5.0], 0, 1)
    assert narrow.high / narrow.low == pytest.approx(10)
    assert narrow(5.0) == pytest.approx(0.5)
    assert fit([], 0, 1).low < 1 < fit([], 0, 1).high


def drawn(markup):
    """Ends of the line, and where the dot is."""
    found = re.search(r'M([\d.]+) 5H([\d.]+)"/><circle cx="([\d.]+)"', markup)
    return [float(each) for each in found.groups()]


def test_bars_stand_where_their_numbers_are():
    assert drawn(rank_bar(2.0, 1.0, 3.0, 5)) == [5.0, 42.0, 23.5]  # 5 to 79 pixels are ranks 1 to 5
    assert drawn(rank_bar(1.0, 1.0, 1.0, 1)) == [5.0, 5.0, 5.0]
    scale = LogScale(1.0, 100.0, 6.0, 206.0)
    assert drawn(score_bar(10.0, (1.0, 100.0), scale)) == [6.0, 206.0, 106.0]
    assert drawn(score_bar(10.0, (-5.0, 1000.0), scale)) == [6.0, 206.0, 106.0]  # beyond the ends: at the ends
    assert drawn(score_bar(10.0, None, scale)) == [106.0, 106.0, 106.0]
    assert "beyond" in score_bar(math.inf, None, scale)


def test_a_spectrum_has_words_and_a_line_at_one():
    quantiles = tuple(10 ** (-2 + 0.1 * place) for place in range(21))
    svg = spectrum([Strip("<a>", quantiles), Strip("b", ())], "s", "by-c")
    assert "&lt;a&gt;: from 0.01 to 1, median 0.1; b: none finished</desc>" in svg
    one = float(re.search(r'class="one" d="M([\d.]+) ', svg)[1])
    least, greatest = map(float, re.search(r'class="thin" d="M([\d.]+) 12H([\d.]+)"', svg).groups())
    lower, upper = map(float, re.search(r'class="thick" d="M([\d.]+) 12H([\d.]+)"', svg).groups())
    median = float(re.search(r'class="dot" cx="([\d.]+)"', svg)[1])
    assert greatest == one  # the greatest is 1
    assert median == pytest.approx((least + greatest) / 2, abs=0.1)  # evenly spaced in the logarithm
    assert [lower, upper] == pytest.approx([(least + median) / 2, (median + greatest) / 2], abs=0.1)


def test_what_is_beyond_a_spectrums_axis_has_an_arrow_at_its_edge():
    zero, inside = Strip("zero", (0.0,) * 21), Strip("inside", tuple(10 ** (-1 + 0.05 * place) for place in range(21)))
    huge = Strip("huge", (1.0,) * 20 + (1e9,))
    assert "beyond" not in spectrum([inside], "s", "by-c")
    left = spectrum([zero, inside], "s", "by-c")
    assert re.findall(r'class="beyond" d="M([\d.]+) [\d.]+l-7 5 7 5z"', left) == ["92.0"]  # the axis starts there
    assert left.count('class="dot"') == 1  # a median of 0 has no place on the axis
    right = spectrum([huge], "s", "by-c")
    assert re.findall(r'class="beyond" d="M([\d.]+) [\d.]+l7 5-7 5z"', right) == ["628.0"]


def test_curves_leave_out_the_start_and_rise_upwards():
    svg = curves([Curve("x", ((0.0, 50.0), (1.0, 10.0), (100.0, 1.0), (1000.0, math.inf)))], "c", "steps", "KL", "by")
    places = re.search(r'class="curve" d="M([^"]+)"', svg)[1].split("L")
    x, y = zip(*(map(float, place.split()) for place in places), strict=True)
    assert len(places) == 3
    assert list(x) == sorted(x)
    assert y[0] < y[1]  # 10 stands higher than 1
    assert y[2] == min(y)  # infinite: at the top
    assert x[1] - x[0] == pytest.approx(2 * (x[2] - x[1]), abs=0.2)  # two decades, then one
    assert "x: 10 at 1 steps" in svg


def test_names_of_curves_do_not_stand_on_one_another():
    alike = [Curve(f"<{name}>", ((1.0, 9.0), (10.0, 2.0 + place / 1000))) for place, name in enumerate("abc")]
    svg = curves(alike, "c", "steps", "KL", "by")
    heights = [float(re.search(rf'y="([\d.]+)">&lt;{name}&gt;</text>', svg)[1]) for name in "abc"]
    apart = sorted(heights)
    assert min(b - a for a, b in pairwise(apart)) >= 13
