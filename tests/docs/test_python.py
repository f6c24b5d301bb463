"""docs/how-to/python.md as a reader takes it: every block of Python, in order, in one session, with fewer steps."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.test_pages import shorter


@pytest.mark.slow
def test_every_block_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks(ROOT / "docs/how-to/python.md"):
        exec(compile(shorter(block.text), "docs/how-to/python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "KL(q || exact) = " in said
    assert "torch.Size([1000, 100])" in said
    kl = names["trainer"].callback_metrics
    assert names["scores"]["kl"] > 0
    assert set(kl) <= {"loss"}  # the last Trainer, which had no Scores
    rows = (tmp_path / "logs/lightning_logs/version_0/metrics.csv").read_text().splitlines()
    assert {"kl", "loss", "nlpd", "step"} <= set(rows[0].split(","))
    assert len(rows) > 11  # the heading, and scores at 0, 10, ..., 100 steps
    assert len(list((tmp_path / "checkpoints").iterdir())) >= 2
