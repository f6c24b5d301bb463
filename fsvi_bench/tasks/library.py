"""Tasks by name: the official ones, those of data sets that are fitted here, and files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fsvi_bench.errors import unknown_name
from fsvi_bench.files import is_file
from fsvi_bench.tasks.build import build_task, cached_task_path, save
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tasks.certificate import read_certified
from fsvi_bench.tasks.official import find_task
from fsvi_bench.tasks.task import Task, bind_task


def list_tasks() -> dict[str, int]:
    """The data sets that have tasks, by name, and how many splits each has."""
    return {name: load_card(name).splits.count for name in card_names()}


def load_task(name_or_path: str | Path, split: int = 0) -> Task:
    """A data set's task of one split, or that of a file.

    An official task is read; a data set's that has none is fitted now (seconds to minutes) and kept in the cache.

    Args:
        name_or_path: one of `list_tasks()`, else a task file (`fsvi-task/1`), whose split is its own.

    Raises:
        InputError: there is no such data set, split or file, the file is not valid, or its data cannot be had.
        TaskRefused: the exact posterior cannot be computed to its limits.
    """
    name, path = str(name_or_path), Path(name_or_path)
    if name in card_names():
        found = find_task(name, split)
        if found is None:
            found = build_task(load_card(name), split)
            save(found, cached_task_path(load_card(name), split))
        return replace(bind_task(found.task), fit=found.certificate.fit)
    if not is_file(path) and path.name == name and not path.suffix:
        raise unknown_name("data set or task file", name, card_names())
    frozen, certificate = read_certified(path)
    task = replace(bind_task(frozen), fit=certificate.fit if certificate else None)
    task.certificate.require_limits()
    return task
