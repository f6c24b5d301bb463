"""The entries of a leaderboard's folder: every submission there, with the verification of exactly these files.

Nothing is scored and nothing is run here. Posterior files are hashed, not read: a verification of other files than
those that lie there counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsvi_bench.leaderboard.submission import Manifest
from fsvi_bench.leaderboard.verification import Verification


@dataclass(frozen=True, eq=False)
class Entry:
    """A submission that can be read."""

    manifest: Manifest
    verification: Verification | None  #: of exactly these files
    note: str | None  #: why there is no verification, in one plain sentence
    source: str | None  #: text of the method's file

    @property
    def name(self) -> str:
        """Its folder's name, which no other entry has."""
        return self.manifest.name


@dataclass(frozen=True)
class Unreadable:
    """A folder beneath `submissions` that is not a submission; it has no numbers and is shown by name and sentence."""

    name: str  #: the folder's, as it stands on the disk: it may hold anything
    problem: str  #: one sentence


@dataclass(frozen=True, eq=False)
class Board:
    """Everything beneath `submissions`, both sorted by name."""

    entries: list[Entry]
    unreadable: list[Unreadable]


def read_entries(root: Path) -> Board:
    """The submissions of a leaderboard's folder; one that is broken never stops the others.

    Raises:
        InputError: there is no folder `submissions` in it.
    """
    raise NotImplementedError
