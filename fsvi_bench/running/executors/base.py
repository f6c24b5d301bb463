"""What every executor is: something that makes independent calls, elsewhere and several at once."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from traceback import format_exc
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fsvi_bench.errors import TaskRefused

if TYPE_CHECKING:
    from fsvi_bench.training.trainer import Device

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class WorkerDied(RuntimeError):
    """A worker process was killed (out of memory, say) or crashed while it was at a call."""


class WorkersLost(RuntimeError):
    """Work cannot go on because all workers are out of reach; what they finished is kept."""


class Executor(Protocol):
    """Makes calls of a module's function with arguments and results that pickle."""

    @property
    def workers(self) -> int:
        """How many calls are made at once; work that can be split is split into as many parts."""

    @property
    def has_gpu(self) -> bool:
        """Whether calls can compute on a CUDA GPU; on a cluster this process's machine need not have one."""

    def on(self, device: Device) -> Executor:
        """The executor for calls that compute on this device: how many fit at once depends on it."""

    def map(
        self, function: Callable[[Argument], Result], arguments: Iterable[Argument]
    ) -> Iterator[tuple[Argument, Result | Exception]]:
        """(argument, result) as each call finishes, in any order.

        `arguments` is read no faster than workers take from it, so that a long list need not be in memory as a whole. A
        call's own exception (TaskRefused, ArithmeticError, RuntimeError) is its result, and the others go on. A call
        whose worker was lost is made again elsewhere; one that goes on losing its worker has `WorkerDied` for its
        result. When the iteration ends early, by an error or Ctrl-C, running calls are given up.

        Raises:
            InputError: a call's input was the user's mistake, which would be every other call's too.
        """


# Calls and answers travel as bytes: left to themselves, multiprocessing and Ray would put every tensor into shared
# memory, and run out of it.


def answer(call: bytes) -> bytes:
    """Runs in a worker: makes a pickled call, and pickles its result or what it raised."""
    try:
        return pickle.dumps((pickle.loads(call)(), None))
    except BaseException as error:
        error.add_note(format_exc())  # where in the worker it was
        return pickle.dumps((None, _portable(error)))


def _portable(error: BaseException) -> BaseException:
    """The error, or one that says the same if it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def read_answer(answered: bytes) -> Any:
    """A call's result; raises what it raised."""
    result, error = pickle.loads(answered)
    if error is not None:
        raise error
    return result


def as_result(error: Exception) -> Exception:
    """What a call raised, if that is its own result; raises what would be every other call's too."""
    if isinstance(error, TaskRefused | ArithmeticError | RuntimeError):
        return error
    raise error
