"""A study that goes on from an earlier sitting's tables."""

from __future__ import annotations

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.papers.base import Workshop
from fsvi_bench.papers.burt2020.study import reproduction
from fsvi_bench.papers.burt2020.study.reproduction import BURT2020_STUDY
from fsvi_bench.papers.burt2020.study.sittings import continued, kept_words
from fsvi_bench.papers.burt2020.study.table import CELLS_FILE, Tables, read_tables, write_tables
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources
from tests.papers.burt2020.synthetic_study import cell, curve, study_places, whole, without

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
    of_rand_a = [
        place for place in PLACES if (place.dataset, place.method, place.family) == ("power", "rand-a", "full")
    ]
    found = Tables([without(place, "missing") for place in of_rand_a], [])
    earlier = Tables([cell(place, **change) for place in of_rand_a], curve("power", "rand-a", "full", 80, (9, 8, 7, 6)))
    both = continued(found, earlier)
    assert both == found
    assert kept_words(found, both, earlier) == "3 lines are of no planned cell and are left out"


@pytest.mark.parametrize(("here", "there", "taken"), [(3, 2, "here"), (2, 3, "there"), (3, 3, "here"), (0, 1, "there")])
def test_of_two_curves_the_one_of_more_cells_is_taken(here, there, taken):
    def points(cells, kls):
        line = curve("boston", "rand-a", "full", 80, kls)
        return [point.model_copy(update={"cells": cells}) for point in line] if cells else []

    found, earlier = points(here, (9.0, 8.0, 7.0, 6.0)), points(there, (5.0, 4.0, 3.0, 2.0))
    cells = half(lambda place: (place.method, place.split) != ("rand-a", 0))
    both = continued(Tables(cells, found), Tables(whole().cells, earlier))
    assert both.curves == (found if taken == "here" else earlier)


def test_a_curve_of_a_line_that_is_not_planned_is_left_behind():
    strange = curve("boston", "rand-a", "full", 81, (9.0, 8.0, 7.0, 6.0))
    assert continued(Tables(half(lambda place: False), []), Tables(whole().cells, strange)).curves == []


def test_a_cell_that_stands_twice_or_on_another_task_is_refused():
    none = Tables(half(lambda place: False), [])
    with pytest.raises(InputError, match="boston split 0 exact twice"):
        continued(none, Tables([*whole().cells, whole().cells[0]], []))
    with pytest.raises(InputError, match="boston split 0 on two tasks"):
        continued(Tables(half(lambda place: place.method != "exact", task="f" * 12), []), whole())


def read_cells(folder):
    return (folder / "study" / CELLS_FILE).read_bytes()


@pytest.fixture
def sitting(tmp_path, monkeypatch):
    """Makes the study in a folder whose records are boston's, or as told."""
    boston = Tables(half(on_boston), [point for point in whole().curves if point.dataset == "boston"])

    def make(found=boston):
        missing = [each for each in found.cells if each.status == "missing"]
        monkeypatch.setattr(reproduction, "holds_records", lambda root: True)
        monkeypatch.setattr(reproduction, "run_or_find", lambda *args: ([], missing, 0, 0))
        monkeypatch.setattr(reproduction, "collect", lambda *args: found)
        monkeypatch.setattr(reproduction, "write_page", lambda *args: [])
        return BURT2020_STUDY.make(Workshop(tmp_path, False, Resources(), Silent(), compute=False))

    return make


def test_a_sitting_keeps_the_lines_of_the_tables_that_lie_there(tmp_path, sitting):
    earlier = Tables(half(lambda place: not on_boston(place)), [])
    write_tables(earlier, tmp_path / "study")
    outcome = sitting()
    assert outcome.missing == 0
    write_tables(whole(), tmp_path / "at once" / "study")
    assert read_cells(tmp_path) == read_cells(tmp_path / "at once")


def test_without_earlier_tables_the_rest_is_missing(sitting):
    assert sitting().missing == sum(not on_boston(place) for place in PLACES)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[:-40], r"scores\.csv is not a study's table"),
        (lambda text: text + text.splitlines(keepends=True)[-1], "power split 2 ssge twice"),
        (lambda text: text.replace(b",000000000000,", b",0123456789ab,"), "split 0 on two tasks"),
    ],
)
def test_a_table_that_does_not_go_with_the_records_is_not_written_over(tmp_path, sitting, damage, said):
    write_tables(Tables(half(lambda place: not on_boston(place) or place.method == "exact"), []), tmp_path / "study")
    path = tmp_path / "study" / CELLS_FILE
    path.write_bytes(damaged := damage(path.read_bytes()))
    with pytest.raises(InputError, match=said):
        sitting(Tables(half(lambda place: place.method != "exact"), []))
    assert read_cells(tmp_path) == damaged


def test_what_is_whole_writes_over_a_damaged_table(tmp_path, sitting):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / CELLS_FILE).write_text("damaged")
    assert sitting(whole()).missing == 0
    assert len(read_tables(tmp_path / "study").curves) == len(whole().curves)
