"""What tests need in addition to Python. Without it, they are skipped with a reason, or fail if it is required (CI)."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

REQUIRE_ALL = "FSVI_BENCH_REQUIRE_ALL"


def skip_or_fail(reason: str) -> NoReturn:
    """Ends the test: skipped, or failed where $FSVI_BENCH_REQUIRE_ALL is set."""
    if os.environ.get(REQUIRE_ALL):
        pytest.fail(f"${REQUIRE_ALL} is set, but {reason}", pytrace=False)
    pytest.skip(reason)
