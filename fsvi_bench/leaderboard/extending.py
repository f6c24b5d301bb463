"""A submission that gains data sets: the cells that lie there stay, those of other data sets join them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsvi_bench.errors import InputError
from fsvi_bench.files import canonical_json
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.submission import Submission
from fsvi_bench.leaderboard.submitting import Draft, DraftCell, Words, name_of
from fsvi_bench.tasks.official import Place, TaskSet


def extend(draft: Draft, words: Words, tasks: TaskSet, out: Path) -> tuple[Draft, Words]:
    """A draft with the cells that the submission of its name has on other data sets, with its notes, and with its other
    words where none are given. The budget is the larger of both; what one of them does not know is left out.

    Raises:
        InputError: there is no such submission, it does not hold, or it is of another method, family or source, or of
            other settings.
    """
    folder = out / name_of(draft, words)
    if not folder.is_dir():
        raise InputError(f"there is no submission {folder} to extend; submit without --extend, or give its --name")
    earlier = read_submission(folder, tasks)
    _require_same(draft, earlier)
    drafted = {dataset for dataset, _ in draft.cells}
    kept = {place: cell for place, cell in _cells(earlier).items() if place[0] not in drafted}
    said = earlier.manifest
    hardware = dict.fromkeys((said.hardware, draft.hardware or said.hardware))
    larger = dataclasses.replace(
        draft,
        budget=_larger(said.budget.model_dump(exclude_none=True), draft.budget),
        cells={**kept, **draft.cells},
        hardware="; ".join(hardware),
        left_out=tuple(name for name in draft.left_out if name not in {dataset for dataset, _ in kept}),
        remark="" if draft.remark in said.notes.splitlines() else draft.remark,
    )
    return larger, dataclasses.replace(
        words,
        authors=words.authors or tuple(said.authors),
        licence=words.licence or said.licence,
        title=words.title or said.title,
        link=words.link or said.link,
        notes="\n".join(part for part in (said.notes, words.notes) if part),
        reference=words.reference or said.reference,
    )


def _require_same(draft: Draft, earlier: Submission) -> None:
    """A submission is one method with one family and one set of settings, of one source."""
    said, source = earlier.manifest, draft.source
    own: dict[str, tuple[Any, Any]] = {
        "method": (draft.method, said.method),
        "family": (draft.family, said.family),
        "settings": (canonical_json(dict(draft.hyperparameters)), canonical_json(dict(said.hyperparameters))),
        "source's class": (source and source.class_, said.source and said.source.class_),
        "source's text": (source and source.text, earlier.source),
    }
    for what, (mine, theirs) in own.items():
        if mine != theirs:
            told = "differs" if isinstance(mine, bytes) else f"got {mine}, expected {theirs}"
            raise InputError(
                f"{earlier.folder} cannot be extended, because its {what} is another ({told}); submit all data sets "
                "anew with --replace, or give another --name"
            )


def _cells(submission: Submission) -> dict[Place, DraftCell]:
    return {
        (claim.dataset, claim.split): DraftCell(
            status=claim.status,
            reason=claim.reason,
            posterior=submission.posteriors.get((claim.dataset, claim.split)),
            kl=claim.kl,
            predictive_kl_box=claim.predictive_kl_box,
        )
        for claim in submission.claims.cells
    }


def _larger(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: max(one[name], other[name]) for name in one if name in other}
