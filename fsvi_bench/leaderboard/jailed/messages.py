"""What verifier and jailed process say to each other: a folder with the job on the way in, a pipe on the way out.

Nothing that comes through a pipe can be a link, a device, or larger than the reader allows. Whoever holds the other end
may be hostile.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import Family
from fsvi_bench.resources import resource_dir
from fsvi_bench.strict import Strict

JOB_FILE = "job.pickle"
MAX_WORDS = 16 * 2**10  #: bytes of a message's JSON beside the posterior
MAX_REASON = 1000  #: characters
MAX_POSTERIORS = 12  #: of one run, the final one among them: the verifier scores each


@dataclass(frozen=True, eq=False)
class Job:
    """What to train, and what the process has to find closed before it does."""

    method: str  #: `module:Class`, or `file.py:Class` of the entry's file beside the job
    family: Family
    settings: Mapping[str, Any]
    problem: TrainingData | None  #: a batch of one; None: conformance is checked
    steps: int  #: the declared budget
    seed: int
    memory: int  #: bytes, beyond what Python and its libraries take
    cpu_seconds: int
    planted: Path | None  #: a file that the jail must not show; None without one
    port: int  #: that it must not reach


Short = Annotated[str, Field(max_length=MAX_REASON)]


class Message(Strict):
    """How far a job has come, in one line of JSON.

    `ready`: everything of ours is imported, nothing of the entry's; the clock starts. All but this and `under way` end
    the job.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    status: Literal["ready", "under way", "ok", "diverged", "failed"]
    steps: Annotated[int, Field(ge=0, lt=2**60)] = 0  #: of training, or rules of conformance that are kept
    reason: Short = ""  #: for the end; of `ready`: how the process is confined
    leaks: Annotated[list[Short], Field(max_length=10)] = []  #: what the jail should have closed
    posterior: bytes = b""  #: its file, unless the job ended without one


class RunFailed(Exception):
    """A run came to no posterior that could be scored; `str` says why, in a clause without a full stop."""


def take_messages(received: bytearray, k: int) -> Iterator[Message]:
    """Takes the whole messages from what a pipe has delivered.

    Raises:
        RunFailed: one is longer than the posterior of k weights takes, or it is not a message.
    """
    *lines, rest = received.split(b"\n")
    received[:] = rest
    if max(map(len, [*lines, rest])) > MAX_WORDS + 11 * (k**2 + 3 * k):  # 8 bytes are 10.7 characters of base64
        raise RunFailed("it sent a message that is longer than any of a worker of ours")
    for line in lines:
        try:
            yield Message.model_validate_json(line)
        except ValidationError as error:
            raise RunFailed("it sent a message that no worker of ours sends") from error


def send(pipe: int, message: Message) -> None:
    """Writes one message."""
    with open(pipe, "wb", closefd=False) as stream:
        stream.write(message.model_dump_json().encode() + b"\n")


def write_job(folder: Path, job: Job, source: bytes | None) -> None:
    """Lays out what the process may see: the job with its training rows, and the entry's file."""
    (folder / JOB_FILE).write_bytes(pickle.dumps(job))
    if source is not None:
        (folder / job.method.partition(":")[0]).write_bytes(source)
    if job.problem is None:  # the toy problem, which conformance is checked on, is generated from its card alone
        toy = folder / "datasets" / "toy"
        toy.mkdir(parents=True)
        shutil.copy(resource_dir("datasets") / "toy" / "card.yaml", toy)


def read_job(folder: Path) -> Job:
    """A job as `write_job` laid it out: the verifier's own file."""
    job: Job = pickle.loads((folder / JOB_FILE).read_bytes())
    return job
