"""Makes the study's tables from a folder of records, complete or not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from fsvi_bench.errors import plain
from fsvi_bench.papers.burt2020.cells import LINE, problem_of
from fsvi_bench.papers.burt2020.study.closeness import Closeness, closeness
from fsvi_bench.papers.burt2020.study.table import CELLS, CURVES, KNOWN, SPECTRUM, WORDS, Tables
from fsvi_bench.papers.workspace import Cells, PlannedCell, Workspace
from fsvi_bench.presenting.looks import method_place
from fsvi_bench.presenting.traces import spread_of
from fsvi_bench.running.cell import Record
from fsvi_bench.running.provenance import processor_words
from fsvi_bench.running.store import load_posterior, load_traces
from fsvi_bench.training.trace import Trace

HARDWARE_LENGTH = 100


def collect(found: Cells, workspace: Workspace) -> Tables:
    """Both tables, with methods in the order of reports. Reads each finished cell's posterior and trace, and raw data.

    Raises:
        InputError: raw data, a task or a posterior is missing, or a file does not have the expected content.
    """
    near = _closeness(found.records, workspace)
    planned: list[Record | PlannedCell] = [*found.records, *found.missing]
    rows = [_row(each, near) for each in sorted(planned, key=lambda each: (*_line(each), each.split, each.seed))]
    cells = pd.DataFrame(rows, columns=list(CELLS)).fillna(dict.fromkeys(WORDS, "")).astype(CELLS)
    return Tables(cells, curves_of(found.records, workspace.root))


def _line(of: Record | PlannedCell) -> tuple[Any, ...]:
    settings = of.hyperparameters
    place = (method_place(of.method), KNOWN["family"].index(of.family))
    return of.dataset, *place, settings.get("M") or 0, settings.get("kl_jitter") or 0.0


def _closeness(records: Sequence[Record], workspace: Workspace) -> dict[str, Closeness]:
    """Closeness by cell, computed problem by problem so that each problem is loaded once."""
    ok = sorted((record for record in records if record.status == "ok"), key=_problem)
    workspace.progress.start("splits", len({*map(_problem, ok)}))
    found: dict[str, Closeness] = {}
    for (dataset, split, _), cells in groupby(ok, _problem):
        group = list(cells)
        problem = problem_of(group[0], workspace.resources.data_dir)
        posteriors = [load_posterior(record, workspace.root, problem.frozen) for record in group]
        found |= zip([record.cell for record in group], closeness(problem, posteriors), strict=True)
        workspace.progress.advance("splits", f"{dataset} split {split}: {len(group)} posteriors")
    return found


def _problem(record: Record) -> tuple[str, int, str]:
    return record.dataset, record.split, record.task_sha256 or ""


def _row(of: Record | PlannedCell, found: Mapping[str, Closeness]) -> dict[str, Any]:
    """The columns of a cell's row, and others."""
    if isinstance(of, PlannedCell):
        return {**of.hyperparameters, **of._asdict()}
    row = {
        **of.hyperparameters,
        **dict(of),
        "reason": plain(of.reason or ""),
        "cell": of.cell[:24],
        "code": of.code_sha256[:12],
        "task": (of.task_sha256 or "")[:12],
        "hardware": plain(processor_words(of.provenance), HARDWARE_LENGTH),
        "gradients": (of.work or {}).get("gradients"),
        "train_seconds": of.seconds and of.seconds.train,
    }
    if of.scores is not None and of.scores.overconfidence is not None:
        quantiles = of.scores.overconfidence.quantiles
        spectrum = {f"spectrum_{percent}": quantiles[percent // 5] for percent in SPECTRUM}
        row |= {**dict(of.scores), **spectrum, **found[of.cell]._asdict()}
    return row


def curves_of(records: Sequence[Record], root: Path) -> pd.DataFrame:
    """Curves of every line without jitter; EXACT has no trace."""
    traced = [r for r in records if r.status in ("ok", "diverged") and not r.hyperparameters.get("kl_jitter")]
    curves = [pd.DataFrame(columns=list(CURVES))]
    for _, group in groupby(sorted(traced, key=_line), _line):
        line = list(group)
        traces = {cell: trace for cell, trace in load_traces(line, root).items() if trace.points}
        asked = {r.cell: r.hyperparameters["max_steps"] for r in line if r.status == "diverged" and r.cell in traces}
        if traces:
            own = {**line[0].hyperparameters, **dict(line[0])}
            curves.append(curve(traces, asked).assign(**{name: own.get(name) for name in LINE}))
    return pd.concat(curves, ignore_index=True)[list(CURVES)].astype(CURVES)


def curve(traces: Mapping[str, Trace], asked: Mapping[str, int]) -> pd.DataFrame:
    """KL after every number of steps that occurs in a trace, and the seconds until then or until a trace stopped.

    Args:
        traces: by cell.
        asked: the planned number of steps of cells that diverged; their KL is infinite from the trace's end to there.
    """
    points = pd.concat(pd.DataFrame(trace.points).assign(cell=cell) for cell, trace in traces.items())
    points = points.fillna({"kl": math.inf})  # after divergence
    grid = sorted({*points["steps"], *asked.values()})
    kl, seconds = (points.pivot(index="steps", columns="cell", values=name).reindex(grid) for name in ("kl", "seconds"))
    ended = kl.bfill().isna() & kl.columns.isin([*asked])
    kl = kl.mask(ended, math.inf).ffill().dropna()  # from the step at which all traces have begun
    names = {"lower_quartile": "kl_lower_quartile", "median": "kl", "upper_quartile": "kl_upper_quartile"}
    spread = pd.DataFrame([spread_of(row) for row in kl.to_numpy()], kl.index).rename(columns=names)
    spread["seconds"] = seconds.ffill().median(axis=1)
    return spread.assign(cells=len(traces)).reset_index(names="steps")
