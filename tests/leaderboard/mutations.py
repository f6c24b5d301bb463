"""Mutations of a submission's files, for the fuzz test: bytes, headers, fields, names.

A submission is a dict of contents by name; a mutated one may hold `Link`s, pipes and folders in their place.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

Random = np.random.Generator
Files = dict[str, Any]

MANIFEST, CELLS = "submission.yaml", "cells.json"


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


PIPE, FOLDER = "pipe", "folder"  #: as a content

#: What may stand in a text, and should not.
TOKENS = [
    b"<script>alert(1)</script>", b"\x00", b"NaN", b"Infinity", b"-Infinity", b"1e999", b"!!python/object/apply:os.system ",
    b"&a ", b"*a", b"<<: *a", b"../", b"{", b"}", b"[", b"]", b'"', b"'", b"\\", b"\n", b"\t", b"\xff\xfe", b": ", b"- ",
    b"# ", b"? ", b"| ", b"%YAML 1.1\n", b"---\n", b"...\n", "\u202e".encode(), b"\\ud800", b"9" * 40, b"[" * 40, b"null",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, 10**30, 0.0, -0.0, 1e-300, 1e308, math.inf, -math.inf, math.nan, "", " ", "x",
    "Infinity", "NaN", "<b>x</b>", "a>b", "x" * 5000, "\u202e", "\x1b[31m", "\ud800", "..", "../x", "x.py", "boston", "0" * 64,
    [], [1], ["x"], {}, {"a": 1}, [[[[[[[[1]]]]]]]], "ok", "diverged", "full", "ffg", "1e-3", "no", "~", "'", "&x", "*x", "!x",
]  # fmt: skip


def mutate(files: Files, random: Random) -> Files:
    """One to three mutations; where a posterior was changed, mostly its hash is set right again."""
    mutated = dict(files)
    for _ in range(int(random.choice([1, 1, 1, 2, 3]))):
        one = MUTATIONS[int(random.integers(len(MUTATIONS)))]
        mutated = one(mutated, random)
    if random.random() < 0.8:
        mutated = with_hashes(mutated)
    return mutated


def write(files: Files, folder: Path) -> None:
    """Lays the files out beneath a folder, and nothing else of what may lie there.

    Folders that are wanted again stay: to remove one takes a file system longer than all that is tested here.
    """
    wanted = {parent for name in files for parent in (folder / name).parents if parent.is_relative_to(folder)}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        elif path not in wanted:
            path.rmdir()
    for path in sorted(wanted):
        path.mkdir(exist_ok=True, parents=True)
    for name, content in files.items():
        path = folder / name
        if content == PIPE:
            os.mkfifo(path)
        elif content == FOLDER:
            path.mkdir(exist_ok=True)
        elif isinstance(content, Link):
            path.symlink_to(content.target)
        else:
            path.write_bytes(content)


def with_hashes(files: Files) -> Files:
    """The cells claim the hashes of the files that lie at their places, as a forger would."""
    try:
        content = json.loads(files[CELLS])
        for cell in content["cells"]:
            file = files[f"posteriors/{cell['dataset']}/split-{cell['split']:02d}.safetensors"]
            cell["posterior_sha256"] = hashlib.sha256(file).hexdigest()
        return {**files, CELLS: json.dumps(content).encode()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return files


def _some(files: Files, random: Random, kind: str = "") -> str | None:
    names = [name for name, content in files.items() if isinstance(content, bytes) and name.endswith(kind)]
    return names[int(random.integers(len(names)))] if names else None


def _pick(pool: list[Any], random: Random) -> Any:
    return pool[int(random.integers(len(pool)))]


def flip_bytes(files: Files, random: Random) -> Files:
    if not (name := _some(files, random)) or not files[name]:
        return files
    content = bytearray(files[name])
    for place in random.integers(len(content), size=int(random.integers(1, 5))):
        content[place] = int(random.integers(256))
    return {**files, name: bytes(content)}


def cut(files: Files, random: Random) -> Files:
    if not (name := _some(files, random)):
        return files
    content = files[name]
    start, stop = sorted(random.integers(len(content) + 1, size=2))
    return {**files, name: content[:start] if random.random() < 0.5 else content[:start] + content[stop:]}


def insert(files: Files, random: Random) -> Files:
    if not (name := _some(files, random)):
        return files
    content = files[name]
    place = int(random.integers(len(content) + 1))
    return {**files, name: content[:place] + _pick(TOKENS, random) + content[place:]}


def repeat(files: Files, random: Random) -> Files:
    if not (name := _some(files, random)):
        return files
    content = files[name]
    start, stop = sorted(random.integers(len(content) + 1, size=2))
    return {**files, name: content[:stop] + content[start:stop] + content[stop:]}


def change_header(files: Files, random: Random) -> Files:
    """A field of a safetensors header."""
    if not (name := _some(files, random, ".safetensors")):
        return files
    content = files[name]
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        changed = json.dumps(_change(header, random)).encode()
    except (ValueError, RecursionError):
        return files
    return {**files, name: len(changed).to_bytes(8, "little") + changed + content[8 + size :]}


def change_number(files: Files, random: Random) -> Files:
    """One number of a posterior, a little or altogether."""
    if not (name := _some(files, random, ".safetensors")) or len(files[name]) < 64:
        return files
    content = bytearray(files[name])
    place = len(content) - 8 * int(random.integers(1, 6))
    value = float(np.frombuffer(bytes(content[place : place + 8]), "<f8")[0])
    changed = _pick(
        [value * (1 + 10.0 ** -random.integers(1, 16)), -value, 0.0, 1e200, 5e-324, math.nan, math.inf], random
    )
    content[place : place + 8] = np.float64(changed).tobytes()
    return {**files, name: bytes(content)}


def change_manifest(files: Files, random: Random) -> Files:
    try:
        content = _change(yaml.safe_load(files[MANIFEST]), random)
        as_json = random.random() < 0.5
        text = json.dumps(content) if as_json else yaml.safe_dump(content, allow_unicode=bool(random.random() < 0.5))
        return {**files, MANIFEST: text.encode()}
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return files


def change_cells(files: Files, random: Random) -> Files:
    try:
        return {**files, CELLS: json.dumps(_change(json.loads(files[CELLS]), random)).encode()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return files


def change_claim(files: Files, random: Random) -> Files:
    """A claimed score, by much or by less than rounding."""
    try:
        content = json.loads(files[CELLS])
        cell, name = _pick(content["cells"], random), _pick(["kl", "predictive_kl_box"], random)
        off = _pick([1, -1], random) * 10.0 ** -random.integers(0, 13)
        cell[name] = cell[name] * (1 + off) if random.random() < 0.5 else cell[name] + off
        return {**files, CELLS: json.dumps(content).encode()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return files


def rearrange(files: Files, random: Random) -> Files:
    """Files swapped, moved, copied, removed, added, or put in another's place as something else."""
    names = list(files)
    if not names:
        return files
    one, two = _pick(names, random), _pick(names, random)
    other = f"{two}/x" if random.random() < 0.1 and one != two else _pick(STRANGE, random)
    without = {name: content for name, content in files.items() if name != one}
    if other.startswith(f"{two}/"):
        return {**{n: c for n, c in files.items() if n != two}, other: b""}
    return _pick(
        [
            {**files, one: files[two], two: files[one]},
            without,
            {**without, other: files[one]},
            {**files, other: files[one]},
            {**files, one: Link(f"{'../' * one.count('/')}{two}" if two != one else "/etc/passwd")},
            {**files, one: PIPE},
            {**files, one: FOLDER},
            {**files, one: b""},
            {**files, one: b"\x00" * 100_000},
        ],
        random,
    )


STRANGE = [
    "extra.txt", ".hidden", "posteriors/boston/split-02.safetensors", "posteriors/boston/split-7.safetensors", "method.py",
    "posteriors/energy/split-00.safetensors", "posteriors/nowhere/split-00.safetensors", "deep/er/x", "\u202e.py", "<b>.py",
    "a\nb", "posteriors/boston/x", "posteriors/x", "cells.json.bak", "submission.yml",
]  # fmt: skip


def _change(value: Any, random: Random) -> Any:
    """One field anywhere in nested plain values set, removed, added, renamed, repeated or swapped."""
    if isinstance(value, dict) and value:
        key = _pick(list(value), random)
        if isinstance(value[key], dict | list) and value[key] and random.random() < 0.7:
            return {**value, key: _change(value[key], random)}
        rest = {name: item for name, item in value.items() if name != key}
        new, other = _pick(VALUES, random), _pick(list(value), random)
        return _pick(
            [
                {**value, key: new},
                {**value, key: new},
                rest,
                {**value, str(_pick(VALUES, random)): new},
                {**rest, str(_pick(VALUES, random)): value[key]},
                {**value, key: value[other], other: value[key]},
                {**value, key: [value[key]]},
            ],
            random,
        )
    if isinstance(value, list) and value:
        place = int(random.integers(len(value)))
        if isinstance(value[place], dict | list) and random.random() < 0.7:
            return [*value[:place], _change(value[place], random), *value[place + 1 :]]
        return _pick(
            [
                [*value[:place], *value[place + 1 :]],
                [*value, value[place]],
                [*value[:place], _pick(VALUES, random), *value[place + 1 :]],
                value[::-1],
            ],
            random,
        )
    return _pick(VALUES, random)


MUTATIONS: list[Callable[[Files, Random], Files]] = [
    flip_bytes, cut, insert, insert, repeat, change_header, change_header, change_number, change_manifest, change_manifest,
    change_manifest, change_cells, change_cells, change_claim, rearrange,
]  # fmt: skip
