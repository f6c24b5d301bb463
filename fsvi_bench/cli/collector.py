"""Garbage collection off, for commands that read a large folder, print a summary, and exit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disables garbage collection in a block: almost all objects live until the end, and searching a million of them
    takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
