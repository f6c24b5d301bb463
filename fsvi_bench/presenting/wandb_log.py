"""Results to W&B, one run per data set, method, family and settings. Local records remain the truth.

W&B lives in a process of its own (`presenting.wandb_process`), which a thread feeds: training waits for neither, and
neither can take it along. What was logged is remembered in the output folder (`wandb/logged`), so that a run that was
killed before is logged by the next one, and nothing twice, not even by two at a time (`wandb/locks`).
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from fsvi_bench.errors import InputError
from fsvi_bench.files import write_atomically
from fsvi_bench.presenting import wandb_process
from fsvi_bench.presenting.wandb_content import content_sha256, group_key, run_content
from fsvi_bench.running.cell import Record
from fsvi_bench.training.trace import Trace

Mode = Literal["online", "offline", "off"]
Traces = Mapping[str, Trace]
PROCESS = Path(wandb_process.__file__)
SECONDS_PER_RUN = 180.0  #: a W&B that takes longer over one run is given up
ATTEMPTS = 2  #: so many runs may fail; then nothing more is tried
#: Of the user's environment, what is meant for one run of his own and would make one run of all of ours.
OF_ANOTHER_RUN = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_NAME", "WANDB_RUN_GROUP", "WANDB_MODE", "WANDB_SERVICE")


def choose_mode(wanted: str) -> Mode:
    """`auto` is what $WANDB_MODE says, else online where a key is set up (environment or netrc), else offline.

    Raises:
        InputError: the mode is unknown.
    """
    if wanted == "auto":
        said: dict[str, Mode] = {"online": "online", "offline": "offline", "disabled": "off"}
        return said.get(os.environ.get("WANDB_MODE", "")) or ("online" if _has_key() else "offline")
    if wanted not in ("online", "offline", "off"):
        raise InputError(f"--wandb is '{wanted}', expected auto, online, offline or off")
    return wanted  # type: ignore[return-value]


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    import netrc

    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        return host is not None and netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class WandbLogger:
    """Takes groups whose cells are all done, and logs them beside whatever else goes on.

    Leaving its context waits until all is logged, for at most `seconds_per_run` without any news; an exception drops
    what is not logged yet, for the next run to do. `notes` then says what went wrong; nothing is ever raised.
    """

    def __init__(self, mode: Mode, folder: Path, seconds_per_run: float = SECONDS_PER_RUN) -> None:
        self.mode, self.folder, self.seconds_per_run = mode, folder, seconds_per_run
        self.notes: list[str] = []
        self._waiting: queue.SimpleQueue[tuple[Sequence[Record], Traces | Callable[..., Traces]] | None]
        self._waiting = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process: _Process | None = None
        self._given_up = False
        self._failures: list[str] = []
        self._kept_offline: str | None = None
        self.kept = 0  #: runs made that only `wandb sync` will send

    def log(self, records: Sequence[Record], traces: Traces | Callable[[Sequence[Record]], Traces]) -> None:
        """One group, all of whose cells are done, whatever came of them; returns at once.

        Args:
            traces: `record.cell` -> trace, for the cells that have one, or what loads them if they are asked for.
        """
        if self.mode == "off" or not records:
            return
        if self._thread is None:
            # A daemon: an interpreter that ends for another reason does not wait for W&B.
            self._thread = threading.Thread(target=self._work, name="W&B", daemon=True)
            self._thread.start()
        self._waiting.put((records, traces))

    def __enter__(self) -> WandbLogger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._thread is None:
            return
        if kind is not None:
            self._give_up()
        self._waiting.put(None)
        self._thread.join(None if kind is None else 5.0)
        if self._process is not None:
            self._process.close()
        self.notes = self._in_words()

    def _give_up(self) -> None:
        self._given_up = True
        if self._process is not None:
            self._process.kill()

    # --- The thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            if self._given_up:
                continue
            try:
                self._log(*item)
            except Exception as error:  # whatever it is, the records are on disk already
                self._failures.append(str(error) if isinstance(error, _Refused) else wandb_process.said(error))
                if self._process is not None:
                    self._process.kill()
                    self._process = None
                # One run's trouble may be its own; a second one's is everybody's.
                self._given_up = len(self._failures) >= ATTEMPTS

    def _log(self, group: Sequence[Record], traces: Traces | Callable[[Sequence[Record]], Traces]) -> None:
        key = group_key(group[0])[:16]
        with _alone(self.folder, key, self.seconds_per_run):
            marker = self.folder / "wandb" / "logged" / f"{key}.json"
            logged, content_hash = _read_logged(marker), content_sha256(group)
            if self._given_up or content_hash in logged:
                return
            logged[content_hash] = self._send(group, traces)
            write_atomically(marker, (json.dumps({"logged": logged}, indent=2) + "\n").encode())

    def _send(self, group: Sequence[Record], traces: Traces | Callable[[Sequence[Record]], Traces]) -> str:
        """Returns the run's folder."""
        if self._process is None:
            self._process = _Process(self.folder)
        with tempfile.TemporaryDirectory(prefix="fsvi-bench-wandb-") as spool:
            found = traces(group) if callable(traces) else traces
            content = run_content(group, found, self.folder, self.mode, Path(spool))
            path = Path(spool, "content.json")
            path.write_text(json.dumps(content), encoding="utf-8")
            reply = self._process.ask(path, self.seconds_per_run)
        self._kept_offline = reply.get("note", self._kept_offline)
        if "error" in reply:
            raise _Refused(reply["error"])
        self.kept += self.mode == "offline"
        return str(reply["run"])

    def _in_words(self) -> list[str]:
        notes = []
        if self._kept_offline is not None:
            notes.append(
                f"W&B did not go online ({self._kept_offline}); its runs are kept in {self.folder / 'wandb'}, "
                "and `wandb sync` sends them"
            )
        if self._failures:
            notes.append(
                f"W&B logging stopped ({self._failures[0]}); the records are complete in {self.folder}, "
                "and the same command again logs what is missing"
            )
        return notes


@contextmanager
def _alone(folder: Path, key: str, seconds: float) -> Iterator[None]:
    """One run at a time looks whether a group is logged, and logs it: the output folder itself is free again by then.

    Raises:
        _Refused: another run has been at it for all that time.
    """
    path = folder / "wandb" / "locks" / f"{key}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path, timeout=seconds):
            yield
    except Timeout:
        raise _Refused(f"another run is logging the same results, for more than {seconds:g} s") from None


def _read_logged(marker: Path) -> dict[str, str]:
    """Content's hash -> run's folder, for all that was ever logged of a group; nothing where the marker is no such."""
    try:
        logged = json.loads(marker.read_text(encoding="utf-8"))["logged"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return logged if isinstance(logged, dict) else {}


class _Refused(Exception):
    """What is to be said as it is, such as W&B's own exception in its own words."""


class _Process:
    """W&B's process: a question at a time, each answered in time or never."""

    def __init__(self, folder: Path) -> None:
        home = folder.resolve() / "wandb"
        inherited = {name: value for name, value in os.environ.items() if name not in OF_ANOTHER_RUN}
        # Tables wait in W&B's data folder until they are sent: beside the runs that they belong to. Offline means that
        # nothing is sent, crash reports neither.
        own = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
        # W&B clears its temporary folders away only where it ends by itself. The name is short because W&B's socket
        # lies in there, and a socket's path has some hundred characters at most.
        self._temporary = tempfile.TemporaryDirectory(prefix="fsvi-", ignore_cleanup_errors=True)
        own["TMPDIR"] = self._temporary.name
        defaults = {"WANDB_DATA_DIR": str(home / "data"), "WANDB_CACHE_DIR": str(home / "cache")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROCESS), self._temporary.name],
            env={**defaults, **inherited, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # deaf to Ctrl-C, which is its parent's to answer
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, path: Path, seconds: float) -> dict[str, Any]:
        """Raises:
        OSError: the process has ended, or takes too long.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"no answer in {seconds:g} s") from None
        if not line:
            raise ConnectionError(f"its process ended with status {self._process.wait(timeout=10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self, seconds: float = 10.0) -> None:
        """Lets it end by itself; not for longer than that."""
        try:
            self._process.communicate(timeout=seconds)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            self._process.kill()
            self._process.wait()
        self._temporary.cleanup()

    def kill(self) -> None:
        """W&B's own service ends when it sees that its parent has."""
        self._process.kill()
        self._process.wait()
        self._temporary.cleanup()
