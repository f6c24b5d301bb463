"""The process that talks to W&B, run as a file of its own: a hang or a crash in there costs its parent nothing.

It imports nothing of ours, so that it starts at once. A line of its input names a JSON file, the content of one run
(`presenting.wandb_content`); a line of its output says what became of it.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

INIT_TIMEOUT, FINISH_TIMEOUT = 20.0, 60.0  #: seconds, for a server that does not answer
PROBE = 256 * 1024  #: bytes, more than W&B holds back in memory at a time
SETTINGS = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    # What computed the results is in each run's config; this process's own machine and load say nothing.
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "init_timeout": INIT_TIMEOUT,
    "login_timeout": INIT_TIMEOUT,
    "finish_timeout": FINISH_TIMEOUT,
    "finish_timeout_raises": True,
}


def log_run(content: dict[str, Any], mode: Literal["online", "offline"]) -> Path:
    """Logs one run and returns its folder.

    Raises:
        OSError: W&B's folder cannot be written, or its file is not whole.
        Exception: whatever W&B raises.
    """
    import wandb

    known: dict[str, Any] = {name: value for name, value in SETTINGS.items() if name in wandb.Settings.model_fields}
    run = wandb.init(**content["init"], mode=mode, settings=wandb.Settings(**known))
    folder = Path(run.dir).resolve().parent
    try:
        with run:
            require_beneath(folder, Path(content["init"]["dir"]))
            fill(run, content)
        require_space(folder)
    except BaseException:
        if mode == "offline":
            # Half a run is not to be sent beside the whole one that the next attempt makes.
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def fill(run: Any, content: dict[str, Any]) -> None:
    """Curves, tables, figures, artifacts and summary."""
    import wandb

    for pattern, step in content["step_metrics"].items():
        run.define_metric(step)
        run.define_metric(pattern, step_metric=step)
    for row in content["rows"]:
        run.log(row)
    run.log({key: wandb.Table(columns=t["columns"], data=t["data"]) for key, t in content["tables"].items()})
    if content["images"]:
        run.log({key: wandb.Image(path) for key, path in content["images"].items()})
    for each in content["artifacts"]:
        artifact = wandb.Artifact(each["name"], each["type"], metadata=each["metadata"])
        for name, path in each["files"].items():
            # The files lie in the output folder and stay there: nothing is copied.
            artifact.add_file(path, name=name, policy="immutable", skip_cache=True)
        run.log_artifact(artifact)
    run.summary.update(content["summary"])


def require_beneath(folder: Path, above: Path) -> None:
    """W&B takes the system's temporary folder where it cannot write, and does not tell."""
    if not folder.is_relative_to(above.resolve() / "wandb"):
        raise OSError(f"{above / 'wandb'} is not writable")


def require_space(folder: Path) -> None:
    """W&B says nothing either of a disk that is full: where a little more does not fit, its file may be cut short.

    Raises:
        OSError: it does not fit.
    """
    with tempfile.TemporaryFile(dir=folder) as stream:
        stream.write(bytes(PROBE))
        stream.flush()
        os.fsync(stream.fileno())


class Reporter:
    """Logs runs one after the other; once the server is out of reach, offline."""

    def __init__(self) -> None:
        self.unreachable: str | None = None

    def reply(self, path: str) -> dict[str, str]:
        """`run` is the folder of what was logged; `note` what was not as asked for; `error` why nothing was."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["mode"] == "online" and self.unreachable is None:
                try:
                    return {"run": str(log_run(content, "online"))}
                except Exception as error:
                    self.unreachable = said(error)
            note = {} if self.unreachable is None else {"note": self.unreachable}
            return {"run": str(log_run(content, "offline")), **note}
        except Exception as error:
            return {"error": said(error)}


def said(error: Exception) -> str:
    """An exception in one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:200]


def main() -> None:
    """Answers until its input ends. Only answers go to the parent: whatever W&B prints goes where errors go.

    The first argument is this process's own temporary folder, which goes with it: its parent may have been killed.
    """
    atexit.register(shutil.rmtree, sys.argv[1], ignore_errors=True)  # after W&B's own, which come later
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    reporter = Reporter()
    for line in sys.stdin:
        answers.write(json.dumps(reporter.reply(line.rstrip("\n"))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
