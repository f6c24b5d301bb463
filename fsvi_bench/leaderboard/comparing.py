"""Two entries side by side: per data set, paired over splits, on a log scale.

A KL spans many orders of magnitude between splits: where one split's is 10⁷ times the others', a t test of plain
differences sees that one value (its t tends to 1, whatever the other splits say), and the exact posterior itself is not
told from a method that is wrong on every split. So what is tested is log10(max(a, 1e-6)/max(b, 1e-6)), paired: in
logarithms one split counts once. Scores of at most `CLOSED_FORM` count as that, as they do for ranks: they are 0 to
rounding. The test stays the corrected resampled t test. Wilcoxon's signed-rank test would do without logarithms, but it
takes splits to be independent, which they are not, and there is no correction of it for their overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.references import References
from fsvi_bench.leaderboard.rows import CLOSED_FORM, by_dataset, column, verified_cells
from fsvi_bench.leaderboard.tables import HEADLINES, Score
from fsvi_bench.statistics.multiple import holm
from fsvi_bench.statistics.resampled_t import corrected_interval, corrected_paired_test, paired_differences

LEVEL = 0.05  #: an adjusted p-value up to it tells two entries apart


@dataclass(frozen=True)
class Difference:
    """Scores of a and b on one data set, means over its splits; None where a cell of one of them is missing."""

    dataset: str
    a: float | None
    b: float | None
    #: Mean of log10(a/b), each at least CLOSED_FORM: −1 is ten times nearer. Two infinite scores of one split tie; None
    #: where a is infinite on some splits and b on others.
    log_ratio: float | None
    interval: tuple[float, float] | None  #: Nadeau and Bengio's 95 % interval of it; None where it is infinite
    p_value: float | None  #: two-sided, of the corrected resampled paired t test
    adjusted: float | None  #: Holm's, over the data sets that both have
    closer: Literal["a", "b"] | None = None  #: which is the better, where `adjusted` is at most LEVEL


@dataclass(frozen=True)
class Comparison:
    """a beside b; lower is better."""

    score: Score
    differences: tuple[Difference, ...]  #: one per data set of the references, in their order


def comparison(a: Entry, b: Entry, references: References, score: Score | None = None) -> Comparison:
    """By the headline of the track that both are in, across tracks by `predictive_kl_box`, or by a score given."""
    if score is None:
        score = HEADLINES[a.manifest.track] if a.manifest.track == b.manifest.track else "predictive_kl_box"
    of_a, of_b = (
        by_dataset(column(verified_cells(entry, references), references, score), references) for entry in (a, b)
    )
    found = [_difference(name, of_a[name], of_b[name], references.test_train_ratio(name)) for name in of_a]
    p_values = [each.p_value for each in found if each.p_value is not None]
    adjusted = iter(holm(p_values).tolist() if p_values else [])
    told = []
    for each in found:
        p = None if each.p_value is None else next(adjusted)
        closer = None if p is None or p > LEVEL else _closer(of_a[each.dataset], of_b[each.dataset])
        told.append(replace(each, adjusted=p, closer=closer))
    return Comparison(score, tuple(told))


def _closer(a: Float[np.ndarray, " J"], b: Float[np.ndarray, " J"]) -> Literal["a", "b"] | None:
    """By the mean of what the test is about, which the means of the scores may contradict where they are infinite, or
    one split's outweighs all others."""
    mean = float(_tested(paired_differences(_log(a), _log(b))).mean())
    return None if mean == 0 else "a" if mean < 0 else "b"


def _tested(differences: Float[np.ndarray, " J"]) -> Float[np.ndarray, " J"]:
    """What is tested where some are infinite: the limit in which these grow together, ±1 beside zeros.

    That limit lets one split that diverged outweigh all others, even those that say the same: where none says the
    opposite, an infinite difference counts as the largest finite one, if there are two of these to show a spread.
    """
    infinite = np.isinf(differences)
    if not infinite.any():
        return differences
    finite, signs = differences[~infinite], np.sign(differences)
    if len(finite) > 1 and finite.any() and abs(signs.sum()) == np.abs(signs).sum():
        return np.where(infinite, signs * np.abs(finite).max(), differences)
    return np.where(infinite, signs, 0.0)


def _log(scores: Float[np.ndarray, " J"]) -> Float[np.ndarray, " J"]:
    return np.log10(np.maximum(scores, CLOSED_FORM))


@np.errstate(over="ignore")  # a method that blew up may have a KL of 1e308 on several splits
def _difference(dataset: str, a: Float[np.ndarray, " J"], b: Float[np.ndarray, " J"], ratio: float) -> Difference:
    """Not adjusted yet."""
    mean_a, mean_b = (None if np.isnan(values).any() else float(values.mean()) for values in (a, b))
    if mean_a is None or mean_b is None:
        return Difference(dataset, mean_a, mean_b, None, None, None, None)
    differences = paired_differences(_log(a), _log(b))
    p_value = corrected_paired_test(_tested(differences), np.zeros_like(differences), ratio)
    if len(set(differences[np.isinf(differences)].tolist())) == 2:
        return Difference(dataset, mean_a, mean_b, None, None, p_value, None)
    log_ratio, low, high = corrected_interval(differences, ratio)
    interval = None if low is None or high is None else (low, high)
    return Difference(dataset, mean_a, mean_b, log_ratio, interval, p_value, None)
