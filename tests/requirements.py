"""What some tests need of the machine: a browser, network namespaces, a mount. CI asks for all of it."""

from __future__ import annotations

import os

import pytest


def skip_or_fail(reason: str) -> None:
    """Skips the test, or fails it where `$FSVI_BENCH_REQUIRE_ALL` says that nothing may be missing."""
    if os.environ.get("FSVI_BENCH_REQUIRE_ALL"):
        pytest.fail(reason)
    pytest.skip(reason)
