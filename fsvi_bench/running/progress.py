"""What a run tells whoever watches it; the command line draws it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told of each stage and step."""

    def start(self, stage: str, total: int) -> None:
        """A stage begins with `total` steps."""

    def advance(self, stage: str, message: str) -> None:
        """One step is done; `message` says which, in a few words."""

    def note(self, message: str) -> None:
        """Something a person should know."""


class Silent:
    """Nobody watches."""

    def start(self, stage: str, total: int) -> None: ...

    def advance(self, stage: str, message: str) -> None: ...

    def note(self, message: str) -> None: ...
