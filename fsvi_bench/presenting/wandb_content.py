"""What one W&B run holds: a group of records and traces as plain data, for `presenting.wandb_process`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fsvi_bench.files import canonical_json, is_file, sha256_of_json
from fsvi_bench.presenting.cell_files import folder_of
from fsvi_bench.presenting.summary import summarise
from fsvi_bench.presenting.traces import TRACED, Spread, spread_by_second, spread_by_step
from fsvi_bench.running.cell import Record
from fsvi_bench.scoring.scores import Scores
from fsvi_bench.training.trace import Trace

PROJECT = "fsvi-bench"
DOTS_PER_INCH = 120
MAX_SERIES = 300  #: curves of single problems; further ones are in the table of traces only
#: `Spread`'s fields under shorter names.
STATISTICS = {
    "mean": "mean", "standard_deviation": "sd", "smallest": "min", "lower_quartile": "q25", "median": "median",
    "upper_quartile": "q75", "largest": "max",
}  # fmt: skip
CELL_COLUMNS = ("split", "seed", "status", "reason", "cell", "task_sha256")
#: Facts of a record's provenance that differ from cell to cell without meaning anything.
OWN_FACTS = ("seeds", "started")

Traced = Sequence[tuple[Record, Trace]]


def group_key(record: Record) -> str:
    """Names the run that a record belongs to: data set, method, family and settings."""
    return sha256_of_json([record.dataset, record.method, record.family, record.hyperparameters])


def content_sha256(group: Sequence[Record]) -> str:
    """Tells whether a group is one that was logged: changes with its cells and whenever one is computed again."""
    return sha256_of_json(sorted([r.cell, r.split, r.seed, r.status, _computation(r)] for r in group))


def _computation(record: Record) -> str:
    """What tells one computation of a cell from the next; where its task was refused, nothing was computed at all."""
    return str(record.reason if record.task_sha256 is None else record.provenance.get("started"))


def run_content(
    group: Sequence[Record], traces: Mapping[str, Trace], root: Path, mode: str, figures: Path
) -> dict[str, Any]:
    """All of a run. Figures are drawn into a folder, which must last until they are logged."""
    group = sorted(group, key=lambda record: (record.split, record.seed))
    traced = [(record, traces[record.cell]) for record in group if record.cell in traces]
    first = group[0]
    words = [first.dataset, first.method, first.family]
    return {
        "mode": mode,
        "init": {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "name": "-".join(words)[:128],
            "group": first.dataset[:128],
            "job_type": first.method[:64],
            "tags": sorted({tag for word in words if (tag := allowed(word)[:64])}),
            "dir": str(root.resolve()),
            "config": config(group),
        },
        "step_metrics": {"by_steps/*": "steps", "problem/*": "steps", "by_seconds/*": "seconds"},
        "rows": history(traced),
        "tables": {"cells": cells_table(group), **({"traces": traces_table(traced)} if traced else {})},
        "images": draw(traced, f"{first.dataset} · {first.method} · {first.family}", figures),
        "artifacts": artifacts(group, root),
        "summary": summary(group),
    }


def allowed(name: str) -> str:
    """W&B's names are letters, digits, dashes, underscores and dots; other runs of characters become a dash."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")


# --- Numbers ----------------------------------------------------------------------------------------------------------


def config(group: Sequence[Record]) -> dict[str, Any]:
    """Hyperparameters by their own names (`option_...` where a fact of the run has that name), and what the cells are.

    Facts on which the cells' provenances differ, as after a resume elsewhere, are lists of all that there are.
    """
    first = group[0]
    facts: dict[str, Any] = {
        "dataset": first.dataset,
        "method": first.method,
        "family": first.family,
        "splits": sorted({record.split for record in group}),
        "seeds": sorted({record.seed for record in group}),
        "tasks": {str(record.split): record.task_sha256 for record in group},
        "code_sha256": _one_or_all([record.code_sha256 for record in group]),
        "provenance": {
            name: _one_or_all([record.provenance.get(name) for record in group])
            for name in dict.fromkeys(name for record in group for name in record.provenance)
            if name not in OWN_FACTS
        },
    }
    options = {f"option_{n}" if n in facts else n: value for n, value in first.hyperparameters.items()}
    return {**options, **facts}


def _one_or_all(values: Sequence[Any]) -> Any:
    distinct = list({canonical_json(value): value for value in values}.values())
    return distinct[0] if len(distinct) == 1 else distinct


def summary(group: Sequence[Record]) -> dict[str, Any]:
    """Means over splits with standard errors, and how many cells came to what."""
    count = {status: sum(record.status == status for record in group) for status in ("ok", "diverged", "failed")}
    values: dict[str, Any] = {"cells": len(group), **{f"cells_{status}": n for status, n in count.items()}}
    (row,) = summarise(group)
    for name, estimate in row.scores.items():
        values[name] = estimate.mean
        if estimate.standard_error is not None:
            values[f"{name}_standard_error"] = estimate.standard_error
    return values


def history(traced: Traced) -> list[dict[str, Any]]:
    """Rows against steps, with every problem's own points, then rows against seconds."""
    traces = [trace for _, trace in traced]
    rows: dict[int, dict[str, Any]] = {}
    timed: dict[float, dict[str, Any]] = {}
    for score in TRACED:
        for step, spread in spread_by_step(traces, score):
            rows.setdefault(step, {"steps": step}).update(_statistics(f"by_steps/{score}", spread))
        for second, spread in spread_by_second(traces, score):
            timed.setdefault(second, {"seconds": second}).update(_statistics(f"by_seconds/{score}", spread))
    for record, trace in traced[: MAX_SERIES // len(TRACED)]:
        for point in trace.points:
            row = rows.setdefault(point.steps, {"steps": point.steps})
            values = {score: getattr(point, score) for score in TRACED}
            prefix = f"problem/split-{record.split:02d}-seed-{record.seed}"
            row.update({f"{prefix}/{score}": value for score, value in values.items() if value is not None})
    return [*(rows[step] for step in sorted(rows)), *(timed[second] for second in sorted(timed))]


def _statistics(prefix: str, spread: Spread) -> dict[str, float]:
    values = {short: getattr(spread, name) for name, short in STATISTICS.items()}
    return {f"{prefix}/{name}": value for name, value in values.items() if not math.isnan(value)}


# --- Tables -----------------------------------------------------------------------------------------------------------


def cells_table(group: Sequence[Record]) -> dict[str, Any]:
    """Every cell with its status, reason, seconds and all its numbers, whether it finished or not."""
    numbers = [{} if record.scores is None else flat_scores(record.scores) for record in group]
    names = list(dict.fromkeys(name for each in numbers for name in each))
    rows = [
        [
            *(getattr(record, name) for name in CELL_COLUMNS),
            None if record.seconds is None else record.seconds.train,
            *(each.get(name) for name in names),
        ]
        for record, each in zip(group, numbers, strict=True)
    ]
    return {"columns": [*CELL_COLUMNS, "seconds_train", *names], "data": rows}


def flat_scores(scores: Scores) -> dict[str, float | None]:
    """Scores by name; those that come in a group as `group/name`, those that are a whole list left out."""
    flat: dict[str, float | None] = {}
    for name, value in scores.model_dump().items():
        members = {f"{name}/{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        flat |= {k: None if v is None else float(v) for k, v in members.items() if not isinstance(v, list | tuple)}
    return flat


def traces_table(traced: Traced) -> dict[str, Any]:
    """Every point of every trace."""
    rows = [
        [record.split, record.seed, point.steps, point.seconds, *(getattr(point, name) for name in TRACED)]
        for record, trace in traced
        for point in trace.points
    ]
    return {"columns": ["split", "seed", "steps", "seconds", *TRACED], "data": rows}


# --- Files ------------------------------------------------------------------------------------------------------------


def draw(traced: Traced, title: str, folder: Path) -> dict[str, str]:
    """A PNG file of the curves against steps, by the key under which it is logged; it takes a quarter of a second."""
    from fsvi_bench.presenting.curves import curves_figure  # matplotlib, half a second

    figure = curves_figure([trace for _, trace in traced], title)
    if figure is None:
        return {}
    path = folder / "curves.png"
    figure.savefig(path, format="png", dpi=DOTS_PER_INCH)
    return {"curves": str(path)}


def artifact_name(record: Record) -> str:
    """The same for every run of a group, so that W&B takes the next one's for another version."""
    words = allowed(f"{record.dataset}-{record.method}-{record.family}")[:90]
    return f"{words}-{group_key(record)[:12]}"


def artifacts(group: Sequence[Record], root: Path) -> list[dict[str, Any]]:
    """Posterior files as one artifact, records and traces as another, each file under its cell's name."""
    first = group[0]
    found: dict[str, dict[str, str]] = {"posterior": {}, "result": {}}
    for record in group:
        if record.task_sha256 is None:
            continue
        folder = root.resolve() / folder_of(record)
        for file, kind in (
            ("posterior.safetensors", "posterior"), ("record.json", "result"), ("trace.csv", "result"),
        ):  # fmt: skip
            if is_file(folder / file):
                found[kind][f"{folder.name}/{file}"] = str(folder / file)
    metadata = {"dataset": first.dataset, "method": first.method, "family": first.family}
    return [
        {"name": f"{artifact_name(first)}-{kind}", "type": kind, "metadata": metadata, "files": files}
        for kind, files in found.items()
        if files
    ]
