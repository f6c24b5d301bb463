"""What checks find, whatever it is that they check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from unittest import SkipTest

from fsvi_bench.errors import place_in, printable
from fsvi_bench.posteriors.base import Family

Status = Literal["ok", "failed", "not applicable", "not run"]  #: not run: an earlier check failed


class Failed(AssertionError):
    """A rule is broken; the message says what was found, what was expected and how to fix it."""


class NotApplicable(SkipTest):
    """The check does not apply; the message says why."""


@dataclass(frozen=True)
class Finding:
    """The result of one check; for a method, in one family."""

    check: str
    status: Status
    message: str  #: what was found; if ok, a remark or nothing
    family: Family | None = None


@dataclass(frozen=True)
class Report:
    """Every check of a method or an objective, in the order in which they were run."""

    name: str
    findings: tuple[Finding, ...]
    rules: str  #: the page that says what is expected
    unchecked: str = ""  #: a supported feature that no check covers

    @property
    def ok(self) -> bool:
        """Nothing failed."""
        return all(finding.status != "failed" for finding in self.findings)

    @property
    def verdict(self) -> str:
        """One line."""
        found = [finding.status for finding in self.findings]
        rest = f"{found.count('ok')} ok, {found.count('not applicable')} not applicable"
        if self.ok:
            return f"{self.name} conforms: {rest}" + (f"; {self.unchecked}" if self.unchecked else "")
        if skipped := found.count("not run"):
            rest += f", {skipped} not run"
        return f"{self.name} does not conform: {found.count('failed')} failed, {rest}; the rules are in {self.rules}"


def outcome(check: Callable[[], str | None], file: str) -> tuple[Status, str]:
    """Runs one check. Whatever the checked code raises is its failure, reported with the line of its file."""
    try:
        return "ok", check() or ""
    except NotApplicable as error:
        return "not applicable", str(error)
    except Failed as error:
        return "failed", str(error)
    except (Exception, SystemExit) as error:
        said = printable(" ".join(str(error).split()))[:500] or "no message"
        return "failed", f"{type(error).__name__}: {said}{place_in(error, file)}"
