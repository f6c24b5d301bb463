"""Content of the page's sections: counts, methods, result tables, failures, and provenance of the records."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd

from fsvi_bench.arithmetic import KERNELS_VARIABLE
from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import load_installed, method_names
from fsvi_bench.presenting.looks import ASSETS
from fsvi_bench.presenting.report.comparison import RANKED, compared, rankings
from fsvi_bench.presenting.report.study import FAMILIES, REFERENCE, Entry, Study
from fsvi_bench.presenting.summary import (
    COLUMNS,
    DIVERGED,
    EXACT_DRAWS,
    FLOORS,
    STATUSES,
    UNITS,
    UNITS_OF_NETWORKS,
    floors,
    format_spread,
    headings,
    own_prior,
    shown_scores,
    three_digits,
    written_rows,
)
from fsvi_bench.presenting.tables import ROUNDING, Table, Written
from fsvi_bench.resources import read_yaml
from fsvi_bench.running.options import setting_words
from fsvi_bench.running.provenance import kernels_of
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tasks.official import official_splits, read_official
from fsvi_bench.tasks.splits import ranges

#: The page's sections after its head: template -> title in the navigation.
PARTS = {
    "results": "Results", "scores": "KL and NLPD", "curves": "During training", "spectrum": "Spectrum",
    "calibration": "Calibration", "failures": "Failed and diverged", "origin": "Provenance",
}  # fmt: skip
OF_LINEAR_TASKS = ("scores", "curves", "spectrum", "calibration")
#: The report's last column.
SECONDS = {
    "heading": "train, s",
    "meaning": "training seconds per cell: those of its batch divided by the size of the batch; on networks, with the "
    "search for a mode",
}
HIGHER = "Higher variance ranks are better."
CLOSENESS = "kl_moment_matched"  #: equals the KL if q is Gaussian
LONGEST_REASON = 600  #: maximum number of characters shown; the record has the whole reason
_NUMBER = re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?", re.IGNORECASE)
#: Fields of provenance -> their names on the page.
FIELDS: dict[str, str] = read_yaml(ASSETS / "provenance.yaml")  # type: ignore[assignment]


def sections(study: Study) -> dict[str, Any]:
    """The content of all sections, by its name in the templates; `parts` are those of `PARTS` that the page has."""
    summary = compared(study)
    return {
        "parts": {part: of for part, of in PARTS.items() if study.linear.datasets or part not in OF_LINEAR_TASKS},
        "study": study,
        "counts": counts(study),
        "methods": {e.method: method_summary(e.method, method_files(study).get(e.method)) for e in study.entries},
        "abridged": any(entry.label != entry.settings for entry in study.entries),
        "families": [family for family in FAMILIES if (summary["family"] == family).any()],
        "closest": closest(summary),
        "several": bool((summary["splits"] > 1).any() or _lost(summary)),
        "bold": bool(summary["best"].any()),
        "tables": [result_table(study, summary, dataset) for dataset in study.datasets],
        "rankings": rankings(study.linear),
        "ranked": RANKED,
        "failures": failures(study),
        "origin": origin(study),
        "commands": commands(study),
    }


def counts(study: Study) -> dict[str, int]:
    """Numbers of planned, ok, diverged, failed, missing and stale cells, in this order."""
    status, archive = study.cells["status"].value_counts().reindex(STATUSES, fill_value=0), study.archive
    return {"planned": archive.planned, **status, "missing": archive.missing, "stale": archive.stale}


def method_files(study: Study) -> dict[str, str]:
    """Names of the files of methods that come from files; records of earlier versions do not have them."""
    found = {record.method: record.provenance.get("method_file") for record in study.archive.records}
    return {method: file for method, file in found.items() if isinstance(file, str)}


def method_summary(name: str, file: str | None = None) -> str:
    """A one-sentence description of a method, or the name of its file."""
    if file is not None:
        return f"from the file {file}"
    try:
        return load_installed(name).defaults.summary
    except InputError:
        return "from a file, or from a package that is not installed here"


def closest(summary: pd.DataFrame) -> dict[Any, Any]:
    """By data set and family: the line with the lowest median KL, and the number of its rivals.

    Lines that lack splits of other lines are left out: to fail on the hard splits would lower the median.
    """
    lines = summary[(summary["score"] == CLOSENESS) & (summary["method"] != REFERENCE)]
    groups = lines.groupby(["dataset", "family"])
    lines = lines.assign(rivals=groups["entry"].transform("count") - 1)
    every = {place: frozenset().union(*own["judged"]) for place, own in groups}
    whole = [line.judged == every[line.dataset, line.family] for line in lines.itertuples()]
    first = lines[np.array(whole, dtype=bool)]
    first = first.assign(shown=first["median"].mask(first["median"].abs() < ROUNDING, 0.0))
    first = first.sort_values(["shown", "entry"]).drop_duplicates(["dataset", "family"])
    first = first[first["median"].map(math.isfinite)]
    texts = [format_spread(line) for _, line in first.iterrows()]
    return {(line.dataset, line.family): line for line in first.assign(text=texts).itertuples()}


def result_table(study: Study, summary: pd.DataFrame, dataset: str) -> dict[str, Any]:
    """Medians and quartiles of each entry, and its seconds."""
    summary = summary[summary["dataset"] == dataset].sort_values("entry", kind="stable")
    network = dataset in {name for name, _ in study.networks}
    scores = shown_scores(summary, network)
    cells = study.cells[study.cells["status"].eq("ok") & study.cells["dataset"].eq(dataset)]
    seconds = cells.groupby(["entry", "split"])["seconds"].mean().groupby("entry").mean().dropna()
    train = {entry: Written(mean, three_digits(mean)) for entry, mean in seconds.items()}
    rows = []
    for first, numbers in written_rows(summary, scores, format_spread):
        family = Written(first["entry"].variant, first["family"], first["words"])
        rows.append((first["method"], family, *numbers, train.get(first["entry"])))
    for found in floors(study.cells, dataset, scores):
        rows.append((REFERENCE, f"{found.draws:,} {EXACT_DRAWS}{found.remark}", *found.cells, None))
    columns = ("method", "family and settings", *headings(scores), SECONDS["heading"])
    target = load_card(dataset).target if dataset in card_names() else None
    return {
        "dataset": dataset,
        "target": "" if target is None else f"{target.meaning} ({target.unit})",
        "remarks": _remarks(summary, network),
        "table": Table(columns=columns, rows=rows),
        "meanings": {each["heading"]: each["meaning"] for each in (*COLUMNS.values(), SECONDS)},
    }


def _remarks(summary: pd.DataFrame, network: bool) -> str:
    found = [UNITS_OF_NETWORKS, FLOORS, HIGHER] if network else [UNITS, own_prior(summary)]
    return " ".join(filter(None, [*found, DIVERGED if _lost(summary) else ""]))


def _lost(summary: pd.DataFrame) -> bool:
    """Whether some cells of a row diverged and others did not."""
    return bool((summary["diverged"] * summary["ok"]).any())


def failures(study: Study) -> list[dict[str, Any]]:
    """Groups of failed cells by entry, status and reason, disregarding numbers in the reason; largest groups first."""
    bad = study.cells[study.cells["status"] != "ok"].sort_values(["dataset", "split", "seed"])
    reasons = bad["reason"].fillna("no reason given").str.split().str.join(" ")
    bad = bad.assign(reason=reasons, pattern=reasons.str.replace(_NUMBER, "#", regex=True))
    groups: Any = bad.groupby(["status", "entry", "pattern"])
    found = [
        {
            "status": status,
            "entry": entry,
            "reason": re.sub(rf"(?<=^.{{{LONGEST_REASON}}}).+", " …", cells["reason"].iloc[0]),
            "cells": len(cells),
            "of": (study.cells["dataset"].isin(cells["dataset"]) & study.cells["entry"].eq(entry)).sum(),
            "where": [f"{dataset} {ranges(splits)}" for dataset, splits in cells.groupby("dataset")["split"]],
            "numbers_differ": cells["reason"].nunique() > 1,
        }
        for (status, entry, _), cells in groups
    ]
    return sorted(found, key=lambda each: -each["cells"])


def origin(study: Study) -> dict[str, Any]:
    """Provenance of the records: each value with the number of records that have it."""
    records = study.archive.records
    provenance = pd.DataFrame([record.provenance for record in records], columns=[*FIELDS, "started"], dtype=object)
    tasks = study.cells.dropna(subset="task_sha256").drop_duplicates(["dataset", "split"])
    code = study.cells.sort_values("entry").groupby("method", sort=False)["code_sha256"]
    return {
        "facts": {label: _counted(provenance[name]) for name, label in FIELDS.items()},
        "started": sorted(provenance["started"].dropna().astype(str)),
        "code": {method: _counted(hashes) for method, hashes in code},
        "tasks": tasks.sort_values(["dataset", "split"]).groupby("dataset")[["split", "task_sha256"]],
        "training": study.cells["seconds"].sum(),
        "scoring": sum(record.seconds.score for record in records if record.seconds is not None),
    }


def _counted(values: pd.Series) -> list[tuple[str, int]]:
    """Counts of values, the most frequent first."""
    return Counter(sorted(values.fillna("not recorded").astype(str))).most_common()


def commands(study: Study) -> list[str]:
    """Commands that reproduce the records, with settings other than defaults; methods share one if possible.

    They name the device and ask for portable kernels if all records agree on it.
    """
    provenance = [record.provenance for record in study.archive.records]
    devices = {each.get("device") for each in provenance}
    device = ["--device", devices.pop()] if len(devices) == 1 and None not in devices else []
    portable = {kernels_of(each) for each in provenance} == {"portable"}
    environment = f"{KERNELS_VARIABLE}=portable " if portable else ""
    files, given = method_files(study), _tasks_from_files(study)
    asked = [(entry, rest) for entry in study.entries for rest in _rests(study, entry, given)]
    rows = pd.DataFrame({"method": e.method, "family": e.family, "rest": rest} for e, rest in asked)
    together = rows.groupby(["rest", "method"], sort=False)["family"].agg(tuple).reset_index()
    groups: Any = together.groupby(["rest", "family"], sort=False)["method"]
    found = []
    for (rest, families), methods in groups:
        specs = [name if name in method_names() else f"{files.get(name, 'FILE.py')}:{name}" for name in methods]
        words = [*_each("--method", specs), *_each("--family", families), *rest, *device]
        found.append(environment + shlex.join(["fsvi-bench", "run", *words]))
    return found


def _each(flag: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _tasks_from_files(study: Study) -> set[tuple[str, int]]:
    """The places of tasks that are not official ones of this version, where it has some."""
    networks = {dataset for dataset, _ in study.networks}
    tasks = study.cells[~study.cells["dataset"].isin(networks)].dropna(subset="task_sha256")
    found = set[tuple[str, int]]()
    for name, own in tasks.drop_duplicates(["dataset", "split"]).groupby("dataset"):
        dataset = str(name)
        known = official_splits(dataset) if dataset in card_names() else None
        for split, sha256 in zip(own["split"], own["task_sha256"], strict=True):
            if known is None or (split in known and read_official(dataset, split).task.sha256 != sha256):
                found.add((dataset, split))
    return found


def _rests(study: Study, entry: Entry, given: set[tuple[str, int]]) -> Iterator[tuple[str, ...]]:
    """Data sets, splits, seeds, and settings that differ from the method's defaults, for one command or several.

    Data sets with the same splits share a command, unless tasks were given as files: the splits could be theirs.
    """
    cells = study.cells[study.cells["entry"] == entry]
    places = {*cells[["dataset", "split"]].itertuples(index=False, name=None)}
    names = sorted(study.networks[place] for place in places if place in study.networks)
    names += [f"{dataset}-{split}.safetensors" for dataset, split in sorted(places & given)]
    others = sorted(place for place in places - given if place not in study.networks)
    linear = pd.DataFrame(others, columns=["dataset", "split"])
    own = _own_settings(entry, bool(len(linear)) or bool(places & given), bool(places & {*study.networks}))
    seeds = ["--seeds", ranges(cells["seed"])] if cells["seed"].any() else []
    splits = linear.groupby("dataset")["split"].agg(ranges)
    parts = splits.groupby(splits.index if places & given else splits, sort=False)
    for tasks, part in zip_longest([_each("--task", names)] * bool(names), (part for _, part in parts)):
        words = [*(tasks or ())]
        if part is not None:
            words += [*_each("--dataset", part.index), "--splits", part.iloc[0]]
        yield (*words, *seeds, *own)


def _own_settings(entry: Entry, linear: bool, networks: bool) -> list[str]:
    """The settings that differ from the method's defaults on the tasks of its cells."""
    try:
        found = load_installed(entry.method)
        there: list[dict[str, Any]] = [{}] * linear + [found.defaults.network_options] * networks
        defaults = [found.options(changes).model_dump(mode="json") for changes in there]
    except InputError:  # not installed, or without complete defaults: all settings are listed
        defaults = [{}]
    own = {n: v for n, v in entry.hyperparameters.items() if any(n not in each or each[n] != v for each in defaults)}
    return setting_words(own)
