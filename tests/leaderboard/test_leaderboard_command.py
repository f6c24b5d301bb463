"""`fsvi-bench leaderboard` freeze and serve; build is tested where its files are."""

from __future__ import annotations

import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest

from fsvi_bench.cli.app import main
from fsvi_bench.leaderboard.references import freeze, read_references
from fsvi_bench.leaderboard.site.output import write_site
from fsvi_bench.tasks import official
from tests.leaderboard.planted import planted_tasks


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["leaderboard", *map(str, arguments)])
    return ended.value.code


def test_freeze_writes_the_references_of_the_protocols_tasks(tmp_path, monkeypatch, capsys):
    tasks, asked = planted_tasks({"concrete": 1, "yacht": 2}), []
    splits = {"concrete": [0], "yacht": [0, 1], "diabetes": [0]}  # diabetes is in no leaderboard
    monkeypatch.setattr(official, "official_splits", lambda name: splits.get(name, []))
    monkeypatch.setattr(official, "official_tasks", lambda names, data_dir: asked.append((names, data_dir)) or tasks)
    (tmp_path / "submissions").mkdir()
    assert run("freeze", "--root", tmp_path, "--data-dir", tmp_path) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'reference.json'}\n"
    assert asked == [(["concrete", "yacht"], tmp_path)]
    assert read_references(tmp_path / "reference.json") == freeze(tasks, [])


def test_freeze_without_a_leaderboard_or_tasks_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(official, "official_splits", lambda name: [])
    assert run("freeze", "--root", tmp_path) == 2
    assert "submissions" in capsys.readouterr().err
    (tmp_path / "submissions").mkdir()
    assert run("freeze", "--root", tmp_path) == 2
    assert "there are no official tasks" in capsys.readouterr().err
    assert not (tmp_path / "reference.json").exists()


def test_serve_prints_the_address_and_ends_on_ctrl_c(tmp_path):
    write_site(tmp_path / "site", [("index.html", b"<p>here</p>")])
    command = [sys.executable, "-m", "fsvi_bench", "leaderboard", "serve", "--root", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serving:
        try:
            address = serving.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            with urlopen(address) as answer:
                assert answer.read() == b"<p>here</p>"
            serving.send_signal(signal.SIGINT)
            _, errors = serving.communicate(timeout=60)
        finally:
            serving.kill()
    assert (serving.returncode, errors) == (0, "Ctrl-C ends it.\n")


def test_serve_without_a_site_says_how_to_make_one(tmp_path, capsys):
    assert run("serve", "--site", tmp_path) == 2
    assert "make it with `fsvi-bench leaderboard build`" in capsys.readouterr().err
