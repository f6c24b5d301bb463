"""Results to W&B: one run per data set, method, family and settings, as soon as its cells are done.

Records are on disk before W&B hears of them, and W&B lives in a process of its own: a hang or a crash there costs no
result, and training waits for nothing. The end of a command waits `SECONDS` for a run at most, and for no further run
once `ATTEMPTS` have failed. `wandb/logged` in the output folder marks what was logged: the next run logs what is
missing, and nothing twice.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from fsvi_bench.files import is_file, sha256_of_json, write_atomically
from fsvi_bench.presenting.wandb_content import Content, content_of, run_sha256
from fsvi_bench.running.cell import Record
from fsvi_bench.running.executors.background import Background

SECONDS = 240.0  #: for a run: half of it waiting for another command's, half more than W&B's limits below add up to
ATTEMPTS = 2  #: one run's trouble may be its own; a second one's is everybody's
SETTINGS: dict[str, Any] = {
    "init_timeout": 20, "login_timeout": 20, "finish_timeout": 60, "finish_timeout_raises": True, "console": "off",
    # What computed the results is in each run's config; the process that sends them is of no interest.
    "disable_git": True, "disable_code": True, "x_disable_meta": True, "x_disable_stats": True,
    "x_disable_machine_info": True, "x_save_requirements": False,
}  # fmt: skip
#: Of the user's environment, what is meant for one run of their own and would make one run of all of ours.
OF_ANOTHER_RUN = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_NAME", "WANDB_RUN_GROUP", "WANDB_MODE", "WANDB_SERVICE")
PROBE = 256 * 1024  #: bytes, more than W&B holds back in memory at a time
OFFLINE = "W&B did not go online ({}); its runs are kept in {}/wandb, and `wandb sync` sends them"
STOPPED = "W&B logging stopped ({}); the records are complete in {}, and the same command again logs what is missing"
unreachable: list[str] = []  #: why the server is, once that is known; in W&B's process
Note = tuple[str, str]  #: `OFFLINE` or `STOPPED`, and why


class WandbUploads:
    """Takes groups of records whose cells are all done; leaving its context waits until they are logged.

    `notes` then says what went wrong; nothing is raised. After an exception, such as Ctrl-C, nothing is waited for.
    """

    def __init__(self, mode: str, folder: Path, seconds: float = SECONDS) -> None:
        self.mode, self.folder, self.seconds = mode, folder, seconds
        self._notes: list[Note] = []
        self._markers: list[Path] = []
        self._process: Background[list[Note]] = Background()

    def log(self, group: Sequence[Record]) -> None:
        """Returns at once."""
        try:
            marker = self.folder / "wandb" / "logged" / content_sha256(group)
            if self.mode != "off" and not is_file(marker):
                self._process.submit(log_once, group, self.folder, self.mode, marker, self.seconds / 2)
                self._markers.append(marker)
        except Exception as error:
            self._notes.append((STOPPED, in_words(error)))

    @property
    def notes(self) -> list[str]:
        """A sentence of each kind; further ones say nothing new."""
        first = dict(reversed(self._notes))
        return [kind.format(first[kind], self.folder) for kind in (OFFLINE, STOPPED) if kind in first]

    @property
    def kept(self) -> int:
        """Runs that only `wandb sync` will send."""
        return sum(map(is_file, self._markers)) if self.mode == "offline" else 0

    def __enter__(self) -> WandbUploads:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        failures = 0
        with self._process:
            try:
                for outcome in self._process.results(self.seconds) if kind is None else ():
                    notes = [(STOPPED, in_words(outcome))] if isinstance(outcome, BaseException) else outcome
                    self._notes += notes
                    failures += STOPPED in dict(notes)
                    if failures == ATTEMPTS:
                        break
            except Exception as error:
                self._notes.append((STOPPED, in_words(error)))


def content_sha256(group: Sequence[Record]) -> str:
    """Changes with a group's cells, and whenever one is computed again; a refused task is known by its reason."""
    when = [str(r.provenance.get("started") if r.task_sha256 else r.reason) for r in group]
    cells = [[r.cell, r.split, r.seed, r.status, time] for r, time in zip(group, when, strict=True)]
    return sha256_of_json([run_sha256(group[0]), sorted(cells)])


def log_once(group: Sequence[Record], folder: Path, mode: str, marker: Path, patience: float) -> list[Note]:
    """Logs a group unless another command just has, offline once the server is out of reach; returns notes."""
    for name in OF_ANOTHER_RUN:
        os.environ.pop(name, None)
    for name in ("data", "cache"):  # W&B keeps tables in the first until they are sent
        os.environ.setdefault(f"WANDB_{name.upper()}_DIR", str(folder.resolve() / "wandb" / name))
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    try:
        with FileLock(folder / "wandb" / "logged.lock", timeout=patience):
            if is_file(marker):
                return []
            refused = []
            if mode == "online" and not unreachable:
                content = content_of(group, folder)  # its errors are not the server's
                try:
                    upload(content, folder, "online")
                except Exception as error:
                    refused = [in_words(error)]
            if mode == "offline" or unreachable or refused:
                upload(content_of(group, folder), folder, "offline")
            unreachable.extend(refused)  # not the server's fault where offline fails as well
            write_atomically(marker, b"")
        return [(OFFLINE, reason) for reason in unreachable]
    except Timeout:
        return [(STOPPED, f"another command has been logging here for more than {patience:g} s")]
    except Exception as error:
        return [(STOPPED, in_words(error))]


def in_words(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def upload(content: Content, folder: Path, mode: Literal["online", "offline"]) -> None:
    """Makes a run; offline, whole or not at all."""
    import wandb

    known = wandb.Settings(**{name: SETTINGS[name] for name in SETTINGS if name in wandb.Settings.model_fields})
    project = os.environ.get("WANDB_PROJECT", "fsvi-bench")
    try:
        run = wandb.init(**content.init, project=project, dir=folder, mode=mode, settings=known)
        home = Path(run.dir).resolve().parent
        try:
            with run:
                # Where W&B cannot write, it takes the system's temporary folder and does not tell.
                if not home.is_relative_to(folder.resolve() / "wandb"):
                    raise OSError(f"{folder / 'wandb'} is not writable")
                fill(run, content)
            # W&B does not report a full disk: where a little more does not fit, its file may be cut short.
            (home / "probe").write_bytes(bytes(PROBE))
            (home / "probe").unlink()
        except BaseException:
            if mode == "offline":  # half a run must not be sent beside the whole one of the next attempt
                shutil.rmtree(home, ignore_errors=True)
            raise
    finally:
        wandb.teardown()  # its service has files open until then


def fill(run: Any, content: Content) -> None:
    """All but what a run begins with."""
    for pattern, axis in {"by_steps/*": "steps", "problem/*": "steps", "by_seconds/*": "seconds"}.items():
        run.define_metric(axis)
        run.define_metric(pattern, step_metric=axis)
    for row in content.rows:
        run.log(row)
    for artifact in content.artifacts:
        run.log_artifact(artifact)
    run.summary.update(content.summary)
