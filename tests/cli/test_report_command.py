"""`fsvi-bench report`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.presenting.studies import record, save

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_lies_where_the_command_says(cli, tmp_path):
    root = save(tmp_path / "results", [record("rand-a", 0, 1.0), record("ssge", 0, 2.0)])
    status, out, err = cli("report", root)
    assert (status, err) == (0, "")
    assert Path(out.strip()) == root / "report" / "report.html"
    assert Path(out.strip()).read_text().startswith("<!doctype html>")
    status, out, _ = cli("report", root, "--out", tmp_path / "elsewhere")
    assert Path(out.strip()) == tmp_path / "elsewhere" / "report.html"


def test_a_folder_without_records_is_refused_in_one_sentence(cli, tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        status, out, err = cli("report", folder)
        assert (status, out) == (2, "")
        assert err.startswith("fsvi-bench: ")
        assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_wheel_carries_the_pages_template_style_and_script(tmp_path):
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT))
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assets = ROOT / "fsvi_bench" / "presenting" / "assets"
    expected = {str(path.relative_to(ROOT)) for path in assets.rglob("*") if path.is_file()}
    assert len(expected) > 8
    assert expected <= set(zipfile.ZipFile(wheel).namelist())
