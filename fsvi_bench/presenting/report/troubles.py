"""Cells that failed or diverged, alike ones together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from fsvi_bench.presenting.report.study import Entry, Study
from fsvi_bench.running.cell import Record

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
    groups: dict[tuple[str, Entry, str], list[Record]] = defaultdict(list)
    for (_, entry), records in study.records.items():
        for record in records:
            if record.status != "ok":
                groups[record.status, entry, _NUMBER.sub("#", _line(record.reason))].append(record)
    found = [_trouble(study, status, entry, records) for (status, entry, _), records in groups.items()]
    return sorted(found, key=lambda each: (-each.cells, each.status, each.entry, each.reason))


def _trouble(study: Study, status: str, entry: Entry, records: Sequence[Record]) -> Trouble:
    ordered = sorted(records, key=lambda record: (record.dataset, record.split, record.seed))
    reasons = [_line(record.reason) for record in ordered]
    by_dataset = groupby(ordered, key=lambda record: record.dataset)
    where = [f"{dataset} {ranges({record.split for record in of_dataset})}" for dataset, of_dataset in by_dataset]
    datasets = {record.dataset for record in ordered}
    of = sum(len(study.records[dataset, entry]) for dataset in datasets)
    reason = reasons[0] if len(reasons[0]) <= LONGEST_REASON else reasons[0][:LONGEST_REASON] + " …"
    return Trouble(status, entry, reason, len(ordered), of, where, len(set(reasons)) > 1)


def _line(reason: str | None) -> str:
    return " ".join((reason or "no reason was given").split())


def ranges(numbers: Iterable[int]) -> str:
    """`0-4,7` for 0, 1, 2, 3, 4, 7: as `--splits` takes them."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
