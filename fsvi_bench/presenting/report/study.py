"""Records as a report needs them: data sets across, methods with their families and settings down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json
from fsvi_bench.posteriors.base import Family
from fsvi_bench.presenting.cell_files import load_traces
from fsvi_bench.presenting.frames import frame_of
from fsvi_bench.presenting.report.appearance import method_place
from fsvi_bench.presenting.summary import SCORES, Row, summarise
from fsvi_bench.presenting.table import settings_words, varying_settings
from fsvi_bench.running.archive import read_archive
from fsvi_bench.running.cell import Record
from fsvi_bench.training.trace import Trace

FAMILIES: tuple[Family, ...] = get_args(Family)
REFERENCE = "exact"  #: what the others are measured against; it takes no part in comparisons


@dataclass(frozen=True)
class Results:
    """Records, their traces by `record.cell`, and counts as in `running.archive.Archive`."""

    records: list[Record]
    traces: dict[str, Trace]
    planned: int
    missing: int
    stale: int


def read_results(root: Path) -> Results:
    """All current records beneath an output folder, and their traces. Nothing is written there.

    Raises:
        InputError: there is no such folder, it holds no records, or a file in it is not what its name says.
    """
    archive = read_archive(root)
    if not archive.records:
        raise InputError(f"{root} holds no records yet, only a plan; let `fsvi-bench run` finish some cells first")
    # What a failed cell left behind is no result.
    traces = load_traces((record for record in archive.records if record.status == "ok"), root)
    return Results(archive.records, traces, archive.planned, archive.missing, archive.stale)


@dataclass(frozen=True, order=True)
class Entry:
    """One line of tables and figures: a method, a family, and the settings in which its lines differ."""

    place: tuple[Any, ...] = field(repr=False)  #: by which entries are sorted
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

    def __hash__(self) -> int:
        return hash(self.place)


@dataclass(frozen=True)
class Study:
    """Rows, cells and splits by (data set, entry); what was not run is not there."""

    results: Results
    datasets: list[str]
    entries: list[Entry]
    rows: Mapping[tuple[str, Entry], Row]
    cells: Mapping[tuple[str, Entry], pd.DataFrame]  #: `frame_of` its records, and `cell`, their keys
    #: Scores by split, seeds averaged; missing where a cell did not finish or the score does not apply.
    splits: Mapping[tuple[str, Entry], pd.DataFrame]

    def entries_on(self, *datasets: str) -> list[Entry]:
        """The entries that were run on one of these data sets, in order."""
        return [entry for entry in self.entries if any((dataset, entry) in self.rows for dataset in datasets)]

    def rivals(self, dataset: str, family: Family) -> list[Entry]:
        """The entries of a family that are compared with one another."""
        return [e for e in self.entries_on(dataset) if e.family == family and e.method != REFERENCE]

    def finished(self, dataset: str, entry: Entry) -> pd.DataFrame:
        """The cells that have scores."""
        cells = self.cells[dataset, entry]
        return cells[cells["status"] == "ok"]

    def traces(self, dataset: str, entry: Entry) -> list[Trace]:
        """The traces of the cells that have scores."""
        found = (self.results.traces.get(cell) for cell in self.finished(dataset, entry)["cell"])
        return [trace for trace in found if trace is not None and trace.points]


def make_study(results: Results) -> Study:
    """Sorts records into rows and gives each row a short name.

    Raises:
        InputError: results of two tasks, or of two versions of the code, stand in for one cell.
    """
    rows = summarise(results.records)
    told_apart = varying_settings(rows)
    entries = {_key(row): _entry(row, told_apart[row.method]) for row in rows}
    frame = frame_of(results.records)
    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, *SCORES]))).astype(dict.fromkeys(SCORES, float))
    frame["cell"] = [record.cell for record in results.records]
    frame["entry"] = pd.Series([entries[_key(record)] for record in results.records], dtype=object)
    cells: dict[Any, pd.DataFrame] = dict(list(frame.groupby(["dataset", "entry"], sort=False)))
    return Study(
        results=results,
        datasets=sorted({row.dataset for row in rows}),
        entries=sorted(set(entries.values())),
        rows={(row.dataset, entries[_key(row)]): row for row in rows},
        cells=cells,
        splits={key: _by_split(of_row) for key, of_row in cells.items()},
    )


def _by_split(cells: pd.DataFrame) -> pd.DataFrame:
    grouped = cells.groupby("split")[list(SCORES)]
    return grouped.mean().where(grouped.count().eq(grouped.size(), axis=0))


def _key(of: Row | Record) -> tuple[str, str, str]:
    return of.method, of.family, canonical_json(of.hyperparameters)


def _entry(row: Row, settings: list[str]) -> Entry:
    family: Family = row.family  # type: ignore[assignment]
    given = [row.hyperparameters.get(name) for name in settings]
    # Numbers by size, before words.
    numbers = tuple(
        (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value)) for value in given
    )
    place = (method_place(row.method), FAMILIES.index(family), numbers, canonical_json(row.hyperparameters))
    return Entry(place, row.method, family, settings_words(row, settings), row.hyperparameters)
