"""Records as a report needs them: data sets across, methods with their families and settings down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.posteriors.base import Family
from fsvi_bench.presenting.cell_files import load_traces
from fsvi_bench.presenting.report.appearance import method_place
from fsvi_bench.presenting.summary import ROW, SCORES, cells_of, summary_of
from fsvi_bench.running.archive import Archive, read_archive
from fsvi_bench.training.trace import Trace

FAMILIES: tuple[Family, ...] = get_args(Family)
REFERENCE = "exact"  #: what the others are measured against; it takes no part in comparisons


@dataclass(frozen=True, order=True)
class Entry:
    """One line of tables and figures: a method, a family, and the settings in which its lines differ."""

    place: int  #: among the study's entries
    method: str = field(compare=False)
    family: Family = field(compare=False)
    settings: str = field(compare=False)  #: in words; empty where the method has one line per family
    hyperparameters: dict[str, Any] = field(compare=False, repr=False)

    @property
    def variant(self) -> str:
        """What tells it from the method's other lines."""
        return f"{self.family} {self.settings}".strip()

    @property
    def name(self) -> str:
        """Method, family and settings."""
        return f"{self.method} {self.variant}"


@dataclass(frozen=True)
class Study:
    """The records of a folder as frames whose rows say by `dataset` and `entry` what they are of."""

    archive: Archive
    cells: pd.DataFrame  #: `cells_of` the records, and their keys as `cell`
    summary: pd.DataFrame  #: `summary_of` the cells
    #: Scores by data set, entry and split, seeds averaged; missing where one did not finish or lacks the score.
    splits: pd.DataFrame
    of_cells: Mapping[str, Trace]  #: traces by `cell`

    @cached_property
    def datasets(self) -> list[str]:
        return sorted(self.cells["dataset"].unique())

    @cached_property
    def entries(self) -> list[Entry]:
        return self.entries_on(*self.datasets)

    def entries_on(self, *datasets: str) -> list[Entry]:
        """The entries that were run on one of these data sets, in order."""
        return sorted(self.summary.loc[self.summary["dataset"].isin(datasets), "entry"].unique())

    def rivals(self, dataset: str, family: Family) -> list[Entry]:
        """The entries of a family that are compared with one another."""
        return [e for e in self.entries_on(dataset) if e.family == family and e.method != REFERENCE]

    def row(self, dataset: str, entry: Entry) -> pd.DataFrame:
        """The summary's lines of an entry on a data set, by score."""
        return _part(self.summary, dataset, entry).set_index("score")

    def finished(self, dataset: str, entry: Entry) -> pd.DataFrame:
        """The cells that have scores."""
        cells = _part(self.cells, dataset, entry)
        return cells[cells["status"] == "ok"]

    def traces(self, dataset: str, entry: Entry) -> list[Trace]:
        """The traces of the cells that have scores."""
        found = (self.of_cells.get(cell) for cell in self.finished(dataset, entry)["cell"])
        return [trace for trace in found if trace is not None and trace.points]


def read_study(root: Path) -> Study:
    """All current records beneath an output folder, and their traces. Nothing is written there.

    Raises:
        InputError: there is no such folder, it holds no records, or a file in it is not what its name says; or the
            records do not go together (see `cells_of`).
    """
    archive = read_archive(root)
    if not archive.records:
        raise InputError(f"{root} holds no records yet, only a plan; let `fsvi-bench run` finish some cells first")
    # What a failed cell left behind is no result.
    return make_study(archive, load_traces((record for record in archive.records if record.status == "ok"), root))


def make_study(archive: Archive, traces: Mapping[str, Trace]) -> Study:
    """Sorts records into rows and gives each row a short name."""
    cells = cells_of(archive.records).assign(cell=[record.cell for record in archive.records])
    summary, entries = summary_of(cells), _entries(cells)
    for frame in (cells, summary):
        rows = frame[ROW[1:]].itertuples(index=False, name=None)
        frame["entry"] = pd.Series([entries[row] for row in rows], dtype=object)
    by_split = cells.groupby(["dataset", "entry", "split"])[[*SCORES]]
    splits = by_split.mean().where(by_split.count().eq(by_split.size(), axis=0))
    return Study(archive, cells, summary, splits, traces)


def _part(frame: pd.DataFrame, dataset: str, entry: Entry) -> pd.DataFrame:
    of_dataset = frame[frame["dataset"] == dataset]
    return of_dataset[of_dataset["entry"] == entry]


def _entries(cells: pd.DataFrame) -> dict[tuple[str, ...], Entry]:
    """(method, family, settings) -> entry, in order: by method as in every figure, family, and settings."""
    rows = cells[[*ROW[1:], "words"]].drop_duplicates().itertuples(index=False, name=None)
    return {
        (method, family, settings): Entry(place, method, family, words, json.loads(settings))
        for place, (method, family, settings, words) in enumerate(sorted(rows, key=_order))
    }


def _order(row: tuple[str, Family, str, str]) -> tuple[Any, ...]:
    """Numbers among the settings by size, before words."""
    method, family, settings, _ = row
    values = [
        (name, (False, value) if isinstance(value, int | float) else (True, str(value)))
        for name, value in json.loads(settings).items()
    ]
    return method_place(method), FAMILIES.index(family), values
