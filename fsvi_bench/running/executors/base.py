"""What every executor is: something that makes independent calls, elsewhere and several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

from fsvi_bench.errors import InputError, TaskRefused

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


def is_result(error: BaseException) -> bool:
    """Whether what a call raised is its own result, or the end of everything."""
    return isinstance(error, TaskRefused | ArithmeticError | RuntimeError) and not isinstance(error, InputError)
