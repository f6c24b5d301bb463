"""Calls on a Ray cluster: on other machines, or on fractions of a GPU.

This module does not import Ray at the top: Ray is an optional dependency, and its import takes half a second.
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
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fsvi_bench.arithmetic import arithmetic
from fsvi_bench.errors import InputError, WorkersLost, quoted
from fsvi_bench.running.executors import Executor, Pool, WorkerDied, answer, available_cores
from fsvi_bench.sources import package_sha256
from fsvi_bench.threads import use_one_thread

if TYPE_CHECKING:
    from fsvi_bench.training.trainer import Device

#: Seconds without an answer from the head, and without any worker node, after which the cluster counts as lost. The
#: first is shorter than the 60 s after which Ray ends this process.
HEAD_PATIENCE, WORKER_PATIENCE = 20.0, 60.0
_LOOK_EVERY = 2.0
#: Seconds that a cluster may take to accept this process.
PATIENCE = 30.0
#: Settings of Ray, unless the environment has others. With them a dead connection is noticed after 8 s.
SETTINGS = {
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "3000",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # for a cluster started here; by default Ray gives its workers low priority
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # else Ray prints messages about lost workers on stdout
}
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
_PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR'); ray.shutdown()"


@dataclass(frozen=True)
class RayExecutor(Executor):
    """Calls as tasks of a Ray cluster, one thread each, on a CPU core or on a fraction of a GPU.

    Results travel back to this process.
    """

    address: str  #: host:port of the cluster's head
    limit: int | None = None  #: maximum number of parallel calls; None: as many as fit
    gpu_share: float | None = None  #: fraction of a GPU per call that uses one; None: a whole GPU
    device: Device = "cpu"  #: device of the calls
    head_patience: float = HEAD_PATIENCE
    worker_patience: float = WORKER_PATIENCE

    @classmethod
    def connect(cls, address: str | None, workers: int | None = None, gpu_share: float | None = None) -> RayExecutor:
        """Joins the cluster at `host:port` (`auto`: the one running on this machine), or starts a local one.

        Raises:
            InputError: Ray is not installed, nothing answers at the address, or the cluster cannot fit a call.
        """
        executor = cls(_join(address, workers), workers, gpu_share)
        with ExitStack() as stack:
            stack.callback(executor.close)
            if executor.room() < 1:
                raise InputError(
                    f"the Ray cluster at {executor.address} has no free CPU; start its nodes with --num-cpus 1 or more"
                )
            if gpu_share is not None and not executor.has_gpu:
                raise InputError(
                    f"--gpu-share: the Ray cluster at {executor.address} has no GPU; start its nodes with --num-gpus, "
                    "or drop the flag"
                )
            stack.pop_all()
        return executor

    def close(self) -> None:
        """Leaves the cluster, and stops it if it was started here. Without its head, `ray.shutdown` would hang."""
        import ray

        if _listens(self.address):
            ray.shutdown()

    @property
    def has_gpu(self) -> bool:
        """Whether some node has a GPU; this machine need not have one."""
        return self.on("cuda").room() > 0

    @property
    def workers(self) -> int:
        """The number of calls that fit at present, within `limit`."""
        return max(1, self.room())

    def on(self, device: Device) -> RayExecutor:
        """The same cluster for calls on `device`; only calls on a GPU take a fraction of one."""
        return replace(self, device=device)

    @contextmanager
    def open_pool(self) -> Iterator[Pool]:
        """See `Executor.open_pool`.

        Raises:
            WorkersLost: raised by the function for the room, if the head did not answer for `head_patience` seconds or
                there was no worker node for `worker_patience` seconds.
        """
        import ray

        share = (self.gpu_share or 1.0) if self.device == "cuda" else 0.0
        task = ray.remote(num_cpus=1, num_gpus=share, max_retries=0)(_attempt)
        under_way: dict[Future[bytes], Any] = {}

        def submit(call: bytes) -> Future[bytes]:
            reference = task.remote(call, package_sha256(), arithmetic())
            future: Future[bytes] = reference.future()
            under_way[future] = reference
            future.add_done_callback(under_way.pop)
            return future

        try:
            yield _Watch(self), submit
        finally:
            if under_way and _listens(self.address):
                for reference in list(under_way.values()):
                    ray.cancel(reference, force=True)

    def result(self, future: Future[bytes]) -> bytes:
        """The answer to a call; errors of Ray are translated to errors of this package.

        Raises:
            InputError: a node cannot run the call, for example with another version of this package.
            WorkersLost: this machine is no longer part of the cluster.
            WorkerDied: the worker was lost.
        """
        from ray.exceptions import LocalRayletDiedError, RayError, RayTaskError

        try:
            return future.result()
        except LocalRayletDiedError as error:
            raise WorkersLost("this machine is no longer a Ray node; restart it and rerun the command") from error
        except RayTaskError as error:  # not an error of the call itself, which `answer` returns
            raise InputError(
                f"a node of the Ray cluster cannot run fsvi-bench ({type(error.cause).__name__}: {error.cause}); "
                "install the same versions of fsvi-bench, Ray and Python on every node"
            ) from error
        except RayError as error:
            raise WorkerDied(
                f"the worker process was lost ({type(error).__name__}); it may have run out of memory"
            ) from error

    def room(self) -> int:
        """The number of calls that fit on the live nodes; each takes a core, and on a GPU its share.

        Raises:
            WorkersLost: the head does not answer.
        """
        import ray

        if not _listens(self.address):
            # Checked here because without its head Ray hangs for a minute and then ends this process.
            raise WorkersLost(
                f"the Ray cluster at {self.address} is lost: its head does not answer; restart it and rerun the command"
            )
        room = 0
        for node in ray.nodes():  # type: ignore[no-untyped-call]
            if node["Alive"]:
                cores, gpus = (int(node["Resources"].get(name, 0)) for name in ("CPU", "GPU"))
                # A call takes its share from a single GPU.
                places = gpus * math.floor(1 / (self.gpu_share or 1.0) + 1e-9)
                room += min(cores, places) if self.device == "cuda" else cores
        return room if self.limit is None else min(room, self.limit)


class _Watch:
    """The number of calls that fit, with regular checks that the cluster is still there.

    Ray itself waits forever if all worker nodes are gone, and ends this process without an exception if the head is.
    """

    def __init__(self, executor: RayExecutor) -> None:
        self.executor, self.room, self.looked = executor, 1, -math.inf
        self.head_seen = self.node_seen = time.monotonic()

    def __call__(self) -> int:
        now = time.monotonic()
        if now - self.looked < _LOOK_EVERY:
            return self.room
        with contextlib.suppress(WorkersLost):
            self.room, self.head_seen = self.executor.room(), now
        if self.room > 0:
            self.node_seen = now
        self.looked = time.monotonic()
        for seen, patience, what in (
            (self.head_seen, self.executor.head_patience, "its head has not answered"),
            (self.node_seen, self.executor.worker_patience, "it has had no worker node"),
        ):
            if now - seen > patience:
                raise WorkersLost(
                    f"the Ray cluster at {self.executor.address} is lost: {what} for {now - seen:.0f} s; finished "
                    "cells are kept: rerun the command to resume"
                )
        return self.room


def _attempt(call: bytes, sources: str, rounding: dict[str, str]) -> bytes:
    """Runs in a worker of the cluster."""
    if package_sha256() != sources:
        return answer(pickle.dumps(partial(_refuse, socket.gethostname())))
    os.environ.update(rounding)  # before anything is computed there
    use_one_thread()
    return answer(call)


def _refuse(host: str) -> None:
    raise InputError(
        f"the Ray node {host} has a different version of fsvi-bench from the machine that started the run; install the "
        "same version on every node, do not change it during a run, and rerun the command"
    )


def _listens(address: str) -> bool:
    """Whether something listens at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0):
            return True
    except OSError:
        return False


def _join(address: str | None, workers: int | None) -> str:
    """Joins a cluster, or starts one for this process; host:port of its head. Raises as `RayExecutor.connect`."""
    _require_ray(ours=address is None)
    import ray

    if ray.is_initialized():
        raise InputError("this process is already connected to a Ray cluster; leave it first with ray.shutdown()")
    if address is None:
        ray.init(address="local", num_cpus=workers or available_cores(), include_dashboard=False, **_QUIET)
    else:
        _require_cluster(address)
        ray.init(address=address, **_QUIET)
    return str(ray.get_runtime_context().gcs_address)


def _require_ray(ours: bool) -> None:
    """Imports Ray, which reads its settings only at import."""
    if "ray" not in sys.modules:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        if ours:
            # Listens on the loopback address. Some ports may be reachable from other machines, but not without the
            # token.
            os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError as error:
        fix = "in the clone, run: pip install -c constraints.txt -e '.[cluster]'"
        raise InputError(f"--executor ray needs Ray, which is not installed; {fix}") from error


def _require_cluster(address: str) -> None:
    """Tries to join from a separate process: if nothing answers, or something other than Ray, then Ray retries forever
    or ends the process.

    Raises:
        InputError: joining failed, or took too long.
    """
    fix = "give --ray-address as host:port of the head, and run the command on a node of the cluster"
    if address != "auto":
        host, colon, port = address.rpartition(":")
        if "://" in address or not (host and colon and port.isdecimal() and int(port) < 65536):
            raise InputError(f"--ray-address is {quoted(address)}, expected host:port; {fix}")
        if not _listens(address):
            raise InputError(f"nothing answers at {address}; {fix}")
    try:
        command = [sys.executable, "-c", _PROBE, address]
        probe = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
        if probe.returncode == 0:
            return
        said = probe.stderr.decode(errors="replace").strip()
        how = f"rejected this process ({(said.splitlines() or ['no reason given'])[-1]})"
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")
        how = f"did not accept this process within {PATIENCE:.0f} s"
    if "AuthToken" in said:  # Ray prints this, keeps trying, and finally prints something else
        how = "has a different token from this process"
        fix = "set $RAY_AUTH_TOKEN to the token of the cluster and $RAY_AUTH_MODE to token"
    raise InputError(f"the Ray cluster at {address} {how}; {fix}")
