"""Figures 2 to 4: the numbers that their marks stand for, what lacks splits, and that titles are true of the protocol."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from fsvi_bench.papers.burt2020.cells import FAINT, SETTINGS, frame_of, settings_in_words
from fsvi_bench.papers.burt2020.scores import scores_by_line
from fsvi_bench.papers.experiment import figure_of
from fsvi_bench.papers.places import Cells, places
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.running.plan import Request, make_plan

PLANNED = 4
SIZES = (20, 40, 80, 160)


def line(method, kl, family="full", size=80, splits=PLANNED, jitter=0.0, lost="missing"):
    """Cells of a line on boston; of four planned splits, with these KLs or all with one."""
    settings = {} if method == "exact" else {"M": size, "kl_jitter": jitter, "max_steps": 500}
    own = {"dataset": "boston", "method": method, "family": family, **settings}
    kls = kl if isinstance(kl, list) else [kl] * splits
    done = [own | {"split": split, "status": "ok", "kl": each, "nlpd": 2.0} for split, each in enumerate(kls)]
    return done + [own | {"split": split, "status": lost} for split in range(len(kls), PLANNED)]


def scores(*lines):
    columns = ["dataset", "split", "method", "family", *SETTINGS, "status", "kl", "nlpd"]
    cells = pd.DataFrame([cell for each in lines for cell in each], columns=columns)
    return scores_by_line(cells.astype({**SETTINGS, "kl": float, "nlpd": float}), quick=False)


def kls(*lines):
    return scores(*lines).query("score == 'kl'")


@pytest.mark.parametrize("values", [[1.0, 2.0, 4.0, 43.0], [5.0, 7.0, 9.0, math.inf]])
def test_marks_are_medians_on_their_quartiles_and_means_stand_beside(values):
    (row,) = kls(line("rand-a", values)).to_dict("records")
    quartiles = pd.Series(values).quantile([0.25, 0.5, 0.75])
    assert [row["lower"], row["median"], row["upper"]] == quartiles.to_list()
    assert row["mean"] == np.mean(values)
    if math.isfinite(row["mean"]):
        error = np.std(values, ddof=1) / 2
        assert (row["mean_low"], row["mean_high"]) == pytest.approx((row["mean"] - error, row["mean"] + error))


def test_sizes_and_jitter_stand_side_by_side_in_a_familys_block():
    sizes = [line("rand-a", 10.0, family, size) for family in ("full", "ffg") for size in SIZES]
    jittered = [line("rand-a", 10.0, family, jitter=1e-6) for family in ("full", "ffg")]
    rows = kls(line("exact", 0.0), *sizes, *jittered)
    assert rows["place"].tolist() == [0, *[1] * 10]
    for family, side in (("full", -1), ("ffg", 1)):
        shifts = rows[(rows["family"] == family) & (rows["method"] == "rand-a")]["shift"]
        assert (np.diff(shifts) > 0).all()  # sizes from left to right, then the jittered one
        assert (side * shifts).between(0, 0.5).all()


def test_whatever_lacks_splits_is_faint_and_counted():
    lines = [line("exact", 0.0, splits=3), line("ssge", 50.0), line("ssge", 50.0, "ffg", splits=1)]
    rows = kls(*lines, line("fixed-a", 0.0, splits=0, lost="diverged"), line("rand-a", 5.0))
    assert rows["opacity"].tolist() == [FAINT, 1.0, FAINT, FAINT, 1.0]
    assert rows["finished"].tolist() == [3, 4, 1, 0, 4]
    assert rows["mean"].isna().tolist() == [False, False, False, True, False]


@pytest.mark.parametrize("name", ["burt2020-fig2", "burt2020-fig3"])
def test_figures_can_be_drawn_of_whatever_came_out(name):
    """A zero, an infinite mean, and a line of which nothing finished."""
    lines = [line("exact", 0.0), line("fixed-a", [5.0, 7.0, 9.0, math.inf]), line("ssge", [], "ffg")]
    figure = figure_of(name).of({"scores": scores(*lines, line("rand-a", 12.0))})
    figure.draw_without_rendering()
    assert figure.get_suptitle().startswith("12 of 16 cells, up to 500 steps")


@pytest.mark.parametrize(
    ("protocol", "sizes", "steps"),
    [
        ("burt2020-fig2", "80", "up to 15,000 steps"),
        ("burt2020", "20, 40, 80, 160", "up to 15,000 steps (RANDA, natural gradients: 500)"),
    ],
)
def test_titles_say_what_m_is_and_who_takes_other_steps(protocol, sizes, steps):
    words = settings_in_words(frame_of(Cells([], list(places(make_plan(Request(protocol=protocol)))))), quick=True)
    assert (words["sizes"], words["steps"]) == (sizes, steps)


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
