"""Where cells are computed: processes of this machine, or a Ray cluster."""

from fsvi_bench.running.executors.base import Executor, WorkerDied, WorkersLost
from fsvi_bench.running.executors.choice import check_choice, make_executor
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
