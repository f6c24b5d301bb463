"""Writes a submission from a draft. The folder appears whole, read as a verifier would, or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shutil
import unicodedata
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fsvi_bench.errors import InputError
from fsvi_bench.files import require_writable_directory, write_atomically
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.rescoring import rescore, score_all
from fsvi_bench.leaderboard.strict import manifest_yaml, validated
from fsvi_bench.leaderboard.submission import (
    CELLS_FILE,
    LONGEST_LINE,
    MANIFEST_FILE,
    PROTOCOL,
    Claim,
    Claims,
    Manifest,
    Submission,
)
from fsvi_bench.posteriors.base import Family, Posterior
from fsvi_bench.posteriors.io import posterior_file
from fsvi_bench.tasks.official import Place, TaskSet

_NOT_IN_A_LINE = re.compile(r"[^\w .,:;+*/()\[\]{}@&#%=!?'~^$|-]+")


@dataclass(frozen=True)
class Words:
    """What its authors say of a submission; None where the tool has an answer of its own."""

    authors: tuple[str, ...]
    licence: str
    name: str | None = None
    title: str | None = None
    link: str | None = None
    hardware: str | None = None
    notes: str = ""
    reference: bool = False


@dataclass(frozen=True)
class MethodSource:
    """The method's file, and its class there."""

    file: str
    class_: str
    text: bytes


@dataclass(frozen=True, eq=False)
class DraftCell:
    """What became of one official task. A posterior without a kl is scored when the submission is written."""

    status: Literal["ok", "diverged", "failed"]
    reason: str | None = None
    posterior: Posterior | None = None
    kl: float | None = None
    predictive_kl_box: float | None = None
    scored: bool = False  #: whether these two are known to be what the posterior scores; else it is scored once more
    file: str = ""  #: that a posterior came from, for who has to mend it


@dataclass(frozen=True, eq=False)
class Draft:
    """A submission before it is written; `left_out` are data sets of which there was no cell, `remark` what the tool
    itself has to say of it, which goes into the notes."""

    method: str
    family: Family
    hyperparameters: Mapping[str, Any]
    budget: Mapping[str, Any]
    source: MethodSource | None
    cells: Mapping[Place, DraftCell]
    title: str
    hardware: str | None
    left_out: tuple[str, ...]
    remark: str = ""


def write_submission(
    draft: Draft, words: Words, tasks: TaskSet, out: Path, *, replace: bool = False, workers: int = 1
) -> Submission:
    """Writes `out/<name>`, having read it as a verifier would and scored what is not known to be scored; an earlier one
    stays unless `replace`.

    Raises:
        InputError: the words do not fit the format, the folder exists, or the submission does not hold.
    """
    manifest = make_manifest(draft, words)
    folder = out / manifest.name
    if folder.exists() and not replace:
        raise InputError(f"{folder} exists; give --replace to write it anew, or another --name")
    require_writable_directory(out, "folder of submissions", "choose another with --out")
    draft = _with_claims(draft, tasks, workers)
    workshop = out / f".{manifest.name}.{uuid.uuid4().hex}"
    try:
        made = workshop / manifest.name
        for name, content in _files(draft, manifest, tasks).items():
            write_atomically(made / name, content)
        submission = read_submission(made, tasks)
        rescore(submission, tasks, workers, only={place for place, cell in draft.cells.items() if not cell.scored})
        _put_in_place(made, folder, workshop / "earlier")
    except InputError as error:  # the workshop is gone by the time that anybody could look there
        raise InputError(str(error).replace(str(made), str(folder))) from error
    except OSError as error:
        aside = workshop / "earlier"
        kept = f"; what was there lies in {aside}" if aside.exists() and not folder.exists() else ""
        raise InputError(f"cannot write {folder}: {error.strerror}; choose another folder with --out{kept}") from error
    finally:
        if folder.exists() or not (workshop / "earlier").exists():  # else it holds the only copy of the earlier one
            shutil.rmtree(workshop, ignore_errors=True)
    return dataclasses.replace(submission, folder=folder)


def _with_claims(draft: Draft, tasks: TaskSet, workers: int) -> Draft:
    """The draft with scores for posteriors that nobody has scored yet."""
    unknown = {
        place: (cell.file or f"{place[0]} split {place[1]}", cell.posterior)
        for place, cell in draft.cells.items()
        if cell.posterior is not None and cell.kl is None
    }
    scores = score_all(unknown, tasks, workers)
    claims = {
        place: dataclasses.replace(
            draft.cells[place], kl=found.kl, predictive_kl_box=found.predictive_kl_box, scored=True
        )
        for place, found in scores.items()
    }
    return dataclasses.replace(draft, cells={**draft.cells, **claims})


def _put_in_place(made: Path, folder: Path, aside: Path) -> None:
    """Renames a folder, what lies there first being put aside; that comes back if the other cannot take its place."""
    if not folder.exists():
        made.rename(folder)
        return
    try:
        folder.rename(aside)
        made.rename(folder)
    except BaseException:
        if aside.exists() and not folder.exists():
            aside.rename(folder)
        raise


def make_manifest(draft: Draft, words: Words) -> Manifest:
    """The words of `submission.yaml`.

    Raises:
        InputError: one of them is not what the format takes.
    """
    hardware = words.hardware or draft.hardware
    if hardware is None:
        raise InputError("nothing says what hardware the method ran on; give --hardware")
    source = None if draft.source is None else {"file": draft.source.file, "class": draft.source.class_}
    content = {
        "format": "fsvi-submission/1",
        "protocol": PROTOCOL,
        "name": name_of(draft, words),
        "method": draft.method,
        "title": words.title or draft.title,
        "authors": list(words.authors),
        "link": words.link,
        "licence": words.licence,
        "family": draft.family,
        "source": source,
        "hyperparameters": dict(draft.hyperparameters),
        "budget": dict(draft.budget),
        "hardware": hardware,
        "notes": "\n".join(part for part in (words.notes, draft.remark) if part),
        "reference": words.reference,
    }
    if len(hardware) > LONGEST_LINE:
        raise InputError(
            f"hardware: its words are {len(hardware)} characters, expected at most {LONGEST_LINE}; give --hardware "
            "with shorter ones for all machines"
        )
    return validated(Manifest, content, Path(MANIFEST_FILE))


def name_of(draft: Draft, words: Words) -> str:
    """Of the submission's folder."""
    return words.name or as_slug(f"{draft.method}-{draft.family}")


def as_slug(text: str) -> str:
    """A folder's name from a method's: `MyMethod-full` -> `my-method-full`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text)
    return re.sub(r"[^a-z0-9]+", "-", parted.lower()).strip("-")[:63] or "submission"


def as_line(text: str) -> str:
    """Words from a program, such as a processor's name, without what a line of a manifest may not hold."""
    return " ".join(_NOT_IN_A_LINE.sub(" ", text).split())[:LONGEST_LINE]


def as_text(text: str) -> str:
    """A reason that a program gave, likewise."""
    return "".join(each if _fits_a_text(each) else " " for each in text)[:4000]


def _fits_a_text(character: str) -> bool:
    """No markup, and no control character in the wide sense of Unicode but a line's end."""
    return character == "\n" or (character not in "<>" and not unicodedata.category(character).startswith("C"))


def _files(draft: Draft, manifest: Manifest, tasks: TaskSet) -> dict[str, bytes]:
    """Contents by name, `submission.yaml` last."""
    files: dict[str, bytes] = {}
    claims = []
    for place, task in tasks.tasks.items():
        if place not in draft.cells:
            continue
        cell, content = draft.cells[place], None
        if cell.posterior is not None:
            content = posterior_file(cell.posterior, task.sha256)
        claim = Claim(
            dataset=place[0],
            split=place[1],
            task_sha256=task.sha256,
            status=cell.status,
            reason=None if cell.reason is None else as_text(cell.reason),
            posterior_sha256=None if content is None else hashlib.sha256(content).hexdigest(),
            kl=cell.kl,
            predictive_kl_box=cell.predictive_kl_box,
        )
        claims.append(claim)
        if content is not None:
            files[claim.file] = content
    if not claims:
        raise InputError("there is no cell to submit")
    if draft.source is not None:
        files[draft.source.file] = draft.source.text
    files[CELLS_FILE] = (Claims(format="fsvi-cells/1", cells=claims).model_dump_json(indent=1) + "\n").encode()
    files[MANIFEST_FILE] = manifest_yaml(manifest)
    return files


def require_whole(places: set[Place], tasks: TaskSet, mend: Callable[[str, list[int]], str]) -> tuple[str, ...]:
    """Names of the data sets that are left out altogether.

    Args:
        mend: given a data set and its missing splits, how they come about.

    Raises:
        InputError: a data set has some of its official splits but not all.
    """
    left_out = []
    for dataset in tasks.datasets:
        of_dataset = [split for name, split in tasks.tasks if name == dataset]
        missing = [split for split in of_dataset if (dataset, split) not in places]
        if len(missing) == len(of_dataset):
            left_out.append(dataset)
        elif missing:
            some = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
            raise InputError(
                f"{dataset} has {len(of_dataset)} official tasks, and {len(missing)} of them are missing: splits "
                f"{some}; {mend(dataset, missing)}"
            )
    return tuple(left_out)
