"""The study's spectra and curves: nothing drops out of a panel unseen, and each says of how many splits it is."""

from __future__ import annotations

import math

import pytest
from matplotlib.markers import CARETDOWN, CARETLEFT, CARETRIGHT, CARETUP

from fsvi_bench.papers.burt2020.sizes import LOWEST
from fsvi_bench.papers.burt2020.study.curves import moved_apart
from fsvi_bench.papers.burt2020.study.figures import study_figures
from fsvi_bench.papers.burt2020.study.panels import small_panels
from fsvi_bench.papers.burt2020.study.table import Tables
from fsvi_bench.presenting.figures import FAINT
from fsvi_bench.presenting.report.appearance import look
from tests.papers.burt2020.synthetic_study import curve, whole, with_holes

COLOUR = {method: look(method).light for method in ("fixed-a", "rand-a", "ssge")}


def figure_of(tables, name):
    """A figure's panels by data set."""
    figure = dict(study_figures(tables, False))[name]
    figure.draw_without_rendering()
    return figure, {axes.get_title("left"): axes for axes in figure.axes if axes.get_visible()}


def changed(method, family, dataset="boston", **changes):
    tables = whole()
    cells = [
        c.model_copy(update=changes) if (c.method, c.family, c.dataset) == (method, family, dataset) else c
        for c in tables.cells
    ]
    return Tables(cells, tables.curves)


def with_curve(kls):
    """One curve of boston's in place of all."""
    return Tables(whole().cells, curve("boston", "rand-a", "full", 80, kls))


def markers(axes, *kinds):
    return [line for line in axes.lines if line.get_marker() in kinds]


def test_the_lowest_panel_of_every_column_has_labels_beneath():
    _, panels = small_panels(5, 1.0, shared=True)
    beneath = [panel.xaxis.get_tick_params()["labelbottom"] for panel in panels[:5]]
    assert beneath == [False, True, True, True, True]


def test_a_median_beyond_the_spectrums_axis_is_its_number_and_not_a_mark():
    _, panels = figure_of(changed("ssge", "full", spectrum_50=3e4, spectrum_75=4e4, spectrum_100=5e4), "spectrum")
    assert [text.get_text() for text in panels["boston"].texts] == ["30,000"]
    assert panels["boston"].texts[0].get_color() == COLOUR["ssge"]
    (head,) = markers(panels["boston"], CARETRIGHT)
    assert head.get_xdata()[0] == panels["boston"].get_xlim()[1]
    assert len(markers(panels["boston"], "^")) == 1  # ffg's
    assert len(markers(panels["power"], "^")) == 2
    assert not markers(panels["power"], CARETRIGHT, CARETLEFT)


def test_a_direction_that_collapsed_is_marked_at_the_spectrums_edge():
    _, panels = figure_of(changed("fixed-a", "ffg", spectrum_0=0.0), "spectrum")
    (head,) = markers(panels["boston"], CARETLEFT)
    assert head.get_xdata()[0] == panels["boston"].get_xlim()[0]
    assert not panels["boston"].texts


def test_spectra_say_of_how_many_splits_they_are():
    figure, panels = figure_of(with_holes(), "spectrum")
    assert {name: axes.get_title("right") for name, axes in panels.items()} == {"boston": "2–3/3", "power": "1–3/3"}
    assert "medians over splits" in figure.get_supxlabel()
    (full, ffg) = markers(panels["power"], "o")[2:]  # after EXACT's
    assert (full.get_alpha(), ffg.get_alpha()) == (FAINT, 1.0)
    of_split_0 = next(c for c in with_holes().cells if (c.dataset, c.method, c.split) == ("power", "rand-a", 0))
    assert full.get_xdata()[0] == of_split_0.spectrum_50


def test_infinite_points_stand_at_the_top():
    figure, panels = figure_of(with_curve((1e4, 100.0, math.inf, 10.0)), "time")
    line, alone, top = panels["boston"].lines
    assert line.get_ydata()[[0, 2]].tolist() == [100.0, 10.0]
    assert math.isnan(line.get_ydata()[1])
    assert alone.get_ydata().tolist() == [100.0, 10.0]  # between gaps no line shows them
    assert (top.get_marker(), top.get_xdata().tolist(), top.get_ydata().tolist()) == (CARETUP, [0.1], [1.0])
    assert top.get_transform() == panels["boston"].get_xaxis_transform()
    assert "infinite" in {text.get_text() for text in figure.legends[0].get_texts()}


def test_curves_that_are_infinite_throughout_are_no_empty_panel():
    tables = Tables(
        whole().cells,
        [p for family in ("full", "ffg") for p in curve("boston", "rand-a", family, 80, (math.inf,) * 4)],
    )
    _, panels = figure_of(tables, "time")
    full, ffg = markers(panels["boston"], CARETUP)
    assert full.get_xdata().tolist() == [0.01, 0.1, 1.0]
    assert full.get_ydata()[0] == 1.0 > ffg.get_ydata()[0]  # they do not hide each other
    assert list(panels["boston"].get_yticks()) == []


def test_a_kl_too_small_is_marked_at_the_foot():
    figure, panels = figure_of(with_curve((1e4, 100.0, 1e-8, 5.0)), "time")
    (foot,) = markers(panels["boston"], CARETDOWN)
    assert (foot.get_xdata().tolist(), foot.get_ydata().tolist()) == ([0.1], [0.0])
    assert panels["boston"].get_ylim()[0] == LOWEST
    assert f"below {LOWEST:g}" in {text.get_text() for text in figure.legends[0].get_texts()}


def test_curves_say_of_how_many_splits_they_are():
    tables = whole()
    points = [
        p.model_copy(update={"cells": 1}) if (p.dataset, p.method, p.family) == ("power", "rand-a", "full") else p
        for p in tables.curves
    ]
    figure, panels = figure_of(Tables(tables.cells, points), "time")
    # SSGE and natural gradients are planned and have no curve.
    assert {name: axes.get_title("right") for name, axes in panels.items()} == {"boston": "0–3/3", "power": "0–3/3"}
    assert [text.get_text() for text in panels["boston"].texts] == []
    (said,) = panels["power"].texts
    assert (said.get_text(), said.get_color()) == ("1", COLOUR["rand-a"])
    opacities = {
        (line.get_color(), line.get_linestyle(), line.get_alpha())
        for line in panels["power"].lines
        if line.get_marker() == "None"
    }
    assert opacities == {
        (COLOUR["rand-a"], "-", FAINT), (COLOUR["rand-a"], "--", 1.0),
        (COLOUR["fixed-a"], "-", 1.0), (COLOUR["fixed-a"], "--", 1.0),
    }  # fmt: skip
    assert "medians over splits" in figure.get_suptitle()


def test_dashes_lie_on_top_of_lines():
    _, panels = figure_of(whole(), "time")
    for line in panels["boston"].lines:
        if line.get_marker() == "None":
            assert line.get_zorder() == (2 if line.get_linestyle() == "-" else 3)


def test_the_drift_figures_legend_is_of_the_sizes_that_are_there():
    figure, _ = figure_of(whole(), "drift")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["full, M = 80", "ffg, M = 80"]


def test_drift_has_a_panel_for_what_is_planned_and_not_there():
    tables = whole()
    _, panels = figure_of(Tables(tables.cells, [p for p in tables.curves if p.dataset == "boston"]), "drift")
    assert {name: axes.get_title("right") for name, axes in panels.items()} == {"boston": "0–3/3", "power": "0/3"}
    assert not panels["power"].lines
    assert list(panels["power"].get_xticks()) == list(panels["power"].get_yticks()) == []


def test_infinite_quartiles_reach_the_top_of_the_panel():
    points = [
        p.model_copy(update={"kl_upper_quartile": math.inf}) for p in curve("boston", "fixed-a", "full", 80, (9.0,) * 4)
    ]
    _, panels = figure_of(Tables(whole().cells, points), "drift")
    (band,) = panels["boston"].collections
    corners = band.get_paths()[0].vertices[:, 1]
    assert math.isfinite(corners.max())
    assert corners.max() > panels["boston"].get_ylim()[1]
    assert corners.min() == pytest.approx(4.5)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([0.5, 0.1, 0.9], [0.5, 0.1, 0.9]),
        ([0.5, 0.5], [0.5, 0.6]),
        ([1.0, 0.95, 1.0], [0.9, 0.8, 1.0]),
        ([], []),
    ],
)
def test_numbers_at_curves_ends_are_moved_apart(places, expected):
    assert moved_apart(places, 0.1) == pytest.approx(expected)
