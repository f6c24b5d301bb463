"""Where text goes: results to stdout, everything else to stderr; bars for people, plain lines for logs."""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column

from fsvi_bench.running.progress import Progress

#: A pipe or file has no width to respect, and a table cut to 80 columns there would lose its numbers.
stdout = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)

_TITLES = {"tasks": "fitting sparse GPs", "cells": "running methods"}


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


class RichProgress(Progress):
    """Bars on a terminal, one plain line per step elsewhere."""

    def __init__(self) -> None:
        self._bars = Bars(
            TextColumn("{task.description:<20}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            # Only the message may be shortened on a narrow terminal: numbers and times stay whole.
            TextColumn("[dim]{task.fields[last]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=stderr,
            expand=True,
            disable=not stderr.is_terminal,
        )
        self._stages: dict[str, TaskID] = {}

    def __enter__(self) -> RichProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def start(self, stage: str, total: int) -> None:
        if total > 0:
            self._stages[stage] = self._bars.add_task(_TITLES.get(stage, stage), total=total, last="")

    def advance(self, stage: str, message: str) -> None:
        self._bars.advance(self._stages[stage])
        self._bars.update(self._stages[stage], last=message)
        if not stderr.is_terminal:
            task = next(task for task in self._bars.tasks if task.id == self._stages[stage])
            stderr.print(f"{_TITLES.get(stage, stage)} {int(task.completed)}/{int(task.total or 0)}: {message}")

    def note(self, message: str) -> None:
        stderr.print(message)
