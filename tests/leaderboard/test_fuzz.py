"""Thousands of mutated submissions: each is refused by an InputError, or holds and says nothing but its own scores."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard import rescoring
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.rescoring import rescore
from fsvi_bench.posteriors.base import KIND_OF
from fsvi_bench.posteriors.io import posterior_file, read_posterior
from fsvi_bench.scoring.scores import score
from fsvi_bench.seeds import derived_generator
from tests.leaderboard.mutations import mutate, write
from tests.leaderboard.planted import plant_submission, planted_manifest, planted_tasks

PARTS, EACH, EACH_SINGULAR = 10, 1000, 200  # a mixture takes a second to score
FAMILIES = ("full", "ffg", "bernoulli", "full", "spike-slab")  # of the parts, in turn
SOURCE = b"raise SystemExit('this was run')\n"


@cache
def tasks():
    return planted_tasks()


def planted_files(family, root):
    """Contents by name of a valid submission that uses every field."""
    manifest = planted_manifest(
        "planted",
        family,
        source={"file": "method.py", "class": "Planted"},
        hyperparameters={"lr": 0.01, "minibatch": "full", "draw": True, "seed": None, "S": 3},
        link="https://example.org/a?b=c#d",
        notes="Two lines.\nOf plain text: it's 'quoted'.",
        budget={"steps": 10, "seconds": 60.0, "likelihood_rows": 100},
    )
    folder = plant_submission(root, tasks(), manifest, source=SOURCE)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def strings(value):
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in strings(part)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def verify(folder):
    submission = read_submission(folder, tasks())
    return submission, rescore(submission, tasks())


def require_honest(submission, cells, known):
    """The scores are those of the files, scored here once each; claims are theirs, and no text holds markup."""
    folder, claims = submission.folder, submission.claims.cells
    for claim, cell in zip(claims, cells, strict=True):
        place = claim.dataset, claim.split
        assert (cell.dataset, cell.split, cell.task_sha256) == (*place, tasks().tasks[place].sha256)
        assert (cell.status == "ok") == (cell.scores is not None) == (claim.posterior_sha256 is not None)
        if cell.scores is None:
            continue
        if claim.posterior_sha256 not in known:
            posterior = read_posterior(folder / claim.file)
            assert posterior.kind == KIND_OF[submission.manifest.family]
            known[claim.posterior_sha256] = score(posterior, tasks().problem(place))
        scored = known[claim.posterior_sha256]
        assert cell.scores == scored
        for name in ("kl", "predictive_kl_box"):
            claimed, value = getattr(claim, name), getattr(scored, name)
            assert claimed == value or abs(claimed - value) <= 1e-8 + 1e-6 * abs(value)  # infinity and null alone
    for text in strings(submission.manifest.model_dump()) + strings(submission.claims.model_dump()):
        assert "<" not in text
        assert ">" not in text


@pytest.fixture
def scored_once(monkeypatch):
    """A posterior that no mutation has touched is scored once; `require_honest` scores on its own."""
    scored = {}

    def once(q, problem):
        key = posterior_file(q, problem.frozen.sha256)
        if key not in scored:
            scored[key] = score(q, problem)
        return scored[key]

    monkeypatch.setattr(rescoring, "score", once)


@pytest.mark.slow
@pytest.mark.usefixtures("scored_once")
@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_submissions_are_refused_or_honest(part, tmp_path):
    family = FAMILIES[part % len(FAMILIES)]
    files, known, became = planted_files(family, tmp_path / "original"), {}, {}
    each = EACH if family in ("full", "ffg") else EACH_SINGULAR
    folder = tmp_path / "mutated" / "planted"
    for number in range(each):
        random = derived_generator("fuzz", part, number)
        write(mutate(files, random), folder)
        try:
            submission, cells = verify(folder)
        except InputError as error:
            sentence = str(error)
            assert sentence.isprintable()
            assert len(sentence) < 1500
            became["refused"] = became.get("refused", 0) + 1
        else:
            require_honest(submission, cells, known)
            became["accepted"] = became.get("accepted", 0) + 1
    # A fuzzer that is always refused looks at the first check alone; one that is never refused mutates nothing.
    assert became["refused"] > each / 2
    assert became["accepted"] > each / 50


def test_what_the_mutations_start_from_holds(tmp_path):
    files = planted_files("full", tmp_path)
    submission, cells = verify(tmp_path / "planted")
    require_honest(submission, cells, {})
    assert set(files) == {
        "submission.yaml",
        "cells.json",
        "method.py",
        *(claim.file for claim in submission.claims.cells),
    }
    assert Path(tmp_path / "planted" / "method.py").read_bytes() == SOURCE
