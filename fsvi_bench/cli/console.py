"""Where text goes: results to stdout, everything else to stderr; bars for people, plain lines for logs."""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column

#: A pipe or file has no width to respect, and a table cut to 80 columns there would lose its numbers. Markup is off:
#: names, paths and reasons come from outside, and their brackets are theirs.
stdout = Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else 240)
stderr = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)

_TITLES = {"tasks": "fitting sparse GPs", "cells": "running methods"}


def print_json(document: Any) -> None:
    """One JSON document on stdout; models are written as they are in files (infinity as a word)."""
    sys.stdout.write(json.dumps(_plain(document), indent=2, allow_nan=False) + "\n")


def _plain(document: Any) -> Any:
    if isinstance(document, BaseModel):
        return json.loads(document.model_dump_json())
    return [_plain(item) for item in document] if isinstance(document, list) else document


class RichProgress:
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
            TextColumn(
                "{task.fields[last]}",
                style="dim",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
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
