"""What tests of commands share."""

from __future__ import annotations

import pytest


@pytest.fixture
def refused(cli, tmp_path, monkeypatch):
    """Runs the command and checks that it refuses as every refusal must; returns its one sentence."""

    # Relative default folders and the cache lie beneath tmp_path, so "nothing written" is about all there is.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))

    def call(*arguments):
        before = sorted(tmp_path.rglob("*"))
        status, out, err = cli(*arguments)
        assert status == 2
        assert out == ""
        assert err.startswith("fsvi-bench: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return call
