"""Tasks by name: the official ones, which are frozen, certified and the same for everybody, and those fitted here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from fsvi_bench.errors import InputError, unknown_name
from fsvi_bench.files import is_file
from fsvi_bench.resources import resource_dir
from fsvi_bench.tasks.build import CertifiedTask, build_task, cached_task_path, load_cached, save
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tasks.certificate import read_certified
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.task import Task, bind_task

TASK_SET = "v1"
PROBLEMS_IN_MEMORY = 40  #: two data sets' splits
Place = tuple[str, int]  #: (data set, split)


def official_path(dataset: str, split: int, task_set: str = TASK_SET) -> Path:
    """Where the official task of a split lies, if there is one."""
    return _folder(dataset, task_set) / f"split-{split:02d}.safetensors"


def official_splits(dataset: str, task_set: str = TASK_SET) -> list[int]:
    """The splits of a data set that have an official task, ascending; none of a data set that has no folder of them."""
    return sorted(int(path.stem[6:]) for path in _folder(dataset, task_set).glob("split-[0-9][0-9].safetensors"))


def find_task(dataset: str, split: int) -> CertifiedTask | None:
    """The task of a split: the official one, else one that was fitted here; None if it has yet to be fitted.

    Raises:
        InputError: there is no such split, or an official task is damaged.
        TaskRefused: the certificate fails the limits of this version.
    """
    if is_file(official_path(dataset, split)):
        return read_official(dataset, split)
    return find_cached(dataset, split)


def find_cached(dataset: str, split: int) -> CertifiedTask | None:
    """A task that was fitted here, or None.

    Raises:
        InputError, TaskRefused: as `find_task`.
    """
    return load_cached(load_card(dataset), split)


@lru_cache(256)
def read_official(dataset: str, split: int, task_set: str = TASK_SET) -> CertifiedTask:
    """An official task and its certificate, which stands for it: `fsvi-bench tasks verify` computes that again.

    Raises:
        InputError: there is no such task, or one of its two files is damaged or missing.
        TaskRefused: the certificate fails the limits of this version.
    """
    path = official_path(dataset, split, task_set)
    task, certificate = read_certified(path)
    if certificate is None:
        raise InputError(f"{path} has no certificate beside it; install the package again")
    if (task.dataset, task.split) != (dataset, split):
        raise InputError(f"{path} holds {task.dataset} split {task.split}; install the package again")
    certificate.require_limits()
    return CertifiedTask(task, certificate)


def _folder(dataset: str, task_set: str) -> Path:
    return resource_dir("datasets") / dataset / "tasks" / task_set


@dataclass(frozen=True, eq=False)
class TaskSet:
    """Tasks by data set and split, in the order in which they are shown, and the problems that they make of the data.

    Problems are made when they are asked for, and the last few are kept.
    """

    tasks: Mapping[Place, FrozenTask]
    load: Callable[[FrozenTask], Task] = bind_task

    def __post_init__(self) -> None:
        object.__setattr__(self, "load", lru_cache(PROBLEMS_IN_MEMORY)(self.load))

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


def official_tasks(datasets: Sequence[str], data_dir: Path | None = None, task_set: str = TASK_SET) -> TaskSet:
    """Every official task of some data sets.

    Raises:
        InputError: a file of them is damaged.
        TaskRefused: a certificate fails the limits of this version.
    """
    places = [(dataset, split) for dataset in datasets for split in official_splits(dataset, task_set)]
    tasks = {place: read_official(*place, task_set).task for place in places}
    return TaskSet(tasks, partial(bind_task, data_dir=data_dir))


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
