"""What a check says: ok, failed with a sentence, or not applicable with the reason."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Literal

from fsvi_bench.posteriors.base import Family

Status = Literal["ok", "failed", "not applicable"]


class Failed(Exception):
    """A method does not do what it must; the message says what was found, what was expected and how to mend it."""


class NotApplicable(Exception):
    """A check has nothing to ask of this method here; the message says why."""


@dataclass(frozen=True)
class Finding:
    """What one check found of one family."""

    check: str
    family: Family
    status: Status
    message: str  #: what was found; where it is ok, what that does not cover, or nothing


@dataclass(frozen=True)
class Report:
    """Every check of a method, in the order in which they were run."""

    method: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Nothing failed."""
        return not any(finding.status == "failed" for finding in self.findings)

    def count(self, status: Status) -> int:
        return sum(finding.status == status for finding in self.findings)

    @property
    def verdict(self) -> str:
        """One line."""
        rest = f"{self.count('ok')} ok, {self.count('not applicable')} not applicable"
        if self.ok:
            return f"{self.method} conforms: {rest}"
        return (
            f"{self.method} does not conform: {self.count('failed')} failed, {rest}; what a method must do is said in "
            "fsvi_bench.methods.base.Method"
        )


def told(error: Exception, file: str) -> str:
    """An exception in one line: its type, its message, and the last line of `file` that led to it."""
    said = " ".join(str(error).split()) or "no message"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f" ({own[-1].filename}, line {own[-1].lineno}: {own[-1].line})" if own else ""
    return f"{type(error).__name__}: {said[:500]}{where}"
