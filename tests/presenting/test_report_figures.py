"""What a report's figures draw: looked up in their axes; and what becomes of them in the page."""

import math

import pytest
from matplotlib.collections import LineCollection

from fsvi_bench.presenting.looks import (
    look,
)
from fsvi_bench.presenting.report.figures import (
    curves_of,
    draw_curves,
    draw_strips,
    exact_lines,
    lines_of,
)
from fsvi_bench.scoring.scores import Overconfidence
from tests.presenting.studies import SPECTRUM, cells, curve, record, study_of


def strips(name, study):
    return draw_strips(name, lines_of(study), exact_lines(study))


def words(axes):
    return {text.get_text().strip() for text in axes.texts}


def points(axes):
    """(x, filled?) of each mark, downwards."""
    marks = [line for line in axes.lines if line.get_marker() not in ("None", "none")]
    drawn = [(y, x, mark.get_markerfacecolor() == mark.get_color()) for mark in marks for x, y in mark.get_xydata()]
    return [(x, full) for _, x, full in sorted(drawn) if not math.isnan(x)]


def bars(axes):
    """(low, high) of each line of an interval."""
    found = [each for each in axes.collections if isinstance(each, LineCollection)]
    return [tuple(segment[:, 0].tolist()) for each in found for segment in each.get_segments() if len(segment)]


def test_kls_are_medians_and_open_where_they_are_those_of_the_moments():
    records = [record("rand-a", split, kl) for split, kl in enumerate([0.5, 1.0, 2.0, 3.0, 40.0])]
    records += [record("concrete-dropout", split, math.inf, family="bernoulli") for split in (0, 1)]
    records += [record("exact", 0, 1e-14), record("ssge", 0), record("fixed-a", 0, 4.0), record("fixed-a", 1)]
    (axes,) = strips("kl", study_of(records)).axes
    assert points(axes) == [(4.0, True), (2.0, True), (50.0, False)]  # fixed-a, rand-a, concrete-dropout
    assert (1.0, 3.0) in bars(axes)  # the quartiles
    assert {"◂", "0", "none finished", "1/2"} <= words(axes)
    assert axes.get_xscale() == "log"


@pytest.mark.parametrize(("lost", "bar"), [(1, (1.0, 3.0)), (2, (1.0, 2.0)), (3, None)])
def test_an_infinite_median_is_an_arrow_and_an_infinite_quartile_is_left_out(lost, bar):
    """Of five splits, some diverged."""
    records = [record("rand-a", split, kl) for split, kl in enumerate([0.5, 1.0, 2.0, 3.0][: 5 - lost])]
    records += [record("rand-a", 9 - n, None, status="diverged", reason="NaN") for n in range(lost)]
    records += [record("ssge", split, kl) for split, kl in enumerate([4.0, 5.0, 6.0])]
    (axes,) = strips("kl", study_of(records)).axes
    assert bars(axes) == [*([bar] if bar else []), (4.5, 5.5)]
    assert ("▸" in "".join(words(axes))) == (bar is None)
    assert not {"unknown"} & words(axes)


def names(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def test_labels_have_the_fewest_settings_that_tell_the_lines_of_a_method_apart():
    settings = [{"lr": 0.1, "schedule": s, "M": M} for s, M in (("constant", 20), ("linear", 80), ("linear", 90))]
    records = [record("rand-a", 0, 1.0, hyperparameters=of) for of in settings]
    records += [record("ssge", 0, 2.0, hyperparameters=of) for of in settings[:2]]
    records += [record("gwi", 0, 2.0, hyperparameters={"lr": lr, "prior": "own"}) for lr in (0.1, 0.01)]
    study = study_of(records)
    assert {entry.settings for entry in study.entries if entry.method == "ssge"} == {
        "schedule=constant M=20", "schedule=linear M=80"
    }  # fmt: skip
    assert names(strips("kl", study).axes[0]) == [
        "rand-a   full M=20 …", "rand-a   full M=80 …", "rand-a   full M=90 …",
        "ssge   full schedule=constant …", "ssge   full schedule=linear …",
        "gwi   full lr=0.01 (own prior)", "gwi   full lr=0.1 (own prior)",
    ]  # fmt: skip


def test_two_settings_are_told_where_one_is_not_enough():
    grid = [{"lr": lr, "S": S, "beta": 10 * S} for lr in (0.1, 0.01) for S in (1, 2)]
    study = study_of([record("rand-a", 0, 1.0, hyperparameters=of) for of in grid])
    assert {entry.label for entry in study.entries} == {f"lr={lr} S={S} …" for lr in (0.01, 0.1) for S in (1, 2)}


def test_data_sets_have_the_order_of_the_tables_whatever_that_of_the_records():
    study = study_of([record("rand-a", 0, 1.0, dataset=name) for name in ("yacht", "concrete", "energy")])
    for name in ("kl", "nlpd", "spectrum", "calibration"):
        assert [axes.get_title(loc="left") for axes in strips(name, study).axes] == study.datasets
    assert study.datasets == ["concrete", "energy", "yacht"]


@pytest.mark.parametrize(("length", "rows"), [(3, 2), (20, 3), (30, 4), (60, 8)])
def test_a_legend_is_as_wide_as_the_figure_at_most_and_takes_no_room_from_the_panels(length, rows):
    records = [record("rand-a", 0, 1.0, hyperparameters={"x": "m" * length + str(n)}) for n in range(8)]
    study = study_of(records, {each.cell: curve([90.0, 70.0, 1.0]) for each in records})
    figure = draw_curves(study, "boston", curves_of(study, "boston"))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert len({round(text.get_window_extent().y0) for text in legend.get_texts()}) == rows
    assert figure.axes[0].get_window_extent().height / figure.dpi > 1.9


def test_spectra_are_medians_over_cells():
    doubled = [2 * value for value in SPECTRUM]
    wide = Overconfidence(smallest=doubled[0], median=doubled[10], largest=doubled[-1], quantiles=tuple(doubled))
    records = [record("rand-a", 0, 1.0), record("rand-a", 1, 1.0), record("rand-a", 2, 1.0, overconfidence=wide)]
    study = study_of(records)
    (axes,) = strips("spectrum", study).axes
    thin, thick = sorted(bars(axes))
    assert thin == pytest.approx((SPECTRUM[0], SPECTRUM[20]))
    assert thick == pytest.approx((SPECTRUM[5], SPECTRUM[15]))
    (mark,) = [line for line in axes.lines if line.get_marker() == look("rand-a").marker]
    assert mark.get_xdata().tolist() == [SPECTRUM[10]]


def test_coverage_is_the_mean_over_splits_beside_the_exact_ones():
    low, high = {"50": 0.2, "90": 0.6, "95": 0.8}, {"50": 0.6, "90": 0.8, "95": 1.0}
    records = [record("rand-a", 0, 1.0, coverage=low), record("rand-a", 1, 1.0, coverage=high, seed=0)]
    records += [record("rand-a", 1, 1.0, coverage=high, seed=1), record("ssge", 0, 1.0, coverage=None)]
    study = study_of(records)
    lines = lines_of(study).set_index("method")[["inside_50", "inside_90", "inside_95"]]
    assert lines.loc["rand-a"].tolist() == pytest.approx([40.0, 70.0, 90.0])
    assert lines.loc["ssge"].isna().all()
    assert exact_lines(study).query("score == 'coverage'")["value"].tolist() == pytest.approx([50.0, 90.0, 94.0])
    (axes,) = strips("calibration", study).axes
    assert "unknown" in words(axes)
    assert bars(axes) == [pytest.approx((40.0, 90.0))]


def test_the_exact_posteriors_nlpd_is_shown_whether_exact_was_run_or_not():
    of_splits = {0: 1.0, 1: 2.0, 2: 6.0}
    records = [record(name, split, 1.0, nlpd_exact=of_splits[split]) for name, split in (("rand-a", 0), ("rand-a", 1))]
    records += [record("ssge", split, 1.0, nlpd_exact=value) for split, value in of_splits.items()]
    (axes,) = strips("nlpd", study_of(records)).axes
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [2.0]


def test_curves_are_medians_with_quartiles_over_steps_and_seconds():
    """Three cells, whose KLs after 4 steps are 1, 2 and 10."""
    records = cells("rand-a", [1.0, 2.0, 10.0])
    study = study_of(records, {each.cell: curve([90.0, 70.0, 60.0, each.scores.kl]) for each in records})
    left, right = draw_curves(study, "boston", curves_of(study, "boston")).axes
    for axes, places in ((left, [1.0, 2.0, 4.0]), (right, [0.5, 1.0, 2.0])):
        (line,) = axes.lines
        assert [*line.get_xdata()] == places
        assert [*line.get_ydata()] == [70.0, 60.0, 2.0]
        band = {tuple(point) for point in axes.collections[0].get_paths()[0].vertices}
        assert {(places[-1], 1.5), (places[-1], 6.0)} <= band  # quartiles of 1, 2, 10


DIVERGED = {"nan": [90.0, 70.0, 60.0, math.nan], "finite": [90.0, 70.0, 60.0, 5.0], "none": None}


@pytest.mark.parametrize(("ends", "places"), [("nan", 2), ("finite", 2), ("none", 0)])
def test_curves_count_what_diverged_as_infinite(ends, places):
    """Two of four cells diverge at the last step, even if their traces do not say so, or at the start, if they have none:
    no median from there on. What failed does not count."""
    status = ["ok", "ok", "diverged", "diverged", "failed"]
    records = [record("rand-a", split, 1.0 if each == "ok" else None, status=each) for split, each in enumerate(status)]
    kls = {"ok": [90.0, 70.0, 60.0, 1.0], "diverged": DIVERGED[ends], "failed": [90.0, 9.0, 9.0, 9.0]}
    traces = {each.cell: curve(kls[each.status]) for each in records if kls[each.status]}
    study = study_of(records, traces)
    found = curves_of(study, "boston")
    if places:
        left, _ = draw_curves(study, "boston", found).axes
        assert left.lines[0].get_xydata().tolist() == [[1.0, 70.0], [2.0, 60.0]]
    else:
        assert found.empty


def test_one_diverged_cell_of_three_moves_the_quartile_alone():
    records = [record("rand-a", split, 1.0) for split in range(2)] + [record("rand-a", 2, None, status="diverged")]
    study = study_of(records, {each.cell: curve([90.0, 8.0]) for each in records[:2]})
    found = curves_of(study, "boston")
    assert found["median"].unique().tolist() == [8.0]
    assert found["upper_quartile"].unique().tolist() == [
        12.0
    ]  # infinite, and drawn up to 1.5 times the greatest median


def test_an_infinite_kl_is_replaced_by_that_of_the_moments_and_marked():
    records = [record("concrete-dropout", 0, math.inf, family="bernoulli")]
    study = study_of(records, {records[0].cell: curve([math.inf] * 3)})
    found = curves_of(study, "boston")
    assert found["of_moments"].all()
    axes = draw_curves(study, "boston", found).axes[0]
    assert axes.get_title(loc="left") == "bernoulli (q’s moments)"
    assert [*axes.lines[0].get_ydata()] == [50.0, 50.0]
