"""Nothing is logged twice, by runs one after the other or at once, and nothing stays in the temporary folder.

A process of a few lines answers in W&B's place, and writes down what it was asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack

import pytest
from filelock import FileLock

from fsvi_bench.presenting import wandb_log, wandb_process
from fsvi_bench.presenting.wandb_content import content_sha256, group_key, run_content
from fsvi_bench.presenting.wandb_log import WandbLogger
from fsvi_bench.running.cell import Record


def record(split, started="2026-01-01T00:00:00+00:00", task="a" * 64, reason="it was not to be"):
    return Record(
        cell="" if task is None else f"{split:064x}", dataset="toy", split=split, method="exact", family="ffg", seed=0,
        hyperparameters={}, task_sha256=task, code_sha256="c" * 64, status="failed", reason=reason, scores=None,
        seconds=None, provenance={"started": started},
    )  # fmt: skip


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Logs one group and returns how many runs there are by now."""
    asked, script = tmp_path / "asked", tmp_path / "process.py"
    script.write_text(
        "import sys, time\n"
        "for line in sys.stdin:\n"
        f"    with open({str(asked)!r}, 'a') as stream: stream.write(line)\n"
        "    time.sleep(0.3)\n"
        '    print(\'{"run": "somewhere"}\', flush=True)\n'
    )
    monkeypatch.setattr(wandb_log, "PROCESS", script)

    def count(*group, loggers=1):
        with ExitStack() as stack:
            each = [stack.enter_context(WandbLogger("offline", tmp_path / "out", 20.0)) for _ in range(loggers)]
            for logger in each:
                logger.log(group, {})
        assert [logger.notes for logger in each] == [[]] * loggers
        return len(asked.read_text().splitlines())

    return count


def test_a_computed_cell_is_told_by_when_and_a_refused_one_by_why():
    hashes = [content_sha256([record(0, started)]) for started in ("now", "now", "later")]
    assert hashes[0] == hashes[1] != hashes[2]
    refused = [content_sha256([record(0, *each)]) for each in (("now", None), ("later", None), ("now", None, "other"))]
    assert refused[0] == refused[1] != refused[2]
    assert refused[0] != hashes[0]


def test_a_refused_task_is_logged_once(log):
    assert log(record(0, "now", None)) == 1
    assert log(record(0, "later", None)) == 1
    assert log(record(0, "later", None, "another reason")) == 2


def test_what_was_logged_before_something_else_is_not_logged_again(log):
    """`--splits 0`, `--splits 1`, both, and each of them again."""
    asked = [(record(0),), (record(1),), (record(0), record(1)), (record(1), record(0)), (record(0),), (record(1),)]
    assert [log(*group) for group in asked] == [1, 2, 3, 3, 3, 3]


@pytest.mark.parametrize("marker", ["", "[]", '{"logged": []}', '{"content_sha256": "0"}'])
def test_a_marker_that_is_none_counts_for_nothing(log, tmp_path, marker):
    path = tmp_path / "out" / "wandb" / "logged" / f"{group_key(record(0))[:16]}.json"
    path.parent.mkdir(parents=True)
    path.write_text(marker)
    assert log(record(0)) == 1
    assert log(record(0)) == 1


def test_two_runs_at_once_log_one_run(log):
    assert log(record(0), loggers=4) == 1


def test_a_run_that_waits_in_vain_for_another_says_so(log, tmp_path):
    out = tmp_path / "out"
    path = out / "wandb" / "locks" / f"{group_key(record(0))[:16]}.lock"
    path.parent.mkdir(parents=True)
    began = time.monotonic()
    with FileLock(path), WandbLogger("offline", out, 0.5) as logger:
        logger.log([record(0)], {})
    assert 0.5 <= time.monotonic() - began < 5
    assert logger.notes == [
        "W&B logging stopped (another run is logging the same results, for more than 0.5 s); the records are complete "
        f"in {out}, and the same command again logs what is missing"
    ]
    assert log(record(0)) == 1


@pytest.mark.parametrize("then", ["time.sleep(600)", "os._exit(3)", "print('hello', flush=True)", "sys.exit()"])
def test_no_temporary_folder_stays_behind(tmp_path, monkeypatch, then):
    """W&B makes such folders when it is imported, and removes them when it ends by itself."""
    above, script, made = tmp_path / "tmp", tmp_path / "process.py", tmp_path / "made"
    above.mkdir()
    script.write_text(
        "import os, sys, tempfile, time\n"
        "folder = tempfile.mkdtemp('wandb-media')\n"
        f"open({str(made)!r}, 'a').write(folder + chr(10))\n"
        f"sys.stdin.readline()\n{then}\n"
    )
    monkeypatch.setattr(wandb_log, "PROCESS", script)
    monkeypatch.setattr(tempfile, "tempdir", str(above))
    with WandbLogger("offline", tmp_path / "out", 1.0) as logger:
        logger.log([record(0)], {})
    assert len(logger.notes) == 1
    assert all(folder.startswith(str(above)) for folder in made.read_text().split())
    assert list(above.iterdir()) == []


@pytest.mark.slow
def test_nor_where_its_parent_was_killed(tmp_path):
    """All that W&B's process hears of it is that its input has ended; here it has imported W&B by then."""
    above = tmp_path / "tmp"
    above.mkdir()
    done = subprocess.run(
        [sys.executable, "-P", wandb_process.__file__, str(above)],
        input=f"{write_content(tmp_path)}\n", env={**os.environ, "TMPDIR": str(above)}, capture_output=True, text=True,
        check=True, timeout=120,
    )  # fmt: skip
    assert str(tmp_path / "out" / "wandb") in json.loads(done.stdout)["run"]
    assert not above.exists()


def write_content(folder):
    (folder / "out").mkdir()
    path = folder / "content.json"
    path.write_text(json.dumps(run_content([record(0)], {}, folder / "out", "offline", folder)))
    return path
