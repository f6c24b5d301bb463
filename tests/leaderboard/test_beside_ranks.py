"""What stands beside the ranks: log ratios, means and spectra, the MAP, and where the verifier's re-runs stood."""

from __future__ import annotations

import math
from statistics import fmean, median

import numpy as np
import pytest

from fsvi_bench.leaderboard.ranking import EXACT, HEADLINES, MAP, rank_track
from fsvi_bench.leaderboard.rerun.worker import waypoint_steps
from fsvi_bench.leaderboard.site.pictures import along_the_way
from fsvi_bench.seeds import derived_generator
from tests.leaderboard.boards import STEPS, entry, references, rerun, verified_cells, waypoints
from tests.leaderboard.test_ranking import (
    DATASETS,
    FAMILIES,
    TABLE,
    by_name,
    ranked,
    rivals,
    score_of,
    tracks,
)


@tracks
def test_budget_points_are_the_waypoints_within_each_part_of_the_steps(track):
    tasks = {task.place: task for task in TABLE.tasks}
    for line in ranked(rank_track(rivals(track, 2), TABLE, track)):
        runs = line.entry.verification.rerun.official
        assert len(runs) == 2
        assert [point.fraction for point in line.budgets] == [0.01, 0.1, 1.0]
        for point, place in zip(line.budgets, (1, 2, 3), strict=True):
            at = [run.waypoints[place] for run in runs]
            values = {
                "full": [w.kl for w in at],
                "ffg": [w.kl - tasks[r.dataset, r.split].ffg_floor for w, r in zip(at, runs, strict=True)],
                "singular": [w.predictive_kl_box for w in at],
            }
            assert point.score == pytest.approx(fmean(values[track]), rel=1e-14)
            assert point.steps == at[0].steps == STEPS * point.fraction
            assert point.seconds == pytest.approx(0.01 * point.steps, rel=1e-14)
            assert point.work == {"likelihood_rows": 45 * point.steps, "measurement_rows": 80 * point.steps}


def line_with_runs(*runs):
    """The line of an entry whose verifier ran these."""
    cells = verified_cells("a", TABLE)
    again = rerun(derived_generator("a"), cells).model_copy(update={"official": runs})
    return rank_track([entry("a", TABLE, again=again)], TABLE, "full").lines[0]


def test_budget_points_of_runs_that_stopped_diverged_or_have_no_waypoint():
    rng = np.random.default_rng(0)
    plain = rerun(rng, verified_cells("a", TABLE)).official[0]
    early = plain.model_copy(update={"waypoints": waypoints(rng, finish=200)})
    # By its own steps: 1 % of 200 is 2.
    assert [point.steps for point in line_with_runs(early).budgets] == [2.0, 20.0, 200.0]
    # At 9 steps, of 1000 declared, and no more after that.
    diverged = plain.model_copy(update={"waypoints": plain.waypoints[:2], "rerun": None, "submitted": None})
    points = line_with_runs(plain, diverged).budgets
    assert [point.steps for point in points] == [10.0, 0.5 * (100 + 10), 0.5 * (1000 + 10)]
    assert points[1].score == pytest.approx(0.5 * (plain.waypoints[2].kl + plain.waypoints[1].kl), rel=1e-14)
    assert points[2].score == math.inf
    late = plain.model_copy(update={"waypoints": plain.waypoints[2:]})
    assert [point.fraction for point in line_with_runs(plain, late).budgets] == [0.1, 1.0]
    assert line_with_runs(plain, plain.model_copy(update={"waypoints": ()})).budgets == ()
    silent = tuple(waypoint.model_copy(update={"work": None}) for waypoint in plain.waypoints)
    assert line_with_runs(plain, plain.model_copy(update={"waypoints": silent})).budgets[0].work is None


def test_re_runs_on_tasks_that_the_table_is_not_of_are_left_out():
    plain = rerun(np.random.default_rng(0), verified_cells("a", TABLE)).official[0]
    other = plain.model_copy(update={"dataset": "elsewhere", "waypoints": waypoints(np.random.default_rng(1))})
    assert line_with_runs(plain, other).budgets == line_with_runs(plain).budgets != ()
    assert line_with_runs(other).budgets == ()


def test_curves_are_drawn_of_tasks_whose_floor_is_known():
    cells = verified_cells("a", TABLE)
    again = rerun(np.random.default_rng(0), cells)
    own, other = again.official[0], again.official[1]
    drawn = along_the_way(entry("a", TABLE, again=again), "kl_above_floor", {(own.dataset, own.split): 3.0})
    assert len(drawn) == 2
    for figure in drawn:
        assert f"{own.dataset}, split {own.split}" in figure
        assert f"{other.dataset}, split {other.split}" not in figure


@pytest.mark.parametrize("steps", [50, 149, 150, 2999, 15000, 19995])
def test_budget_points_are_found_at_the_very_steps_where_a_worker_looks(steps):
    rng = np.random.default_rng(0)
    (model,) = waypoints(rng, 1)[:1]
    looked = tuple(model.model_copy(update={"steps": step}) for step in waypoint_steps(steps))
    run = rerun(rng, verified_cells("a", TABLE)).official[0].model_copy(update={"waypoints": looked})
    assert [point.steps for point in line_with_runs(run).budgets] == [
        max(1, round(part * steps)) for part in (0.01, 0.1, 1)
    ]


@tracks
def test_log_ratio_is_the_median_over_cells(track):
    entries = [*rivals(track, 2), entry("broken", TABLE, FAMILIES[track][0], diverged=[("energy", 0)])]
    for line in ranked(rank_track(entries, TABLE, track)):
        ratios = []
        for cell, task in zip(line.entry.verification.cells, TABLE.tasks, strict=True):
            frozen = {
                "full": task.rand_a_full,
                "ffg": task.rand_a_ffg - task.ffg_floor,
                "singular": task.rand_a_predictive_kl_box,
            }
            own = score_of(cell, task, HEADLINES[track])
            ratios.append(math.log10((own + 1e-3) / (frozen[track] + 1e-3)))
        assert line.log_ratio == pytest.approx(median(ratios), rel=1e-12)


def test_log_ratio_needs_a_frozen_reference():
    none = references(rand_a_full=None)
    assert rank_track([entry("a", none)], none, "full").lines[0].log_ratio is None
    tasks = [task.model_copy(update={"rand_a_full": None}) if task.split else task for task in TABLE.tasks]
    some = TABLE.model_copy(update={"tasks": tuple(tasks)})
    line = rank_track([entry("a", some)], some, "full").lines[0]
    pairs = [(c.scores.kl, t.rand_a_full) for c, t in zip(line.entry.verification.cells, tasks, strict=True)]
    expected = median(math.log10((kl + 1e-3) / (ref + 1e-3)) for kl, ref in pairs if ref is not None)
    assert line.log_ratio == pytest.approx(expected, rel=1e-12)


@tracks
def test_means_and_spectra(track):
    for line in ranked(rank_track(rivals(track, 3), TABLE, track)):
        found = [cell.scores for cell in line.entry.verification.cells]
        for name in ("predictive_kl_test", "predictive_kl_box", "nlpd_gap"):
            cells = {
                d: [getattr(c.scores, name) for c in line.entry.verification.cells if c.dataset == d] for d in DATASETS
            }
            assert getattr(line, name) == pytest.approx(fmean(map(fmean, cells.values())), rel=1e-14)
        for part in ("smallest", "median", "largest"):
            expected = median(getattr(each.overconfidence, part) for each in found)
            assert getattr(line.overconfidence, part) == pytest.approx(expected, rel=1e-14)
        assert line.overconfidence.cells == len(found)


def test_the_exact_posterior_is_a_row_of_the_full_track_at_no_distance_from_itself():
    line = by_name(rank_track(rivals("full"), TABLE, "full"))[EXACT]
    assert (line.entry, line.label, line.place, line.missing) == (None, "closed form", None, [])
    assert line.scores == dict.fromkeys(DATASETS, 0.0)
    assert (line.predictive_kl_test, line.predictive_kl_box, line.nlpd_gap) == (0.0, 0.0, 0.0)
    assert (line.overconfidence.smallest, line.overconfidence.largest) == (1.0, 1.0)
    randa = [task.rand_a_full for task in TABLE.tasks]
    assert line.log_ratio == pytest.approx(median(math.log10(1e-3 / (kl + 1e-3)) for kl in randa), rel=1e-12)
    for track in ("ffg", "singular"):
        assert EXACT not in by_name(rank_track(rivals(track), TABLE, track))


def test_the_map_is_a_row_of_the_singular_track():
    table = rank_track(rivals("singular"), TABLE, "singular")
    line = by_name(table)[MAP]
    assert (line.entry, line.label, line.place) == (None, "closed form", None)
    assert line.scores["yacht"] == pytest.approx(
        fmean(task.map_predictive_kl_box for task in TABLE.tasks if task.dataset == "yacht"), rel=1e-14
    )
    gaps = {d: [task.map_nlpd - task.nlpd_exact for task in TABLE.tasks if task.dataset == d] for d in DATASETS}
    assert line.nlpd_gap == pytest.approx(fmean(map(fmean, gaps.values())), rel=1e-14)
    assert line.missing == []
    for track in ("full", "ffg"):
        assert MAP not in by_name(rank_track(rivals(track), TABLE, track))
