"""Progress of a run: bars on a terminal, occasional plain lines elsewhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from rich.progress import BarColumn, MofNCompleteColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column

from fsvi_bench.cli.console import stderr
from fsvi_bench.running.progress import Status

_TITLES = {"tasks": "fitting sparse GPs", "cells": "running methods"}
_GROUPS_SHOWN = 8  #: maximum number of bars of unfinished groups; more would fill the screen
_QUIET_SECONDS = 30  #: between progress lines where there are no bars


def words_of_rate(per_second: float) -> str:
    """A rate such as `2.5/s`, or `12.0/min` or `4.0/h` if it is less than one per second or minute."""
    if per_second >= 1:
        return f"{per_second:.1f}/s"
    return f"{60 * per_second:.1f}/min" if 60 * per_second >= 1 else f"{3600 * per_second:.1f}/h"


class RichProgress:
    """Bars on a terminal: one in total and one for each group in progress. Elsewhere, occasional plain lines."""

    def __init__(self) -> None:
        # On a narrow terminal only the message is shortened, never numbers and times.
        message = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._bars = Bars(
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}", style="dim"),
            TextColumn("{task.fields[last]}", style="dim", markup=False, table_column=message),
            console=stderr,
            speed_estimate_period=math.inf,  # average over the whole run, since one batch may take minutes
            expand=True,
            disable=not stderr.is_terminal,
        )
        self._tasks: dict[tuple[str, str | None], Task] = {}  #: by stage, and by stage and group
        self._last_line = 0.0  #: time of the last line

    def __enter__(self) -> RichProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, stage: str, total: int, groups: Mapping[str, int] | None = None) -> None:
        """Starts a stage. The bar of a group is hidden until the group's first step."""
        if total > 0:
            for group, size in [(None, total), *(groups or {}).items()]:
                title = _TITLES.get(stage, stage) if group is None else f"  {group}"
                self._bars.add_task(title, total=size, visible=group is None, last="", rate="", statuses=Counter())
                self._tasks[stage, group] = self._bars.tasks[-1]
            self._bars.advance(self._tasks[stage, None].id, 0)  # rates count from here, not from the first step's end
            self._last_line = self._bars.get_time()

    def advance(self, stage: str, message: str, group: str | None = None, status: Status = "ok") -> None:
        whole, part = self._tasks[stage, None], self._tasks[stage, group]
        for task in {whole.id: whole, part.id: part}.values():
            task.fields["statuses"][status] += 1
            self._bars.advance(task.id)
        bad = ", ".join(f"{count} {name}" for name, count in whole.fields["statuses"].items() if name != "ok")
        rate = words_of_rate(whole.speed) if whole.speed else ""
        self._bars.update(whole.id, rate=rate, last=f"{bad}; {message}" if bad else message)
        if part is not whole:
            room = sum(task.visible for task in self._tasks.values()) <= _GROUPS_SHOWN
            self._bars.update(part.id, visible=not part.finished and (part.visible or room))
        if not stderr.is_terminal:
            self._print_line(whole, part, message, status)

    def _print_line(self, whole: Task, part: Task, message: str, status: Status) -> None:
        """Prints a group's first failure and its end (without groups: each step), and a line every 30 seconds."""
        now, finished = self._bars.get_time(), part is whole or part.finished
        known = status == "ok" or part.fields["statuses"][status] > 1
        if known and not finished and now - self._last_line < _QUIET_SECONDS:
            return
        self._last_line = now
        if part is not whole:
            counts = ", ".join(f"{count} {name}" for name, count in part.fields["statuses"].items())
            message = f"{part.description.strip()}: {counts}{'' if finished else ' so far'}"
        left = f", about {timedelta(seconds=whole.time_remaining)} left" if whole.time_remaining else ""
        rate = f" ({whole.fields['rate']}{left})" if whole.speed else ""
        stderr.print(f"{whole.description} {whole.completed:.0f}/{whole.total:.0f}: {message}{rate}")

    def note(self, message: str) -> None:
        stderr.print(message)
