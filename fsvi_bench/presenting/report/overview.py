"""The first thing on the page: what was run, how it ended, and what stands out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import load_installed
from fsvi_bench.posteriors.base import Family
from fsvi_bench.presenting.report.comparison import supported_best
from fsvi_bench.presenting.report.study import FAMILIES, Entry, Study
from fsvi_bench.presenting.table import format_estimate

CLOSENESS = "kl_moment_matched"  #: the KL where q has a density


@dataclass(frozen=True)
class MethodWords:
    """A method as the page's legend introduces it."""

    name: str
    summary: str
    families: Sequence[str]


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
    started = sorted(str(r.provenance["started"]) for r in results.records if "started" in r.provenance)
    found = [_closest(study, dataset, family) for dataset in study.datasets for family in FAMILIES]
    return Overview(
        counts=counts | {"missing": results.missing, "stale": results.stale},
        methods=[_words(study, name) for name in dict.fromkeys(entry.method for entry in study.entries)],
        families=[family for family in FAMILIES if any(entry.family == family for entry in study.entries)],
        closest=[closest for closest in found if closest is not None],
        first=started[0] if started else "",
        last=started[-1] if started else "",
    )


def _words(study: Study, name: str) -> MethodWords:
    try:
        summary = load_installed(name).defaults.summary
    except InputError:  # a method from a file or package that is not here
        summary = "not among the installed methods"
    return MethodWords(name, summary, list(dict.fromkeys(e.family for e in study.entries if e.method == name)))


def _closest(study: Study, dataset: str, family: Family) -> Closest | None:
    rivals = {entry: study.rows[dataset, entry].scores for entry in study.rivals(dataset, family)}
    known = {entry: scores[CLOSENESS] for entry, scores in rivals.items() if CLOSENESS in scores}
    finite = [entry for entry, value in known.items() if math.isfinite(value.mean)]
    if not finite:
        return None
    entry = min(finite, key=lambda e: (known[e].mean, e))
    own = rivals[entry].get("kl")
    supported = supported_best(study, dataset, family, CLOSENESS) == entry
    of_moments = own is None or math.isinf(own.mean)
    return Closest(dataset, family, entry, format_estimate(known[entry]), of_moments, supported, len(rivals) - 1)
