"""Entries with code of their own, run in the jail on small tasks."""

from __future__ import annotations

import textwrap

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.jailed import run as runs
from fsvi_bench.leaderboard.jailed.jail import require_jail
from fsvi_bench.leaderboard.jailed.run import Limits, run_entry
from fsvi_bench.leaderboard.jailed.sandbox import sandbox
from tests.leaderboard.boards import entry
from tests.requirements import skip_or_fail


@pytest.fixture(autouse=True)
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sandbox for the entries of all tests of a module that imports this: each takes seconds to start. A verifier
    has one for each entry, and tests that look at the sandbox itself have their own, from `here`."""
    if "here" not in request.fixturenames:
        monkeypatch.setattr(runs, "sandbox", lambda entry, jail, memory: sandbox("any", jail, memory))


GOOD = """
import torch
from fsvi_bench.methods.base import Method
from fsvi_bench.posteriors.gaussian import FullGaussian

class M(Method):
    families = ("full",)
    deterministic = True

    def solve(self, problem):
        {body}
        mean = torch.zeros_like(problem.Phi[:, 0])
        return FullGaussian(mean, torch.diag_embed(torch.ones_like(mean)))
"""


def source(body: str = "pass", before: str = "") -> bytes:
    """The prior, after `body` in its one method and `before` at import."""
    text = GOOD.format(body=textwrap.indent(textwrap.dedent(body).strip(), " " * 8).strip())
    return (textwrap.dedent(before) + text).encode()


def working_jail():
    """The jail, or a skip where there is none (an error where nothing may be skipped)."""
    try:
        return require_jail()
    except InputError:
        skip_or_fail("needs bubblewrap")


def run(code: bytes, task, jail=None, seconds=20.0, memory=2 * 2**30, seed=0):
    """One run of an entry's code."""
    limits = Limits(seconds=seconds, memory=memory)
    return run_entry(entry("hostile", code, settings={}), task, seed, jail or working_jail(), limits)
