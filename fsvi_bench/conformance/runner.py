"""Runs the checks on a method: all in one report, or each as a test of pytest's."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from fsvi_bench.conformance.checks import CHECKS, FIRST
from fsvi_bench.conformance.process import kept_state
from fsvi_bench.conformance.subject import Failed, NotApplicable, Subject
from fsvi_bench.posteriors.base import Family

if TYPE_CHECKING:
    import pytest

Status = Literal["ok", "failed", "not applicable"]


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
        return self.count("failed") == 0

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


def run_check(name: str, subject: Subject) -> Finding:
    """One check, in an empty folder that is thrown away. Whatever the method raises is its failing, not the check's."""
    status: Status = "failed"
    with tempfile.TemporaryDirectory() as folder, kept_state(), contextlib.chdir(folder):
        try:
            status, message = "ok", CHECKS[name](subject) or ""
        except NotApplicable as why:
            status, message = "not applicable", str(why)
        except Failed as found:
            message = str(found)
        except (Exception, SystemExit) as error:
            message = _told(error, inspect.getfile(subject.entry.cls))
    return Finding(name, subject.family, status, message)


def _told(error: BaseException, file: str) -> str:
    """An exception in one line: its type, its message, and the last line of `file` that led to it."""
    said = " ".join(str(error).split()) or "no message"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f" ({own[-1].filename}, line {own[-1].lineno}: {own[-1].line})" if own else ""
    return f"{type(error).__name__}: {said[:500]}{where}"


def check_method(subjects: Sequence[Subject], names: Sequence[str] = tuple(CHECKS)) -> Report:
    """Runs the checks on each family of one method.

    Args:
        subjects: one method with each of its families.
        names: the checks to run; what must work before anything else is run in any case.
    """
    return Report(subjects[0].entry.name, tuple(each for subject in subjects for each in _findings(subject, names)))


def _findings(subject: Subject, names: Sequence[str]) -> Iterator[Finding]:
    failed: str | None = None
    for name in dict.fromkeys((*FIRST, *names)):
        if failed is not None:
            yield Finding(name, subject.family, "not applicable", f"first this has to be mended: {failed}")
            continue
        yield (found := run_check(name, subject))
        if name in FIRST and found.status == "failed":
            failed = name


def parametrize_with_checks(subjects: Sequence[Subject], names: Sequence[str] = tuple(CHECKS)) -> pytest.MarkDecorator:
    """A decorator that makes a test of each check on each subject, as scikit-learn's function of this name.

    ```python
    @parametrize_with_checks(subjects(MyMethod))
    def test_it_conforms(subject, check):
        check(subject)
    ```
    """
    import pytest

    cases = [
        pytest.param(subject, partial(_require, name), id=f"{subject.entry.name}-{subject.family}-{name}")
        for subject in subjects
        for name in names
    ]
    return pytest.mark.parametrize(("subject", "check"), cases)


def _require(name: str, subject: Subject) -> None:
    import pytest

    finding = run_check(name, subject)
    if finding.status == "not applicable":
        pytest.skip(finding.message)
    if finding.status == "failed":
        raise Failed(finding.message)
