"""The first thing on the page: what was run, how it ended, and what stands out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import load_installed
from fsvi_bench.presenting.report.appearance import Look, look
from fsvi_bench.presenting.report.comparison import supported_best
from fsvi_bench.presenting.report.study import FAMILIES, REFERENCE, Entry, Study
from fsvi_bench.presenting.table import format_estimate

CLOSENESS = "kl_moment_matched"  #: the KL where q has a density


@dataclass(frozen=True)
class MethodWords:
    """A method as the page's legend introduces it."""

    name: str
    summary: str
    families: Sequence[str]
    look: Look


@dataclass(frozen=True)
class Closest:
    """The entry of a family with the lowest mean KL on a data set, and whether the splits bear that out."""

    dataset: str
    family: str
    entry: Entry
    kl: str
    of_moments: bool
    supported: bool
    rivals: int


@dataclass(frozen=True)
class Overview:
    """Counts of cells, the methods, and who comes closest."""

    counts: dict[str, int]
    methods: list[MethodWords]
    families: Sequence[str]
    closest: list[Closest]
    first: str
    last: str


def overview(study: Study) -> Overview:
    """Counts planned, ok, diverged, failed, missing and stale cells, in this order."""
    results, status = study.results, Counter(record.status for record in study.results.records)
    counts = {"planned": results.planned, **{name: status[name] for name in ("ok", "diverged", "failed")}}
    counts |= {"missing": results.missing, "stale": results.stale}
    started = sorted(str(r.provenance["started"]) for r in results.records if "started" in r.provenance)
    return Overview(
        counts=counts,
        methods=[_words(study, name) for name in dict.fromkeys(entry.method for entry in study.entries)],
        families=[family for family in FAMILIES if any(entry.family == family for entry in study.entries)],
        closest=[found for dataset in study.datasets for found in _closest(study, dataset)],
        first=started[0] if started else "",
        last=started[-1] if started else "",
    )


def _words(study: Study, name: str) -> MethodWords:
    families = [family for family in FAMILIES if any((e.method, e.family) == (name, family) for e in study.entries)]
    try:
        defaults = load_installed(name).defaults
    except InputError:  # a method from a file or package that is not here
        return MethodWords(name, "not among the installed methods", families, look(name))
    return MethodWords(name, defaults.summary, families, look(name))


def _closest(study: Study, dataset: str) -> Sequence[Closest]:
    found = []
    for family in FAMILIES:
        entries = [e for e in study.entries_on(dataset) if e.family == family and e.method != REFERENCE]
        means = {
            entry: study.rows[dataset, entry].scores[CLOSENESS]
            for entry in entries
            if CLOSENESS in study.rows[dataset, entry].scores
        }
        finite = {entry: value for entry, value in means.items() if math.isfinite(value.mean)}
        if not finite:
            continue
        entry = min(finite, key=lambda e: (finite[e].mean, e))
        own = study.rows[dataset, entry].scores.get("kl")
        of_moments = own is None or math.isinf(own.mean)
        supported = supported_best(study, dataset, family, CLOSENESS) == entry
        kl = format_estimate(finite[entry])
        found.append(Closest(dataset, family, entry, kl, of_moments, supported, len(entries) - 1))
    return found
