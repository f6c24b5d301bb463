"""Claims of papers: a statistic with its interval, compared with a threshold that was fixed before the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.core.groupby import SeriesGroupBy
from pydantic import Field
from scipy import stats

from fsvi_bench.presenting.frames import Frames, formula, select
from fsvi_bench.statistics.resampled_t import corrected_interval
from fsvi_bench.strict import Plain

TEST_TRAIN_RATIO = 1 / 9  #: for the standard 90/10 splits


class Statistic(NamedTuple):
    """An estimate with its 95% interval; for a deterministic value all three are equal."""

    value: float
    low: float
    high: float

    @staticmethod
    def exact(value: float) -> Statistic:
        return Statistic(value, value, value)

    @staticmethod
    def of_proportion(successes: Sequence[float] | NDArray[Any], level: float = 0.95) -> Statistic:
        """The proportion of true values, with the interval of Clopper and Pearson (1934)."""
        found = stats.binomtest(int(np.sum(successes)), len(successes))
        return Statistic(found.statistic, *map(float, found.proportion_ci(level)))

    @staticmethod
    def of_mean(
        values: ArrayLike, test_train_ratio: float = 0.0, about: float | None = 0.0, level: float = 0.95
    ) -> Statistic:
        """Mean of independent values with its t-interval, or for splits that share rows, with the corrected one.

        The corrected resampled t-interval is that of Nadeau and Bengio (2003).

        If some values are infinite, the mean is that of the sides of `about` on which they are, times infinity, and
        finite values count as 0 unless all are on the same side. The interval is then +∞, −∞, or unbounded. Without
        `about`, finite values always count as 0. The result is NaN if a value is NaN, and a single value has an
        unbounded interval.
        """
        row = np.asarray(values, dtype=float)
        if np.isnan(row).any():
            return Statistic.exact(np.nan)
        infinite, sides = np.isinf(row), np.sign(row - (about or 0.0))
        if infinite.any():
            row = sides if about is not None and np.ptp(sides) == 0 else np.where(infinite, sides, 0.0)
        mean, low, high = corrected_interval(row, test_train_ratio, level)
        if low is None or high is None:
            low, high = -np.inf, np.inf
        if not infinite.any():
            return Statistic(mean, low, high)
        return Statistic(
            mean * np.inf if mean else 0.0, np.inf if low > 0 else -np.inf, -np.inf if high < 0 else np.inf
        )

    @property
    def magnitude(self) -> Statistic:
        """|x| and the values that it takes within x's interval."""
        near, far = sorted((abs(self.low), abs(self.high)))
        return Statistic(abs(self.value), 0.0 if self.low <= 0 <= self.high else near, far)


def intervals(groups: SeriesGroupBy[Any, Any], geometric: bool = False) -> pd.DataFrame:
    """Each group's mean or geometric mean with its t-interval, in columns `value`, `low` and `high`."""
    found = [Statistic.of_mean(np.log(each) if geometric else each) for _, each in groups]
    frame = pd.DataFrame(found, index=groups.first().index)
    return frame.map(np.exp) if geometric else frame


#: The value of a statistic: one number, or one per repetition; or these by case, for a claim about all cases.
Repetitions = float | Sequence[Any] | NDArray[Any]
Values = Repetitions | Mapping[Any, Repetitions]


class Selection(Plain):
    """The location of a claim's statistic in the frames: one number, or repetitions, in selected rows of a column.

    Args:
        column: a column or a formula of columns; three of them for an estimate and the ends of its interval.
        where: column -> the value, or values, by which rows are selected.
        by: the columns that identify a row's case; numbers are shown with the column's name, as in `N 100`. A row
            without one of them belongs to no case.
    """

    frame: str
    column: str | list[str]
    where: dict[str, Any] = {}
    by: str | list[str] = []

    def of(self, frames: Frames) -> Values:
        """The values at this place. Raises KeyError if the frame, a column, or any row for `where` does not exist."""
        rows = select(frames[self.frame], self.where)
        columns = [self.column] if isinstance(self.column, str) else self.column
        values = pd.DataFrame({name: formula(rows, name) for name in columns})
        names = [self.by] if isinstance(self.by, str) else self.by
        if not names:
            return _repetitions(values)
        cases = values.groupby([rows[name] for name in names], sort=False)
        found = {", ".join(map(_label, names, case)): _repetitions(of_case) for case, of_case in cases}
        if len(found) < len(cases):
            raise ValueError(f"two cases of {', '.join(names)} have the same label")
        return found


def _repetitions(values: pd.DataFrame) -> Repetitions:
    return Statistic(*values.iloc[0].tolist()) if values.shape[1] == 3 else values.iloc[:, 0].tolist()


def _label(name: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{name} {value:g}"


class Claim(Plain):
    """A claim, which holds if the whole interval of its statistic is on the claimed side of the threshold.

    Args:
        unit: of the statistic, its interval and the threshold; empty for ratios and counts.
        interval: over repetitions, `t` for the mean, `splits` for the mean over splits that share rows, or
            `proportion` for the proportion of true values. Without it the statistic is deterministic.
        geometric: use the geometric mean, and the interval of the logarithms.
        magnitude: the claim is about the absolute value.
    """

    statistic: str
    says: str  #: what the paper claims, in our words, with its section, table or figure
    unit: str = ""
    interval: Literal["t", "splits", "proportion"] | None = None
    geometric: bool = False
    magnitude: bool = False
    side: Literal["above", "below"]
    threshold: float = Field(allow_inf_nan=False)

    def judge(self, found: Values) -> Verdict:
        """Judges the claim. Of several cases the least favourable decides; the verdict's `statistic` names it.

        If each case's claim is wrongly accepted with probability 2.5%, their conjunction is wrongly accepted with at
        most this probability (Berger 1982). One case that is wholly on the other side refutes the claim, however wide
        the intervals of others: by intervals of level 1 − 5%/n for n cases (Bonferroni), so that a true claim is
        refuted with at most 2.5%. The verdict shows the case's 95% interval, or the wider one if that one alone keeps
        the claim undecided. A statistic that comes with its interval is judged by it, however many cases there are.

        Raises:
            ValueError: there are no cases.
        """
        cases = found if isinstance(found, Mapping) else {"": found}
        if not cases:
            raise ValueError(f"'{self.statistic}' has no cases")
        judged = {name: self._statistic(values) for name, values in cases.items()}
        ranks = {name: self._rank(statistic) for name, statistic in judged.items()}
        level = 1 - 0.05 / len(cases)
        wide = {name: self._statistic(values, level) for name, values in cases.items()}
        refuting = [name for name, statistic in wide.items() if self._refuted_by(statistic)]
        unknown = [name for name, (known, _) in ranks.items() if not known]
        decisive = min(unknown or refuting or ranks, key=lambda name: ranks[name])
        others = list(ranks.values()).count(ranks[decisive]) - 1
        case = f"{decisive} and {others} more" if others else f"{decisive}"
        statistic = self.statistic if decisive == "" else f"{self.statistic} ({case})"
        shown = judged[decisive]
        if self._refuted_by(shown) and not refuting:
            shown = wide[decisive]
        holds = shown.low > self.threshold if self.side == "above" else shown.high < self.threshold
        return Verdict(**{**self.model_dump(), "statistic": statistic}, **shown._asdict(), holds=bool(holds))

    def _refuted_by(self, case: Statistic) -> bool:
        return case.high < self.threshold if self.side == "above" else case.low > self.threshold

    def _statistic(self, found: Repetitions, level: float = 0.95) -> Statistic:
        if isinstance(found, Statistic):
            return found
        values = np.asarray(found, dtype=float)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # infinite ends are results, not warnings
            scale = np.log if self.geometric else np.positive
            statistic = self._interval(scale(values), scale(self.threshold), level)
            statistic = statistic.magnitude if self.magnitude else statistic
            return Statistic(*np.exp(statistic).tolist()) if self.geometric else statistic

    def _interval(self, values: NDArray[np.float64], threshold: float, level: float) -> Statistic:
        if self.interval is None:
            return Statistic.exact(values.item())
        if self.interval == "proportion":
            return Statistic.of_proportion(values, level)
        ratio, about = TEST_TRAIN_RATIO if self.interval == "splits" else 0.0, None if self.magnitude else threshold
        return Statistic.of_mean(values, ratio, about, level)

    def _rank(self, case: Statistic) -> tuple[bool, float]:
        """A key that is smaller the less favourable a case is; NaN is the smallest."""
        if np.isnan(case).any():
            return False, 0.0
        return True, case.low if self.side == "above" else -case.high


class Verdict(Claim):
    """A claim and its result."""

    value: float
    low: float
    high: float
    holds: bool

    @property
    def undecided(self) -> bool:
        """Whether the claim does not hold but the threshold is inside the interval."""
        return not self.holds and self.low <= self.threshold <= self.high and self.low < self.high

    @property
    def found(self) -> str:
        """The value with its unit."""
        return f"{self._written(self.value)} {self.unit}".rstrip()

    @property
    def between(self) -> str:
        """The interval."""
        return f"{self._written(self.low)} to {self._written(self.high)}"

    def _written(self, number: float) -> str:
        """Three digits; more if one of the verdict's numbers would be written as the threshold."""
        digits, numbers = 3, (self.value, self.low, self.high)
        while digits < 6 and any(float(f"{each:.{digits}g}") == self.threshold != each for each in numbers):
            digits += 1
        return f"{number:.{digits}g}".replace("inf", "∞")

    @property
    def outcome(self) -> str:
        """`held`, `did not hold`, `undecided`, or `not judged` if there is no value."""
        if any(map(math.isnan, (self.value, self.low, self.high))):
            return "not judged"
        return "held" if self.holds else "undecided" if self.undecided else "did not hold"


class PlacedClaim(Claim):
    """A claim, and the place of its statistic in the experiment's frames."""

    at: Selection = Field(exclude=True)


def judge(claims: Sequence[PlacedClaim], frames: Frames) -> tuple[Verdict, ...]:
    """A verdict on every claim.

    Raises:
        ValueError: two claims have the same statistic, or a statistic has the wrong form for its claim.
        KeyError: a claim names a frame or column that does not exist.
    """
    if len({claim.statistic for claim in claims}) < len(claims):
        raise ValueError("two claims have the same statistic")
    return tuple(claim.judge(claim.at.of(frames)) for claim in claims)
