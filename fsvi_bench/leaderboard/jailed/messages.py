"""What verifier and jailed process say to each other: a folder with the job on the way in, a pipe on the way out.

Nothing that comes through a pipe can be a link, a device, or larger than the reader allows. Whoever holds the other end
may be hostile.
"""

from __future__ import annotations

import os
import pickle
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from fsvi_bench.leaderboard.entry import PythonName, Setting
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import Family
from fsvi_bench.resources import resource_dir
from fsvi_bench.strict import Strict
from fsvi_bench.tasks.task import Task

JOB_FILE, PROBLEM_FILE, SOURCE_FILE = "job.json", "problem.pickle", "method_of_entry.py"
MAX_WORDS = 16 * 2**10  #: bytes of a message's JSON
MAX_REASON = 1000  #: characters
MAX_POSTERIORS = 12  #: of one run, the final one among them: the verifier scores each
_HEAD = struct.Struct(">II")  #: lengths of a message's JSON and of the posterior's file behind it


Count = Annotated[int, Field(ge=0, lt=2**60)]


class Job(Strict):
    """What to train, and what the process has to find closed before it does."""

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
    """So many steps are done. The posterior's file follows, unless the job ended without one."""

    event: Literal["reached"] = "reached"
    status: Literal["under way", "ok", "diverged", "failed"]  #: all but the first end the job
    steps: Count  #: of training, or rules of conformance that are kept
    reason: Short | None = None


Message = Ready | Reached
_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="event")])


class RunFailed(Exception):
    """A run came to no posterior that could be scored; `str` says why, in a clause without a full stop."""


def take_messages(received: bytearray, largest_file: int) -> Iterator[tuple[Message, bytes]]:
    """Takes the whole messages from what a pipe has delivered, each with the posterior's file behind it.

    Raises:
        RunFailed: a file is larger than allowed, the words are too long, or it is not a message.
    """
    while len(received) >= _HEAD.size:
        words, file = _HEAD.unpack_from(received)
        if words > MAX_WORDS or file > largest_file:
            raise RunFailed(f"it sent a message of {words} and {file} bytes")
        middle, end = _HEAD.size + words, _HEAD.size + words + file
        if len(received) < end:
            return
        text, content = bytes(received[_HEAD.size : middle]), bytes(received[middle:end])
        del received[:end]
        try:
            yield _MESSAGE.validate_json(text), content
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
    if task is not None:  # as copies: a view would take along what it is a view of, test rows perhaps
        (folder / PROBLEM_FILE).write_bytes(pickle.dumps(TrainingData.of(task).only(0)))
    else:  # the toy problem, which conformance is checked on, is generated; its card is all that it needs
        toy = folder / "datasets" / "toy"
        toy.mkdir(parents=True)
        shutil.copy(resource_dir("datasets") / "toy" / "card.yaml", toy)


def read_job(folder: Path) -> tuple[Job, TrainingData | None]:
    """A job as `write_job` laid it out, and its problem, as a batch of one. These files are the verifier's."""
    problem = folder / PROBLEM_FILE
    job = Job.model_validate_json((folder / JOB_FILE).read_bytes())
    return job, pickle.loads(problem.read_bytes()) if problem.exists() else None
