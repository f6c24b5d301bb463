"""Logs results to W&B: one run per data set, method, family and settings, as soon as its cells are done.

Records are written to disk before they are sent. W&B runs in a separate process, because its threads can block or end
the process they are in. `wandb/logged` in the output folder marks what was logged; the next run logs the rest.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from fsvi_bench.errors import InputError, in_one_line
from fsvi_bench.files import is_file, write_atomically
from fsvi_bench.presenting.parquet import record_frame, trace_rows
from fsvi_bench.presenting.summary import STATUSES, cells_of, shared, summary_of
from fsvi_bench.presenting.traces import curve_rows, curves_figure
from fsvi_bench.running.cell import Record, content_sha256
from fsvi_bench.running.executors import Worker, read_answer, start_worker
from fsvi_bench.running.store import load_traces, paths_of

SECONDS = (
    240.0  #: time limit for a run: half for waiting for other commands, half more than the sum of W&B's own limits
)
#: The config has the provenance of the results; W&B need not record the process that sends them.
_OFF = ["DISABLE_CODE", "_DISABLE_META", "_DISABLE_STATS", "_DISABLE_MACHINE_INFO", "FINISH_TIMEOUT_RAISES"]
SETTINGS = {"INIT_TIMEOUT": "20", "LOGIN_TIMEOUT": "20", "FINISH_TIMEOUT": "60", "CONSOLE": "off"}
SETTINGS |= {"ERROR_REPORTING": "false", **dict.fromkeys(_OFF, "true")}
SETTINGS = {f"WANDB_{name}": value for name, value in SETTINGS.items()}
#: Variables that are meant for a single run of the user: they would merge all of our runs into one.
OF_ANOTHER_RUN = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_NAME", "WANDB_RUN_GROUP", "WANDB_SERVICE")
CONFIG = r"^(dataset|split|method|family|seed|\w+_sha256|option_.+|provenance_(?!seeds|started).+)$"  #: columns
#: Messages for the user; the placeholders are the reason and the output folder.
NOTES = {
    "offline": "W&B could not go online ({}); its runs are stored in {}/wandb: upload them with `wandb sync`",
    "stopped": "W&B logging stopped ({}); all records are in {}: rerun the command to log the missing runs",
}


def wandb_mode(wanted: str) -> str:
    """The mode; `auto` means that of $WANDB_MODE, else online if there is a key (environment or netrc), else offline.

    Raises:
        InputError: the mode is unknown.
    """
    from requests.utils import get_netrc_auth

    if wanted not in ("auto", "online", "offline", "off"):
        raise InputError(f"--wandb is '{wanted}', expected auto, online, offline or off")
    environment = {"online": "online", "offline": "offline", "disabled": "off"}.get(os.environ.get("WANDB_MODE", ""))
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    usual = "online" if os.environ.get("WANDB_API_KEY") or get_netrc_auth(server) else "offline"
    return wanted if wanted != "auto" else environment or usual


class WandbUploads(AbstractContextManager["WandbUploads"]):
    """Uploads groups of finished records in the background; waits for them at the end, unless there was an error."""

    def __init__(self, mode: str, folder: Path, seconds: float = SECONDS) -> None:
        self.mode, self.folder, self.seconds = mode, folder, seconds
        self.kept = 0  #: number of runs that are stored offline
        self.notes: dict[str, str] = {}  #: why some runs are not online (`offline`) or not logged (`stopped`)
        self._calls: list[Future[dict[str, str]]] = []
        self._temporary = tempfile.TemporaryDirectory(prefix="fsvi-", ignore_cleanup_errors=True)
        self._calling = ThreadPoolExecutor(1)  # so that the run does not wait for W&B
        self._worker: Worker | None = None

    def log(self, group: Sequence[Record]) -> None:
        try:
            marker = self.folder / "wandb" / "logged" / content_sha256(group)
            if self.mode != "off" and not is_file(marker):
                places = str(self.folder.resolve() / "wandb"), self._temporary.name
                self._worker = self._worker or Worker(get_context("spawn"), _begin, self.mode, *places)
                call = partial(log_once, group, self.folder, marker, self.seconds / 2)
                self._calls.append(self._calling.submit(_answer, self._worker, call))
        except Exception as error:
            self.notes.setdefault("stopped", in_one_line(error))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for call in self._calls if kind is None else ():
                error = call.exception(self.seconds)
                self.notes = ({"stopped": in_one_line(error)} if error else call.result()) | self.notes
                self.kept += self.mode == "offline" and error is None
        except TimeoutError:  # the later calls would not be answered either
            self.notes.setdefault("stopped", f"no answer in {self.seconds:g} s")
        finally:
            if self._worker is not None:
                self._worker.kill()
            self._calling.shutdown(cancel_futures=True)
            self._temporary.cleanup()


def _answer(worker: Worker, call: Callable[[], dict[str, str]]) -> dict[str, str]:
    note: dict[str, str] = read_answer(worker.call(pickle.dumps(call)))
    return note


def _begin(mode: str, folder: str, temporary: str) -> None:
    """Prepares the process for W&B: without output, and with temporary files in one folder."""
    users = {name: value for name, value in os.environ.items() if name not in OF_ANOTHER_RUN}
    usual = {"PROJECT": "fsvi-bench", "DATA_DIR": f"{folder}/data", "CACHE_DIR": f"{folder}/cache"}
    usual = {f"WANDB_{name}": value for name, value in usual.items()}
    start_worker(usual | users | SETTINGS | {"WANDB_MODE": mode, "TMPDIR": temporary}, temporary)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def log_once(group: Sequence[Record], folder: Path, marker: Path, patience: float) -> dict[str, str]:
    """Logs a group, unless another command has done so. If online fails, logs offline and returns the reason."""
    with FileLock(folder / "wandb" / "logged.lock", timeout=patience):
        if is_file(marker):
            return {}
        note = {}
        try:
            upload(group, folder, os.environ["WANDB_MODE"])
        except Exception as error:
            if os.environ["WANDB_MODE"] == "offline":
                raise
            upload(group, folder, "offline")
            note, os.environ["WANDB_MODE"] = {"offline": in_one_line(error)}, "offline"
        write_atomically(marker, b"")
    return note


def upload(group: Sequence[Record], folder: Path, mode: Any) -> None:
    """Creates a complete W&B run, or none."""
    import wandb

    words = [group[0].dataset, group[0].method, group[0].family]
    name, tags = "-".join(words)[:128], sorted({word[:64] for word in words})
    run = wandb.init(name=name, group=words[0][:128], job_type=words[1][:64], tags=tags, dir=folder, mode=mode)
    home = Path(run.dir).resolve().parent
    try:
        with run:
            fill(run, group, folder)
        write_atomically(
            home / "probe", bytes(1 << 18)
        )  # fails on a full disk, which W&B does not report although it truncates its file
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)  # else `wandb sync` might send it in addition to the next attempt
        raise
    finally:
        wandb.teardown()  # closes the files of its service


def fill(run: Any, group: Sequence[Record], folder: Path) -> None:
    """Logs the config, curves, tables, a figure, artifacts and a summary."""
    import matplotlib.pyplot  # noqa: F401  # `Image` expects it to be imported
    import wandb

    cells, traces = record_frame(group).sort_values(["split", "seed"]), load_traces(group, folder)
    run.config.update(shared(cells.filter(regex=CONFIG)))
    for pattern, axis in {"by_steps/*": "steps", "problem/*": "steps", "by_seconds/*": "seconds"}.items():
        run.define_metric(pattern, step_metric=axis)
    for row in curve_rows({f"split-{r.split:02d}-seed-{r.seed}": traces[r.cell] for r in group if r.cell in traces}):
        run.log(row)
    for name, table in {"cells": cells, "traces": pd.DataFrame(trace_rows(group, traces), dtype=object)}.items():
        if len(table):
            run.log({name: wandb.Table(dataframe=table)})
    if figure := curves_figure(list(traces.values()), run.name):
        run.log({"curves": wandb.Image(figure)})
    for kind, names in {"posterior": ["posterior.safetensors"], "result": ["record.json", "trace.csv"]}.items():
        name = f"{run.name[:90]}-{group[0].row[:12]}-{kind}"  # the next run has the same name, and adds a version
        facts = {name: getattr(group[0], name) for name in ("dataset", "method", "family")}
        artifact = wandb.Artifact(re.sub(r"[^A-Za-z0-9_.-]+", "-", name), kind, metadata=facts)
        for path in paths_of(group, folder, names):
            artifact.add_file(str(path), f"{path.parent.name}/{path.name}", policy="immutable", skip_cache=True)
        if artifact.manifest.entries:
            run.log_artifact(artifact)
    summary = summary_of(cells_of(group)).set_index("score")
    means, errors = summary["mean"].dropna(), summary["standard_error"].dropna().add_suffix("_standard_error")
    counts = summary.iloc[0][STATUSES].add_prefix("cells_")
    run.summary.update({"cells": len(group), **counts, **means, **errors})
