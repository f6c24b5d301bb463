"""A Ray cluster: calls on other machines, or on GPUs of which a call takes a share.

Nothing of Ray is imported with this module: it is an extra, and its import takes half a second.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from fsvi_bench.arithmetic import arithmetic
from fsvi_bench.errors import InputError, quoted
from fsvi_bench.running.executors.base import Argument, Result, WorkerDied, WorkersLost, answer, as_result, read_answer
from fsvi_bench.running.executors.local import available_cores
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
#: Seconds that a cluster has for taking this process in.
PATIENCE = 30.0
#: What this process tells Ray unless the environment says otherwise. A link that goes silent is noticed after 8 s, not
#: never; a call that is killed for memory is tried again as often as any other, not for ever.
SETTINGS = {
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "3000",
    "RAY_task_oom_retries": "3",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # of a cluster started here; Ray's workers would give way to everything else
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # it would print on stdout that a worker was lost
}
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
_PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR'); ray.shutdown()"


@dataclass(frozen=True)
class RayExecutor:
    """Calls as tasks of a Ray cluster, one thread each, on a CPU core or on a share of a GPU.

    Calls whose worker or node is lost are made again elsewhere by Ray; results travel back to this process.
    """

    address: str  #: host:port of the cluster's head
    limit: int | None = None  #: calls at once; None: as many as the cluster has room for
    gpu_share: float | None = None  #: of one GPU, for calls that compute on one; None: a whole one
    device: Device = "cpu"  #: what calls compute on
    head_patience: float = HEAD_PATIENCE
    worker_patience: float = WORKER_PATIENCE

    @classmethod
    def connect(cls, address: str | None, workers: int | None = None, gpu_share: float | None = None) -> RayExecutor:
        """Joins the cluster at `host:port` (or `auto`: the one that runs on this machine), or starts one here.

        Raises:
            InputError: Ray is not installed, nothing answers at the address, or the cluster has no room for a call.
        """
        if gpu_share is not None and not 0 < gpu_share <= 1:
            raise InputError(
                f"--gpu-share is {gpu_share:g}, expected above 0 and at most 1; 0.25 is four calls per GPU"
            )
        executor = cls(connect(address, workers), workers, gpu_share)
        if executor.room() < 1:
            raise InputError(
                f"the Ray cluster at {executor.address} has no CPU to offer; start nodes with --num-cpus of 1 or more"
            )
        if gpu_share is not None and not executor.has_gpu:
            raise InputError(
                f"--gpu-share: the Ray cluster at {executor.address} has no GPU; start nodes with --num-gpus, or drop "
                "the flag"
            )
        return executor

    def close(self) -> None:
        """Leaves the cluster, and ends it if it was started here."""
        import ray

        ray.shutdown()

    @property
    def has_gpu(self) -> bool:
        """Whether some node has a GPU to share; this process's machine need not have one."""
        return self.on("cuda").room() > 0

    @property
    def workers(self) -> int:
        """Room in the cluster as it is now, and no more than was asked for."""
        return max(1, self.room())

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

        share = (self.gpu_share or 1.0) if self.device == "cuda" else 0.0
        task = ray.remote(num_cpus=1, num_gpus=share, max_retries=RETRIES, retry_exceptions=False)(_attempt)
        rest, under_way, watch = iter(arguments), dict[Any, Argument](), _Watch(self)
        try:
            while True:
                for argument in islice(rest, max(0, max(1, watch.workers()) - len(under_way))):
                    call = pickle.dumps(partial(function, argument))
                    under_way[task.remote(call, package_sha256(), arithmetic())] = argument
                if not under_way:
                    return
                done, _ = ray.wait(list(under_way), timeout=1.0)
                for reference in done:
                    yield under_way.pop(reference), _outcome(reference, self.head_patience)
        finally:
            if under_way and answers(self.address):
                for reference in under_way:
                    ray.cancel(reference, force=True)

    def room(self) -> int:
        """How many calls fit on the nodes that are alive; each takes a core, and on a GPU its share.

        Raises:
            WorkersLost: the head does not answer.
        """
        import ray

        if not answers(self.address):
            # Asked by hand: without its head, Ray would hang for a minute and then end this process.
            raise WorkersLost(f"the Ray cluster at {self.address} is lost: its head does not answer")
        room = 0
        for node in ray.nodes():  # type: ignore[no-untyped-call]
            if node["Alive"]:
                cores, gpus = (int(node["Resources"].get(name, 0)) for name in ("CPU", "GPU"))
                # Shares of one GPU only: a call cannot take halves of two.
                places = gpus * math.floor(1 / (self.gpu_share or 1.0) + 1e-9)
                room += min(cores, places) if self.device == "cuda" else cores
        return room if self.limit is None else min(room, self.limit)


class _Watch:
    """Looks now and then whether the cluster is still there and how much room it has.

    Ray itself waits for ever when all worker nodes are gone, and ends this process without a word to its caller when
    the head is gone.
    """

    def __init__(self, executor: RayExecutor) -> None:
        self.executor, self.room, self.looked = executor, 1, -math.inf
        self.head_seen = self.room_seen = time.monotonic()

    def workers(self) -> int:
        """How many calls there is room for.

        Raises:
            WorkersLost: the cluster has been gone for too long.
        """
        now = time.monotonic()
        if now - self.looked < _LOOK_EVERY:
            return self.room
        with contextlib.suppress(WorkersLost):
            self.room, self.head_seen = self.executor.room(), now
        if self.room > 0:
            self.room_seen = now
        self.looked = time.monotonic()
        self._require(now - self.head_seen, self.executor.head_patience, "its head does not answer")
        self._require(now - self.room_seen, self.executor.worker_patience, "it has no worker node left")
        return self.room

    def _require(self, seconds: float, patience: float, what: str) -> None:
        if seconds > patience:
            raise WorkersLost(
                f"the Ray cluster at {self.executor.address} is lost: {what} for {seconds:.0f} s; what was finished is "
                "kept, the same command goes on from there"
            )


def _attempt(call: bytes, sources: str, rounding: dict[str, str]) -> bytes:
    """Runs in a worker of the cluster."""
    if package_sha256() != sources:
        return answer(pickle.dumps(partial(_refuse, socket.gethostname())))
    os.environ.update(rounding)  # before anything is computed there
    use_one_thread()
    return answer(call)


def _refuse(host: str) -> None:
    raise InputError(
        f"the Ray node {host} has other sources of fsvi-bench than the process that started the run; install one "
        "version on every node, leave it alone while a run is under way, and run again"
    )


def _outcome(reference: Any, patience: float) -> Any:
    """A finished task's result or the error that is its result; raises what ends everything."""
    import ray
    from ray.exceptions import GetTimeoutError, LocalRayletDiedError, RayError, RayTaskError

    try:
        answered = ray.get(reference, timeout=patience)
    except GetTimeoutError as error:
        raise WorkersLost("the Ray cluster does not hand out a finished result; run the same command again") from error
    except LocalRayletDiedError as error:
        raise WorkersLost("this machine is no node of the Ray cluster any more; start it and run again") from error
    except RayTaskError as error:  # not the call's own error, which `answer` returns
        raise InputError(
            f"a node of the Ray cluster cannot run fsvi-bench ({type(error.cause).__name__}: {error.cause}); install "
            "the same version of it, and of Ray and Python, on every node"
        ) from error
    except RayError as error:
        return WorkerDied(
            f"the worker that computed this was lost {RETRIES + 1} times ({type(error).__name__}); it may have run out "
            "of memory"
        )
    try:
        return read_answer(answered)
    except Exception as error:
        return as_result(error)


def connect(address: str | None, workers: int | None) -> str:
    """Joins the cluster at `host:port` (or `auto`: the one that runs on this machine), or starts one for this process.

    Returns:
        host:port of its head.

    Raises:
        InputError: Ray is not installed, or there is no cluster at the address that takes this process in.
    """
    _require_ray(ours=address is None)
    import ray

    if ray.is_initialized():
        raise InputError("this process is part of a Ray cluster already; leave that one first with ray.shutdown()")
    if address is None:
        ray.init(address="local", num_cpus=workers or available_cores(), include_dashboard=False, **_QUIET)
    else:
        _require_cluster(address)
        ray.init(address=address, **_QUIET)
    return str(ray.get_runtime_context().gcs_address)


def answers(address: str, seconds: float = 5.0) -> bool:
    """Whether something listens at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds):
            return True
    except OSError:
        return False


def _require_ray(ours: bool) -> None:
    """Imports Ray, which reads its settings at import and never again."""
    if "ray" not in sys.modules:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        if ours:
            # Ports of a cluster started here may be reached from other machines: by nobody without the token.
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError as error:
        mend = "in the clone: pip install -e '.[cluster]'"
        raise InputError(f"--executor ray needs Ray, which is not installed; {mend}") from error


def _require_cluster(address: str) -> None:
    """Joins and leaves in a process of its own first: where nothing answers, or something else does, Ray tries for
    ever, or ends the process.

    Raises:
        InputError: that did not work, or took too long.
    """
    mend = "give --ray-address as the head's host:port, on a machine that is a node of the cluster"
    if address != "auto":
        host, colon, port = address.rpartition(":")
        if "://" in address or not (host and colon and port.isdecimal() and int(port) < 65536):
            raise InputError(f"--ray-address is {quoted(address)}, which is not host:port; {mend}")
        if not answers(address):
            raise InputError(f"nothing answers at {address}; {mend}")
    try:
        command = [sys.executable, "-c", _PROBE, address]
        probe = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
        if probe.returncode == 0:
            return
        said = probe.stderr.decode(errors="replace")
        how = f"does not take this process in ({(said.strip().splitlines() or ['no reason given'])[-1]})"
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")
        how = f"did not take this process in within {PATIENCE:.0f} s"
    if "AuthToken" in said:  # Ray says so, goes on trying, and in the end says something else
        how = "has another token than this process"
        mend = "set $RAY_AUTH_TOKEN to the cluster's, $RAY_AUTH_MODE to token"
    raise InputError(f"the Ray cluster at {address} {how}; {mend}")
