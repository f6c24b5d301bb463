"""What was frozen has not moved; `tests/frozen/freeze.py` says how it is frozen anew.

What was computed apart from this project, `expected.json` and its posterior files, is held to 1e-9 by
`tests/scoring/test_scores.py::test_posterior_files_score_as_the_reference_says` and others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.frozen import freeze

#: A score of a closed form may move by r·|frozen| + r·(the size of the terms that it is made of). With the processor's
#: own kernels (Intel Xeon, AVX-512) against portable ones, no score moves by more than 1.2e-9 of its size.
FLOOR = CLOSED_FORM = 1e-9
DESCENT = 1e-6  #: of reproductions that descend an objective, what another order of rounding makes of it


def exactly(name: str, value: float) -> float:
    return 0.0


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and word with its path, such as `kl_marginals.5`."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{name}.{key}".strip("."))
    else:
        yield name, value


def is_finite(value: Any) -> bool:
    """Infinities are words in these files."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def moved(frozen: Any, now: Any, tolerance: Callable[[str, float], float]) -> list[str]:
    """What differs: numbers by more than the tolerance of their name, words, nulls and infinities at all."""
    was, is_ = dict(leaves(frozen)), dict(leaves(now))
    found = [f"{name} is only {'frozen' if name in was else 'there now'}" for name in was.keys() ^ is_.keys()]
    for name in was.keys() & is_.keys():
        old, new = was[name], is_[name]
        if is_finite(old) and is_finite(new):
            if not abs(new - old) <= (most := tolerance(name, old)):
                found.append(
                    f"{name}: {old!r} is now {new!r}, off by {abs(new - old):.2g}, expected at most {most:.2g}"
                )
        elif old != new or type(old) is not type(new):
            found.append(f"{name}: {old!r} is now {new!r}")
    return sorted(found)


def size(name: str, value: float, scores: dict[str, Any]) -> float:
    """Of a score's terms.

    ELBO and gaps are differences of losses, which may be as large as ELBO and evidence. An eigenvalue of the ratio of
    covariances is the square of a singular value, each of which rounds like the largest. A KL is a sum over weights of
    terms of order 1, which cancel where q is exact; NLPD's differences and W2 have terms of order 1 too.
    """
    if name in ("elbo", "elbo_gap", "log_evidence", "objective_gap"):
        return 1 + sum(abs(scores[term]) for term in ("elbo", "log_evidence") if is_finite(scores[term]))
    if name.startswith("overconfidence"):
        return math.sqrt(abs(value) * scores["overconfidence"]["largest"])
    return 1.0


def moved_in_record(frozen: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Scores and details by their tolerances; all else, work included, at all."""

    def tolerance(name: str, value: float) -> float:
        name = name.removeprefix("scores.")
        return CLOSED_FORM * (abs(value) + size(name, value, frozen["scores"]))

    by_digits = {"scores", "details"}
    others = frozen.keys() - by_digits
    return moved(*_both(others, frozen, now), exactly) + moved(*_both(by_digits, frozen, now), tolerance)


def _both(keys: Iterable[str], *documents: dict[str, Any]) -> list[dict[str, Any]]:
    return [{key: document[key] for key in keys} for document in documents]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diabetes", pytest.param("boston", marks=pytest.mark.data)])
def test_a_run_gives_the_frozen_scores(name):
    frozen, now = json.loads(freeze.path_of("runs", name).read_text()), freeze.run(name)
    assert len(now) == len(frozen)
    found = [
        f"{old['dataset']} split {old['split']} {old['method']} {old['family']}: {line}"
        for old, new in zip(frozen, now, strict=True)
        for line in moved_in_record(old, new)
    ]
    assert not found, "\n".join(found)


# --- Reproductions ----------------------------------------------------------------------------------------------------

#: hron2018-fig5: where L-BFGS ends from random starts, and the largest ratio of successive ends' distances; ten times
#: what rounding moves them by. All others move by 0.7% of their tolerance or less.
OF_DESCENTS, RATIO_OF_THEM = 2e-6, 2e-3


def tolerance_of_findings(reproduction: str) -> Callable[[str, float], float]:
    """Draws have seeds of their own, so that Monte Carlo results are the same numbers; what is 0 but for rounding, such
    as the difference of two ways to the same, is told from 0 by FLOOR."""

    def tolerance(name: str, value: float) -> float:
        if reproduction == "hron2018-fig5":
            return DESCENT * abs(value) + (RATIO_OF_THEM if "largest ratio of distances" in name else OF_DESCENTS)
        return DESCENT * abs(value) + FLOOR

    return tolerance


def moved_in_frames(
    frozen: dict[str, Any], now: dict[str, Any], tolerance: Callable[[str, float], float]
) -> Iterator[str]:
    """Digests of columns: a sum may move by what each of its terms may, and columns come and go by declaration only."""
    was, is_ = ({(name, column): of[name][column] for name in of for column in of[name]} for of in (frozen, now))
    yield from (
        f"frames.{place} is only {'frozen' if place in was else 'there now'}" for place in was.keys() ^ is_.keys()
    )
    for place in was.keys() & is_.keys():
        n, size = was[place]["finite"], was[place]["size"]
        most = n * tolerance(".".join(place), size / n) if n else 0.0
        yield from (f"frames.{place}: {line}" for line in moved(was[place], is_[place], lambda *_, most=most: most))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.data] if n == "validation" else []) for n in freeze.REPRODUCTIONS]
)
def test_a_reproduction_comes_to_the_frozen_findings(name):
    frozen, now = json.loads(freeze.path_of("reproductions", name).read_text()), freeze.reproduce(name)
    tolerance, frames = tolerance_of_findings(name), (frozen.pop("frames", {}), now.pop("frames", {}))
    found = [*moved(frozen, now, tolerance), *moved_in_frames(*frames, tolerance)]
    assert not found, "\n".join(found)
