"""docs/new-method.md as a reader takes it: its template, checked and run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "new-method.md").read_text()
TEMPLATE = PAGE.split("```python\n")[1].split("```")[0]


@pytest.fixture
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_method.py").write_text(TEMPLATE)
    return tmp_path


def commands():
    """Every command of the page, without the program's name."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [line.removeprefix("fsvi-bench ").split() for block in blocks for line in block.strip().splitlines()]


def test_the_template_is_short():
    assert len(TEMPLATE.strip().splitlines()) <= 25
    assert all(len(line) <= 120 for line in TEMPLATE.splitlines())


def test_the_template_conforms_by_the_pages_command(in_empty_folder, cli):
    (check,) = [words for words in commands() if words[:2] == ["methods", "check"]]
    status, out, err = cli(*check, "--device", "cpu")
    assert (status, err) == (0, "")
    said = re.search(r"`(MyMethod conforms: [^`]*)`", PAGE)
    assert said is not None
    assert out.splitlines()[-1] == said[1]
    assert [path.name for path in in_empty_folder.iterdir()] == ["my_method.py"]


def test_the_template_runs_and_learns(in_empty_folder, cli):
    """As the page's `run`, on the toy task for the raw data's sake and with fewer steps: KL falls by far."""
    kls = {}
    for steps in (1, 300):
        status, out, _ = cli(
            "run", "--dataset", "toy", "--splits", "0", "--method", "my_method.py:MyMethod", "--max-steps", steps,
            "--wandb", "off", "--workers", 1, "--out", f"out-{steps}", "--json",
        )  # fmt: skip
        assert status == 0
        for record in json.loads(out):
            kls[record["family"], steps] = record["scores"]["kl"]
    for family in ("full", "ffg"):
        assert kls[family, 300] < 0.2 * kls[family, 1]


@pytest.mark.data
def test_the_pages_run_commands_are_understood(in_empty_folder, cli):
    runs = [words for words in commands() if words[0] == "run"]
    assert len(runs) == 2
    for words in runs:
        status, _, err = cli(*words, "--dry-run")
        assert status == 0, err
