"""A study that goes on from an earlier sitting's tables."""

from __future__ import annotations

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.reproductions.base import Workshop
from fsvi_bench.reproductions.study import reproduction
from fsvi_bench.reproductions.study.reproduction import BURT2020_STUDY
from fsvi_bench.reproductions.study.sittings import continued
from fsvi_bench.reproductions.study.table import CELLS_FILE, Tables, write_tables
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources
from tests.reproductions.synthetic_study import cell, curve, study_places, whole, without

PLACES = study_places()


def half(begun, **changes):
    """The cells that `begun` says yes to; the others are missing."""
    return [cell(place, **changes) if begun(place) else without(place, "missing") for place in PLACES]


def on_boston(place):
    return place.dataset == "boston"


def test_two_halves_are_the_whole():
    curves = whole().curves
    boston = Tables(half(on_boston), [point for point in curves if point.dataset == "boston"])
    power = Tables(half(lambda place: not on_boston(place)), [point for point in curves if point.dataset == "power"])
    assert continued(boston, power).cells == continued(power, boston).cells == whole().cells
    # Lines stand as cells do; `whole` has its curves by family first.
    both = continued(power, boston)
    assert sorted(map(repr, both.curves)) == sorted(map(repr, curves))
    assert both.curves == continued(boston, power).curves


def test_what_was_found_here_outweighs_an_earlier_line():
    earlier = Tables(half(lambda place: True, kl=7.0), [])
    found = Tables(half(on_boston, kl=5.0), [])
    kls = {(each.dataset, each.kl) for each in continued(found, earlier).cells}
    assert kls == {("boston", 5.0), ("power", 7.0)}


def test_what_diverged_here_is_not_mended_by_an_earlier_line():
    found = Tables([without(place, "diverged", "nan") for place in PLACES], [])
    assert continued(found, whole()).cells == found.cells


@pytest.mark.parametrize("change", [{"max_steps": 7}, {"M": 81}, {"kl_jitter": 0.5}, {"seed": 1}])
def test_lines_of_other_settings_are_not_the_plans(change):
    of_rand_a = [place for place in PLACES if place.method == "rand-a"]
    found = Tables([without(place, "missing") for place in of_rand_a], [])
    earlier = Tables([cell(place, **change) for place in of_rand_a], [])
    assert continued(found, earlier) == found


@pytest.mark.parametrize(("here", "there", "taken"), [(3, 2, "here"), (2, 3, "there"), (3, 3, "here"), (0, 1, "there")])
def test_of_two_curves_the_one_of_more_cells_is_taken(here, there, taken):
    def points(cells, kls):
        line = curve("boston", "rand-a", "full", 80, kls)
        return [point.model_copy(update={"cells": cells}) for point in line] if cells else []

    found, earlier = points(here, (9.0, 8.0, 7.0, 6.0)), points(there, (5.0, 4.0, 3.0, 2.0))
    assert continued(Tables(whole().cells, found), Tables([], earlier)).curves == (
        found if taken == "here" else earlier
    )


def test_a_curve_of_a_line_that_is_not_planned_is_left_behind():
    strange = curve("boston", "rand-a", "full", 81, (9.0, 8.0, 7.0, 6.0))
    assert continued(whole(), Tables([], strange)).curves == continued(whole(), Tables([], [])).curves


@pytest.fixture
def sitting(tmp_path, monkeypatch):
    """Makes the study in a folder whose records are boston's."""
    found = Tables(half(on_boston), [point for point in whole().curves if point.dataset == "boston"])
    monkeypatch.setattr(reproduction, "holds_records", lambda root: True)
    monkeypatch.setattr(reproduction, "run_or_find", lambda *args: ([], [], 0, 0))
    monkeypatch.setattr(reproduction, "collect", lambda *args: found)
    monkeypatch.setattr(reproduction, "write_page", lambda *args: [])
    return lambda: BURT2020_STUDY.make(Workshop(tmp_path, False, Resources(), Silent(), compute=False))


def test_a_sitting_keeps_the_lines_of_the_tables_that_lie_there(tmp_path, sitting):
    earlier = Tables(half(lambda place: not on_boston(place)), [])
    write_tables(earlier, tmp_path / "study")
    outcome = sitting()
    assert outcome.missing == 0
    write_tables(whole(), tmp_path / "at once")
    assert (tmp_path / "study" / CELLS_FILE).read_bytes() == (tmp_path / "at once" / CELLS_FILE).read_bytes()


def test_without_earlier_tables_the_rest_is_missing(sitting):
    assert sitting().missing == sum(not on_boston(place) for place in PLACES)


def test_a_damaged_table_is_not_written_over(tmp_path, sitting):
    write_tables(whole(), tmp_path / "study")
    path = tmp_path / "study" / CELLS_FILE
    path.write_bytes(damaged := path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"scores\.csv is not a study's table"):
        sitting()
    assert path.read_bytes() == damaged
