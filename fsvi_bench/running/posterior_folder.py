"""Scores a folder of posterior files from any tool; metadata, or else the path of a file, name its task."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from fsvi_bench.errors import InputError, TaskRefused, quoted
from fsvi_bench.files import is_directory, is_file
from fsvi_bench.networks.official import official_network
from fsvi_bench.posteriors.io import named_task, read_approximation
from fsvi_bench.scoring.scores import Scores, not_a_number, score
from fsvi_bench.strict import Plain
from fsvi_bench.tasks.card import card_names
from fsvi_bench.tasks.certificate import certify
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import Source, Split, TaskSet, official_name, official_tasks, sources
from fsvi_bench.tasks.task import Task, bind_task

OFFICIAL = "official"
_PLACE = re.compile(r"(?P<dataset>[^/]+)/split-(?P<split>\d{1,6})\.safetensors$")


class ScoredFile(Plain):
    """One posterior file with its scores, or the reason why it has none."""

    file: str  #: relative to the folder
    dataset: str | None = None
    split: int | None = None
    task_sha256: str | None = None
    status: Literal["ok", "refused"] = "refused"
    reason: str | None = None
    scores: Scores | None = None


def load_task_set(name: str, data_dir: Path | None = None) -> TaskSet[FrozenTask, Task]:
    """The official tasks, or all task files in a folder, which are certified again before use.

    Raises:
        InputError: there are none, a file is damaged, or two different tasks are of one split.
        TaskRefused: a certificate exceeds the limits of this version.
    """
    if name == OFFICIAL:
        found = official_tasks(card_names(), data_dir)
        if not found.tasks:
            raise InputError(
                "this installation has no official tasks; give --task-set DIR with files written by "
                "`fsvi-bench tasks build --out DIR`"
            )
        return found
    tasks: dict[Split, FrozenTask] = {}
    for task, _ in map(Source.read, sources(name)):
        if tasks.setdefault((task.dataset, task.split), task).sha256 != task.sha256:
            raise InputError(
                f"--task-set {name} has two tasks of {task.dataset} split {task.split}, expected one; remove one"
            )

    def load(task: FrozenTask) -> Task:
        problem = bind_task(task, data_dir)
        certify(problem).require_limits()
        return problem

    return TaskSet(tasks, load)


def posterior_files(folder: Path) -> list[Path]:
    """All safetensors files in a folder and its subfolders, sorted.

    Raises:
        InputError: there is no such folder, or it contains none.
    """
    if is_file(folder):
        raise InputError(f"--posteriors {folder} is a file; score it with --task and --posterior, or give its folder")
    if not is_directory(folder):
        raise InputError(f"there is no folder {folder}; give --posteriors a folder with posterior files")
    if not (paths := sorted(folder.rglob("*.safetensors"))):
        raise InputError(
            f"--posteriors {folder} contains no posterior file (*.safetensors); docs/how-to/other-tools.md says how to "
            "write one"
        )
    return paths


def score_folder(folder: Path, tasks: TaskSet[FrozenTask, Task]) -> Iterator[ScoredFile]:
    """Yields the scores of each file. An invalid file does not affect the others."""
    by_sha256 = {task.sha256: place for place, task in tasks.tasks.items()}
    for path in posterior_files(folder):
        found: dict[str, Any] = {"file": path.relative_to(folder).as_posix()}
        try:
            place = _place(path, tasks, by_sha256)
            task = tasks.tasks[place]
            found |= {"dataset": task.dataset, "split": task.split, "task_sha256": task.sha256}
            q = read_approximation(path, task.k, task.sha256)
            scores = score(q, tasks.problem(place))
            if names := not_a_number(scores):
                raise InputError(f"these scores are not numbers: {', '.join(names)}")
            found |= {"scores": scores, "status": "ok"}
        except Exception as error:
            reason = str(error) if isinstance(error, InputError | TaskRefused) else f"{type(error).__name__}: {error}"
            found["reason"] = " ".join(reason.split())
        yield ScoredFile(**found)


def _place(path: Path, tasks: TaskSet[FrozenTask, Task], by_sha256: Mapping[str, Split]) -> Split:
    """The task that a file belongs to: named by its metadata, else by its path.

    Raises:
        InputError: neither names a task, or the task is not available.
    """
    named = named_task(path)
    found = _PLACE.search(path.as_posix())
    if named is not None:
        if named not in by_sha256 and (network := official_network(named)) is not None:
            raise InputError(
                f"{path} belongs to the network task {network}; score it with --task {network} --posterior {path}"
            )
        place = by_sha256.get(named)
        what = "" if place else official_name(named) or f"task {quoted(named[:12])}"
    elif found is not None:
        place = found["dataset"], int(found["split"])
        what = f"{place[0][:60]!r} split {place[1]}"
    else:
        raise InputError(
            f"{path} does not say which task it belongs to; add task_sha256 to its metadata, or rename it to "
            "<data set>/split-NN.safetensors"
        )
    if place is None or place not in tasks.tasks:
        raise InputError(
            f"{path} belongs to {what}, which is not among the {len(by_sha256)} tasks given; name its task "
            "set with --task-set"
        )
    return place
