"""Results to W&B: one run per data set, method, family and settings, as soon as its cells are done.

Records are on disk before W&B hears of them, and W&B lives in a process of its own: a hang or a crash there costs no
result, training waits for nothing, and the end of a command waits for `SECONDS` without news at most. `wandb/logged` in
the output folder marks what was logged: the next run logs what is missing, and nothing twice.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from fsvi_bench.files import canonical_json, is_file, sha256_of_json, write_atomically
from fsvi_bench.presenting.cell_files import folder_of, load_traces
from fsvi_bench.presenting.curves import curves_figure
from fsvi_bench.presenting.parquet import record_row, trace_rows
from fsvi_bench.presenting.summary import summarise
from fsvi_bench.presenting.traces import curve_rows
from fsvi_bench.running.cell import Record
from fsvi_bench.running.executors.background import Background

SECONDS = 120.0  #: more than W&B's own limits for one run
SETTINGS: dict[str, Any] = {
    "init_timeout": 20, "login_timeout": 20, "finish_timeout": 60, "finish_timeout_raises": True, "console": "off",
    # What computed the results is in each run's config; the process that sends them is of no interest.
    "disable_git": True, "disable_code": True, "x_disable_meta": True, "x_disable_stats": True,
    "x_disable_machine_info": True, "x_save_requirements": False,
}  # fmt: skip
#: Of the user's environment, what is meant for one run of their own and would make one run of all of ours.
OF_ANOTHER_RUN = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_NAME", "WANDB_RUN_GROUP", "WANDB_MODE", "WANDB_SERVICE")
FILES = {"posterior": ["posterior.safetensors"], "result": ["record.json", "trace.csv"]}  #: artifacts' types
PROBE = 256 * 1024  #: bytes, more than W&B holds back in memory at a time
OFFLINE = "W&B did not go online ({}); its runs are kept in {}/wandb, and `wandb sync` sends them"
STOPPED = "W&B logging stopped ({}); the records are complete in {}, and the same command again logs what is missing"
unreachable: list[str] = []  #: why the server is, once that is known; in W&B's process


class WandbUploads:
    """Takes groups of records whose cells are all done; leaving its context waits until they are logged.

    `notes` then says what went wrong; nothing is raised. After an exception, such as Ctrl-C, nothing is waited for.
    """

    def __init__(self, mode: str, folder: Path, seconds: float = SECONDS) -> None:
        self.mode, self.folder, self.seconds = mode, folder, seconds
        self.notes: list[str] = []
        self._markers: list[Path] = []
        self._process: Background[list[str]] = Background()

    def log(self, group: Sequence[Record]) -> None:
        """Returns at once."""
        marker = self.folder / "wandb" / "logged" / content_sha256(group)
        if self.mode == "off" or is_file(marker):
            return
        try:
            self._process.submit(log_once, group, self.folder, self.mode, marker, self.seconds / 2)
            self._markers.append(marker)
        except (OSError, BrokenExecutor) as error:
            self.notes = [STOPPED.format(in_words(error), self.folder)]

    @property
    def kept(self) -> int:
        """Runs that only `wandb sync` will send."""
        return sum(map(is_file, self._markers)) if self.mode == "offline" else 0

    def __enter__(self) -> WandbUploads:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._process:
            try:
                for notes in self._process.results(self.seconds) if kind is None else ():
                    # Further sentences of a kind say nothing new.
                    self.notes += [new for new in notes if new[:20] not in {old[:20] for old in self.notes}]
            except Exception as error:
                self.notes = [STOPPED.format(in_words(error), self.folder)]


def run_sha256(record: Record) -> str:
    """Names the run that a record belongs to."""
    return sha256_of_json([record.dataset, record.method, record.family, record.hyperparameters])


def content_sha256(group: Sequence[Record]) -> str:
    """Changes with a group's cells, and whenever one is computed again; a refused task is known by its reason."""
    when = [str(r.provenance.get("started") if r.task_sha256 else r.reason) for r in group]
    cells = [[r.cell, r.split, r.seed, r.status, time] for r, time in zip(group, when, strict=True)]
    return sha256_of_json([run_sha256(group[0]), sorted(cells)])


def log_once(group: Sequence[Record], folder: Path, mode: str, marker: Path, patience: float) -> list[str]:
    """Logs a group unless another command just has, offline once the server is out of reach; returns notes."""
    try:
        with FileLock(folder / "wandb" / "logged.lock", timeout=patience):
            if is_file(marker):
                return []
            if mode == "online" and not unreachable:
                try:
                    upload(group, folder, "online")
                except Exception as error:
                    unreachable.append(in_words(error))
            if mode == "offline" or unreachable:
                upload(group, folder, "offline")
            write_atomically(marker, b"")
        return [OFFLINE.format(reason, folder) for reason in unreachable]
    except Timeout:
        return [STOPPED.format(f"another command has been logging here for more than {patience:g} s", folder)]
    except Exception as error:
        return [STOPPED.format(in_words(error), folder)]


def in_words(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def upload(group: Sequence[Record], folder: Path, mode: Literal["online", "offline"]) -> None:
    """Makes a run, whole or not at all."""
    for name in OF_ANOTHER_RUN:
        os.environ.pop(name, None)
    for name in ("data", "cache"):  # W&B keeps tables in the first until they are sent
        os.environ.setdefault(f"WANDB_{name.upper()}_DIR", str(folder.resolve() / "wandb" / name))
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    import wandb

    words = [group[0].dataset, group[0].method, group[0].family]
    known = {name: value for name, value in SETTINGS.items() if name in wandb.Settings.model_fields}
    try:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fsvi-bench"), name="-".join(words)[:128], group=words[0][:128],
            job_type=words[1][:64], tags=sorted({tag for word in words if (tag := allowed(word)[:64])}),
            config=config(group), dir=folder, mode=mode, settings=wandb.Settings(**known),
        )  # fmt: skip
        home = Path(run.dir).resolve().parent
        try:
            with run:
                # Where W&B cannot write, it takes the system's temporary folder and does not tell.
                if not home.is_relative_to(folder.resolve() / "wandb"):
                    raise OSError(f"{folder / 'wandb'} is not writable")
                fill(run, sorted(group, key=lambda record: (record.split, record.seed)), folder)
            # It does not tell of a full disk either: where a little more does not fit, its file may be cut short.
            (home / "probe").write_bytes(bytes(PROBE))
            (home / "probe").unlink()
        except BaseException:
            if mode == "offline":  # half a run must not be sent beside the whole one of the next attempt
                shutil.rmtree(home, ignore_errors=True)
            raise
    finally:
        wandb.teardown()  # its service has files open until then


def allowed(name: str) -> str:
    """W&B's names are letters, digits, dashes, underscores and dots; other runs of characters become a dash."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")


def config(group: Sequence[Record]) -> dict[str, Any]:
    """Settings (`option_...` where a fact has that name) and facts, lists where cells differ, as after a resume."""
    facts: dict[str, Any] = {name: getattr(group[0], name) for name in ("dataset", "method", "family")}
    facts |= {"splits": sorted({r.split for r in group}), "seeds": sorted({r.seed for r in group})}
    facts["tasks"] = {str(record.split): record.task_sha256 for record in group}
    facts["code_sha256"] = distinct(record.code_sha256 for record in group)
    names = dict.fromkeys(name for r in group for name in r.provenance if name not in ("seeds", "started"))
    facts["provenance"] = {name: distinct(r.provenance.get(name) for r in group) for name in names}
    return {f"option_{n}" if n in facts else n: value for n, value in group[0].hyperparameters.items()} | facts


def distinct(values: Iterable[Any]) -> Any:
    """All different values, or the only one."""
    found = list({canonical_json(value): value for value in values}.values())
    return found[0] if len(found) == 1 else found


def fill(run: Any, group: Sequence[Record], folder: Path) -> None:
    """Curves, tables, a figure, artifacts and the summary."""
    import pandas
    import wandb

    traces = load_traces(group, folder)
    for pattern, axis in {"by_steps/*": "steps", "problem/*": "steps", "by_seconds/*": "seconds"}.items():
        run.define_metric(axis)
        run.define_metric(pattern, step_metric=axis)
    for row in curve_rows({f"split-{r.split:02d}-seed-{r.seed}": traces[r.cell] for r in group if r.cell in traces}):
        run.log(row)
    cells = pandas.DataFrame(map(record_row, group), dtype=object)
    run.log({"cells": wandb.Table(dataframe=cells.where(cells.notna(), None))})
    if traces:
        points = pandas.DataFrame(trace_rows(group, traces), dtype=object)
        run.log({"traces": wandb.Table(dataframe=points)})
    if figure := curves_figure(list(traces.values()), " · ".join([group[0].dataset, group[0].method, group[0].family])):
        path = Path(tempfile.gettempdir(), "curves.png")
        figure.savefig(path, dpi=120)
        run.log({"curves": wandb.Image(str(path))})
    for kind in FILES:
        if (artifact := artifact_of(kind, group, folder)).manifest.entries:
            run.log_artifact(artifact)
    for name, estimate in summarise(group)[0].scores.items():
        run.summary.update({name: estimate.mean})
        if estimate.standard_error is not None:
            run.summary.update({f"{name}_standard_error": estimate.standard_error})
    statuses = [record.status for record in group]
    run.summary.update({f"cells_{status}": statuses.count(status) for status in ("ok", "diverged", "failed")})
    run.summary.update({"cells": len(group)})


def artifact_of(kind: str, group: Sequence[Record], folder: Path) -> Any:
    """Cells' files, each under its cell's name. They stay where they lie: nothing is copied.

    It has the same name for every run of a group, so that W&B takes the next one's for another version.
    """
    import wandb

    facts = {name: getattr(group[0], name) for name in ("dataset", "method", "family")}
    name = f"{allowed('-'.join(facts.values()))[:90]}-{run_sha256(group[0])[:12]}-{kind}"
    artifact = wandb.Artifact(name, kind, metadata=facts)
    cells = [folder.resolve() / folder_of(record) for record in group if record.task_sha256]
    for path in filter(is_file, (cell / file for cell in cells for file in FILES[kind])):
        artifact.add_file(str(path), f"{path.parent.name}/{path.name}", policy="immutable", skip_cache=True)
    return artifact
