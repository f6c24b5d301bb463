"""Reads a W&B run file back: protobuf records in the framing of LevelDB's log, behind a header of 7 bytes.

LevelDB's log (doc/log_format.md): blocks of 32 KiB, chunks of masked checksum (4 bytes), length (2) and type (1: whole,
2: first, 3: middle, 4: last), little endian, and zeros where fewer than 7 bytes of a block are left.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER = 32768, 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Record]:
    content = path.read_bytes()
    assert content[:4] == b":W&B", f"{path} is no W&B run file"
    place, collected = HEADER, b""
    while place < len(content):
        if (left := BLOCK - place % BLOCK) < HEADER:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        assert kind in (WHOLE, FIRST, MIDDLE, LAST), f"chunk of type {kind} at {place} of {path}"
        chunk = content[place + HEADER : place + HEADER + length]
        collected = chunk if kind in (WHOLE, FIRST) else collected + chunk
        place += HEADER + length
        if kind in (WHOLE, LAST):
            record = Record()
            record.ParseFromString(collected)
            yield record


@dataclass
class RunFile:
    """What a run was told. `curves` holds each history value with its row; NaN and infinity are floats."""

    name: str = ""
    project: str = ""
    group: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    step_metrics: dict[str, str] = field(default_factory=dict)
    artifacts: dict[tuple[str, str], dict[str, str]] = field(
        default_factory=dict
    )  #: (type, name) -> path -> local file
    exit_code: int | None = None
    folder: Path = Path()

    def curve(self, x: str, y: str) -> list[tuple[float, float]]:
        return [(row[x], row[y]) for row in self.rows if x in row and y in row]

    def table(self, key: str) -> dict[str, Any]:
        """The JSON of a table that was logged."""
        (entry,) = [row[key] for row in self.rows if key in row]
        assert entry["_type"] == "table-file"
        return json.loads((self.folder / "files" / entry["path"]).read_text())

    def image(self, key: str) -> bytes:
        (entry,) = [row[key] for row in self.rows if key in row]
        assert entry["_type"] == "image-file"
        return (self.folder / "files" / entry["path"]).read_bytes()


def read_run(folder: Path) -> RunFile:
    """The one run file in a run's folder. W&B's own process writes the last of it when `finish` has returned already,
    on a busy machine seconds later: what has no exit yet is read again."""
    (path,) = folder.glob("*.wandb")
    deadline = time.monotonic() + 20
    while (run := _read(folder, path)).exit_code is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return run


def _read(folder: Path, path: Path) -> RunFile:
    run = RunFile(folder=folder)
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.name, run.project, run.group = record.run.display_name, record.run.project, record.run.run_group
            run.tags = list(record.run.tags)
            run.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "config":
            run.config |= {item.key: json.loads(item.value_json) for item in record.config.update}
        elif kind == "history":
            run.rows.append(_nested(record.history.item))
        elif kind == "summary":
            run.summary |= _nested(record.summary.update)
        elif kind == "metric":
            run.step_metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "artifact" or (kind == "request" and record.request.HasField("log_artifact")):
            artifact = record.artifact if kind == "artifact" else record.request.log_artifact.artifact
            files = {entry.path: entry.local_path for entry in artifact.manifest.contents}
            run.artifacts[artifact.type, artifact.name] = files
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _nested(items: Any) -> dict[str, Any]:
    """Values by key; those of a table or an image come one by one, each with the path to it."""
    values: dict[str, Any] = {}
    for item in items:
        *above, last = item.nested_key or [item.key]
        inner = values
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = json.loads(item.value_json)
    return values
