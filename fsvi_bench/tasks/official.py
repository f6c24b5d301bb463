"""Tasks by name: the official ones, which are frozen, certified and the same for everybody, and those fitted here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from fsvi_bench.errors import InputError, unknown_name, whole_number
from fsvi_bench.files import is_file
from fsvi_bench.resources import resource_dir
from fsvi_bench.tasks.build import build_task, cached_task_path, load_cached
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tasks.certificate import CertifiedTask, read_certified, read_within_limits, save
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.task import Task, bind_task
from fsvi_bench.threads import one_thread

TASK_SET = "v1"
PROBLEMS_IN_MEMORY = 40  #: two data sets' splits
Place = tuple[str, int]  #: (data set, split)


def official_path(dataset: str, split: int) -> Path:
    """Where the official task of a split lies, if there is one."""
    return resource_dir("datasets") / dataset / "tasks" / TASK_SET / f"split-{split:02d}.safetensors"


def official_splits(dataset: str) -> list[int]:
    """The splits of a data set that have an official task, ascending; none of a data set that has no folder of them."""
    found = official_path(dataset, 0).parent.glob("split-[0-9][0-9].safetensors")
    return sorted(int(path.stem[6:]) for path in found)


def find_task(dataset: str, split: int, *, official: bool = True) -> CertifiedTask | None:
    """The task of a split: the official one, if it may be that, else one that was fitted here; None if there is none.

    Raises:
        InputError: there is no such split, or an official task is damaged.
        TaskRefused: the certificate fails the limits of this version.
    """
    if official and is_file(official_path(dataset, split)):
        return read_official(dataset, split)
    return load_cached(load_card(dataset), split)


@lru_cache(256)
def read_official(dataset: str, split: int) -> CertifiedTask:
    """An official task and its certificate.

    Raises:
        InputError, TaskRefused: as `read_within_limits`.
    """
    path = official_path(dataset, split)
    found = read_within_limits(path)
    if (found.task.dataset, found.task.split) != (dataset, split):
        raise InputError(f"{path} holds {found.task.dataset} split {found.task.split}; install the package again")
    return found


class TaskSet:
    """Tasks by data set and split, in the order in which they are shown, and the problems that they make of the data.

    Problems are made when they are asked for, and the last few are kept.
    """

    def __init__(self, tasks: Mapping[Place, FrozenTask], load: Callable[[FrozenTask], Task] = bind_task) -> None:
        self.tasks = tasks
        self.load = lru_cache(PROBLEMS_IN_MEMORY)(load)

    def problem(self, place: Place) -> Task:
        """One task bound to its data.

        Raises:
            InputError: the raw data are missing or are not the task's.
        """
        return self.load(self.tasks[place])

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets, each once."""
        return list(dict.fromkeys(dataset for dataset, _ in self.tasks))


def official_tasks(datasets: Sequence[str], data_dir: Path | None = None) -> TaskSet:
    """Every official task of some data sets.

    Raises:
        InputError: a file of them is damaged.
        TaskRefused: a certificate fails the limits of this version.
    """
    places = [(dataset, split) for dataset in datasets for split in official_splits(dataset)]
    tasks = {place: read_official(*place).task for place in places}
    return TaskSet(tasks, partial(bind_task, data_dir=data_dir))


def list_tasks() -> dict[str, int]:
    """The data sets that have tasks, by name, and how many splits each has."""
    return {name: load_card(name).splits.count for name in card_names()}


@one_thread()
def load_task(name_or_path: str | Path, split: int = 0) -> Task:
    """A data set's task of one split, or that of a file.

    An official task is read; a data set's that has none is fitted now, on one thread (seconds to minutes), and kept in
    the cache.

    Args:
        name_or_path: one of `list_tasks()`, else a task file (`fsvi-task/1`), whose split is its own.

    Raises:
        InputError: there is no such data set, split or file, the file is not valid, or its data cannot be had.
        TaskRefused: the exact posterior cannot be computed to its limits.
    """
    if not isinstance(name_or_path, str | Path):
        raise InputError(
            f"the task's name is of type {type(name_or_path).__name__}, expected text or a path; give one of "
            "list_tasks(), or the path of a task file"
        )
    name, path, split = str(name_or_path), Path(name_or_path), whole_number("split", split)
    if name not in card_names():
        if not is_file(path) and path.name == name and not path.suffix:
            raise unknown_name("data set or task file", name, card_names())
        frozen, certificate = read_certified(path)
        return replace(bind_task(frozen), fit=certificate.fit if certificate else None).certified()
    found = find_task(name, split)
    if found is None:
        found = build_task(load_card(name), split)
        with contextlib.suppress(InputError):  # no room: it is fitted again
            save(found, cached_task_path(load_card(name), split))
    return replace(bind_task(found.task), fit=found.certificate.fit)
