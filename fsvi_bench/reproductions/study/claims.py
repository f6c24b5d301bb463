"""The paper's claims, judged from the study's table: by data set and jitter, over as many splits as there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from fsvi_bench.errors import InputError
from fsvi_bench.reporting.figures import NO_LOGARITHM
from fsvi_bench.reproductions.claims import Claim, Statistic, Verdict
from fsvi_bench.reproductions.study.table import StudyCell
from fsvi_bench.resources import read_yaml, resource_dir

NAME = "burt2020-study"
MEASUREMENT_POINTS = 80  #: the paper's default
FEWEST_SPLITS = 2  #: with which there is an interval
Outcome = Literal["held", "did not hold", "undecided", "not judged"]
BySplit = Mapping[int, float]


class StudyFile(BaseModel):
    """`conf/reproductions/burt2020-study.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    summary: str
    protocol: str
    quick: dict[str, Any]
    claims: tuple[Claim, ...]


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
    """One claim on one data set at one jitter. Without a verdict there were too few splits, or infinite scores."""

    claim: Claim
    dataset: str
    kl_jitter: float
    verdict: Verdict | None
    splits: int  #: that went into it
    planned: int  #: that should
    agreeing: int  #: of `splits`, those whose own difference is on the claimed side

    @property
    def outcome(self) -> Outcome:
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

    def values(
        self, method: str, family: str, value: Callable[[StudyCell], float | None], M: int | None = MEASUREMENT_POINTS
    ) -> BySplit:
        found = ((cell.split, value(cell)) for cell in self._of(method, family, M) if cell.status == "ok")
        return {split: each for split, each in found if each is not None}

    def _of(self, method: str, family: str, M: int | None) -> Iterator[StudyCell]:
        size = None if method == "exact" else M
        yield from (cell for cell in self.cells if (cell.method, cell.family, cell.M) == (method, family, size))


class _Case(NamedTuple):
    """A statistic's differences by split, and the splits that are planned for it."""

    differences: BySplit
    planned: set[int]


def judge_study(cells: Sequence[StudyCell], claims: Sequence[Claim]) -> list[Judged]:
    """Every claim on every data set and jitter on which it was planned.

    Raises:
        InputError: a claim names a statistic that there is not.
    """
    judged = []
    for claim in claims:
        for dataset in sorted({cell.dataset for cell in cells}):
            here = [cell for cell in cells if cell.dataset == dataset]
            jitters = sorted({cell.kl_jitter for cell in here if cell.kl_jitter is not None})
            for jitter in jitters[:1] if ": exact " in claim.statistic else jitters:
                selection = _Selection([cell for cell in here if cell.kl_jitter in (None, jitter)])
                if (case := _case(claim.statistic, selection)).planned:
                    judged.append(_judge(claim, dataset, jitter, case))
    return judged


def _judge(claim: Claim, dataset: str, jitter: float, case: _Case) -> Judged:
    values = list(case.differences.values())
    sign = 1 if claim.side == "above" else -1
    agreeing = sum(sign * (value - claim.threshold) > 0 for value in values)
    known = len(values) >= FEWEST_SPLITS and all(map(math.isfinite, values))
    verdict = claim.judge(Statistic.of_mean(values)) if known else None
    return Judged(claim, dataset, jitter, verdict, len(values), len(case.planned), agreeing)


def _case(statistic: str, of: _Selection) -> _Case:
    """The differences that a statistic is the mean of, by the form of its name."""
    kind, _, what = statistic.partition(": ")
    methods = [tuple(each.split()) for each in what.split(" - ")]
    match kind, methods:
        case ("log KL" | "log KL mean term", [(method, family), (other, other_family)]):
            value = _LOGARITHMS[kind]
            mine, others = of.values(method, family, value), of.values(other, other_family, value)
            return _Case(_difference(mine, others), of.planned(method, family) & of.planned(other, other_family))
        case ("training log likelihood above exact's" | "log variance ratio in the box", [(method, family)]):
            return _Case(of.values(method, family, _DIFFERENCES[kind]), of.planned(method, family))
        case ("log KL, M = 20 above M = 160", [(method, family)]):
            small, large = of.values(method, family, _log_kl, M=20), of.values(method, family, _log_kl, M=160)
            planned = of.planned(method, family, M=20) & of.planned(method, family, M=160)
            return _Case(_difference(small, large), planned)
    raise InputError(f"{NAME}.yaml: there is no statistic '{statistic}'; mend the file")


def _difference(minuends: BySplit, subtrahends: BySplit) -> BySplit:
    """Of the splits that both have."""
    return {split: minuends[split] - subtrahends[split] for split in sorted(minuends.keys() & subtrahends.keys())}


def _log(value: float | None) -> float | None:
    """Of a KL; one that is 0 but for rounding counts as the least that a figure shows."""
    return None if value is None else math.log(max(value, NO_LOGARITHM))


def _log_kl(cell: StudyCell) -> float | None:
    return _log(cell.kl)


_LOGARITHMS: dict[str, Callable[[StudyCell], float | None]] = {
    "log KL": _log_kl,
    "log KL mean term": lambda cell: _log(cell.kl_mean_term),
}
_DIFFERENCES: dict[str, Callable[[StudyCell], float | None]] = {
    "training log likelihood above exact's": lambda cell: cell.log_likelihood_excess,
    "log variance ratio in the box": lambda cell: cell.log_variance_ratio,
}
