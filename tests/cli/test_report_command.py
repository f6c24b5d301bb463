"""`fsvi-bench report`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.presenting.studies import record, save


@pytest.mark.usefixtures("no_figures")
def test_the_page_is_written_where_the_command_says(cli, tmp_path):
    root = save(tmp_path / "results", [record("rand-a", 0, 1.0), record("ssge", 0, 2.0)])
    status, out, err = cli("report", root)
    assert (status, err) == (0, "")
    assert Path(out.strip()) == root / "report" / "report.html"
    assert Path(out.strip()).read_text().startswith("<!doctype html>")
    status, out, _ = cli("report", root, "--out", tmp_path / "elsewhere")
    assert Path(out.strip()) == tmp_path / "elsewhere" / "report.html"


@pytest.mark.usefixtures("no_figures")
def test_the_numbers_of_the_page_are_one_json_document(cli, tmp_path):
    records = [record("rand-a", split, kl) for split, kl in enumerate([1.0, 2.0, 6.0, math.inf])]
    root = save(tmp_path / "results", [*records, record("ssge", 0)])
    status, out, err = cli("report", root, "--json")
    assert (status, err) == (0, "")
    assert (root / "report" / "report.html").is_file()
    by_score = {(line["method"], line["score"]): line for line in json.loads(out)}
    kl, moments, lost = by_score["rand-a", "kl"], by_score["rand-a", "kl_moment_matched"], by_score["ssge", "kl"]
    assert (kl["median"], kl["upper_quartile"], kl["mean"]) == (4.0, "Infinity", "Infinity")
    assert (kl["splits"], kl["cells"], kl["standard_error"], kl["hyperparameters"]) == (4, 4, None, {})
    assert (kl["judged"], lost["judged"]) == (4, 0)
    values = [1.0, 2.0, 6.0, 50.0]
    assert (moments["mean"], moments["median"]) == (np.mean(values), 4.0)
    assert (moments["lower_quartile"], moments["upper_quartile"]) == tuple(np.quantile(values, [0.25, 0.75]))
    assert moments["standard_error"] == pytest.approx(np.std(values, ddof=1) / 2)
    assert (lost["median"], lost["mean"], lost["ok"], lost["failed"]) == (None, None, 0, 1)
