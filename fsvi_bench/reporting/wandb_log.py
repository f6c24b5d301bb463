"""Scores to Weights & Biases, one run per data set, method, family and settings. Local records remain the truth."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json
from fsvi_bench.reporting.summary import SCORES, summarise
from fsvi_bench.running.cell import Record

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


def log_records(records: Sequence[Record], mode: Mode, folder: Path) -> list[str]:
    """Logs finished records; offline runs go to `folder/wandb`. Returns what went wrong: W&B never costs a result."""
    finished = [record for record in records if record.scores is not None]
    if mode == "off" or not finished:
        return []
    groups: dict[str, list[Record]] = {}
    for record in finished:
        key = canonical_json([record.dataset, record.method, record.family, record.hyperparameters])
        groups.setdefault(key, []).append(record)
    try:
        for group in groups.values():
            _log_group(group, mode, folder)
    except Exception as error:  # whatever W&B raises, the records are on disk already
        return [f"W&B logging stopped ({type(error).__name__}: {error}); the records are complete in {folder}"]
    return []


def _log_group(group: Sequence[Record], mode: Mode, folder: Path) -> None:
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
        rows = [[r.split, r.seed, *(getattr(r.scores, name) for name in SCORES)] for r in group]
        run.log({"scores": wandb.Table(columns=["split", "seed", *SCORES], data=rows)})
        (row,) = summarise(group)
        for name, value in row.scores.items():
            run.summary[name] = value.mean
            run.summary[f"{name}_standard_error"] = value.standard_error
