"""Where cells are computed: processes of this machine, or a Ray cluster."""

from fsvi_bench.running.executors.base import Executor, WorkerDied, WorkersLost
from fsvi_bench.running.executors.local import LocalExecutor, available_cores, use_one_thread

__all__ = ["Executor", "LocalExecutor", "WorkerDied", "WorkersLost", "available_cores", "use_one_thread"]
