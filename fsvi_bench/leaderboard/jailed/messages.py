"""What verifier and jailed process say to each other: a folder with the job on the way in, a pipe on the way out.

Nothing that comes through a pipe can be a link, a device, or larger than the reader allows. Whoever holds the other end
may be hostile.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, TypeAdapter, ValidationError

from fsvi_bench.leaderboard.entry import PythonName, Setting, Strict
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import Family
from fsvi_bench.resources import resource_dir
from fsvi_bench.tasks.task import FeatureMap, Task
from fsvi_bench.tensorfile import read_tensor_file, write_tensor_file

JOB_FILE, PROBLEM_FILE, SOURCE_FILE = "job.json", "problem.safetensors", "method_of_entry.py"
PROBLEM_FORMAT = "fsvi-jailed-problem/1"
MAX_WORDS = 16 * 2**10  #: bytes of a message's JSON
MAX_REASON, MAX_MESSAGE = 300, 1000  #: characters
MAX_POSTERIORS = 12  #: of one run, the final one among them: the verifier scores each
_HEAD = struct.Struct(">II")  #: lengths of a message's JSON and of the posterior's file behind it


Count = Annotated[int, Field(ge=0, lt=2**60)]


class Job(Strict):
    """What to train, and what the process has to find closed before it does."""

    conformance: bool  #: whether the method is only held to what every method must do, on small problems
    method: Annotated[str, Field(max_length=200)]  #: `module:Class`, or the class in `SOURCE_FILE` alone
    family: Family
    settings: dict[PythonName, Setting | None]
    steps: Count  #: the declared budget
    seed: Annotated[int, Field(ge=0, lt=2**64)]
    memory: Annotated[int, Field(gt=0)]  #: bytes, beyond what Python and its libraries take
    cpu_seconds: Annotated[int, Field(gt=0)]
    planted: str | None  #: a file that the jail must not show; None without one
    port: Annotated[int, Field(gt=0, lt=2**16)]  #: that it must not reach


Short = Annotated[str, Field(max_length=MAX_REASON)]


class Ready(Strict):
    """Everything of ours is imported, nothing of the entry's; the clock starts."""

    event: Literal["ready"] = "ready"
    leaks: Annotated[list[Short], Field(max_length=10)]  #: what the jail should have closed
    confined: Short


class Reached(Strict):
    """So many steps are done; the posterior's file follows."""

    event: Literal["reached"] = "reached"
    steps: Count


class Final(Strict):
    """Training is over; the posterior's file follows if the status is ok."""

    event: Literal["final"] = "final"
    status: Literal["ok", "diverged", "failed"]
    reason: Short | None
    steps: Count


class Checked(Strict):
    """What a check of conformance found."""

    event: Literal["checked"] = "checked"
    check: Short
    family: Family
    status: Literal["ok", "failed", "not applicable"]
    message: Annotated[str, Field(max_length=MAX_MESSAGE)]


Message = Ready | Reached | Final | Checked
_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="event")])


class RunFailed(Exception):
    """A run came to no posterior that could be scored; `str` says why, in a clause without a full stop."""


class Reader:
    """Puts messages together from the pieces that a pipe delivers.

    Args:
        largest_file: bytes that a posterior's file may have.
    """

    def __init__(self, largest_file: int) -> None:
        self._largest_file, self._rest = largest_file, bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[Message, bytes]]:
        """The messages that this piece completes, each with the posterior's file behind it.

        Raises:
            RunFailed: too long, or not a message.
        """
        self._rest += piece
        while len(self._rest) >= _HEAD.size:
            words, file = _HEAD.unpack_from(self._rest)
            if words > MAX_WORDS or file > self._largest_file:
                raise RunFailed(f"it sent a message of {words} and {file} bytes")
            end = _HEAD.size + words + file
            if len(self._rest) < end:
                return
            text, content = self._rest[_HEAD.size : _HEAD.size + words], self._rest[_HEAD.size + words : end]
            del self._rest[:end]
            try:
                yield _MESSAGE.validate_json(text, strict=True), bytes(content)
            except ValidationError as error:
                raise RunFailed("it sent a message that no worker of ours sends") from error


def send(pipe: int, message: Message, file: bytes = b"") -> None:
    """Writes one message and the posterior's file behind it."""
    words = message.model_dump_json().encode()
    rest = memoryview(_HEAD.pack(len(words), len(file)) + words + file)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def write_job(folder: Path, job: Job, source: bytes | None, task: Task | None) -> None:
    """Lays out what the process may see: the job, the entry's file, and the training rows, nothing else of the task."""
    (folder / JOB_FILE).write_text(job.model_dump_json())
    if source is not None:
        (folder / SOURCE_FILE).write_bytes(source)
    if task is not None:
        _write_problem(folder / PROBLEM_FILE, task)
    else:  # the toy problem, which conformance is checked on, is generated; its card is all that it needs
        toy = Path("datasets", "toy", "card.yaml")
        (folder / toy).parent.mkdir(parents=True)
        (folder / toy).write_bytes((resource_dir("datasets").parent / toy).read_bytes())


def _write_problem(path: Path, task: Task) -> None:
    data = TrainingData.of(task)
    own = {field.name: getattr(data, field.name) for field in fields(data) if field.name != "feature_map"}
    words = {"format": PROBLEM_FORMAT, "kernel": task.feature_map.kernel}
    tensors: dict[str, torch.Tensor] = {**own, **data.feature_map.tensors}
    write_tensor_file(path, tensors, words)


def read_job(folder: Path) -> Job:
    """A job as `write_job` laid it out."""
    return Job.model_validate_json((folder / JOB_FILE).read_bytes())


def read_problem(folder: Path) -> TrainingData:
    """A job's problem, as a batch of one."""
    content = read_tensor_file(folder / PROBLEM_FILE, PROBLEM_FORMAT, ("format", "kernel"))
    # Copies: where the file happens to be mapped in memory must not decide how BLAS rounds.
    tensors: dict[str, Any] = {name: tensor.clone() for name, tensor in content.tensors.items()}
    of_map: dict[str, Any] = {field.name: tensors.pop(field.name, None) for field in fields(FeatureMap)}
    of_map["kernel"] = content.metadata["kernel"]
    return TrainingData(**tensors, feature_map=FeatureMap(**of_map))
