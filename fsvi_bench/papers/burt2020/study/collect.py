"""From a folder of records, finished or not, to the study's tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from fsvi_bench.errors import InputError, plain
from fsvi_bench.papers.burt2020.cells import NAMED, SETTINGS
from fsvi_bench.papers.burt2020.study.closeness import Closeness, Examiner
from fsvi_bench.papers.burt2020.study.table import CELLS, CURVES, SCORES, SPECTRUM, Tables
from fsvi_bench.papers.places import Place
from fsvi_bench.presenting.cell_files import load_posterior, load_trace
from fsvi_bench.presenting.report.appearance import method_place
from fsvi_bench.presenting.traces import spread_by_step
from fsvi_bench.running.cell import Record
from fsvi_bench.running.progress import Progress
from fsvi_bench.running.provenance import processor_words
from fsvi_bench.tasks.official import find_task
from fsvi_bench.tasks.task import bind_task
from fsvi_bench.training.trace import Trace

HARDWARE_LENGTH = 100
FAMILY_ORDER = ("full", "ffg")


def collect(
    records: Sequence[Record], missing: Sequence[Place], root: Path, data_dir: Path | None, progress: Progress
) -> Tables:
    """Both tables, by method as in every report. Reads each finished cell's posterior and trace, and raw data.

    Raises:
        InputError: raw data, a task or a posterior is missing, or a file is not what its name says.
    """
    closeness = _closeness(records, root, data_dir, progress)
    planned: list[Record | Place] = [*records, *missing]
    rows = [_row(each, closeness) for each in sorted(planned, key=_order)]
    return Tables(pd.DataFrame(rows, columns=list(CELLS)).astype(CELLS), curves_of(records, root))


def _order(of: Record | Place) -> tuple[Any, ...]:
    return *_line(of), of.split, of.seed


def _line(of: Record | Place) -> tuple[Any, ...]:
    settings = of.hyperparameters
    place = (method_place(of.method), FAMILY_ORDER.index(of.family))
    return of.dataset, *place, settings.get("M") or 0, settings.get("kl_jitter") or 0.0


def _closeness(
    records: Sequence[Record], root: Path, data_dir: Path | None, progress: Progress
) -> dict[str, Closeness]:
    """By cell; problem by problem, so that each is loaded once."""
    by_task: dict[tuple[str, int, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.status == "ok" and record.task_sha256 is not None:
            by_task[record.dataset, record.split, record.task_sha256].append(record)
    progress.start("splits", len(by_task))
    found = {}
    for (dataset, split, sha256), group in by_task.items():
        certified = find_task(dataset, split)
        if certified is None or certified.task.sha256 != sha256:
            raise InputError(
                f"the records of {dataset} split {split} are of task {sha256[:12]}, neither official nor in the "
                "cache; run the study here, or bring the cache of the machine that ran it"
            )
        examine = Examiner(bind_task(certified.task, data_dir))
        for record in group:
            found[record.cell] = examine(load_posterior(record, root, certified.task))
        progress.advance("splits", f"{dataset} split {split}: {len(group)} posteriors")
    return found


def _row(of: Record | Place, closeness: Mapping[str, Closeness]) -> dict[str, Any]:
    row: dict[str, Any] = {name: "" for name, kind in CELLS.items() if kind == "str"}
    row |= {name: getattr(of, name) for name in NAMED} | {name: of.hyperparameters.get(name) for name in SETTINGS}
    if isinstance(of, Place):
        return row | {"status": "missing"}
    row |= {
        "status": of.status,
        "reason": plain(of.reason or ""),
        "cell": of.cell[:24],
        "code": of.code_sha256[:12],
        "task": (of.task_sha256 or "")[:12],
        "hardware": plain(processor_words(of.provenance), HARDWARE_LENGTH),
        "gradients": (of.work or {}).get("gradients"),
        "train_seconds": of.seconds and of.seconds.train,
    }
    if of.scores is not None:
        quantiles = of.scores.overconfidence.quantiles
        row |= {name: getattr(of.scores, name) for name in SCORES}
        row |= {f"spectrum_{percent}": quantiles[percent // 5] for percent in SPECTRUM}
        row |= closeness[of.cell]._asdict()
    return row


def curves_of(records: Sequence[Record], root: Path) -> pd.DataFrame:
    """Of every line that has no jitter; EXACT has no trace. What diverged is infinite from its trace's end on, to the
    last step that was asked for."""
    points: list[dict[str, Any]] = []
    traced = [r for r in records if r.status in ("ok", "diverged") and not r.hyperparameters.get("kl_jitter")]
    for _, group in groupby(sorted(traced, key=_line), _line):
        found = [(r, trace) for r in group if (trace := load_trace(r, root)) is not None and trace.points]
        asked = {int(r.hyperparameters["max_steps"]) for r, _ in found if r.status == "diverged"}
        grid = sorted({point.steps for _, trace in found for point in trace.points} | asked)
        if len(grid) > 1:
            traces = [without_end(trace, grid) if r.status == "diverged" else trace for r, trace in found]
            points += _points(found[0][0], traces)
    return pd.DataFrame(points, columns=list(CURVES)).astype(CURVES)


def without_end(trace: Trace, grid: Sequence[int]) -> Trace:
    """A diverged cell's trace: no score from the first place after its last point, where others still have one."""
    last = trace.points[-1]
    later = [steps for steps in grid if steps > last.steps][:1]
    return Trace([*trace.points, *(replace(last, steps=steps, kl=math.nan) for steps in later)])


def _points(first: Record, traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Seconds are those until that many steps, or until a trace stopped."""
    line = {name: getattr(first, name, first.hyperparameters.get(name)) for name in CURVES}
    return [
        line
        | {
            "steps": steps,
            "cells": len(traces),
            "seconds": median(max(p.seconds for p in trace.points if p.steps <= steps) for trace in traces),
            "kl_lower_quartile": spread.lower_quartile,
            "kl": spread.median,
            "kl_upper_quartile": spread.upper_quartile,
        }
        for steps, spread in spread_by_step(traces, "kl")
    ]
