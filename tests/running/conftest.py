"""One cluster on this machine for all tests, and every executor by turns."""

from __future__ import annotations

import pytest

from fsvi_bench.running.executors import LocalExecutor, make_executor
from tests.running.clusters import require_ray


@pytest.fixture(scope="session")
def ray_executor():
    require_ray()
    executor = make_executor("ray", 2)
    yield executor
    executor.close()


RAY = pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.cluster])


@pytest.fixture(params=["here", "processes", RAY])
def executor(request):
    return executor_named(request)


@pytest.fixture(params=["processes", RAY])
def elsewhere(request):
    """Those that make calls in other processes."""
    return executor_named(request)


def executor_named(request):
    if request.param == "ray":
        return request.getfixturevalue("ray_executor")
    return LocalExecutor({"here": 1, "processes": 2}[request.param])
