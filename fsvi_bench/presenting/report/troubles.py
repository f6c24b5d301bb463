"""Cells that failed or diverged, alike ones together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from fsvi_bench.presenting.report.study import Entry, Study

LONGEST_REASON = 600  #: characters that are shown; the record has all of them
_NUMBER = re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Trouble:
    """Cells of one entry that ended alike: same status, same reason but for the numbers in it."""

    status: str
    entry: Entry
    reason: str  #: the first cell's, whatever lines it had
    cells: int
    of: int  #: the entry's cells on these data sets
    where: list[str]  #: data set and splits, one data set each
    numbers_differ: bool


def troubles(study: Study) -> list[Trouble]:
    """Groups by number of cells, the largest first."""
    cells = pd.concat(list(study.cells.values()))
    bad = cells[cells["status"] != "ok"].sort_values(["dataset", "split", "seed"])
    reasons = bad["reason"].fillna("no reason was given").str.split().str.join(" ")
    bad = bad.assign(line=reasons, alike=reasons.str.replace(_NUMBER, "#", regex=True))
    found = [_trouble(study, alike) for _, alike in bad.groupby(["status", "entry", "alike"], sort=False)]
    return sorted(found, key=lambda each: (-each.cells, each.status, each.entry, each.reason))


def _trouble(study: Study, alike: pd.DataFrame) -> Trouble:
    first, splits = alike.iloc[0], alike.groupby("dataset")["split"]
    reason = first["line"]
    return Trouble(
        status=first["status"],
        entry=first["entry"],
        reason=reason if len(reason) <= LONGEST_REASON else reason[:LONGEST_REASON] + " …",
        cells=len(alike),
        of=sum(len(study.cells[dataset, first["entry"]]) for dataset in alike["dataset"].unique()),
        where=[f"{dataset} {ranges(numbers)}" for dataset, numbers in splits],
        numbers_differ=alike["line"].nunique() > 1,
    )


def ranges(numbers: Iterable[int]) -> str:
    """`0-4,7` for 0, 1, 2, 3, 4, 7: as `--splits` takes them."""
    ordered = pd.Series(sorted(set(numbers)))
    runs = ordered.groupby((ordered.diff() != 1).cumsum())
    return ",".join(str(run.min()) if len(run) == 1 else f"{run.min()}-{run.max()}" for _, run in runs)
