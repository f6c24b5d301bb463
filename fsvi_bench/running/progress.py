"""What a run tells whoever watches it; the command line draws it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

Status = Literal["ok", "diverged", "failed"]


class Progress(Protocol):
    """Told of each stage and step."""

    def start(self, stage: str, total: int, groups: Mapping[str, int] | None = None) -> None:
        """A stage begins with `total` steps; `groups` says how many of them belong to which group."""
        return

    def advance(self, stage: str, message: str, group: str | None = None, status: Status = "ok") -> None:
        """One step is done; `message` says which, in a few words, and `status` what became of it."""
        return

    def note(self, message: str) -> None:
        """Something a person should know."""
        return


class Silent(Progress):
    """Nobody watches."""
