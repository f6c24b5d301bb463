"""Tasks for the API's tests; the diabetes data need no file."""

from __future__ import annotations

import pytest

from fsvi_bench import Task, load_task


@pytest.fixture(scope="session")
def diabetes() -> Task:
    return load_task("diabetes")
