"""What the site is made from: entries, references, and the tables that rank them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fsvi_bench.leaderboard.entries import Entry, Unreadable, read_entries
from fsvi_bench.leaderboard.ranking import rank_across, rank_track
from fsvi_bench.leaderboard.references import References, TaskReference, references_of
from fsvi_bench.leaderboard.submission import TRACKS
from fsvi_bench.leaderboard.tables import Line, TrackTable


@dataclass(frozen=True, eq=False)
class Material:
    """`tables` by the name that its part of the page has: a track's, `across` or `across-test`."""

    entries: Sequence[Entry]
    unreadable: Sequence[Unreadable]
    references: References
    tables: dict[str, TrackTable]

    @property
    def datasets(self) -> list[str]:
        """In the order in which they are shown."""
        return list(self.references.datasets)

    @cached_property
    def tasks(self) -> dict[str, list[TaskReference]]:
        """Tasks by data set, split by split."""
        return {name: [t for t in self.references.tasks if t.dataset == name] for name in self.references.datasets}

    @cached_property
    def lines(self) -> dict[tuple[str, str], Line]:
        """Lines by table and name."""
        return {(key, line.name): line for key, table in self.tables.items() for line in table.lines}


def make_material(entries: Sequence[Entry], unreadable: Sequence[Unreadable], references: References) -> Material:
    """The tables of some entries; their order does not matter."""
    tables: dict[str, TrackTable] = {track: rank_track(entries, references, track) for track in TRACKS}
    tables["across"] = rank_across(entries, references, "predictive_kl_box")
    tables["across-test"] = rank_across(entries, references, "predictive_kl_test")
    return Material(sorted(entries, key=lambda entry: entry.name), unreadable, references, tables)


def read_material(root: Path) -> Material:
    """Everything in a leaderboard's folder; without references of its own it has those of the project's leaderboard.

    Raises:
        InputError: there are no submissions in it, or its references cannot be read.
    """
    board = read_entries(root)
    return make_material(board.entries, board.unreadable, references_of(root))
