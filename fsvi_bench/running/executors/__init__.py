"""Where calls are made: in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import os

from fsvi_bench.errors import InputError
from fsvi_bench.running.executors.base import Executor, WorkerDied, WorkersLost
from fsvi_bench.running.executors.local import LocalExecutor, available_cores
from fsvi_bench.running.executors.ray import RayExecutor
from fsvi_bench.threads import one_thread, use_one_thread

__all__ = [
    "Executor",
    "LocalExecutor",
    "RayExecutor",
    "WorkerDied",
    "WorkersLost",
    "available_cores",
    "check_choice",
    "make_executor",
    "one_thread",
    "use_one_thread",
]


def make_executor(
    name: str, workers: int | None = None, ray_address: str | None = None, gpu_share: float | None = None
) -> Executor:
    """`local` with that many processes, or `ray`: the cluster at that address, at $RAY_ADDRESS, or a new one.

    Raises:
        InputError: an unknown name, an option of the other executor, or no such cluster.
    """
    check_choice(name, ray_address, gpu_share)
    if name == "ray":
        return RayExecutor.connect(ray_address or os.environ.get("RAY_ADDRESS") or None, workers, gpu_share)
    return LocalExecutor(workers or available_cores())


def check_choice(name: str, ray_address: str | None = None, gpu_share: float | None = None) -> None:
    """What can be said of a choice without starting anything.

    Raises:
        InputError: an unknown name, or an option of the other executor.
    """
    if name not in ("local", "ray"):
        raise InputError(f"--executor is '{name}', expected local or ray")
    for flag, value in (("--ray-address", ray_address), ("--gpu-share", gpu_share)):
        if value is not None and name != "ray":
            raise InputError(f"{flag} has no meaning without --executor ray; add that or drop the flag")
