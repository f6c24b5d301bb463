"""What a run tells whoever watches it; the command line draws it, tests ignore it."""

from __future__ import annotations


class Progress:
    """Silent by default; a subclass of its own kind (not of ours) may draw the same calls."""

    def start(self, stage: str, total: int) -> None:
        """A stage begins with `total` steps."""

    def advance(self, stage: str, message: str) -> None:
        """One step is done; `message` says which, in a few words."""

    def note(self, message: str) -> None:
        """Something a person should know."""
