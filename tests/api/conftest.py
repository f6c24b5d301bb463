"""Tasks for the API's tests; the diabetes data need no file."""

from __future__ import annotations

import pytest

from fsvi_bench.tasks.official import read_official
from fsvi_bench.tasks.task import Task, bind_task


@pytest.fixture(scope="session")
def diabetes() -> Task:
    return bind_task(read_official("diabetes", 0).task)


@pytest.fixture(scope="session")
def two_diabetes(diabetes) -> list[Task]:
    return [diabetes, bind_task(read_official("diabetes", 1).task)]
