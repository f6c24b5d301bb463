"""A Ray cluster: calls on other machines, or on GPUs of which a call takes a share.

Nothing of Ray is imported with this module: it is an extra, and its import takes half a second.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from fsvi_bench.arithmetic import arithmetic
from fsvi_bench.errors import InputError
from fsvi_bench.running.executors.base import Argument, Result, WorkerDied, WorkersLost, is_result
from fsvi_bench.running.executors.ray_connection import Connection, answers, connect
from fsvi_bench.sources import package_sha256
from fsvi_bench.threads import use_one_thread

if TYPE_CHECKING:
    from fsvi_bench.training.trainer import Device

#: How often Ray makes a call again whose worker or node was lost. A call's own exception is never tried again.
RETRIES = 3
#: Seconds without a word from the head, and without any worker node, after which the cluster is given up. The first is
#: shorter than the 60 s after which Ray would end this very process.
HEAD_PATIENCE, WORKER_PATIENCE = 20.0, 60.0
_LOOK_EVERY = 2.0


def check_gpu_share(share: float | None) -> None:
    """Raises:
    InputError: it is not a share of one GPU.
    """
    if share is not None and not 0 < share <= 1:
        raise InputError(f"--gpu-share is {share:g}, expected above 0 and at most 1; 0.25 is four calls per GPU")


@dataclass(frozen=True)
class RayExecutor:
    """Calls as tasks of a Ray cluster, one thread each, on a CPU core or on a share of a GPU.

    Calls whose worker or node is lost are made again elsewhere by Ray; results travel back to this process.
    """

    connection: Connection
    limit: int | None = None  #: calls at once; None: as many as the cluster has room for
    gpu_share: float | None = None  #: of one GPU, for calls that compute on one; None: a whole one
    device: Device = "cpu"  #: what calls compute on
    head_patience: float = HEAD_PATIENCE
    worker_patience: float = WORKER_PATIENCE

    @classmethod
    def connect(cls, address: str | None, workers: int | None = None, gpu_share: float | None = None) -> RayExecutor:
        """Joins the cluster at `host:port` (or `auto`), or starts one on this machine.

        Raises:
            InputError: Ray is not installed, nothing answers at the address, or the cluster has no room for a call.
        """
        check_gpu_share(gpu_share)
        executor = cls(connect(address, workers), workers, gpu_share)
        if executor._room("cpu") < 1:
            raise InputError(
                f"the Ray cluster at {executor.connection.address} has no CPU to offer; start nodes with --num-cpus of "
                "1 or more"
            )
        if gpu_share is not None and not executor.has_gpu:
            raise InputError(
                f"--gpu-share: the Ray cluster at {executor.connection.address} has no GPU; start "
                "nodes with --num-gpus, or drop the flag"
            )
        return executor

    @property
    def has_gpu(self) -> bool:
        """Whether some node has a GPU to share; this process's machine need not have one."""
        return self._room("cuda") > 0

    @property
    def workers(self) -> int:
        """Room in the cluster as it is now, and no more than was asked for."""
        return max(1, self._bounded(self._room(self.device)))

    def on(self, device: Device) -> RayExecutor:
        """The same cluster for calls that compute on `device`; only those on a GPU take a share of one."""
        return replace(self, device=device)

    def map(
        self, function: Callable[[Argument], Result], arguments: Iterable[Argument]
    ) -> Iterator[tuple[Argument, Result | Exception]]:
        """See `Executor.map`.

        Raises:
            InputError: also where a node runs another version of this package.
            WorkersLost: the head did not answer for `head_patience` seconds, or no node for `worker_patience`.
        """
        import ray

        submit = self._submission(function)
        rest, under_way, watch = iter(arguments), dict[Any, Argument](), _Watch(self)
        try:
            while True:
                for argument in _take(rest, max(1, watch.workers()) - len(under_way)):
                    under_way[submit(argument)] = argument
                if not under_way:
                    return
                done, _ = ray.wait(list(under_way), timeout=1.0)
                for reference in done:
                    argument = under_way.pop(reference)
                    yield argument, _outcome(reference, self.head_patience)
        finally:
            if under_way and answers(self.connection.address):
                for reference in under_way:
                    ray.cancel(reference, force=True)

    def _submission(self, function: Callable[[Argument], Any]) -> Callable[[Argument], Any]:
        import ray

        share = (self.gpu_share or 1.0) if self.device == "cuda" else 0.0
        task = ray.remote(num_cpus=1, num_gpus=share, max_retries=RETRIES, retry_exceptions=False)(_attempt)
        code = pickle.dumps(function), package_sha256(), arithmetic()
        # As bytes: Ray would look into the arguments, and torch would put tensors into shared memory.
        return lambda argument: task.remote(*code, pickle.dumps(argument))

    def _room(self, device: Device) -> int:
        """How many calls fit on the nodes that are alive; each takes a core, and on a GPU its share.

        Raises:
            WorkersLost: the head does not answer.
        """
        import ray

        if not answers(self.connection.address):
            # Asked by hand: without its head, Ray would hang for a minute and then end this process.
            raise WorkersLost(f"the Ray cluster at {self.connection.address} is lost: its head does not answer")
        room = 0
        for node in ray.nodes():  # type: ignore[no-untyped-call]
            if node["Alive"]:
                cores = int(node["Resources"].get("CPU", 0))
                gpus = int(node["Resources"].get("GPU", 0))
                # Shares of one GPU only: a call cannot take halves of two.
                places = gpus * math.floor(1 / (self.gpu_share or 1.0) + 1e-9)
                room += min(cores, places) if device == "cuda" else cores
        return room

    def _bounded(self, room: int) -> int:
        return room if self.limit is None else min(room, self.limit)


@dataclass
class _Watch:
    """Looks now and then whether the cluster is still there and how much room it has.

    Ray itself waits for ever when all worker nodes are gone, and ends this process without a word to its caller when
    the head is gone.
    """

    executor: RayExecutor
    _room: int = 1
    _looked: float = -math.inf
    _head_seen: float = field(default_factory=time.monotonic)
    _room_seen: float = field(default_factory=time.monotonic)

    def workers(self) -> int:
        """How many calls there is room for.

        Raises:
            WorkersLost: the cluster has been gone for too long.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY:
            return self._room
        with contextlib.suppress(WorkersLost):
            self._room = self.executor._bounded(self.executor._room(self.executor.device))
            self._head_seen = now
        if self._room > 0:
            self._room_seen = now
        self._looked = time.monotonic()
        self._require(now - self._head_seen, self.executor.head_patience, "its head does not answer")
        self._require(now - self._room_seen, self.executor.worker_patience, "it has no worker node left")
        return self._room

    def _require(self, seconds: float, patience: float, what: str) -> None:
        if seconds > patience:
            raise WorkersLost(
                f"the Ray cluster at {self.executor.connection.address} is lost: {what} for {seconds:.0f} s; what was "
                "finished is kept, the same command goes on from there"
            )


def _take(rest: Iterator[Argument], count: int) -> Iterator[Argument]:
    return islice(rest, max(0, count))


class _Raised(NamedTuple):
    """What a call raised, on its way back. Ray would wrap the error, and try to pickle what cannot be pickled."""

    error: Exception


def _attempt(function: bytes, sources: str, rounding: dict[str, str], argument: bytes) -> bytes:
    """Runs in a worker of the cluster."""
    try:
        if package_sha256() != sources:
            raise InputError(
                f"the Ray node {socket.gethostname()} has other sources of fsvi-bench than the process that started "
                "the run; install one version on every node, leave it alone while a run is under way, and run again"
            )
        os.environ.update(rounding)  # before anything is computed there
        use_one_thread()
        return pickle.dumps(pickle.loads(function)(pickle.loads(argument)))
    except Exception as error:
        return pickle.dumps(_Raised(_portable(error)))


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same if it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _outcome(reference: Any, patience: float) -> Any:
    """A finished task's result or the error that is its result; raises what ends everything."""
    import ray
    from ray.exceptions import GetTimeoutError, LocalRayletDiedError, RayError, RayTaskError

    try:
        outcome = pickle.loads(ray.get(reference, timeout=patience))
    except GetTimeoutError as error:
        raise WorkersLost("the Ray cluster does not hand out a finished result; run the same command again") from error
    except LocalRayletDiedError as error:
        raise WorkersLost("this machine is no node of the Ray cluster any more; start it and run again") from error
    except RayTaskError as error:  # not the call's own error, which `_attempt` returns
        raise InputError(
            f"a node of the Ray cluster cannot run fsvi-bench ({type(error.cause).__name__}: {error.cause}); install "
            "the same version of it, and of Ray and Python, on every node"
        ) from error
    except RayError as error:
        return WorkerDied(
            f"the worker that computed this was lost {RETRIES + 1} times ({type(error).__name__}); it may have run out "
            "of memory"
        )
    if isinstance(outcome, _Raised):
        if is_result(outcome.error):
            return outcome.error
        raise outcome.error
    return outcome
