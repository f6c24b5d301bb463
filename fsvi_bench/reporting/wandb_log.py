"""Scores and traces to W&B, one run per data set, method, family and settings. Local records remain the truth."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json
from fsvi_bench.reporting.summary import SCORES, summarise
from fsvi_bench.reporting.traces import TRACED, spread_by_step
from fsvi_bench.running.cell import Record
from fsvi_bench.training.trace import Trace

Mode = Literal["online", "offline", "off"]
PROJECT = "fsvi-bench"


def choose_mode(wanted: str) -> Mode:
    """`auto` is what $WANDB_MODE says, else online where a key is set up (environment or netrc), else offline.

    Raises:
        InputError: the mode is unknown.
    """
    if wanted == "auto":
        said: dict[str, Mode] = {"online": "online", "offline": "offline", "disabled": "off"}
        return said.get(os.environ.get("WANDB_MODE", "")) or ("online" if _has_key() else "offline")
    if wanted not in ("online", "offline", "off"):
        raise InputError(f"--wandb is '{wanted}', expected auto, online, offline or off")
    return wanted  # type: ignore[return-value]


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    import netrc

    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def log_records(
    records: Sequence[Record], mode: Mode, folder: Path, traces: Mapping[str, Trace] | None = None
) -> list[str]:
    """Logs finished records; offline runs go to `folder/wandb`. Returns what went wrong: W&B never costs a result.

    Args:
        traces: `record.cell` -> trace (`reporting.cell_files.load_traces`), for the cells that have one.
    """
    finished = [record for record in records if record.scores is not None]
    if mode == "off" or not finished:
        return []
    groups: dict[str, list[Record]] = {}
    for record in finished:
        key = canonical_json([record.dataset, record.method, record.family, record.hyperparameters])
        groups.setdefault(key, []).append(record)
    try:
        for group in groups.values():
            _log_group(group, mode, folder, traces or {})
    except Exception as error:  # whatever W&B raises, the records are on disk already
        return [f"W&B logging stopped ({type(error).__name__}: {error}); the records are complete in {folder}"]
    return []


def _log_group(group: Sequence[Record], mode: Mode, folder: Path, traces: Mapping[str, Trace]) -> None:
    import wandb

    first = group[0]
    config: dict[str, Any] = {
        "dataset": first.dataset,
        "method": first.method,
        "family": first.family,
        **first.hyperparameters,
        "tasks": {str(record.split): record.task_sha256 for record in group},
        "provenance": first.provenance,
    }
    settings = wandb.Settings(silent=True, console="off", disable_git=True)
    with wandb.init(
        project=PROJECT,
        name=f"{first.dataset}-{first.method}-{first.family}",
        dir=folder,
        mode=mode,  # type: ignore[arg-type]
        config=config,
        settings=settings,
    ) as run:
        rows = [[r.split, r.seed, *(getattr(r.scores, name, None) for name in SCORES)] for r in group]
        run.log({"scores": wandb.Table(columns=["split", "seed", *SCORES], data=rows)})
        _log_traces(run, [(record, traces[record.cell]) for record in group if record.cell in traces])
        (row,) = summarise(group)
        for name, value in row.scores.items():
            if value is not None and value.mean is not None:
                run.summary[name] = value.mean
                run.summary[f"{name}_standard_error"] = value.standard_error


def _log_traces(run: Any, traced: Sequence[tuple[Record, Trace]]) -> None:
    """`trace/kl` and so on against `trace/steps`, means over splits; every cell's own curve in a table."""
    import wandb

    if not traced:
        return
    rows = [
        [record.split, record.seed, point.steps, point.seconds, *(getattr(point, name) for name in TRACED)]
        for record, trace in traced
        for point in trace.points
    ]
    run.log({"traces": wandb.Table(columns=["split", "seed", "steps", "seconds", *TRACED], data=rows)})
    run.define_metric("trace/steps")
    run.define_metric("trace/*", step_metric="trace/steps")
    curves = {name: dict(spread_by_step([trace for _, trace in traced], name)) for name in TRACED}
    for steps in sorted({steps for curve in curves.values() for steps in curve}):
        means = {f"trace/{name}": curve[steps].mean for name, curve in curves.items() if steps in curve}
        run.log({"trace/steps": steps, **means})
