"""How far a run has come: bars for people, a plain line now and then for logs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from fsvi_bench.cli.console import stderr
from fsvi_bench.running.progress import Became

_TITLES = {"tasks": "fitting sparse GPs", "cells": "running methods"}
_GROUPS_SHOWN = 8  #: bars of groups that are under way; more would fill the screen
_QUIET_SECONDS = 30.0  #: between lines on what is done, where there are no bars


class _Rate(ProgressColumn):
    """Steps done per second or minute since the stage began."""

    def render(self, task: Task) -> Text:
        if task.fields.get("group") or not task.elapsed or not task.completed:
            return Text("")
        return Text(words_of_rate(task.completed / task.elapsed), style="dim")


def words_of_rate(per_second: float) -> str:
    """`2.5/s` or `12/min`: whichever has a digit before the point."""
    return f"{per_second:.1f}/s" if per_second >= 1 else f"{60 * per_second:.1f}/min"


@dataclass
class _Stage:
    """What is known of one stage; `groups` and `left` count its steps by group."""

    title: str
    total: int
    bar: TaskID
    groups: dict[str, int]
    started: float
    left: dict[str, int] = field(default_factory=dict)
    bars: dict[str, TaskID] = field(default_factory=dict)
    done: int = 0
    became: dict[str, Counter[str]] = field(default_factory=dict)
    said: float = 0.0

    def counts(self) -> Counter[str]:
        return sum(self.became.values(), Counter())


class RichProgress:
    """Bars on a terminal: one for all, one for each group under way. Elsewhere a plain line now and then."""

    def __init__(self) -> None:
        self._bars = Bars(
            TextColumn("{task.description:<28}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TimeRemainingColumn(),
            _Rate(),
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
        self._stages: dict[str, _Stage] = {}

    def __enter__(self) -> RichProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def start(self, stage: str, total: int, groups: Mapping[str, int] | None = None) -> None:
        if total > 0:
            title = _TITLES.get(stage, stage)
            bar = self._bars.add_task(title, total=total, last="", left="left", group=False)
            known = dict(groups or {})
            now = time.monotonic()
            self._stages[stage] = _Stage(title, total, bar, known, now, dict(known), said=now)

    def advance(self, stage: str, message: str, group: str | None = None, status: Became = "ok") -> None:
        at = self._stages[stage]
        at.done += 1
        at.became.setdefault(group or "", Counter())[status] += 1
        counts = at.counts()
        bad = ", ".join(f"{counts[name]} {name}" for name in ("diverged", "failed") if counts[name])
        self._bars.advance(at.bar)
        self._bars.update(at.bar, last=f"{bad}; {message}" if bad else message)
        if group is not None:
            self._advance_group(at, group)
        if not stderr.is_terminal:
            self._say(at, message, group, status)

    def _advance_group(self, at: _Stage, group: str) -> None:
        """A group's bar appears with its first step and goes with its last."""
        at.left[group] -= 1
        if at.left[group] and group not in at.bars and len(at.bars) < _GROUPS_SHOWN:
            total = at.groups[group]
            at.bars[group] = self._bars.add_task(f"  {group}", total=total, last="", left="", group=True)
        if group in at.bars:
            self._bars.update(at.bars[group], completed=at.groups[group] - at.left[group])
            if not at.left[group]:
                self._bars.remove_task(at.bars.pop(group))

    def _say(self, at: _Stage, message: str, group: str | None, status: Became) -> None:
        """A line for each failure, each finished group (or step, where there are no groups), and every half minute."""
        now = time.monotonic()
        finished = group is None or not at.left[group]
        if status == "ok" and not finished and now - at.said < _QUIET_SECONDS:
            return
        at.said = now
        if group is not None:
            counts = at.became[group]
            of_group = ", ".join(f"{count} {name}" for name, count in counts.items())
            message = f"{group}: {of_group}" if finished else f"{group}: {of_group} so far"
        rate = at.done / max(now - at.started, 1e-9)
        # The first batch ends long before the rate is one.
        telling = at.total > at.done >= max(2, at.total // 10)
        left = f", about {_duration((at.total - at.done) / rate)} left" if telling else ""
        stderr.print(f"{at.title} {at.done}/{at.total}: {message} ({words_of_rate(rate)}{left})")

    def note(self, message: str) -> None:
        stderr.print(message)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
