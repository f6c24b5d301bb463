"""What Lightning says on a terminal that our own options have said already."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_word_of_unused_gpus() -> Iterator[None]:
    """With every batch trained on a CPU beside a GPU, as `--device cpu` asks for, Lightning advises to use the GPU."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="GPU available but not used")
        yield
