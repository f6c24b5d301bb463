"""Joining a Ray cluster or starting one on this machine, in bounded time and without noise."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from fsvi_bench.errors import InputError, quoted
from fsvi_bench.running.executors.local import available_cores

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
#: Seconds that a cluster has for taking this process in.
PATIENCE = 30.0
#: A loopback address: Ray replaces 127.0.0.1 by the machine's outer address, where others could reach it.
_LOOPBACK = "127.0.0.2" if sys.platform == "linux" else None
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
_PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR'); ray.shutdown()"


@dataclass(frozen=True)
class Connection:
    """A cluster that this process is part of."""

    address: str  #: host:port of its head

    def close(self) -> None:
        """Leaves the cluster, and ends it if it was started here."""
        import ray

        ray.shutdown()


def connect(address: str | None, workers: int | None) -> Connection:
    """Joins the cluster at `host:port` (or `auto`: the one that runs on this machine), or starts one for this process.

    Raises:
        InputError: Ray is not installed, or there is no cluster at the address that takes this process in.
    """
    _require_ray(ours=address is None)
    import ray

    if ray.is_initialized():
        raise InputError("this process is part of a Ray cluster already; leave that one first with ray.shutdown()")
    if address is None:
        _start_locally(workers or available_cores())
    else:
        _require_cluster(address)
        ray.init(address=address, **_QUIET)
    return Connection(ray.get_runtime_context().gcs_address)


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
            # Some ports of a cluster on a loopback address listen everywhere all the same: nobody without the token.
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError as error:
        mend = "in the clone: pip install -e '.[cluster]'"
        raise InputError(f"--executor ray needs Ray, which is not installed; {mend}") from error


def _start_locally(workers: int) -> None:
    import ray

    ray.init(address="local", num_cpus=workers, include_dashboard=False, _node_ip_address=_LOOPBACK, **_QUIET)


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
    command = [sys.executable, "-c", _PROBE, address]
    try:
        probe = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
        failed, said = probe.returncode != 0, probe.stderr.decode(errors="replace")
        how = f"does not take this process in ({(said.strip().splitlines() or ['no reason given'])[-1]})"
    except subprocess.TimeoutExpired as error:
        failed, said = True, (error.stderr or b"").decode(errors="replace")
        how = f"did not take this process in within {PATIENCE:.0f} s"
    if failed:
        if "AuthToken" in said:  # Ray says so, goes on trying, and in the end says something else
            how, mend = (
                "has another token than this process",
                "set $RAY_AUTH_TOKEN to the cluster's, $RAY_AUTH_MODE to token",
            )
        raise InputError(f"the Ray cluster at {address} {how}; {mend}")
