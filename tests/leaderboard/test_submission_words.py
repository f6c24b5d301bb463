"""What `submit` writes into `submission.yaml` is read as the same, and what programs say is made fit for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsvi_bench.leaderboard.drafting import rounded_up
from fsvi_bench.leaderboard.strict import load_yaml, manifest_yaml, read_manifest
from fsvi_bench.leaderboard.submission import Manifest
from fsvi_bench.leaderboard.submitting import as_line, as_slug, as_text
from tests.leaderboard.planted import planted_manifest


@pytest.mark.parametrize(
    "text", ["1e-3", "089", "no", "12:30", "~", "null", "true", "", "-", "0x1F", ".5", "1_000", "&a", "!x"]
)
def test_settings_that_are_text_stay_text(text, tmp_path):
    """A YAML writer leaves the quotes away where a reader of the core schema would see a number."""
    manifest = planted_manifest(hyperparameters={"a": text, "b": 1e-5, "c": 3, "d": None, "e": True, "f": 1e22})
    (tmp_path / "submission.yaml").write_bytes(manifest_yaml(manifest))
    again = read_manifest(tmp_path / "submission.yaml")
    assert again == manifest
    assert [type(value) for value in again.hyperparameters.values()] == [str, float, int, type(None), bool, float]


def test_words_of_the_core_schema():
    text = b"a: 1e-3\nb: no\nc: 12:30\nd: .5\ne: ~\nf: true\ng:\nh: -7\ni: 2026-01-01\nj: 0x1F"
    assert load_yaml(Path("x.yaml"), text) == {
        "a": 0.001, "b": "no", "c": "12:30", "d": 0.5, "e": None, "f": True, "g": None, "h": -7, "i": "2026-01-01", "j": "0x1F",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "up"),
    [(1.0, 1.0), (1.01, 1.1), (9.99, 10.0), (123.4, 130.0), (0.0123, 0.013), (110.0, 110.0), (1e5, 1e5)],
)
def test_seconds_are_rounded_up(value, up):
    assert rounded_up(value) == up


def test_words_from_programs_are_made_fit():
    assert as_slug("MyMethod-full") == "my-method-full"
    assert as_slug("<>") == "submission"
    assert as_line('Intel(R) <Xeon> "x"\n@ 2.9\x07GHz') == "Intel(R) Xeon x @ 2.9 GHz"
    fields = {"hardware": as_line('a<b>"c\\d`e\u202e' * 50), "notes": as_text("x < y\n\x1b[31m > z" * 900)}
    assert as_text("a\u200bb\ufeffc\ud800d\n<e>") == "a b c d\n e "
    assert isinstance(planted_manifest(**fields), Manifest)
