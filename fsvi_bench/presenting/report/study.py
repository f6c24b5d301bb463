"""The records of a folder as a report needs them: by data set, and by method, family and settings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.networks.task import network_name
from fsvi_bench.posteriors.base import Family
from fsvi_bench.presenting.looks import method_place
from fsvi_bench.presenting.summary import DIVERGES, ROW, cells_of, rounding_of, scores_in, summary_of
from fsvi_bench.running.options import setting
from fsvi_bench.running.store import Store, load_traces
from fsvi_bench.training.trace import Trace

FAMILIES: tuple[Family, ...] = get_args(Family)
REFERENCE = "exact"  #: the reference method, which is not compared with others


@dataclass(frozen=True, order=True)
class Entry:
    """A line of tables and figures: a method, a family, and the settings in which its lines differ."""

    place: int  #: position among the entries of the study
    method: str = field(compare=False)
    family: Family = field(compare=False)
    settings: str = field(compare=False)  #: as text; empty if the method has one line per family
    label: str = field(compare=False)  #: the fewest of these that tell the method's lines apart; … for more
    hyperparameters: dict[str, Any] = field(compare=False, repr=False)

    @property
    def variant(self) -> str:
        """Family and settings, which identify it among the method's lines."""
        return f"{self.family} {self.settings}".strip()

    @property
    def name(self) -> str:
        """Method, family and settings."""
        return f"{self.method} {self.variant}"


@dataclass(frozen=True)
class Study:
    """The records of a folder as frames, with the columns `dataset` and `entry`."""

    archive: Store
    cells: pd.DataFrame  #: `cells_of` the records, with their keys as `cell`
    summary: pd.DataFrame  #: `summary_of` the cells
    of_cells: Mapping[str, Trace]  #: traces by `cell`

    @cached_property
    def networks(self) -> dict[tuple[str, int], str]:
        """The names of the network tasks by data set and split."""
        places = {(record.dataset, record.split) for record in self.archive.records}
        return {place: name for place in places if (name := network_name(*place)) is not None}

    @cached_property
    def linear(self) -> Study:
        """The study without its networks."""
        names = {dataset for dataset, _ in self.networks}
        cells, summary = (of[~of["dataset"].isin(names)] for of in (self.cells, self.summary))
        return replace(self, cells=cells, summary=summary) if names else self

    @cached_property
    def datasets(self) -> list[str]:
        return sorted(self.cells["dataset"].unique())

    @cached_property
    def entries(self) -> list[Entry]:
        return sorted(self.cells["entry"].unique())

    @cached_property
    def splits(self) -> pd.DataFrame:
        """Scores by data set, entry and split, averaged over seeds; missing if a cell failed or lacks the score."""
        return _by_split(self.cells)

    @cached_property
    def judged(self) -> pd.DataFrame:
        """The cells as tests and ranks count them: scores that tables show as 0 are 0, and distances of cells that
        diverged are infinite, unless cells of their entry that finished on the data set lack the score."""
        cells, scores = self.cells.copy(), scores_in(self.cells)
        rounding = pd.Series({score: rounding_of(score) for score in scores})
        cells[scores] = cells[scores].mask(cells[scores].abs() < rounding, 0.0)
        lacking = cells[scores].isna().mul(cells["status"] == "ok", axis=0)
        lacks = lacking.groupby([cells["dataset"], cells["entry"]]).transform("any")
        for score in (name for name in scores if name in DIVERGES):
            cells.loc[(cells["status"] == "diverged") & ~lacks[score], score] = math.inf
        return cells

    @cached_property
    def judged_splits(self) -> pd.DataFrame:
        """`splits` of the judged cells."""
        return _by_split(self.judged)

    @cached_property
    def finished(self) -> pd.DataFrame:
        """The cells with scores."""
        return self.cells[self.cells["status"] == "ok"]

    def rivals(self, dataset: str, family: Family) -> list[Entry]:
        """The entries of a family that are compared on a data set, in order."""
        entries = self.cells.loc[self.cells["dataset"] == dataset, "entry"].unique()
        return sorted(e for e in entries if e.family == family and e.method != REFERENCE)


def _by_split(cells: pd.DataFrame) -> pd.DataFrame:
    return cells.groupby(["dataset", "entry", "split"])[scores_in(cells)].mean(skipna=False)


def read_study(root: Path) -> Study:
    """Reads all current records of an output folder, and their traces.

    Raises:
        InputError: the folder does not exist or has no records, a file is not valid, or the records do not fit together
            (see `cells_of`).
    """
    archive = Store(root)
    if not archive.records:
        raise InputError(f"{root} has a plan but no records yet; let `fsvi-bench run` finish some cells first")
    # Traces of failed cells are not results; those of diverged ones tell when.
    return make_study(archive, load_traces((record for record in archive.records if record.status != "failed"), root))


def make_study(archive: Store, traces: Mapping[str, Trace]) -> Study:
    """Groups records into entries, and gives each entry a short name."""
    cells = cells_of(archive.records).assign(cell=[record.cell for record in archive.records])
    entries = _entries(cells)
    cells, summary = (frame.merge(entries, how="left") for frame in (cells, summary_of(cells)))
    return Study(archive, cells, summary, traces)


def _entries(cells: pd.DataFrame) -> pd.DataFrame:
    """Method, family and settings of each entry, sorted by method (as in figures), family and settings."""
    rows: Any = sorted(cells[[*ROW[1:], "words"]].drop_duplicates().itertuples(index=False), key=_order)
    told = {method: _telling([row for row in rows if row.method == method]) for method in {row.method for row in rows}}
    entries: Any = []
    for place, row in enumerate(rows):
        settings = json.loads(row.settings)
        label = _label(row.words, settings, told[row.method])
        entries.append(Entry(place, row.method, row.family, row.words, label, settings))
    return pd.DataFrame(rows)[ROW[1:]].assign(entry=entries)


def _telling(rows: list[Any]) -> tuple[str, ...]:
    """The fewest settings in which all settings of a method differ; of equally few, the first in its words."""
    frame = pd.DataFrame([json.loads(row.settings) for row in rows]).astype(str).drop_duplicates()
    names = dict.fromkeys(word.partition("=")[0] for row in rows for word in row.words.split())
    varying = [name for name in names if name in frame and frame[name].nunique() > 1]
    subsets = (of for size in range(1, len(varying)) for of in combinations(varying, size))
    return next((of for of in subsets if not frame.duplicated([*of]).any()), tuple(varying))


def _label(words: str, settings: dict[str, Any], telling: tuple[str, ...]) -> str:
    """The words of an entry, with … for the settings that are not needed; a remark and an own prior stay."""
    short = f" {words} "
    left_out = {setting(name, value) for name, value in settings.items() if name not in telling} - {"prior=own"}
    for each in left_out:
        short = short.replace(f" {each} ", " ")
    return short.strip() + " …" * (short.strip() != words)


def _order(row: Any) -> tuple[Any, ...]:
    """Sort key of an entry; numbers among the settings are sorted by size, before text."""
    settings = json.loads(row.settings).items()
    values = [(name, (0, value) if isinstance(value, int | float) else (1, str(value))) for name, value in settings]
    return method_place(row.method), FAMILIES.index(row.family), values
