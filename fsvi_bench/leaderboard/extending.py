"""A submission that gains data sets: the cells that lie there stay as they are, those of other data sets join them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsvi_bench
from fsvi_bench.errors import InputError, quoted
from fsvi_bench.files import canonical_json, is_directory
from fsvi_bench.leaderboard.reading import NAME, NAME_WORDS, read_submission
from fsvi_bench.leaderboard.submission import Submission
from fsvi_bench.leaderboard.submitting import Draft, DraftCell, Words, name_of
from fsvi_bench.tasks.official import Place, TaskSet

ANEW = "submit all data sets anew with --replace and without --extend"


def extend(draft: Draft, words: Words, tasks: TaskSet, out: Path, *, replace: bool = False) -> tuple[Draft, Words]:
    """A draft with the cells that the submission of its name has on other data sets, and with its words where none are
    given; notes are both, and so is hardware unless it is given. The budget is the larger one; what only one of them
    knows is left out. What the cells that stay claim is not scored again: `verify` does, as it does all.

    Args:
        replace: data sets that both have are the draft's; else they are refused.

    Raises:
        InputError: there is no such submission, its files do not fit the format, it has a data set of the draft, or it
            is of another method, family or source, or of other settings.
    """
    earlier = _earlier(out, name_of(draft, words), tasks)
    _require_same(draft, earlier)
    drafted = list(dict.fromkeys(dataset for dataset, _ in draft.cells))
    cells = _cells(earlier)
    if (both := [name for name in drafted if name in {dataset for dataset, _ in cells}]) and not replace:
        raise InputError(
            f"{earlier.folder} has {', '.join(both)} already, expected other data sets; give --replace too, which puts "
            "the new cells in their place"
        )
    kept = {place: cell for place, cell in cells.items() if place[0] not in drafted}
    said = earlier.manifest
    since = f"{', '.join(drafted)}: added to the others with version {fsvi_bench.__version__}."
    joined = dataclasses.replace(
        draft,
        budget=_larger(said.budget.model_dump(exclude_none=True), draft.budget),
        cells={**kept, **draft.cells},
        left_out=tuple(name for name in draft.left_out if name not in {dataset for dataset, _ in kept}),
        remark="",
    )
    return joined, dataclasses.replace(
        words,
        authors=words.authors or tuple(said.authors),
        licence=words.licence or said.licence,
        title=words.title or said.title,
        link=words.link or said.link,
        hardware=words.hardware or _each_once("; ", said.hardware, draft.hardware or ""),
        notes=_each_once("\n", said.notes, words.notes, draft.remark, since),
        reference=words.reference or said.reference,
    )


def _earlier(out: Path, name: str, tasks: TaskSet) -> Submission:
    if not NAME.fullmatch(name):
        raise InputError(f"--name: got {quoted(name)}, expected {NAME_WORDS}; name the submission's folder")
    folder = out / name
    if not is_directory(folder):
        raise InputError(f"there is no submission {folder} to extend; submit without --extend, or give its --name")
    try:
        return read_submission(folder, tasks)
    except InputError as error:
        raise InputError(f"the submission that is there cannot be read: {error}; or {ANEW}") from error


def _require_same(draft: Draft, earlier: Submission) -> None:
    """A submission is one method with one family and one set of settings, of one source."""
    said, source = earlier.manifest, draft.source
    pairs: dict[str, tuple[Any, Any]] = {
        "another method": (draft.method, said.method),
        "another family": (draft.family, said.family),
        "other settings": (canonical_json(dict(draft.hyperparameters)), canonical_json(dict(said.hyperparameters))),
        "another class": (source and source.class_, said.source and said.source.class_),
        "another source file": (source and source.text, earlier.source),
    }
    for what, (mine, theirs) in pairs.items():
        if mine != theirs:
            told = "the texts differ" if isinstance(mine, bytes) else f"got {mine}, expected {theirs}"
            raise InputError(f"{earlier.folder} is of {what} ({told}), and cannot be extended by this; {ANEW}")


def _cells(submission: Submission) -> dict[Place, DraftCell]:
    return {
        (claim.dataset, claim.split): DraftCell(
            status=claim.status,
            reason=claim.reason,
            posterior=submission.posteriors.get((claim.dataset, claim.split)),
            kl=claim.kl,
            predictive_kl_box=claim.predictive_kl_box,
            scored=True,  # when it was submitted, or so its file says; `verify` looks
        )
        for claim in submission.claims.cells
    }


def _larger(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: max(one[name], other[name]) for name in one if name in other}


def _each_once(between: str, *texts: str) -> str:
    return between.join(dict.fromkeys(part for text in texts for part in text.split(between) if part))
