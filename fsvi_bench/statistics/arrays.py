"""Input of the statistics: scores of which lower is better, +Infinity is the worst, and NaN is missing."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from fsvi_bench.errors import InputError


def one_row(name: str, values: ArrayLike) -> Float[np.ndarray, " J"]:
    """At least one number, none missing.

    Raises:
        InputError: otherwise.
    """
    row = np.asarray(values, dtype=float)
    if row.ndim != 1 or not row.size:
        raise InputError(f"{name} has shape {list(row.shape)}, expected one row of at least one number")
    if np.isnan(row).any():
        raise InputError(f"{name} holds NaN at place {np.isnan(row).argmax()}; leave out what is missing")
    return row


def score_table(scores: ArrayLike) -> Float[np.ndarray, "M D"]:
    """Scores of M methods on D data sets.

    Raises:
        InputError: no such table, or a score of −Infinity, which no score of ours can be.
    """
    table = np.asarray(scores, dtype=float)
    if table.ndim != 2 or not table.shape[1]:
        raise InputError(f"scores have shape {list(table.shape)}, expected [methods, data sets]")
    refuse_minus_infinity(table)
    return table


def refuse_minus_infinity(scores: Float[np.ndarray, "*B"]) -> None:
    """Means of +Infinity and −Infinity are nothing; lower is better, so −Infinity is a score with the wrong sign."""
    if np.isneginf(scores).any():
        raise InputError("a score is -Infinity, expected a finite number or Infinity (lower is better): mind its sign")
