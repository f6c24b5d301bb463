"""Figures 3 and 4: what lies beyond an axis, what lacks splits, and what their titles say."""

from __future__ import annotations

import math
from statistics import median

import numpy as np
import pandas as pd
import pytest
from matplotlib.markers import CARETDOWN, CARETUP
from matplotlib.text import Annotation, Text

from fsvi_bench.papers.burt2020.cells import SETTINGS
from fsvi_bench.papers.burt2020.sizes import BESIDE, MEAN, TIED, TINTS, draw_size_panels, fence
from fsvi_bench.papers.places import places
from fsvi_bench.presenting.figures import FAINT
from fsvi_bench.running.plan import Request, make_plan

PLANNED = 4


def panels(lines):
    """Both panels of boston, from method, family, M, KLs and NLPDs by split; of four planned."""
    rows = []
    for method, family, size, kl, nlpd in lines:
        settings = {} if method == "exact" else {"M": size, "kl_jitter": 0.0, "max_steps": 500}
        own = {"dataset": "boston", "method": method, "family": family, **settings}
        rows += [own | {"status": "ok", "kl": a, "nlpd": b} for a, b in zip(kl, nlpd, strict=True)]
        rows += [own | {"status": "missing"}] * (PLANNED - len(kl))
    columns = ["dataset", "method", "family", *SETTINGS, "status", "kl", "nlpd"]
    figure = draw_size_panels(pd.DataFrame(rows, columns=columns).astype(SETTINGS), "some cells", False)
    figure.draw_without_rendering()
    return figure, *figure.axes


def line(method, value, family="full", size=80, nlpd=2.0, splits=PLANNED):
    return method, family, None if method == "exact" else size, [value] * splits, [nlpd] * splits


def words_in(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def of_means(axes, marker="D"):
    return [each for each in axes.lines if each.get_color() == MEAN["color"] and each.get_marker() == marker]


def of_medians(axes):
    """Not those that an arrow starts from, which stand at a place of the axis."""
    on_axis = [
        each for each in axes.lines if each.get_marker() in ("o", "s") and each.get_transform() == axes.transData
    ]
    return [each.get_ydata()[0] for each in on_axis]


def bars(axes):
    return [each.get_ydata() for each in axes.lines if each.get_linewidth() == 2.6]


def test_outliers_that_would_flatten_the_rest_are_cut_off():
    rest = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    far, nearer = np.append(rest, 90.0), np.append(rest, 22.0)
    q1, q3 = np.quantile(far, [0.25, 0.75])
    assert fence(far) == pytest.approx(q3 + 3 * (q3 - q1), rel=1e-15)
    assert fence(nearer) == math.inf  # far out, but six units of 21 are left to the rest
    assert fence(rest) == fence(rest[:1]) == math.inf
    assert fence(np.append(np.ones(7), 1.1)) == math.inf  # the rest is one point, which nothing flattens


def test_a_cut_off_mark_is_an_arrow_with_its_number():
    usual = [line("fixed-a", 10.0, size=m, nlpd=1.0 + 0.1 * i) for i, m in enumerate((20, 40, 80, 160))]
    usual += [line("ssge", 10.0, size=m, nlpd=2.0 + 0.1 * i) for i, m in enumerate((20, 40, 80, 160))]
    high = [line("rand-a-ngd", 10.0, "ffg", m, nlpd=v) for m, v in ((80, 22.25), (160, 95.0))]
    figure, of_kl, of_nlpd = panels([*usual, *high])
    assert of_nlpd.get_ylim()[1] < 5.0
    assert words_in(of_nlpd) == ["22.2 to\n95"]
    assert next(text for text in of_nlpd.texts if text.get_text()).get_color() == TINTS["ffg"][2]
    arrows = [text for text in of_nlpd.texts if isinstance(text, Annotation)]
    assert [arrow.xy[1] for arrow in arrows] == [1.0, 1.0]
    assert len(of_means(of_nlpd)) == len(of_medians(of_nlpd)) == 8
    assert words_in(of_kl) == []
    assert "arrows: medians" in figure.get_suptitle()
    assert "carets" not in figure.get_suptitle()  # the arrows say it of these means


def test_marks_are_medians_on_their_quartiles_and_means_stand_beside():
    kls = [1.0, 2.0, 4.0, 43.0]
    _, of_kl, _ = panels([("rand-a", "full", 80, kls, [1.0] * 4)])
    assert of_medians(of_kl) == [3.0]
    (bar,) = bars(of_kl)
    assert bar.tolist() == np.quantile(kls, [0.25, 0.75]).tolist()
    (mean,) = of_means(of_kl)
    assert mean.get_ydata()[0] == 12.5
    (mark,) = [each for each in of_kl.lines if each.get_marker() == "o"]
    assert mean.get_xdata()[0] == pytest.approx(mark.get_xdata()[0] + BESIDE)
    assert mean.get_markersize() < mark.get_markersize()


def test_a_mean_that_one_split_carries_far_away_does_not_stretch_the_axis():
    carried = ("rand-a", "full", 80, [*[10.0] * 4, *[13.0] * 4, 9e6], [1.0] * 9)
    figure, of_kl, of_nlpd = panels([carried, line("ssge", 300.0)])
    assert of_kl.get_ylim()[1] < 1e5
    assert of_medians(of_kl) == [13.0, 300.0]
    (caret,) = of_means(of_kl, CARETUP)
    assert caret.get_ydata()[0] == 1.0
    assert caret.get_transform() == of_kl.get_xaxis_transform()
    assert words_in(of_kl) == ["1e6"]
    assert of_kl.texts[0].get_color() == MEAN["color"]
    assert words_in(of_nlpd) == []
    assert "carets: means" in figure.get_suptitle()
    assert "arrows" not in figure.get_suptitle()


def test_an_axis_ends_where_its_values_do_and_not_in_the_room_for_what_lies_beyond():
    carried = ("rand-a", "full", 80, [*[10.0] * 4, *[13.0] * 4, 9e6], [1.0] * 9)
    _, of_kl, of_nlpd = panels([carried, line("ssge", 3000.0)])
    assert of_kl.get_ylim()[1] > 1e4
    for minor in (False, True):
        assert of_kl.get_yticks(minor=minor).max() <= 3000.0
    assert of_kl.get_yticks().tolist() == [10.0, 100.0, 1000.0]
    assert of_kl.spines["left"].get_bounds()[1] == 3000.0
    assert of_nlpd.spines["left"].get_bounds() is None
    _, whole, _ = panels([line("rand-a", 10.0), line("ssge", 3000.0)])
    assert whole.spines["left"].get_bounds() is None


def test_means_beyond_the_axis_are_told_once_for_each_method():
    far, nearer = (([10.0] * 8 + [carried], [1.0] * 9) for carried in (9e7, 9e6))
    _, of_kl, _ = panels([("rand-a", "full", 80, *far), ("rand-a", "ffg", 80, *far), line("ssge", 300.0)])
    assert words_in(of_kl) == ["1e7"]
    sizes = [("rand-a", family, m, *(far if m == 80 else nearer)) for family in ("full", "ffg") for m in (20, 80)]
    _, of_kl, _ = panels([*sizes, line("ssge", 300.0)])
    assert words_in(of_kl) == ["1e6 to\n1e7"]
    assert next(text for text in of_kl.texts if text.get_text()).get_position()[0] == pytest.approx(-0.085, abs=0.05)


def test_an_infinite_mean_keeps_its_finite_median():
    infinite = ("fixed-a", "full", 80, [5.0, 7.0, 9.0, math.inf], [1.0] * 4)
    _, of_kl, _ = panels([line("exact", 0.0), infinite, line("ssge", 30.0)])
    assert words_in(of_kl) == ["∞"]
    assert of_medians(of_kl) == [median(infinite[3]), 30.0]
    (bar,) = bars(of_kl)
    assert bar.tolist() == [6.5, of_kl.get_ylim()[1]]  # the upper quartile is infinite
    assert of_kl.get_ylim()[1] > 2.5 * 30.0  # room for what stands at the top, beside the margin of 2


def test_a_median_below_the_axis_is_an_arrow_and_its_mean_stays():
    low = ("fixed-a", "full", 80, [0.0, 1e-12, 1e-12, 400.0], [1.0] * 4)
    _, of_kl, _ = panels([line("exact", 0.0), low])
    arrows = [text for text in of_kl.texts if isinstance(text, Annotation)]
    assert [arrow.xy[1] for arrow in arrows] == [0.0, 0.0]
    assert not of_means(of_kl, CARETDOWN)  # EXACT's arrow says it of EXACT's mean
    assert [each.get_ydata()[0] for each in of_means(of_kl)] == [pytest.approx(100.0)]
    assert of_kl.get_ylim()[0] < 100 < of_kl.get_ylim()[1]


def test_the_legend_is_of_what_is_drawn():
    figure, *_ = panels([line("exact", 36.0, "ffg"), line("ssge", 50.0), line("ssge", 50.0, "ffg", 160)])
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == ["full, M = 80", "ffg, M = 80", "ffg, M = 160", "median, quartiles", "mean ± s.e.", "EXACT's median"]
    figure, *_ = panels([line("ssge", 50.0), ("ssge", "full", 20, [], [])])
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == ["full, M = 80", "median, quartiles", "mean ± s.e."]


def test_whatever_lacks_splits_is_faint():
    partial = [line("exact", 0.0, splits=3), line("exact", 36.0, "ffg", splits=3), line("ssge", 50.0)]
    figure, of_kl, of_nlpd = panels([*partial, line("fixed-a", 0.0, splits=0)])
    assert of_nlpd.get_title("right") == "M = 80 only; 1 of 4 settings without a result; 3–4 of 4 splits"
    assert of_nlpd.get_title("left") == ""
    faint = {(each.get_marker(), each.get_alpha()) for each in of_kl.lines if each.get_color() != "0.88"}
    # EXACT full's arrow, EXACT ffg's median and mean, and the level; SSGE's median and mean
    assert faint == {("o", FAINT), ("s", FAINT), ("D", FAINT), ("None", FAINT), ("o", 1.0), ("D", 1.0)}
    assert "faint: fewer splits than planned" in figure.get_suptitle()
    (arrow,) = [text for text in of_kl.texts if isinstance(text, Annotation)]
    assert arrow.arrow_patch.get_alpha() == FAINT
    words = {text.get_text() for text in figure.findobj(Text)}
    assert not any("jitter" in each for each in words)


@pytest.mark.parametrize("value", [0.0, math.inf])
def test_panels_without_a_point_have_no_numbers(value):
    _, of_kl, _ = panels([line("fixed-a", value)])
    assert list(of_kl.get_yticks()) == []


def test_the_title_is_true_of_the_protocol():
    """It says of which methods M is also the minibatch, and that the others take all rows."""
    tied = {}
    for place in places(make_plan(Request(protocol="burt2020", splits="0"))):
        if place.method != "exact":
            tied.setdefault(place.method, set()).add(place.hyperparameters.get("minibatch"))
    assert tied == {"fixed-a": {"full"}, "rand-a": {"M"}, "rand-a-ngd": {None}, "ssge": {"M"}}
    figure, *_ = panels([line("fixed-a", 1.0)])
    assert TIED in figure.get_suptitle()
    assert "up to 500 steps" in figure.get_suptitle()
