"""Limits a process or a block to one thread: small linear algebra is slower on two threads, and rounds differently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock

# These settings are shared by all Python threads of a process: the first block sets them, the last one restores them.
_lock = Lock()
_blocks = 0
_undo = ExitStack()


def use_one_thread() -> None:
    """Limits torch, BLAS and OpenMP of this process to one thread."""
    import scipy.linalg  # noqa: F401 -- only loaded libraries can be limited, and SciPy has its own BLAS
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """As `use_one_thread`, for a block or a decorated function; the previous setting is restored afterwards."""
    global _blocks
    import scipy.linalg  # noqa: F401 -- as above
    import torch
    from threadpoolctl import threadpool_limits

    with _lock:
        if _blocks == 0:
            _undo.callback(torch.set_num_threads, torch.get_num_threads())
            _undo.enter_context(threadpool_limits(1))
            torch.set_num_threads(1)
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                _undo.close()
