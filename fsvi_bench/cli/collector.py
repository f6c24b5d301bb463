"""For commands that read one large thing, say something of it, and end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Nothing that is read is given up before the end: to look for garbage among a million objects finds little and
    takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
