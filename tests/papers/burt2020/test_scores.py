"""Figures 2 to 4: where marks stand, what lies beyond an axis, what lacks splits, and what titles say."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from fsvi_bench.papers.burt2020.cells import FAINT, SETTINGS, frame_of, settings_in_words
from fsvi_bench.papers.burt2020.scores import BESIDE, scores_by_line
from fsvi_bench.papers.experiment import figure_of
from fsvi_bench.papers.places import Cells, places
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.running.plan import Request, make_plan

PLANNED = 4
CARRIED = [*[10.0] * 4, *[13.0] * 4, 9e6]  #: one split carries the mean to 1e6
SIZES = (20, 40, 80, 160)


def line(method, kl, family="full", size=80, nlpd=2.0, splits=PLANNED, jitter=0.0, lost="missing"):
    """Cells of a line on boston; of four planned splits, with these KLs and NLPDs or all with one."""
    settings = {} if method == "exact" else {"M": size, "kl_jitter": jitter, "max_steps": 500}
    own = {"dataset": "boston", "method": method, "family": family, **settings}
    kls = kl if isinstance(kl, list) else [kl] * splits
    done = [own | {"split": split, "status": "ok", "kl": each, "nlpd": nlpd} for split, each in enumerate(kls)]
    return done + [own | {"split": split, "status": lost} for split in range(len(kls), PLANNED)]


def scores(*lines):
    columns = ["dataset", "split", "method", "family", *SETTINGS, "status", "kl", "nlpd"]
    cells = pd.DataFrame([cell for each in lines for cell in each], columns=columns)
    return scores_by_line(cells.astype({**SETTINGS, "kl": float, "nlpd": float}), quick=False)


def panels(*lines, name="burt2020-fig3"):
    figure = figure_of(name).of({"scores": scores(*lines)})
    figure.draw_without_rendering()
    return figure, *figure.axes


def words_in(axes):
    """Numbers beside arrows, and how many arrows there are at the foot and at the top."""
    texts = [text.get_text() for text in axes.texts]
    return [text.strip() for text in texts if text not in ("▾", "▴")], texts.count("▾"), texts.count("▴")


def on_axis(axes, markers):
    return [y for each in axes.lines if each.get_marker() in markers for y in each.get_ydata()]


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_marks_are_medians_on_their_quartiles_and_means_stand_beside():
    kls = [1.0, 2.0, 4.0, 43.0]
    row = scores(line("rand-a", kls)).set_index("score").loc["kl"]
    assert (row["median"], row["lower"], row["upper"]) == (3.0, *np.quantile(kls, [0.25, 0.75]))
    error = np.std(kls, ddof=1) / 2
    assert (row["mean"], row["mean_low"], row["mean_high"]) == pytest.approx((12.5, 12.5 - error, 12.5 + error))
    _, of_kl, of_nlpd = panels(line("rand-a", kls))
    (median, mean) = (next(each for each in of_kl.lines if each.get_marker() == marker) for marker in "oD")
    assert (median.get_ydata(), mean.get_ydata()) == ([3.0], [12.5])
    assert mean.get_xdata()[0] == pytest.approx(median.get_xdata()[0] + BESIDE)
    assert mean.get_markersize() < median.get_markersize()
    (bar, _) = (each for each in of_kl.collections if len(each.get_segments()))
    assert bar.get_segments()[0][:, 1].tolist() == [row["lower"], row["upper"]]
    assert words_in(of_kl) == words_in(of_nlpd) == ([], 0, 0)


def test_sizes_and_jitter_stand_side_by_side_in_a_familys_block():
    sizes = [line("rand-a", 10.0, family, size) for family in ("full", "ffg") for size in SIZES]
    jittered = [line("rand-a", 10.0, family, jitter=1e-6) for family in ("full", "ffg")]
    rows = scores(line("exact", 0.0), *sizes, *jittered).query("score == 'kl'")
    assert rows["place"].tolist() == [0, *[1] * 10]
    assert (rows["fill"] == 0).tolist() == [False] * 9 + [True] * 2
    for family, side in (("full", -1), ("ffg", 1)):
        shifts = rows[(rows["family"] == family) & (rows["method"] == "rand-a")]["shift"]
        assert (np.diff(shifts) > 0).all()  # sizes from left to right, then the jittered one
        assert shifts.mean() == pytest.approx(side * 0.24)
        assert (side * shifts).between(0, 0.5).all()


def test_an_outlying_nlpd_is_an_arrow_with_its_number():
    usual = [line("fixed-a", 10.0, size=m, nlpd=1.0 + 0.1 * i) for i, m in enumerate(SIZES)]
    usual += [line("ssge", 10.0, size=m, nlpd=2.0 + 0.1 * i) for i, m in enumerate(SIZES)]
    high = [line("rand-a-ngd", 10.0, "ffg", m, nlpd=v) for m, v in ((80, 22.25), (160, 95.0))]
    _, of_kl, of_nlpd = panels(*usual, *high)
    assert of_nlpd.get_ylim()[1] < 5.0
    words, below, above = words_in(of_nlpd)
    assert (words, below) == (["22 to\n95"], 0)
    assert above == 6  # bars, medians and means of two lines
    assert len(on_axis(of_nlpd, "D")) == len(on_axis(of_nlpd, "os")) == 8
    assert words_in(of_kl)[0] == []


def test_a_mean_that_one_split_carries_far_away_does_not_stretch_the_axis():
    _, of_kl, of_nlpd = panels(line("rand-a", CARRIED), line("ssge", 300.0))
    assert of_kl.get_ylim()[1] < 1e5
    assert on_axis(of_kl, "o") == [13.0, 300.0]
    assert on_axis(of_kl, "D") == [300.0]
    assert words_in(of_kl) == (["10⁶"], 0, 1)
    assert words_in(of_nlpd)[0] == []
    nearer = [value if value < 1e6 else 9e5 for value in CARRIED]
    _, of_kl, _ = panels(line("rand-a", CARRIED), line("rand-a", nearer, "ffg"), line("ssge", 300.0))
    assert words_in(of_kl)[0] == ["10⁵ to\n10⁶"]  # once for each method


def test_an_infinite_mean_keeps_its_finite_median():
    _, of_kl, _ = panels(line("exact", 0.0), line("fixed-a", [5.0, 7.0, 9.0, math.inf]), line("ssge", 30.0))
    assert sorted(words_in(of_kl)[0]) == ["0", "∞"]
    assert on_axis(of_kl, "o") == [8.0, 30.0]
    assert of_kl.get_ylim()[1] > 2.5 * 30.0  # room for what stands at the top


def test_a_median_below_the_axis_is_an_arrow_and_its_mean_stays():
    _, of_kl, _ = panels(line("exact", 0.0), line("fixed-a", [0.0, 1e-12, 1e-12, 400.0]))
    assert words_in(of_kl)[0] == ["0", "0"]
    assert on_axis(of_kl, "D") == [pytest.approx(100.0)]
    assert of_kl.get_ylim()[0] < 100 < of_kl.get_ylim()[1]


@pytest.mark.parametrize("value", [0.0, math.inf])
def test_panels_without_a_point_have_no_numbers(value):
    _, of_kl, _ = panels(line("fixed-a", value))
    assert list(of_kl.get_yticks()) == []


def test_exacts_level_is_drawn_where_it_is_a_level():
    _, of_kl, of_nlpd = panels(line("exact", 0.0), line("exact", 36.0, "ffg"), line("ssge", 50.0))
    levels = [[each.get_ydata()[0] for each in axes.lines if each.get_linestyle() == "--"] for axes in (of_kl, of_nlpd)]
    assert levels == [[36.0], [2.0, 2.0]]


def test_the_legend_is_of_what_is_drawn():
    lines = [line("exact", 36.0, "ffg"), line("ssge", 50.0), line("ssge", 50.0, "ffg", 160), line("ssge", 9.0, size=20)]
    figure, *_ = panels(*lines)
    assert legend_of(figure) == [
        "full, M = 20", "full, M = 80", "ffg, M = 80", "ffg, M = 160", "EXACT's median", "mean ± s.e."
    ]  # fmt: skip
    figure, *_ = panels(line("ssge", 50.0), line("ssge", [], size=20), line("ssge", 50.0, jitter=1e-6))
    assert "KL jitter 1e-6" in legend_of(figure)


def test_whatever_lacks_splits_is_faint_and_counted():
    lines = [line("exact", 0.0, splits=3), line("ssge", 50.0), line("ssge", 50.0, "ffg", splits=1)]
    lines += [line("fixed-a", 0.0, splits=0, lost="diverged"), line("rand-a", 5.0)]
    figure, of_kl, of_nlpd = panels(*lines)
    names = ["EXACT\n3/4", "SSGE\n1–4/4", "FIXEDA\n0/4\n4 ✗", "RANDA"]
    assert [text.get_text() for text in of_kl.get_xticklabels()] == names
    faint = {(each.get_marker(), each.get_alpha()) for each in of_nlpd.lines if each.get_marker() in "oD"}
    assert faint == {("o", FAINT), ("D", FAINT), ("o", 1.0), ("D", 1.0)}
    rows = scores(*lines).query("score == 'kl'")
    assert rows["opacity"].tolist() == [FAINT, 1.0, FAINT, FAINT, 1.0]
    assert rows["finished"].tolist() == [3, 4, 1, 0, 4]
    assert rows["mean"].isna().tolist() == [False, False, False, True, False]
    assert figure.get_suptitle().startswith("16 of 20 cells, up to 500 steps")


def test_a_data_set_with_fewer_sizes_says_so():
    cells = [*line("ssge", 5.0), *line("ssge", 5.0, size=20)]
    power = [cell | {"dataset": "power"} for cell in line("ssge", 5.0)]
    assert scores(cells, power)["panel"].unique().tolist() == ["boston", "power, M = 80 only"]


def test_figure_2_draws_means_and_their_errors():
    lines = [line("exact", 0.0), line("ssge", [4.0, 6.0, 4.0, 6.0]), line("ssge", 5.0, "ffg", jitter=1e-6)]
    figure, of_kl, _ = panels(*lines, name="burt2020-fig2")
    assert on_axis(of_kl, "o") == [5.0]
    assert on_axis(of_kl, "s") == [5.0]
    assert words_in(of_kl) == (["0"], 1, 0)
    assert legend_of(figure) == ["EXACT's level, full", "full", "ffg, KL jitter 1e-6"]


@pytest.mark.parametrize("name", ["burt2020-fig2", "burt2020-fig3"])
def test_letters_can_be_read_in_print(name):
    lines = [line(method, 5.0, family) for method in ("exact", "ssge", "rand-a-ngd") for family in ("full", "ffg")]
    figure, *_ = panels(*lines, line("fixed-a", CARRIED), name=name)
    assert figure.get_size_inches()[0] == 7.0
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 8


@pytest.mark.parametrize(
    ("protocol", "sizes", "steps"),
    [
        ("burt2020-fig1", "10", "up to 5,000 steps"),
        ("burt2020-fig2", "80", "up to 15,000 steps"),
        ("burt2020", "20, 40, 80, 160", "up to 15,000 steps (RANDA, natural gradients: 500)"),
    ],
)
def test_titles_say_what_m_is_and_who_takes_other_steps(protocol, sizes, steps):
    cells = frame_of(Cells([], list(places(make_plan(Request(protocol=protocol))))))
    words = settings_in_words(cells, quick=True)
    assert (words["sizes"], words["steps"]) == (sizes, steps)
    assert words["cells"] == f"quick look: 0 of {len(cells):,} cells"


@pytest.mark.parametrize(("protocol", "ngd"), [("burt2020", True), ("burt2020-fig2", False)])
def test_titles_are_true_of_the_protocol(protocol, ngd):
    """They say of which methods M is also the minibatch, and that the others take all rows."""
    tied = {}
    for place in places(make_plan(Request(protocol=protocol, splits="0"))):
        if place.method != "exact":
            tied.setdefault(place.method, set()).add(place.hyperparameters.get("minibatch"))
    expected = {"fixed-a": {"full"}, "rand-a": {"M"}, "ssge": {"M"}} | ({"rand-a-ngd": {None}} if ngd else {})
    assert tied == expected


def test_figures_3_and_4_are_the_protocols_data_sets():
    study = set(map(repr, places(make_plan(Request(protocol="burt2020")))))
    for name, datasets in (
        ("burt2020-fig3", {"boston", "concrete", "energy", "kin8nm"}),
        ("burt2020-fig4", {"naval", "power", "wine", "yacht"}),
    ):
        figure = REPRODUCTIONS[name]
        assert figure.takes_days
        plan, quick = (make_plan(figure._settings(each)) for each in (False, True))
        assert {name for name, _ in plan.splits} == datasets
        assert set(map(repr, places(plan))) <= study
        assert {split for _, split in quick.splits} == {0, 1}
