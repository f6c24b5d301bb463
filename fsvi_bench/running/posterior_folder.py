"""Scores of posterior files that any tool wrote: each finds its task by what it says of itself, or by its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.files import is_directory
from fsvi_bench.posteriors.io import FORMAT, read_approximation
from fsvi_bench.scoring.scores import Scores, score
from fsvi_bench.tasks.card import card_names
from fsvi_bench.tasks.certificate import certify
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import Place, Source, TaskSet, official_tasks, sources
from fsvi_bench.tasks.task import Task, bind_task
from fsvi_bench.tensorfile import read_tensor_file

OFFICIAL = "official"
_PLACE = re.compile(r"(?P<dataset>[^/]+)/split-(?P<split>\d{1,6})\.safetensors$")


class ScoredFile(BaseModel):
    """One posterior file beside its scores, or the reason why it has none."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    file: str  #: relative to the folder
    dataset: str | None = None
    split: int | None = None
    task_sha256: str | None = None
    status: Literal["ok", "refused"] = "refused"
    reason: str | None = None
    scores: Scores | None = None


def load_task_set(name: str, data_dir: Path | None = None) -> TaskSet:
    """The official tasks, or every task file beneath a folder (certified anew before anything is scored on it).

    Raises:
        InputError: there are none, a file is damaged, or two are tasks of one split.
        TaskRefused: a certificate fails the limits of this version.
    """
    if name == OFFICIAL:
        found = official_tasks(card_names(), data_dir)
        if not found.tasks:
            raise InputError(
                "this installation has no official tasks; give --task-set DIR with the files that "
                "`fsvi-bench tasks build --out DIR` writes"
            )
        return found
    tasks: dict[Place, FrozenTask] = {}
    for task, _ in map(Source.read, sources(name)):
        if tasks.setdefault((task.dataset, task.split), task).sha256 != task.sha256:
            raise InputError(f"--task-set {name}: two different tasks of {task.dataset} split {task.split}; keep one")

    def load(task: FrozenTask) -> Task:
        problem = bind_task(task, data_dir)
        certify(problem).require_limits()
        return problem

    return TaskSet(tasks, load)


def posterior_files(folder: Path) -> list[Path]:
    """Every safetensors file beneath a folder, in order.

    Raises:
        InputError: there is none.
    """
    paths = sorted(folder.rglob("*.safetensors")) if is_directory(folder) else []
    if not paths:
        raise InputError(
            f"--posteriors {folder} contains no posterior file (*.safetensors); docs/how-to/other-tools.md shows one"
        )
    return paths


def score_folder(folder: Path, tasks: TaskSet) -> Iterator[ScoredFile]:
    """Each file's scores as soon as they are known; a bad file costs no other one."""
    by_sha256 = {task.sha256: place for place, task in tasks.tasks.items()}
    for path in posterior_files(folder):
        told: dict[str, Any] = {"file": path.relative_to(folder).as_posix()}
        try:
            place = _place(path, tasks, by_sha256)
            task = tasks.tasks[place]
            told |= {"dataset": task.dataset, "split": task.split, "task_sha256": task.sha256}
            q = read_approximation(path, task.k, task.sha256)
            told |= {"scores": score(q, tasks.problem(place)), "status": "ok"}
        except Exception as error:
            said = str(error) if isinstance(error, InputError | TaskRefused) else f"{type(error).__name__}: {error}"
            told["reason"] = " ".join(said.split())
        yield ScoredFile(**told)


def _place(path: Path, tasks: TaskSet, by_sha256: Mapping[str, Place]) -> Place:
    """Which task a file belongs to: what its metadata name goes before where it lies.

    Raises:
        InputError: neither says it, or the task is not at hand.
    """
    named = read_tensor_file(path, FORMAT, ("format", "kind")).metadata.get("task_sha256")
    found = _PLACE.search(path.as_posix())
    if named is not None:
        place, what = by_sha256.get(named), f"task {named[:12]!r}"
    elif found is not None:
        place = found["dataset"], int(found["split"])
        what = f"{place[0][:60]!r} split {place[1]}"
    else:
        raise InputError(
            f"{path} does not say which task it is of; write task_sha256 into its metadata, or name it "
            "<data set>/split-NN.safetensors"
        )
    if place is None or place not in tasks.tasks:
        raise InputError(f"{path} is of {what}, which is not among the {len(by_sha256)} tasks at hand")
    return place
