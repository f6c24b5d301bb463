"""The standard train/test splits, regenerated from their seed, and the syntax of options that select them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fsvi_bench.errors import InputError, quoted

Index = NDArray[np.int64]
Rows = Sequence[Index]  #: training rows, test rows
TRAIN_FRACTION = 0.9


def standard_splits(
    n: int, count: int, *, seed: int = 1, train_fraction: float = TRAIN_FRACTION
) -> Iterator[tuple[Index, Index]]:
    """Train and test rows of each split: the protocol of PBP and Gal, permutations drawn in order from seed 1.

    The protocol requires the legacy `RandomState`: no other generator yields the published splits.
    """
    stream = np.random.RandomState(seed)
    n_train = round(train_fraction * n)
    for _ in range(count):
        permutation = stream.choice(n, n, replace=False).astype(np.int64)
        yield permutation[:n_train], permutation[n_train:]


def index_sha256(index: Index) -> str:
    """SHA-256 of an index array's little-endian int64 bytes."""
    return hashlib.sha256(index.astype("<i8").tobytes()).hexdigest()


def splits_sha256(splits: Iterable[Rows]) -> str:
    """One SHA-256 over several splits: train then test indices of each, in order."""
    return index_sha256(np.concatenate([index for rows in splits for index in rows]))


def parse_ranges(text: str, what: str = "--splits") -> list[int]:
    """Parses `0-19`, `0,3,5` or a combination to sorted distinct numbers.

    Raises:
        InputError: the text has another form.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:\s*-\s*(\d{1,6}))?\s*", part)
        if match is None:
            raise InputError(
                f"{what} {quoted(text)} is not understood; write a range such as 0-19 or a list such as 0,3,5"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InputError(f"{what} is '{text}', expected ascending numbers; write {last}-{first}")
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def ranges(numbers: Iterable[int]) -> str:
    """The inverse of `parse_ranges`: `0-4,7` for 0, 1, 2, 3, 4, 7."""
    ordered = np.unique(np.fromiter(numbers, dtype=int))
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
