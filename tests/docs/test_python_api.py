"""docs/python-api.md as a reader takes it: every block of Python, in order, in one session; and README's example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_every_block_of_the_page_runs(reader, capsys):
    names: dict = {}
    for block in blocks("docs/python-api.md"):
        exec(compile(block, "docs/python-api.md", "exec"), names)
    said = capsys.readouterr().out
    assert "KL(q || exact) = " in said
    assert "torch.Size([1000, 100])" in said
    kl = names["trainer"].callback_metrics
    assert names["scores"]["kl"] > 0
    assert set(kl) <= {"loss"}  # the last Trainer, which had no Scores
    rows = (reader / "logs/lightning_logs/version_0/metrics.csv").read_text().splitlines()
    assert {"kl", "loss", "nlpd", "step"} <= set(rows[0].split(","))
    assert len(rows) > 20
    assert len(list((reader / "checkpoints").iterdir())) >= 2


def test_the_first_block_is_short_and_readmes():
    first, readmes = blocks("docs/python-api.md")[0], blocks("README.md")
    assert len(first.strip().splitlines()) <= 10
    assert first in readmes
