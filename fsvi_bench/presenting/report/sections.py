"""What the page's sections show: counts, methods, result tables, what failed, and where the records come from."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import load_installed, method_names
from fsvi_bench.presenting.report.comparison import RANKED, compared, rankings
from fsvi_bench.presenting.report.study import FAMILIES, REFERENCE, Entry, Study
from fsvi_bench.presenting.result_table import format_mean, own_prior, shown_scores, written
from fsvi_bench.presenting.summary import SHOWN, STATUSES
from fsvi_bench.running.settings import setting_words
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tasks.splits import ranges

CLOSENESS = "kl_moment_matched"  #: the KL where q has a density
LONGEST_REASON = 600  #: characters that are shown; the record has all of them
_NUMBER = re.compile(r"\d[\d.,]*(?:e[-+]?\d+)?", re.IGNORECASE)
FIELDS = {
    "fsvi_bench": "fsvi-bench",
    "git": "git revision",
    "python": "Python",
    "torch": "PyTorch",
    "lightning": "Lightning",
    "gpytorch": "GPyTorch",
    "numpy": "NumPy",
    "scipy": "SciPy",
    "platform": "platform",
    "hardware": "hardware",
    "device": "device",
    "threads": "threads per worker",
    "arithmetic": "kernels",
}


def sections(study: Study) -> dict[str, Any]:
    """By the names that the templates have for them."""
    summary = compared(study)
    summary = summary.assign(text=summary.apply(written, axis=1, form=format_mean))
    return {
        "study": study,
        "counts": counts(study),
        "methods": {method: method_summary(method) for method in dict.fromkeys(e.method for e in study.entries)},
        "families": [family for family in FAMILIES if (summary["family"] == family).any()],
        "closest": closest(summary),
        "tables": [result_table(study, *found) for found in summary.groupby("dataset")],
        "rankings": rankings(study),
        "ranked": RANKED,
        "troubles": list(troubles(study)),
        "origin": origin(study),
        "commands": commands(study),
    }


def counts(study: Study) -> dict[str, int]:
    """Planned, ok, diverged, failed, missing and stale cells, in this order."""
    status, archive = study.cells["status"].value_counts().reindex(STATUSES, fill_value=0), study.archive
    return {"planned": archive.planned, **status, "missing": archive.missing, "stale": archive.stale}


def method_summary(name: str) -> str:
    """What a method is, in a sentence."""
    try:
        return load_installed(name).defaults.summary
    except InputError:  # a method from a file or package that is not here
        return "not among the installed methods"


def closest(summary: pd.DataFrame) -> dict[tuple[str, str], Any]:
    """By data set and family the line of the lowest mean KL, and how many rivals it has."""
    lines = summary[(summary["score"] == CLOSENESS) & (summary["method"] != REFERENCE)].sort_values(["mean", "entry"])
    lines = lines.assign(rivals=lines.groupby(["dataset", "family"])["entry"].transform("count") - 1)
    first = lines[lines["mean"].map(math.isfinite)].drop_duplicates(["dataset", "family"])
    texts = [format_mean(line) for _, line in first.iterrows()]
    return {(line.dataset, line.family): line for line in first.assign(text=texts).itertuples()}


def result_table(study: Study, dataset: str, summary: pd.DataFrame) -> dict[str, Any]:
    """Its columns, and of each entry the lines of the summary, one a column, and its seconds."""
    scores = shown_scores(summary)
    finished = study.cells[(study.cells["dataset"] == dataset) & (study.cells["status"] == "ok")]
    numbers = summary[summary["score"].isin(scores)].sort_values("entry", kind="stable")
    target = load_card(dataset).target if dataset in card_names() else None
    return {
        "dataset": dataset,
        "target": "" if target is None else f"{target.meaning} ({target.unit})",
        "own_prior": own_prior(summary),
        "columns": {score: SHOWN[score] for score in scores},
        "rows": [list(row.itertuples()) for _, row in numbers.groupby("entry")],
        "seconds": finished.groupby(["entry", "split"])["seconds"].mean().groupby("entry").mean().to_dict(),
    }


def troubles(study: Study) -> Iterator[dict[str, Any]]:
    """Cells of one entry that ended alike: same status, same reason but for the numbers in it; most cells first."""
    bad = study.cells[study.cells["status"] != "ok"].sort_values(["dataset", "split", "seed"])
    reasons = bad["reason"].fillna("no reason was given").str.split().str.join(" ")
    bad = bad.assign(reason=reasons, alike=reasons.str.replace(_NUMBER, "#", regex=True))
    groups = [cells for _, cells in bad.groupby(["status", "entry", "alike"])]
    for cells in sorted(groups, key=len, reverse=True):
        first, of_entry = cells.iloc[0], study.cells[study.cells["entry"] == cells["entry"].iloc[0]]
        reason = first["reason"]
        yield {
            "status": first["status"],
            "entry": first["entry"],
            "reason": reason if len(reason) <= LONGEST_REASON else reason[:LONGEST_REASON] + " …",
            "cells": len(cells),
            "of": int(of_entry["dataset"].isin(cells["dataset"]).sum()),  # on these data sets
            "where": [f"{dataset} {ranges(splits)}" for dataset, splits in cells.groupby("dataset")["split"]],
            "numbers_differ": cells["reason"].nunique() > 1,
        }


def origin(study: Study) -> dict[str, Any]:
    """What the records say about how they were made: values with the number of records that have each."""
    records, provenance = study.archive.records, [record.provenance for record in study.archive.records]
    cells = study.cells.assign(code=[record.code_sha256 for record in records])
    tasks = cells.dropna(subset="task_sha256").drop_duplicates(["dataset", "split"]).sort_values(["dataset", "split"])
    seconds = [record.seconds for record in records if record.seconds is not None]
    return {
        "facts": {label: _counted(each.get(name) for each in provenance) for name, label in FIELDS.items()},
        "started": sorted(str(each["started"]) for each in provenance if "started" in each),
        "code": {e.method: _counted(cells.loc[cells["method"] == e.method, "code"]) for e in study.entries},
        "tasks": tasks.groupby("dataset")[["split", "task_sha256"]],
        "training": sum(each.train for each in seconds),
        "scoring": sum(each.score for each in seconds),
    }


def _counted(values: Iterable[object]) -> list[tuple[str, int]]:
    """Most frequent first."""
    return Counter(sorted("not recorded" if value is None else str(value) for value in values)).most_common()


def commands(study: Study) -> list[str]:
    """`fsvi-bench run` with what each method's records differ in from its defaults; methods that agree share a line."""
    rows = pd.DataFrame({"method": e.method, "family": e.family, "rest": _rest(study, e)} for e in study.entries)
    families = rows.groupby(["rest", "method"], sort=False)["family"].agg(tuple).reset_index()
    found = []
    for (rest, together), methods in families.groupby(["rest", "family"], sort=False)["method"]:
        # A record knows the name of a method's class, not where its file lay.
        specs = [method if method in method_names() else f"FILE.py:{method}" for method in methods]
        words = [*_each("--method", specs), *_each("--family", together), *rest]
        found.append(shlex.join(["fsvi-bench", "run", *words]))
    return found


def _each(flag: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _rest(study: Study, entry: Entry) -> tuple[str, ...]:
    """Data sets, splits, seeds, and the settings that are not the method's defaults."""
    cells = study.cells[study.cells["entry"] == entry]
    words = [*_each("--dataset", sorted(cells["dataset"].unique())), "--splits", ranges(cells["split"])]
    if (seeds := ranges(cells["seed"])) != "0":
        words += ["--seeds", seeds]
    try:
        defaults = load_installed(entry.method).options({}).model_dump(mode="json")
    except InputError:  # not installed here, or it has no complete defaults: all are named
        defaults = {}
    own = {n: value for n, value in entry.hyperparameters.items() if n not in defaults or defaults[n] != value}
    return (*words, *setting_words(own))
