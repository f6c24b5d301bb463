"""From a folder of records, finished or not, to the study's tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from fsvi_bench.errors import InputError, plain
from fsvi_bench.papers.burt2020.study.closeness import Closeness, Examiner
from fsvi_bench.papers.burt2020.study.table import SCORES, SPECTRUM, CurvePoint, Entry, StudyCell, Tables
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

KEY_DIGITS, HASH_DIGITS = 24, 12
HARDWARE_LENGTH = 100
FAMILY_ORDER = ("full", "ffg")


def collect(
    records: Sequence[Record], missing: Sequence[Place], root: Path, data_dir: Path | None, progress: Progress
) -> Tables:
    """Both tables, sorted. Reads each finished cell's posterior and trace, and each split's raw data.

    Raises:
        InputError: raw data, a task or a posterior is missing, or a file is not what its name says.
    """
    closeness = _closeness(records, root, data_dir, progress)
    cells = [_cell(record, closeness.get(record.cell)) for record in records] + [_missing(place) for place in missing]
    return Tables(sorted(cells, key=_order), _curves(records, root))


def entry_order(entry: Entry) -> tuple[Any, ...]:
    """By method as in every report, full before factorised, by size and jitter."""
    return method_place(entry.method), FAMILY_ORDER.index(entry.family), entry.M or 0, entry.kl_jitter or 0.0


def _order(cell: StudyCell) -> tuple[Any, ...]:
    return cell.dataset, entry_order(cell.entry), cell.split, cell.seed


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


def _setting(hyperparameters: Any) -> dict[str, Any]:
    return {name: hyperparameters.get(name) for name in ("M", "kl_jitter", "max_steps")}


def _missing(place: Place) -> StudyCell:
    return StudyCell(
        dataset=place.dataset,
        split=place.split,
        method=place.method,
        family=place.family,
        seed=place.seed,
        status="missing",
        **_setting(place.hyperparameters),
    )


def _cell(record: Record, closeness: Closeness | None) -> StudyCell:
    scores: dict[str, Any] = {}
    if record.scores is not None:
        quantiles = record.scores.overconfidence.quantiles
        scores = {name: getattr(record.scores, name) for name in SCORES}
        scores |= {f"spectrum_{percent}": quantiles[percent // 5] for percent in SPECTRUM}
    return StudyCell(
        dataset=record.dataset,
        split=record.split,
        method=record.method,
        family=record.family,
        seed=record.seed,
        status=record.status,
        reason=plain(record.reason or ""),
        cell=record.cell[:KEY_DIGITS],
        code=record.code_sha256[:HASH_DIGITS],
        task=(record.task_sha256 or "")[:HASH_DIGITS],
        hardware=plain(processor_words(record.provenance), HARDWARE_LENGTH),
        gradients=(record.work or {}).get("gradients"),
        train_seconds=None if record.seconds is None else record.seconds.train,
        **_setting(record.hyperparameters),
        **scores,
        **({} if closeness is None else closeness._asdict()),
    )


def _curves(records: Sequence[Record], root: Path) -> list[CurvePoint]:
    """Of every line that has no jitter; EXACT has no trace. What diverged is infinite from its trace's end on, to the
    last step that was asked for."""
    groups: dict[tuple[str, Entry], list[Record]] = defaultdict(list)
    for record in records:
        settings = _setting(record.hyperparameters)
        if record.status in ("ok", "diverged") and not settings["kl_jitter"]:
            entry = Entry(record.method, record.family, settings["M"], settings["kl_jitter"])
            groups[record.dataset, entry].append(record)
    points: list[CurvePoint] = []
    for (dataset, entry), group in sorted(groups.items(), key=lambda item: (item[0][0], entry_order(item[0][1]))):
        found = [
            (record, trace) for record in group if (trace := load_trace(record, root)) is not None and trace.points
        ]
        asked = {_setting(record.hyperparameters)["max_steps"] for record, _ in found if record.status == "diverged"}
        grid = sorted({point.steps for _, trace in found for point in trace.points} | (asked - {None}))
        if len(grid) > 1:
            traces = [_without_end(trace, grid) if record.status == "diverged" else trace for record, trace in found]
            points.extend(_points(dataset, entry, traces))
    return points


def _without_end(trace: Trace, grid: Sequence[int]) -> Trace:
    """A diverged cell's trace: no score from the first place after its last point, where others still have one."""
    last = trace.points[-1]
    later = [steps for steps in grid if steps > last.steps][:1]
    return Trace([*trace.points, *(replace(last, steps=steps, kl=math.nan) for steps in later)])


def _points(dataset: str, entry: Entry, traces: Sequence[Trace]) -> list[CurvePoint]:
    return [
        CurvePoint(
            dataset=dataset,
            **entry._asdict(),
            steps=steps,
            cells=len(traces),
            seconds=median(_seconds(trace, steps) for trace in traces),
            kl_lower_quartile=spread.lower_quartile,
            kl=spread.median,
            kl_upper_quartile=spread.upper_quartile,
        )
        for steps, spread in spread_by_step(traces, "kl")
    ]


def _seconds(trace: Trace, steps: int) -> float:
    """Until that many steps, or until it stopped."""
    return max(point.seconds for point in trace.points if point.steps <= steps)
