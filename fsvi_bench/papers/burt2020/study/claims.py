"""The paper's claims, judged from the study's table: by data set and jitter, once all planned splits are there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.study.table import StudyCell
from fsvi_bench.papers.claims import Claim, Statistic, Values, Verdict
from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.resources import read_yaml, resource_dir

NAME = "burt2020-study"
MEASUREMENT_POINTS = 80  #: the paper's default
FEWEST_SPLITS = 2  #: with which there is an interval
Outcome = Literal["held", "did not hold", "undecided", "not judged", "incomplete"]
BySplit = Mapping[int, float]


class StudyClaim(Claim):
    """A claim on every data set, or on those that it names."""

    datasets: tuple[str, ...] = ()

    def judge(self, found: Values) -> Verdict:
        return Claim(**self.model_dump(exclude={"datasets"})).judge(found)


class StudyFile(BaseModel):
    """`conf/reproductions/burt2020-study.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    summary: str
    protocol: str
    quick: dict[str, Any]
    claims: tuple[StudyClaim, ...]


def load_study_file() -> StudyFile:
    """The claims with their thresholds.

    Raises:
        InputError: the file does not validate.
    """
    path = resource_dir("conf") / "reproductions" / f"{NAME}.yaml"
    try:
        return StudyFile.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path}: '{'.'.join(map(str, first['loc']))}': {first['msg']}; mend the file") from error


class Judged(NamedTuple):
    """One claim on one data set at one jitter. There is a verdict once every planned split is there and tells."""

    claim: StudyClaim
    dataset: str
    kl_jitter: float | None  #: None for claims on EXACT, which has none
    verdict: Verdict | None
    splits: int  #: that tell something
    finished: int  #: with a record; one that diverged tells nothing of likelihoods and variances
    planned: int
    agreeing: int  #: of `splits`, those whose own difference is on the claimed side

    @property
    def outcome(self) -> Outcome:
        if self.finished < self.planned:
            return "incomplete"
        if self.verdict is None:
            return "not judged"
        if self.verdict.holds:
            return "held"
        return "undecided" if self.verdict.undecided else "did not hold"


class _Selection(NamedTuple):
    """The cells of one data set at one jitter; EXACT has none, and is in all."""

    cells: Sequence[StudyCell]

    def planned(self, method: str, family: str, M: int | None = MEASUREMENT_POINTS) -> set[int]:
        return {cell.split for cell in self._of(method, family, M)}

    def finished(self, method: str, family: str, M: int | None = MEASUREMENT_POINTS) -> set[int]:
        return {cell.split for cell in self._of(method, family, M) if cell.status != "missing"}

    def values(
        self, method: str, family: str, value: Callable[[StudyCell], float | None], M: int | None = MEASUREMENT_POINTS
    ) -> BySplit:
        found = ((cell.split, value(cell)) for cell in self._of(method, family, M) if cell.status != "missing")
        return {split: each for split, each in found if each is not None}

    def _of(self, method: str, family: str, M: int | None) -> Iterator[StudyCell]:
        size = None if method == "exact" else M
        yield from (cell for cell in self.cells if (cell.method, cell.family, cell.M) == (method, family, size))


class _Case(NamedTuple):
    """A statistic's differences by split, and the splits that are planned for it and finished."""

    differences: BySplit
    planned: set[int]
    finished: set[int]


def judge_study(cells: Sequence[StudyCell], claims: Sequence[StudyClaim]) -> list[Judged]:
    """Every claim on every data set and jitter on which it was planned.

    Raises:
        InputError: a claim names a statistic that there is not.
    """
    judged = []
    for claim in claims:
        for dataset in sorted({cell.dataset for cell in cells if cell.dataset in claim.datasets or not claim.datasets}):
            here = [cell for cell in cells if cell.dataset == dataset]
            jitters = sorted({cell.kl_jitter for cell in here if cell.kl_jitter is not None})
            for jitter in [None] if ": exact " in claim.statistic else jitters:
                selection = _Selection([cell for cell in here if cell.kl_jitter in (None, jitter)])
                if (case := _case(claim.statistic, selection)).planned:
                    judged.append(_judge(claim, dataset, jitter, case))
    return judged


def _judge(claim: StudyClaim, dataset: str, jitter: float | None, case: _Case) -> Judged:
    values = list(case.differences.values())
    sign = 1 if claim.side == "above" else -1
    agreeing = sum(sign * (value - claim.threshold) > 0 for value in values)
    # Not of survivors: a split that is missing, or diverged where that tells nothing, leaves no verdict.
    known = len(values) >= FEWEST_SPLITS and case.differences.keys() == case.planned
    verdict = claim.judge(Statistic.of_splits(values, about=claim.threshold)) if known else None
    return Judged(claim, dataset, jitter, verdict, len(values), len(case.finished), len(case.planned), agreeing)


def _case(statistic: str, of: _Selection) -> _Case:
    """The differences that a statistic is the mean of, by the form of its name."""
    kind, _, what = statistic.partition(": ")
    methods = [tuple(each.split()) for each in what.split(" - ")]
    match kind, methods:
        case (name, [(method, family), (other, other_family)]) if name in _PAIRED:
            value = _PAIRED[name]
            mine, others = of.values(method, family, value), of.values(other, other_family, value)
            planned = of.planned(method, family) & of.planned(other, other_family)
            finished = of.finished(method, family) & of.finished(other, other_family)
            return _Case(_difference(mine, others), planned, finished)
        case (name, [(method, family)]) if name in _DIFFERENCES:
            differences = of.values(method, family, _DIFFERENCES[name])
            return _Case(differences, of.planned(method, family), of.finished(method, family))
        case ("log KL, M = 20 above M = 160", [(method, family)]):
            small, large = of.values(method, family, _log_kl, M=20), of.values(method, family, _log_kl, M=160)
            planned = of.planned(method, family, M=20) & of.planned(method, family, M=160)
            finished = of.finished(method, family, M=20) & of.finished(method, family, M=160)
            return _Case(_difference(small, large), planned, finished)
    raise InputError(f"{NAME}.yaml: there is no statistic '{statistic}'; mend the file")


def _difference(minuends: BySplit, subtrahends: BySplit) -> BySplit:
    """Of the splits that both have; two infinities are equal."""
    shared = sorted(minuends.keys() & subtrahends.keys())
    pairs = {split: (minuends[split], subtrahends[split]) for split in shared}
    return {split: 0.0 if one == other else one - other for split, (one, other) in pairs.items()}


def _log(cell: StudyCell, value: float | None) -> float | None:
    """Of a KL. One that is 0 but for rounding counts as the least that a figure shows; what diverged or failed is
    infinitely far from everything."""
    if cell.status in ("diverged", "failed"):
        return math.inf
    return None if value is None else math.log(max(value, NO_LOGARITHM))


def _log_kl(cell: StudyCell) -> float | None:
    return _log(cell, cell.kl)


_PAIRED: dict[str, Callable[[StudyCell], float | None]] = {
    "log KL": _log_kl,
    "log KL mean term": lambda cell: _log(cell, cell.kl_mean_term),
    "log variance ratio in the box": lambda cell: cell.log_variance_ratio,
}
_DIFFERENCES: dict[str, Callable[[StudyCell], float | None]] = {
    "training log likelihood above exact's": lambda cell: cell.log_likelihood_excess,
    "the mean's training log likelihood above exact's": lambda cell: cell.mean_log_likelihood_excess,
    "log variance ratio in the box": lambda cell: cell.log_variance_ratio,
}
