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
from fsvi_bench.presenting.looks import method_place
from fsvi_bench.presenting.summary import ROW, SCORES, cells_of, summary_of
from fsvi_bench.running.store import Store, load_traces
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

    archive: Store
    cells: pd.DataFrame  #: `cells_of` the records, and their keys as `cell`
    summary: pd.DataFrame  #: `summary_of` the cells
    of_cells: Mapping[str, Trace]  #: traces by `cell`

    @cached_property
    def datasets(self) -> list[str]:
        return sorted(self.cells["dataset"].unique())

    @cached_property
    def entries(self) -> list[Entry]:
        return sorted(self.cells["entry"].unique())

    @cached_property
    def splits(self) -> pd.DataFrame:
        """Scores by data set, entry and split, seeds averaged; missing where one did not finish or lacks the score."""
        return self.cells.groupby(["dataset", "entry", "split"])[SCORES].mean(skipna=False)

    @cached_property
    def finished(self) -> pd.DataFrame:
        """The cells that have scores."""
        return self.cells[self.cells["status"] == "ok"]

    def rivals(self, dataset: str, family: Family) -> list[Entry]:
        """The entries of a family that are compared with one another on a data set, in order."""
        entries = self.cells.loc[self.cells["dataset"] == dataset, "entry"].unique()
        return sorted(e for e in entries if e.family == family and e.method != REFERENCE)


def read_study(root: Path) -> Study:
    """All current records beneath an output folder, and their traces. Nothing is written there.

    Raises:
        InputError: there is no such folder, it holds no records, or a file in it is not what its name says; or the
            records do not go together (see `cells_of`).
    """
    archive = Store(root)
    if not archive.records:
        raise InputError(f"{root} holds no records yet, only a plan; let `fsvi-bench run` finish some cells first")
    # What a failed cell left behind is no result.
    return make_study(archive, load_traces((record for record in archive.records if record.status == "ok"), root))


def make_study(archive: Store, traces: Mapping[str, Trace]) -> Study:
    """Sorts records into rows and gives each row a short name."""
    own = {name: [getattr(record, name) for record in archive.records] for name in ("cell", "code_sha256")}
    cells = cells_of(archive.records).assign(**own)
    entries = _entries(cells)
    cells, summary = (frame.merge(entries, how="left") for frame in (cells, summary_of(cells)))
    return Study(archive, cells, summary, traces)


def _entries(cells: pd.DataFrame) -> pd.DataFrame:
    """Method, family and settings of each entry, in order: by method as in every figure, family, and settings."""
    rows: Any = sorted(cells[[*ROW[1:], "words"]].drop_duplicates().itertuples(index=False), key=_order)
    entries: Any = [Entry(place, r.method, r.family, r.words, json.loads(r.settings)) for place, r in enumerate(rows)]
    return pd.DataFrame(rows)[ROW[1:]].assign(entry=entries)


def _order(row: Any) -> tuple[Any, ...]:
    """Numbers among the settings by size, before words."""
    settings = json.loads(row.settings).items()
    values = [(name, (0, value) if isinstance(value, int | float) else (1, str(value))) for name, value in settings]
    return method_place(row.method), FAMILIES.index(row.family), values
