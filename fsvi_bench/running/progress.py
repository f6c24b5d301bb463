"""The interface through which a run reports its progress; the command line displays it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

Status = Literal["ok", "diverged", "failed"]


class Progress(Protocol):
    """Receives each stage and step."""

    def start(self, stage: str, total: int, groups: Mapping[str, int] | None = None) -> None:
        """Starts a stage of `total` steps; `groups` gives the number of steps in each group."""
        return

    def advance(self, stage: str, message: str, group: str | None = None, status: Status = "ok") -> None:
        """Reports a finished step: a short `message` that names it, and its `status`."""
        return

    def note(self, message: str) -> None:
        """Reports a message for the user."""
        return


class Silent(Progress):
    """Ignores all reports."""
