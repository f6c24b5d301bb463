"""Messages between the verifier and the process in the jail: the job goes in as a file, and a pipe leads out.

Unlike a file, data from a pipe cannot be a link or a device, or larger than the reader allows. The process at the other
end may be hostile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import Family
from fsvi_bench.strict import Strict

MAX_WORDS = 16 * 2**10  #: bytes of a message's JSON without the posterior
MAX_PARTICLES = 1000  #: or k, if that is more
MAX_REASON = 1000  #: characters
MAX_POSTERIORS = 12  #: per run, including the final one: the verifier scores each


@dataclass(frozen=True, eq=False)
class Job:
    """What to train, and what must be out of reach for the process. The verifier pickles it, and never reads one."""

    method: str  #: `module:Class`, or `file.py:Class` for the entry's file
    source: bytes | None  #: content of the entry's file
    family: Family
    settings: Mapping[str, Any]
    problem: TrainingData | NetworkData | None  #: a batch of one; None: run the conformance checks
    steps: int  #: the declared budget
    seed: int
    memory: int  #: bytes in addition to those of Python and its libraries
    cpu_seconds: int
    planted: Path | None  #: a file that must not be visible; None without a jail
    port: int  #: port that must not be reachable


#: What a posterior of a network is over: all weights, the hidden ones, or those of the tangent at a mode.
Over = Literal["weights", "hidden", "tangent"]
Short = Annotated[str, Field(max_length=MAX_REASON)]


class Message(Strict):
    """The state of a job, as one line of JSON.

    `ready`: the code of this package is imported, but not that of the entry; the clock starts. All other states except
    `under way` end the job.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    status: Literal["ready", "under way", "ok", "diverged", "failed"]
    steps: Annotated[int, Field(ge=0, lt=2**60)] = 0  #: training steps, or conformance checks that passed
    reason: Short = ""  #: reason for the end; for `ready`, how the process is confined
    leaks: Annotated[list[Short], Field(max_length=10)] = []  #: resources that should be out of reach
    posterior: bytes = b""  #: content of its file; empty without a posterior
    over: Over = "weights"
    mode: list[Annotated[float, Field(allow_inf_nan=False)]] = []  #: of a tangent


class RunFailed(Exception):
    """A run did not return a posterior that can be scored; the message is the reason, as a clause without full stop."""


def take_messages(received: bytearray, k: int) -> Iterator[Message]:
    """Removes the complete messages from the received bytes, and yields them.

    Raises:
        RunFailed: a message is longer than a posterior of k weights allows, or is not valid.
    """
    *lines, rest = received.split(b"\n")
    received[:] = rest
    if max(map(len, [*lines, rest])) > MAX_WORDS + 11 * k * max(k + 3, MAX_PARTICLES):  # 8 bytes are 10.7 of base64
        raise RunFailed(f"it sent a message longer than a posterior of {MAX_PARTICLES:,} particles or of k × k numbers")
    for line in lines:
        try:
            yield Message.model_validate_json(line)
        except ValidationError as error:
            raise RunFailed("it sent an invalid message") from error


def send(pipe: int, message: Message) -> None:
    """Writes one message."""
    with open(pipe, "wb", closefd=False) as stream:
        stream.write(message.model_dump_json().encode() + b"\n")
