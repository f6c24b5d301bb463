"""Figures 2 to 4: the numbers that their marks stand for, what lacks splits, and that titles are true of the protocol."""

import math

import numpy as np
import pandas as pd
import pytest

from fsvi_bench.papers.burt2020.cells import SETTINGS
from fsvi_bench.papers.burt2020.scores import scores_by_line
from fsvi_bench.papers.experiment import figure_of
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.papers.workspace import planned_cells
from fsvi_bench.running.plan import Request, make_plan

PLANNED = 4


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
    return scores_by_line(cells.astype({**SETTINGS, "kl": float, "nlpd": float}), "paper")


def kls(*lines):
    return scores(*lines).query("score == 'kl'")


@pytest.mark.parametrize("values", [[1.0, 2.0, 4.0, 43.0], [5.0, 7.0, 9.0, math.inf]])
def test_marks_are_medians_on_their_quartiles_with_means_next_to_them(values):
    (row,) = kls(line("rand-a", values)).to_dict("records")
    quartiles = pd.Series(values).quantile([0.25, 0.5, 0.75])
    assert [row["lower"], row["median"], row["upper"]] == quartiles.to_list()
    assert row["mean"] == np.mean(values)
    if math.isfinite(row["mean"]):
        error = np.std(values, ddof=1) / 2
        assert (row["mean_low"], row["mean_high"]) == pytest.approx((row["mean"] - error, row["mean"] + error))


@pytest.mark.parametrize("name", ["burt2020-fig2", "burt2020-fig3"])
def test_figures_can_be_drawn_of_whatever_came_out(name):
    """A zero, an infinite mean, and a line of which nothing finished."""
    lines = [line("exact", 0.0), line("fixed-a", [5.0, 7.0, 9.0, math.inf]), line("ssge", [], "ffg")]
    figure = figure_of(name).of({"scores": scores(*lines, line("rand-a", 12.0))})
    figure.draw_without_rendering()
    assert figure.get_suptitle().startswith("12 of 16 cells, up to 500 steps")


def test_figures_3_and_4_are_the_protocols_data_sets():
    study = set(map(repr, planned_cells(make_plan(Request(protocol="burt2020")))))
    for name, datasets in (
        ("burt2020-fig3", {"boston", "concrete", "energy", "kin8nm"}),
        ("burt2020-fig4", {"naval", "power", "wine", "yacht"}),
    ):
        figure = REPRODUCTIONS[name]
        assert figure.takes_days
        plan, quick = (make_plan(figure._settings(each)) for each in ("paper", "quick"))
        assert {name for name, _ in plan.splits} == datasets
        assert set(map(repr, planned_cells(plan))) <= study
        assert {split for _, split in quick.splits} == {0, 1}
