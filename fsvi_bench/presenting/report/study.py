"""Records as a report needs them: data sets across, methods with their families and settings down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, get_args

from fsvi_bench.files import canonical_json
from fsvi_bench.posteriors.base import Family
from fsvi_bench.presenting.report.appearance import method_place
from fsvi_bench.presenting.report.reading import Results
from fsvi_bench.presenting.summary import Row, summarise
from fsvi_bench.presenting.table import settings_words, varying_settings
from fsvi_bench.running.cell import Record
from fsvi_bench.training.trace import Trace

FAMILIES: tuple[Family, ...] = get_args(Family)
REFERENCE = "exact"  #: what the others are measured against; it takes no part in comparisons


@dataclass(frozen=True, order=True)
class Entry:
    """One line of tables and figures: a method, a family, and the settings in which its lines differ."""

    place: tuple[Any, ...] = field(repr=False)  #: by which entries are sorted
    method: str = field(compare=False)
    family: Family = field(compare=False)
    settings: str = field(compare=False)  #: in words; empty where the method has one line per family
    hyperparameters: str = field(compare=False, repr=False)  #: canonical JSON: all of them

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
    """Rows and records by (data set, entry); what was not run is not there."""

    results: Results
    datasets: list[str]
    entries: list[Entry]
    rows: Mapping[tuple[str, Entry], Row]
    records: Mapping[tuple[str, Entry], Sequence[Record]]

    def entries_on(self, dataset: str) -> list[Entry]:
        """The entries that were run on a data set, in order."""
        return [entry for entry in self.entries if (dataset, entry) in self.rows]

    def by_split(self, dataset: str, entry: Entry, score: str) -> dict[int, float]:
        """Split -> score, seeds averaged; without splits in which a cell did not finish or the score does not apply."""
        values: dict[int, list[float | None]] = defaultdict(list)
        for record in self.records.get((dataset, entry), ()):
            values[record.split].append(None if record.scores is None else getattr(record.scores, score))
        complete = {split: [v for v in found if v is not None] for split, found in values.items()}
        return {split: fmean(complete[split]) for split in values if len(complete[split]) == len(values[split])}

    def finished(self, dataset: str, entry: Entry) -> list[Record]:
        """The records that have scores."""
        return [record for record in self.records.get((dataset, entry), ()) if record.scores is not None]

    def traces(self, dataset: str, entry: Entry) -> list[Trace]:
        """The traces of the records that have scores."""
        found = (self.results.traces.get(record.cell) for record in self.finished(dataset, entry))
        return [trace for trace in found if trace is not None and trace.points]


def make_study(results: Results) -> Study:
    """Sorts records into rows and gives each row a short name.

    Raises:
        InputError: results of two tasks, or of two versions of the code, stand in for one cell.
    """
    summary = summarise(results.records)
    told_apart = varying_settings(summary)
    entries: dict[tuple[str, str, str], Entry] = {}
    for row in summary:
        entries.setdefault(_key(row), _entry(row, told_apart[row.method]))
    records: dict[tuple[str, Entry], list[Record]] = defaultdict(list)
    for record in results.records:
        records[record.dataset, entries[_key(record)]].append(record)
    return Study(
        results=results,
        datasets=sorted({row.dataset for row in summary}),
        entries=sorted(entries.values()),
        rows={(row.dataset, entries[_key(row)]): row for row in summary},
        records=records,
    )


def _key(of: Row | Record) -> tuple[str, str, str]:
    return of.method, of.family, canonical_json(of.hyperparameters)


def _entry(row: Row, settings: Sequence[str]) -> Entry:
    family: Family = row.family  # type: ignore[assignment]
    numbers = tuple(_sortable(row.hyperparameters.get(name)) for name in settings)
    hyperparameters = canonical_json(row.hyperparameters)
    return Entry(
        place=(method_place(row.method), FAMILIES.index(family), numbers, hyperparameters),
        method=row.method,
        family=family,
        settings=settings_words(row, settings),
        hyperparameters=hyperparameters,
    )


def _sortable(value: object) -> tuple[int, float, str]:
    """Numbers by size, before words."""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return 1, 0.0, str(value)
