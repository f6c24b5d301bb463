"""Fixtures of the leaderboard's tests: tiny tasks, and a valid submission on them to be tampered with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fsvi_bench.tasks.official import TaskSet
from tests.leaderboard.planted import plant_submission, planted_tasks


@pytest.fixture(scope="session")
def planted_set() -> TaskSet:
    return planted_tasks()


@pytest.fixture(scope="session")
def template(planted_set, tmp_path_factory) -> Path:
    return plant_submission(tmp_path_factory.mktemp("template"), planted_set)


@pytest.fixture
def folder(template, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(template, tmp_path / "planted"))
