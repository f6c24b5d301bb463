"""Official tasks: frozen, certified, and the same for everybody; the ground that a leaderboard stands on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fsvi_bench.errors import InputError
from fsvi_bench.files import is_file
from fsvi_bench.resources import resource_dir
from fsvi_bench.tasks.build import CertifiedTask, load_cached
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import read_certified
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.task import Task, bind_task

TASK_SET = "v1"
PROBLEMS_IN_MEMORY = 40  #: two data sets' splits
Place = tuple[str, int]  #: (data set, split)
_FILE = re.compile(r"split-(\d\d)\.safetensors")


def official_path(dataset: str, split: int, task_set: str = TASK_SET) -> Path:
    """Where the official task of a split lies, if there is one."""
    return _folder(dataset, task_set) / f"split-{split:02d}.safetensors"


def official_splits(dataset: str, task_set: str = TASK_SET) -> list[int]:
    """The splits of a data set that have an official task, ascending; none of a data set that has no folder of them."""
    names = (path.name for path in _folder(dataset, task_set).glob("split-*.safetensors"))
    return sorted(int(found[1]) for name in names if (found := _FILE.fullmatch(name)))


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
        by_sha256 = {task.sha256: task for task in self.tasks.values()}
        loader = lru_cache(PROBLEMS_IN_MEMORY)(lambda sha256: self.load(by_sha256[sha256]))
        object.__setattr__(self, "_loader", loader)

    def problem(self, place: Place) -> Task:
        """One task bound to its data.

        Raises:
            InputError: the raw data are missing or are not the task's.
        """
        found: Task = self._loader(self.tasks[place].sha256)  # type: ignore[attr-defined]
        return found

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
    return TaskSet(
        {(dataset, split): read_official(dataset, split, task_set).task for dataset, split in places},
        lambda task: bind_task(task, data_dir),
    )
