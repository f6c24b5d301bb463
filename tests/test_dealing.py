"""Tests themselves: dealt out so that every worker of pytest-xdist begins with slow ones, and ends with quick ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import dealt


def item(name, slow=False, **said):
    marks = {"slow": pytest.mark.slow(**said).mark} if slow else {}
    return SimpleNamespace(name=name, path=Path(name[0]), get_closest_marker=marks.get)


ITEMS = [
    item("a1"), item("a2", slow=True), item("b1", slow=True), item("b2", slow=True), item("c1", slow=True, seconds=60),
    *(item(f"d{number}") for number in range(7)),
]  # fmt: skip


def test_every_worker_begins_with_slow_tests_and_files_of_them_stay_together():
    names = [each.name for each in dealt(ITEMS, 3)]
    assert sorted(names) == sorted(each.name for each in ITEMS)
    assert [names[0:4], names[4:8], names[8:12]] == [
        ["c1", "a1", "d0", "d1"],  # the slowest file
        ["b1", "b2", "d2", "d3"],
        ["a2", "d4", "d5", "d6"],
    ]


@pytest.mark.parametrize("workers", [1, 2, 5, 40])
def test_nothing_is_lost_however_many_workers_there_are(workers):
    assert sorted(each.name for each in dealt(ITEMS, workers)) == sorted(each.name for each in ITEMS)
