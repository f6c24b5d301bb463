"""Tasks by name: the official ones, which are frozen, certified and identical for everyone, and locally fitted ones."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from fsvi_bench.errors import InputError, did_you_mean, quoted, unknown_name, whole_number
from fsvi_bench.files import is_directory, is_file
from fsvi_bench.resources import resource_dir
from fsvi_bench.tasks.build import build_task, cached_task_path, load_cached
from fsvi_bench.tasks.card import card_names, load_card, refuse_images
from fsvi_bench.tasks.certificate import Certificate, CertifiedTask, read_certified, save
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.sets import is_set, read_member, splits_of
from fsvi_bench.tasks.splits import parse_ranges
from fsvi_bench.tasks.task import Task, bind_task
from fsvi_bench.threads import one_thread

TASK_SET = "v1"
PROBLEMS_IN_MEMORY = 40  #: two data sets' splits
Split = tuple[str, int]  #: (data set, split)
Frozen = TypeVar("Frozen")
Bound = TypeVar("Bound")


def official_path(dataset: str, folder: Path | None = None) -> Path:
    """Path of a data set's official tasks, in the package or another folder of data sets; the file may not exist."""
    return (folder or resource_dir("datasets")) / dataset / "tasks" / f"{TASK_SET}.safetensors"


def official_splits(dataset: str) -> list[int]:
    """The splits of a data set that have an official task, ascending; empty if it has no such file."""
    path = official_path(dataset)
    return splits_of(path) if is_file(path) else []


def find_task(dataset: str, split: int, *, official: bool = True) -> CertifiedTask | None:
    """The task of a split: the official one if allowed, else one fitted locally; None if neither exists.

    Raises:
        InputError: the split does not exist, or the official tasks are damaged.
        TaskRefused: the certificate exceeds the limits of this version.
    """
    path = official_path(dataset)
    if official and is_file(path) and split in splits_of(path):
        return read_official(dataset, split)
    return load_cached(load_card(dataset), split)


@cache
def read_official(dataset: str, split: int) -> CertifiedTask:
    """An official task and its certificate, which is trusted here; `fsvi-bench tasks verify` recomputes it.

    Raises:
        InputError: the task is missing or damaged.
        TaskRefused: the certificate exceeds the limits of this version.
    """
    path = official_path(dataset)
    found = read_member(path, split)
    if found.task.dataset != dataset:
        raise InputError(f"{path} contains {found.task.dataset}, expected {dataset}; install the package again")
    found.certificate.require_limits()
    return found


def require_official(dataset: str, splits: Sequence[int] | None = None) -> list[int]:
    """The given splits of a data set, by default all official ones.

    Raises:
        InputError: the data set does not exist, or a split has no official task.
    """
    if not (found := official_splits(load_card(dataset).name)):
        raise InputError(
            f"{dataset} has no official tasks; build tasks with `fsvi-bench tasks build --dataset {dataset} "
            f"--out tasks`, and pass the files it writes, or call `load_task({dataset!r}, split)` in Python"
        )
    chosen = found if splits is None else list(splits)
    if missing := [split for split in chosen if split not in found]:
        raise InputError(f"{dataset} has no official task of split {missing[0]}; its splits: {found[0]} to {found[-1]}")
    return chosen


class Source(NamedTuple):
    """Location of one task: its own file, or a split of a task set."""

    path: Path
    split: int | None = None

    def __str__(self) -> str:
        """The name that users type: `boston:0` for an official task, else the file's path."""
        dataset = self.path.parent.parent.name
        where = dataset if self.path == official_path(dataset) else self.path
        return str(where) if self.split is None else f"{where}:{self.split}"

    def read(self) -> tuple[FrozenTask, Certificate | None]:
        """The task, and its certificate if it has one.

        Raises:
            InputError: either is not valid, or they do not match.
        """
        if self.split is None:
            return read_certified(self.path)
        found = read_member(self.path, self.split)
        return found.task, found.certificate


def sources(name: str | Path) -> list[Source]:
    """The tasks of a name: a task file, a task-set file, a folder with such files, `boston` or `boston:0`.

    Raises:
        InputError: there are none.
    """
    path, (dataset, colon, split) = Path(name), str(name).partition(":")
    if is_directory(path):  # local files take precedence over official tasks of the same name
        if not (files := sorted(path.rglob("*.safetensors"))):
            raise InputError(f"{path} contains no task files (*.safetensors); name the folder that contains them")
        return [source for file in files for source in _of_file(file)]
    if not is_file(path):
        if dataset in card_names():
            if re.search(r"(collapsed|logit)-\d", split):
                raise InputError(
                    f"{quoted(str(name))} is not a linear task; expected a name such as boston:0. "
                    "`fsvi-bench networks list` has the names of network tasks, and `networks verify` checks them"
                )
            splits = require_official(dataset, parse_ranges(split, f"{name}: split") if colon else None)
            return [Source(official_path(dataset), split) for split in splits]
        refuse_images(dataset)
        if path.name == str(name) and not path.suffix:
            raise unknown_name("task file, folder or data set", dataset, card_names())
    return _of_file(path)


def _of_file(path: Path) -> list[Source]:
    if not is_set(path):
        return [Source(path)]
    try:
        return [Source(path, split) for split in splits_of(path)]
    except InputError:
        return [Source(path, 0)]  # raises it when it is read, so that other files are read as well


def read_named(name: str | Path) -> tuple[FrozenTask, Certificate | None]:
    """The single task named by its file, or as `boston:0`.

    Raises:
        InputError: there is none, there are several, or the task is not valid.
    """
    found = [Source(Path(name))] if is_file(Path(name)) or ":" not in str(name) else sources(name)
    if len(found) > 1:
        raise InputError(f"{name} names {len(found)} tasks, expected one; name one split")
    return found[0].read()


def read_one_task(name: Path) -> FrozenTask:
    """The task that `--task` names: a task file, or an official task such as `boston:0`.

    Raises:
        InputError: there is no such task, the name stands for several tasks, or the file is not valid.
    """
    word, known = str(name), card_names()
    dataset, colon, _ = word.partition(":")
    if not is_file(name) and not (colon and dataset in known):
        refuse_images(dataset)
        expected = "expected a task file or an official task such as boston:0"
        if is_directory(name):
            raise InputError(f"--task {word} is a folder, {expected}")
        if word in known and not official_splits(word):
            raise InputError(
                f"--task {word} is a data set without official tasks, expected a task; give a file written by "
                f"`fsvi-bench tasks build --dataset {word} --out tasks`"
            )
        if word in known:
            raise InputError(f"--task {word} is a data set, expected a task; give {word}:0 for its split 0")
        if name.name == word and not name.suffix:
            raise InputError(f"unknown task {quoted(word)}: {did_you_mean(dataset, known)}{expected}")
    return read_named(name)[0]


class TaskSet(Generic[Frozen, Bound]):
    """Tasks by data set and split, in display order; binds each to its data on request and caches the last few."""

    def __init__(self, tasks: Mapping[Split, Frozen], load: Callable[[Frozen], Bound]) -> None:
        self.tasks = tasks
        self.load = lru_cache(PROBLEMS_IN_MEMORY)(load)

    def problem(self, place: Split) -> Bound:
        """One task bound to its data.

        Raises:
            InputError: the raw data are missing or are not the task's.
        """
        return self.load(self.tasks[place])


def official_tasks(datasets: Sequence[str], data_dir: Path | None = None) -> TaskSet[FrozenTask, Task]:
    """All official tasks of some data sets.

    Raises:
        InputError: a task file is damaged.
        TaskRefused: a certificate exceeds the limits of this version.
    """
    places = [(dataset, split) for dataset in datasets for split in official_splits(dataset)]
    tasks = {place: read_official(*place).task for place in places}
    return TaskSet(tasks, partial(bind_task, data_dir=data_dir))


def official_name(sha256: str) -> str | None:
    """The name of the official task with this SHA-256, such as `boston:0`, if there is one."""
    tasks = official_tasks(card_names()).tasks
    return next((f"{dataset}:{split}" for (dataset, split), task in tasks.items() if task.sha256 == sha256), None)


def list_tasks() -> dict[str, int]:
    """The data sets that have tasks, and their numbers of splits."""
    return {name: load_card(name).splits.count for name in card_names()}


@one_thread()
def load_task(name_or_path: str | Path, split: int = 0) -> Task:
    """Loads a data set's task of one split, or a task file.

    An official task is read from the package. A split without one is fitted on one thread (seconds to minutes) and
    cached.

    Args:
        name_or_path: one of `list_tasks()`, a task file (`fsvi-task/1`), or `boston:0`.
        split: used only with the name of a data set.

    Raises:
        InputError: the data set, split or file does not exist, the file is not valid, or its data cannot be loaded.
        TaskRefused: the exact posterior cannot be computed to the required accuracy.
    """
    if not isinstance(name_or_path, str | Path):
        raise InputError(
            f"the task's name is of type {type(name_or_path).__name__}, expected a string or a path; pass one of "
            "list_tasks(), or the path of a task file"
        )
    name, path, split = str(name_or_path), Path(name_or_path), whole_number("split", split)
    if name not in card_names():
        if not is_file(path) and path.name == name and not path.suffix and ":" not in name:
            refuse_images(name)
            raise unknown_name("data set or task file", name, card_names())
        frozen, certificate = read_named(path)
        return replace(bind_task(frozen), fit=certificate.fit if certificate else None).certified()
    found = find_task(name, split)
    if found is None:
        found = build_task(load_card(name), split)
        with contextlib.suppress(InputError):  # if the cache is not writable the task is fitted again next time
            save(found, cached_task_path(load_card(name), split))
    return replace(bind_task(found.task), fit=found.certificate.fit)
