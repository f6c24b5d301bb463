"""Claims of papers: a statistic with its interval against a threshold that was fixed before the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from scipy import stats

from fsvi_bench.statistics.resampled_t import corrected_interval

TEST_TRAIN_RATIO = 1 / 9  #: of the standard splits, which are 90/10


class Statistic(NamedTuple):
    """An estimate with its 95% interval; one that is not random has all three equal."""

    value: float
    low: float
    high: float

    @staticmethod
    def exact(value: float) -> Statistic:
        return Statistic(value, value, value)

    @staticmethod
    def of_mean(values: Sequence[float]) -> Statistic:
        """Mean with its t-interval; without a spread to judge by (one value), an interval of everything."""
        mean = float(np.mean(values))
        if len(values) < 2:
            return Statistic(mean, -np.inf, np.inf)
        half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
        return Statistic(mean, mean - half, mean + half)

    @staticmethod
    def of_splits(values: Sequence[float], test_train_ratio: float = TEST_TRAIN_RATIO, about: float = 0.0) -> Statistic:
        """Mean over splits that share rows, with the corrected resampled t-interval (Nadeau and Bengio 2003).

        Where some are infinite it is the limit in which these grow together: on which side of `about` they lie is
        judged, and nothing of the others unless all lie on the same, and the interval is one infinity, the other, or
        everything. NaN if a value is.
        """
        row = np.asarray(values, dtype=float)
        if np.isnan(row).any():
            return Statistic.exact(np.nan)
        infinite = np.isinf(row)
        signs = np.sign(row - about)
        agree = len(set(signs.tolist())) == 1
        judged = (signs if agree else np.where(infinite, signs, 0.0)) if infinite.any() else row
        mean, low, high = corrected_interval(judged, test_train_ratio)
        if low is None or high is None:
            low, high = -np.inf, np.inf
        if not infinite.any():
            return Statistic(mean, low, high)
        return Statistic(
            mean * np.inf if mean else 0.0, np.inf if low > 0 else -np.inf, -np.inf if high < 0 else np.inf
        )


class Worst(Statistic):
    """That of the case which decides a claim about every one of several, and what this case is called."""

    case: str

    def __new__(cls, found: Statistic, case: str) -> Worst:
        worst = super().__new__(cls, *found)
        worst.case = case
        return worst

    def __getnewargs__(self) -> tuple[Statistic, str]:  # type: ignore[override]
        """For copies and other processes: a tuple alone would lose the case."""
        return Statistic(*self), self.case


class Claim(BaseModel):
    """It holds if the whole interval of its statistic lies on the claimed side of the threshold."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    statistic: str
    says: str  #: what the paper claims, in our words, with its section, table or figure
    side: Literal["above", "below"]
    threshold: float = Field(allow_inf_nan=False)

    def judge(self, found: Statistic) -> Verdict:
        """The verdict, whose `statistic` ends in the case that decides it where several could."""
        holds = found.low > self.threshold if self.side == "above" else found.high < self.threshold
        told = f"{self.statistic} ({found.case})" if isinstance(found, Worst) else self.statistic
        return Verdict(**{**self.model_dump(), "statistic": told}, **found._asdict(), holds=bool(holds))


class Verdict(Claim):
    """A claim and what came out."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    value: float
    low: float
    high: float
    holds: bool

    @property
    def undecided(self) -> bool:
        """It does not hold, but the threshold lies inside the interval."""
        return not self.holds and self.low <= self.threshold <= self.high and self.low < self.high


def judge(claims: Sequence[Claim], statistics: Mapping[str, Statistic]) -> tuple[Verdict, ...]:
    """A verdict on every claim.

    Raises:
        ValueError: claims and statistics do not name the same things: one of them would go unseen.
    """
    named = {claim.statistic for claim in claims}
    if named != statistics.keys():
        raise ValueError(f"claims and statistics differ in {', '.join(sorted(named ^ statistics.keys()))}")
    return tuple(claim.judge(statistics[claim.statistic]) for claim in claims)
