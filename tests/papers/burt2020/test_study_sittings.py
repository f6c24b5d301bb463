"""A study that goes on from an earlier sitting's tables."""

import gzip

import pandas as pd
import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.study import reproduction
from fsvi_bench.papers.burt2020.study.table import (
    CELLS_FILE,
    Tables,
    continued,
    kept_words,
    read_tables,
    write_tables,
)
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.papers.workspace import Cells, Workspace
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources
from tests.papers.burt2020.synthetic_study import cell, curve, curves_of, frame, study_places, whole, without

PLACES = study_places()
NO_CURVES = whole().curves.iloc[:0]


def half(begun, curves=NO_CURVES, **changes):
    """The cells that `begun` says yes to; the others are missing."""
    rows = [cell(place, **changes) if begun(place) else without(place, "missing") for place in PLACES]
    return Tables(frame(rows), curves)


def on_boston(place):
    return place.dataset == "boston"


def same(one, other):
    return one.reset_index(drop=True).equals(other.reset_index(drop=True))


def test_two_halves_are_the_whole():
    boston = half(on_boston, curves_of("boston"))
    naval = half(lambda place: not on_boston(place), curves_of("naval"))
    for both in (continued(boston, naval), continued(naval, boston)):
        assert same(both.cells, whole().cells)
        assert same(both.curves, whole().curves)


def test_what_was_found_here_outweighs_an_earlier_line():
    both = continued(half(on_boston, kl=5.0), half(lambda place: True, kl=7.0))
    assert {*zip(both.cells["dataset"], both.cells["kl"], strict=True)} == {("boston", 5.0), ("naval", 7.0)}


def test_a_diverged_cell_is_not_replaced_by_an_earlier_line():
    found = Tables(frame([without(place, "diverged", "nan") for place in PLACES]), NO_CURVES)
    assert same(continued(found, whole()).cells, found.cells)


@pytest.mark.parametrize("change", [{"max_steps": 7}, {"M": 81}, {"kl_jitter": 0.5}, {"seed": 1}])
def test_lines_of_other_settings_are_not_the_plans(change):
    of_rand_a = [
        place
        for place in PLACES
        if (place.dataset, place.method, place.family) == ("naval", "rand-a", "full")
        and place.hyperparameters["M"] == 80
    ]
    found = Tables(frame([without(place, "missing") for place in of_rand_a]), NO_CURVES)
    strange = frame([cell(place, **change) for place in of_rand_a])
    earlier = Tables(strange, curve("naval", "rand-a", "full", 80, (9, 8, 7, 6)))
    both = continued(found, earlier)
    assert same(both.cells, found.cells)
    assert both.curves.empty
    assert kept_words(found, earlier) == "3 lines match no planned cell and are left out"


@pytest.mark.parametrize(("here", "there", "taken"), [(3, 2, "here"), (2, 3, "there"), (3, 3, "here"), (0, 1, "there")])
def test_of_two_curves_the_one_of_more_cells_is_taken(here, there, taken):
    def points(cells, kls):
        return curve("boston", "rand-a", "full", 80, kls, cells) if cells else NO_CURVES

    found, earlier = points(here, (9.0, 8.0, 7.0, 6.0)), points(there, (5.0, 4.0, 3.0, 2.0))
    cells = half(lambda place: (place.method, place.split) != ("rand-a", 0)).cells
    both = continued(Tables(cells, found), Tables(whole().cells, earlier))
    assert same(both.curves, found if taken == "here" else earlier)


def test_cells_on_another_task_are_refused():
    with pytest.raises(InputError, match="two tasks for boston split 0"):
        continued(half(lambda place: place.method != "exact", task="f" * 12), whole())


def read_cells(folder):
    return (folder / "study" / CELLS_FILE).read_bytes()


@pytest.fixture
def sitting(tmp_path, monkeypatch):
    """Makes the study in a folder whose records are boston's, or as told."""
    boston = half(on_boston, curves_of("boston"))

    def make(found=boston):
        missing = [each for each in found.cells["status"] if each == "missing"]
        monkeypatch.setattr(reproduction, "holds_records", lambda root: True)
        monkeypatch.setattr(reproduction, "run_or_find", lambda *args: Cells([], missing))
        monkeypatch.setattr(reproduction, "collect", lambda *args: found)
        monkeypatch.setattr(reproduction, "write_page", lambda *args: [])
        return REPRODUCTIONS["burt2020-study"].make(Workspace(tmp_path, "paper", Resources(), Silent(), compute=False))

    return make


def test_a_sitting_keeps_the_lines_of_the_tables_that_lie_there(tmp_path, sitting):
    write_tables(half(lambda place: not on_boston(place)), tmp_path / "study")
    assert sitting().missing == 0
    write_tables(whole(), tmp_path / "at once" / "study")
    assert read_cells(tmp_path) == read_cells(tmp_path / "at once")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[:-40], r"scores\.csv\.gz is not a study's table"),
        (lambda text: text + text.splitlines(keepends=True)[-1], "naval split 2 ssge twice"),
        (lambda text: text.replace(",000000000000,", ",0123456789ab,"), "two tasks for boston split 0"),
    ],
)
def test_a_table_that_does_not_go_with_the_records_is_not_written_over(tmp_path, sitting, damage, said):
    write_tables(half(lambda place: not on_boston(place) or place.method == "exact"), tmp_path / "study")
    path = tmp_path / "study" / CELLS_FILE
    path.write_bytes(damaged := gzip.compress(damage(gzip.decompress(path.read_bytes()).decode()).encode()))
    with pytest.raises(InputError, match=said):
        sitting(half(lambda place: place.method != "exact"))
    assert read_cells(tmp_path) == damaged


def test_a_complete_study_overwrites_a_damaged_table(tmp_path, sitting):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / CELLS_FILE).write_text("damaged")
    assert sitting(whole()).missing == 0
    pd.testing.assert_frame_equal(read_tables(tmp_path / "study").curves, whole().curves, rtol=1e-5)
