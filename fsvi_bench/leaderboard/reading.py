"""A stranger's folder -> `Submission`: exactly the files that belong there, each within its limit, nothing run.

Sizes and kinds of files are looked at before anything is opened, so that what is read is bounded: two texts, one source
file, and one posterior per official task, whose size follows from its kind and from k.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from fsvi_bench.errors import InputError, quoted
from fsvi_bench.leaderboard.strict import (
    MANIFEST_BYTES,
    SOURCE_BYTES,
    cells_bytes,
    parse_claims,
    parse_manifest,
    read_at_most,
    too_large,
)
from fsvi_bench.leaderboard.submission import (
    CELLS_FILE,
    MANIFEST_FILE,
    POSTERIORS,
    Claim,
    Claims,
    Manifest,
    Submission,
)
from fsvi_bench.posteriors.base import KIND_OF, Family, Posterior
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import Place, TaskSet

HEADER_BYTES = 16 * 2**10  #: of a posterior's file, generously: names, shapes and three words of metadata
_SPLIT_FILE = re.compile(r"split-[0-9]{2}\.safetensors")
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
NAME_WORDS = "lower-case letters, digits and hyphens, at most 63"
_PYTHON_FILE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}\.py")


def read_submission(folder: Path, tasks: TaskSet) -> Submission:
    """Reads a submission and checks all that can be checked without scoring it.

    Every file is read once, and its hash is of the very bytes that were understood: what becomes of it afterwards
    changes nothing.

    Raises:
        InputError: something is not as it should be: one sentence that names the file and the field.
    """
    name = _require_name(folder)
    files, most = _walk(folder, tasks), cells_bytes(len(tasks.tasks))
    contents: dict[str, bytes | str] = {}  # or the SHA-256 of it
    text = contents[MANIFEST_FILE] = read_at_most(_required(folder, MANIFEST_FILE, files), MANIFEST_BYTES + 1)
    manifest = parse_manifest(folder / MANIFEST_FILE, text)
    if manifest.name != name:
        raise InputError(
            f"{folder / MANIFEST_FILE}: name: got {quoted(manifest.name)}, expected the folder's name, "
            f"{quoted(name)}; rename one of them"
        )
    source = _read_source(folder, manifest, files)
    if source is not None and manifest.source is not None:
        contents[manifest.source.file] = source
    if files.get(CELLS_FILE, 0) > most:
        raise too_large(folder / CELLS_FILE, most)
    text = contents[CELLS_FILE] = read_at_most(_required(folder, CELLS_FILE, files), most + 1)
    claims = parse_claims(folder / CELLS_FILE, text, len(tasks.tasks))
    _check_claims(folder / CELLS_FILE, claims, tasks)
    _check_files(folder, manifest, claims, files, tasks)
    posteriors, sha256s = _read_posteriors(folder, manifest.family, claims, tasks)
    return Submission(folder, manifest, claims, source, posteriors, submission_sha256({**contents, **sha256s}))


def _require_name(folder: Path) -> str:
    """The folder's name, by which a submission goes; it is a stranger's, and what is no plain name is not repeated."""
    name = Path(os.path.abspath(folder)).name  # noqa: PTH100 -- `resolve` would follow links
    if not NAME.fullmatch(name):
        raise InputError(
            f"{quoted(name)} is no name of a submission's folder, expected {NAME_WORDS}; name the folder of one"
        )
    return name


def submission_sha256(files: Mapping[str, bytes | str]) -> str:
    """SHA-256 over the names of files beneath a submission's folder and the SHA-256 of each one's content.

    Args:
        files: content by name, such as `posteriors/boston/split-00.safetensors`; or, as text, the SHA-256 of it.
    """
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        known = content if isinstance(content, str) else hashlib.sha256(content).hexdigest()
        digest.update(f"{name}:{known}\n".encode())
    return digest.hexdigest()


def posterior_bytes(family: Family, k: int) -> int:
    """The most that the posterior file of a family with k weights may have."""
    numbers = k + k * k if family == "full" else 3 * k
    return 8 * numbers + HEADER_BYTES


def _walk(folder: Path, tasks: TaskSet) -> dict[str, int]:
    """Sizes of all files by name. Whatever cannot belong to a submission ends the walk, so it is short."""
    mode = _mode(folder)
    if not stat.S_ISDIR(mode):
        raise InputError(f"{folder} is {_what(mode)}, expected a submission's folder; name that")
    if not os.path.lexists(folder / MANIFEST_FILE):  # whatever else lies here is somebody's, and not to be removed
        raise InputError(
            f"{folder} holds no {MANIFEST_FILE}, so it is no submission; name the folder that `fsvi-bench submit` "
            "printed"
        )
    found: dict[str, int] = {}
    for path in _entries(folder, 4):
        if path.name == POSTERIORS:
            found.update(_walk_posteriors(folder, path, tasks))
        elif path.name in (MANIFEST_FILE, CELLS_FILE) or _PYTHON_FILE.fullmatch(path.name):
            found[path.name] = _size(path)
        else:
            raise _unexpected(folder, path)
    return found


def _walk_posteriors(folder: Path, path: Path, tasks: TaskSet) -> dict[str, int]:
    found = {}
    for of_dataset in _entries(_folder(path), len(tasks.datasets)):
        if of_dataset.name not in tasks.datasets:
            raise _unexpected(folder, of_dataset)
        splits = sum(dataset == of_dataset.name for dataset, _ in tasks.tasks)
        for each in _entries(_folder(of_dataset), splits):
            if not _SPLIT_FILE.fullmatch(each.name):
                raise _unexpected(folder, each)
            found[each.relative_to(folder).as_posix()] = _size(each)
    return found


def _entries(folder: Path, expected: int) -> Iterator[Path]:
    """What lies in a folder, sorted; no more of it than tells that there is too much."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, expected + 1))
    except OSError as error:
        raise InputError(f"cannot read {folder}: {error.strerror}") from error
    yield from (folder / name for name in names)
    if not names:
        raise InputError(f"{folder} is an empty folder, which is no part of a submission; remove it")
    if len(names) > expected:
        raise InputError(f"{folder} holds more than the {expected} files that belong there; remove the others")


def _unexpected(folder: Path, path: Path) -> InputError:
    name = path.relative_to(folder).as_posix()
    return InputError(f"{folder} holds {quoted(name)}, which is no part of a submission; remove it")


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not a name of a file'}") from error


def _what(mode: int) -> str:
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    return kinds.get(stat.S_IFMT(mode), "a device, pipe or socket")


def _folder(path: Path) -> Path:
    if not stat.S_ISDIR(mode := _mode(path)):
        raise InputError(f"{path} is {_what(mode)}, expected a folder; copy the files themselves")
    return path


def _size(path: Path) -> int:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is {_what(status.st_mode)}, expected a plain file; copy the file itself")
    return status.st_size


def _required(folder: Path, name: str, files: Mapping[str, int]) -> Path:
    if name not in files:
        raise InputError(f"{folder} has no {name}; add it, or name the folder of a submission")
    return folder / name


def _read_source(folder: Path, manifest: Manifest, files: Mapping[str, int]) -> bytes | None:
    """The method's text, which is looked at no further."""
    named = None if manifest.source is None else manifest.source.file
    for other in files:
        if other.endswith(".py") and other != named:
            raise InputError(
                f"{folder} holds {quoted(other)}, but {MANIFEST_FILE} has {quoted(named) if named else 'nothing'} for "
                "source.file; name it there or remove it"
            )
    if named is None:
        return None
    path = folder / named
    if named not in files:
        raise InputError(f"{folder / MANIFEST_FILE}: source.file: there is no {quoted(named)} beside it; add the file")
    if files[named] > SOURCE_BYTES:
        raise too_large(path, SOURCE_BYTES)
    content = read_at_most(path, SOURCE_BYTES)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}); save it as such") from error
    return content


def _check_claims(path: Path, claims: Claims, tasks: TaskSet) -> None:
    """Every cell is of an official task, by its hash, each once, in order, and every data set is there as a whole."""
    seen: list[Place] = []
    for number, claim in enumerate(claims.cells):
        place, field = (claim.dataset, claim.split), f"{path}: cells.{number}"
        if claim.dataset not in tasks.datasets:
            known = ", ".join(tasks.datasets)
            raise InputError(f"{field}.dataset: {claim.dataset} has no official tasks (those that have: {known})")
        if place not in tasks.tasks:
            raise InputError(f"{field}.split: {claim.dataset} has no official split {claim.split}; remove the cell")
        if place in seen:
            raise InputError(f"{field}: {claim.dataset} split {claim.split} stands twice; keep one of them")
        official = tasks.tasks[place].sha256
        if claim.task_sha256 != official:
            raise InputError(
                f"{field}.task_sha256: got {claim.task_sha256[:12]}..., but the official task of {claim.dataset} "
                f"split {claim.split} is {official[:12]}...; run it on that task"
            )
        seen.append(place)
    covered = {dataset for dataset, _ in seen}
    expected = [place for place in tasks.tasks if place[0] in covered]
    for dataset, split in expected:
        if (dataset, split) not in seen:
            raise InputError(f"{path}: cells: {dataset} split {split} is missing; add the cell, whatever became of it")
    if seen != expected:
        first = next(number for number, (a, b) in enumerate(zip(seen, expected, strict=True)) if a != b)
        dataset, split = expected[first]
        raise InputError(
            f"{path}: cells.{first}: got {seen[first][0]} split {seen[first][1]}, expected {dataset} split {split}, as "
            "the official tasks are ordered; sort the cells"
        )


def _limit(claim: Claim, family: Family, tasks: TaskSet) -> int:
    return posterior_bytes(family, tasks.tasks[claim.dataset, claim.split].k)


def _check_files(folder: Path, manifest: Manifest, claims: Claims, files: Mapping[str, int], tasks: TaskSet) -> None:
    """Each cell that is ok has its file, no other cell has one, and none is larger than what it should hold."""
    expected = {claim.file for claim in claims.cells if claim.status == "ok"}
    for name in files:
        if name.startswith(f"{POSTERIORS}/") and name not in expected:
            raise InputError(f"{folder} holds {name}, but no cell of {CELLS_FILE} that is ok has it; remove it")
    for number, claim in enumerate(claims.cells):
        if claim.status != "ok":
            continue
        if claim.file not in files:
            raise InputError(
                f"{folder / CELLS_FILE}: cells.{number}: the posterior {claim.file} is missing; add the file"
            )
        if files[claim.file] > (limit := _limit(claim, manifest.family, tasks)):
            raise too_large(folder / claim.file, limit)


def _read_posteriors(
    folder: Path, family: Family, claims: Claims, tasks: TaskSet
) -> tuple[dict[Place, Posterior], dict[str, str]]:
    """The posteriors by place, and the hashes of their files by name."""
    posteriors, sha256s = {}, {}
    for number, claim in enumerate(claims.cells):
        if claim.status == "ok":
            field = f"{folder / CELLS_FILE}: cells.{number}"
            path, task = folder / claim.file, tasks.tasks[claim.dataset, claim.split]
            content = read_at_most(path, _limit(claim, family, tasks))
            sha256s[claim.file] = _checked_sha256(path, content, claim, field)
            posteriors[claim.dataset, claim.split] = _parsed_posterior(path, content, task, family)
    return posteriors, sha256s


def _checked_sha256(path: Path, content: bytes, claim: Claim, field: str) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != claim.posterior_sha256:
        said = str(claim.posterior_sha256)[:12]
        raise InputError(f"{field}.posterior_sha256: got {said}..., but {path} has {sha256[:12]}...; submit it again")
    return sha256


def _parsed_posterior(path: Path, content: bytes, task: FrozenTask, family: Family) -> Posterior:
    posterior = read_posterior(path, task.k, task.sha256, must_name_task=True, content=content)
    if posterior.kind != KIND_OF[family]:
        raise InputError(
            f"{path}: kind: got {quoted(posterior.kind)}, expected {quoted(KIND_OF[family])} for the family "
            f"{family}; correct the family or the file"
        )
    return posterior
