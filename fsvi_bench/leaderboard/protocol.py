"""The official tasks that a leaderboard stands on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from fsvi_bench.leaderboard.submission import PROTOCOL
from fsvi_bench.resources import read_yaml, resource_dir
from fsvi_bench.tasks.official import TaskSet, official_tasks


def protocol_datasets() -> list[str]:
    """Names of the protocol's data sets, in the order in which tables have them."""
    # Not by `running.plan`, which imports every method's machinery.
    protocol = cast(dict[str, Any], read_yaml(resource_dir("conf") / "protocols" / f"{PROTOCOL}.yaml"))
    return list(protocol["datasets"])


def protocol_tasks(data_dir: Path | None = None) -> TaskSet:
    """Every official task of the protocol's data sets; those that have none yet are left out.

    Raises:
        InputError: a task's file is damaged.
    """
    return official_tasks(protocol_datasets(), data_dir)
