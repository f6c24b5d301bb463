"""What goes between a verifier and the process that runs submitted code: one job there, messages back.

The way there is a folder that the child can only read. The way back is a pipe, not files: nothing that comes through it
can be a link, a device, or larger than the reader allows. Whoever holds the other end may be hostile.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fsvi_bench.leaderboard.submission import PythonFile, PythonName, Setting
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import Family
from fsvi_bench.tasks.task import FeatureMap, Task
from fsvi_bench.tensorfile import read_tensor_file, write_tensor_file

JOB_FILE, PROBLEM_FILE = "job.json", "problem.safetensors"
PROBLEM_FORMAT = "fsvi-rerun-problem/1"
MAX_WORDS = 16 * 2**10  #: bytes of a message's JSON
MAX_REASON = 300
MAX_WAYPOINTS = 12  #: posteriors of one run, the final one among them: the verifier scores each
_HEAD = struct.Struct(">II")  #: lengths of a message's JSON and of the posterior's file behind it


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Job(_Strict):
    """What to train: the submitted file beside it, and all that a run of the benchmark would have given the method."""

    source: PythonFile
    class_: PythonName
    family: Family
    hyperparameters: dict[PythonName, Setting]
    seed: Annotated[int, Field(ge=0, lt=2**64)]
    memory: Annotated[int, Field(gt=0)]  #: bytes, beyond what Python and its libraries take
    cpu_seconds: Annotated[int, Field(gt=0)]


Count = Annotated[int, Field(ge=0, lt=2**60)]
Work = dict[PythonName, Count]
Reason = Annotated[str, Field(max_length=MAX_REASON)]


class Ready(_Strict):
    """Everything of ours is imported, nothing of theirs; the clock starts."""

    event: Literal["ready"] = "ready"
    confined: bool  #: the process has given up sockets, forking and other programs


class Started(_Strict):
    """The method is set up and says how many steps it will take."""

    event: Literal["started"] = "started"
    num_steps: Count


class Reached(_Strict):
    """So many steps are done; the posterior's file follows."""

    event: Literal["reached"] = "reached"
    steps: Count
    work: Annotated[Work, Field(max_length=20)] | None


class Final(_Strict):
    """Training is over; the posterior's file follows if the status is ok."""

    event: Literal["final"] = "final"
    status: Literal["ok", "diverged", "failed"]
    reason: Reason | None
    steps: Count
    work: Annotated[Work, Field(max_length=20)] | None


Message = Ready | Started | Reached | Final
_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="event")])


class Garbled(Exception):
    """What came through the pipe is not what our worker sends; `str` says in a clause what is wrong."""


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
            Garbled: too long, or not a message.
        """
        self._rest += piece
        while len(self._rest) >= _HEAD.size:
            words, file = _HEAD.unpack_from(self._rest)
            if words > MAX_WORDS or file > self._largest_file:
                raise Garbled(f"a message of {words} and {file} bytes, expected at most {MAX_WORDS} and "
                              f"{self._largest_file}")  # fmt: skip
            end = _HEAD.size + words + file
            if len(self._rest) < end:
                return
            text, content = self._rest[_HEAD.size : _HEAD.size + words], self._rest[_HEAD.size + words : end]
            del self._rest[:end]
            try:
                yield _MESSAGE.validate_json(text), bytes(content)
            except ValidationError as error:
                raise Garbled("a message that no worker of ours sends") from error


def send(pipe: int, message: Message, file: bytes = b"") -> None:
    """Writes one message and the posterior's file behind it."""
    words = message.model_dump_json().encode()
    rest = memoryview(_HEAD.pack(len(words), len(file)) + words + file)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def write_job(folder: Path, job: Job, source: bytes, problem: Task) -> None:
    """Lays out what the child may see: the job, the submitted file, and the training problem, nothing else of it."""
    (folder / JOB_FILE).write_text(job.model_dump_json())
    (folder / job.source).write_bytes(source)
    words = {"format": PROBLEM_FORMAT, "kernel": problem.feature_map.kernel}
    write_tensor_file(folder / PROBLEM_FILE, _tensors(TrainingData.of(problem)), words)


def read_job(folder: Path) -> tuple[Job, TrainingData]:
    """A job and its problem, as a batch of one.

    Raises:
        InputError, pydantic.ValidationError: the folder was not made by `write_job`.
    """
    job = Job.model_validate_json((folder / JOB_FILE).read_bytes())
    content = read_tensor_file(folder / PROBLEM_FILE, PROBLEM_FORMAT, ("format", "kernel"))
    # Copies: where the file happens to be mapped in memory must not decide how BLAS rounds.
    tensors: dict[str, Any] = {name: tensor.clone() for name, tensor in content.tensors.items()}
    of_map: dict[str, Any] = {field.name: tensors.pop(field.name, None) for field in fields(FeatureMap)}
    of_map["kernel"] = content.metadata["kernel"]
    return job, TrainingData(**tensors, feature_map=FeatureMap(**of_map))


def _tensors(problems: TrainingData) -> dict[str, torch.Tensor]:
    own = {field.name: getattr(problems, field.name) for field in fields(problems) if field.name != "feature_map"}
    return {**own, **problems.feature_map.tensors}
