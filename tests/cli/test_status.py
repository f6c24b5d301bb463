"""`status`, `export`, `run --dry-run` and `--rerun`, and the lines that tell how far a run is."""

from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console

from fsvi_bench.cli import progress as module
from fsvi_bench.cli.progress import RichProgress, words_of_rate

TOY = ("run", "--dataset", "toy", "--splits", "0-1", "--method", "exact", "--wandb", "off")


def test_status_counts_what_is_done_and_what_is_missing(cli, tmp_path):
    out = tmp_path / "out"
    assert cli(*TOY, "--out", out, "--json")[0] == 0
    next(out.rglob("record.json")).unlink()
    status, text, err = cli("status", out)
    assert (status, err) == (0, "")
    assert "3 of 4 cells done (75%), 3 ok" in text
    status, text, _ = cli("status", out, "--json")
    told = json.loads(text)
    assert (told["planned"], told["ok"], told["missing"], told["stale"]) == (4, 3, 1, 0)
    assert {(group["method"], group["family"]) for group in told["groups"]} == {("exact", "full"), ("exact", "ffg")}


def test_status_names_methods_with_cells_of_several_versions(cli, tmp_path, monkeypatch):
    assert cli(*TOY, "--workers", 1, "--out", tmp_path)[0] == 0
    for place in ("plan", "job"):
        monkeypatch.setattr(f"fsvi_bench.running.{place}.decisive_sha256", lambda sha256: "f" * 64)
    assert cli(*TOY[:3], "--splits", "0", *TOY[5:], "--workers", 1, "--out", tmp_path)[0] == 0
    said = "exact: cells of several versions of the code or kernels"
    text = cli("status", tmp_path)[1]
    assert "4 of 4 cells done (100%), 4 ok" in text
    assert "2 stale records are not counted: they belong to other code, kernels or tasks" in text
    assert said in text
    assert json.loads(cli("status", tmp_path, "--json")[1])["mixed"] == ["exact"]
    assert cli(*TOY, "--workers", 1, "--out", tmp_path)[0] == 0
    assert said not in cli("status", tmp_path)[1]


def test_a_dry_run_writes_nothing(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    more = ("--seeds", "0-4", "--method", "mean-field-vi")
    status, text, _ = cli(*TOY, *more, "--out", tmp_path / "out", "--dry-run", "--json")
    assert status == 0
    assert (json.loads(text)["planned"], json.loads(text)["missing"]) == (2 * 2 + 2 * 5, 14)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_refuses_settings_that_a_run_refuses(cli, tmp_path):
    """Diabetes has official tasks, and its data come with scikit-learn."""
    large = ("run", "--dataset", "diabetes", "--splits", "0", "--method", "rand-a", "--measurement-points", 100_000)
    refused = [cli(*large, "--out", tmp_path / "out", "--wandb", "off", *flags) for flags in ([], ["--dry-run"])]
    for status, out, err in refused:
        assert (status, out) == (2, "")
        assert "M=100000 needs 50000 distinct training inputs, but a split has only" in err
    assert refused[0][2].splitlines()[-1] == refused[1][2].splitlines()[-1]


def test_a_dry_run_refuses_a_gpu_that_is_not_there(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, _, err = cli(*TOY, "--device", "cuda", "--out", tmp_path / "out", "--dry-run")
    assert (status, err) == (2, "fsvi-bench: the device is 'cuda', but no CUDA GPU is available; choose cpu or auto\n")


def test_a_dry_run_asks_a_methods_own_check_of_whatever_kind(cli, tmp_path):
    path = tmp_path / "own.py"
    check = "def check(*given): raise InputError('planted: wants more rows')"
    head = "from fsvi_bench.errors import InputError\nfrom fsvi_bench.methods.base import Method\nclass Own(Method):\n"
    for kind in ("staticmethod", "classmethod"):
        path.write_text(f"{head}    solve = None\n    @{kind}\n    {check}\n")
        run = ("run", "--dataset", "diabetes", "--splits", "0", "--method", f"{path}:Own", "--out", tmp_path / "out")
        status, _, err = cli(*run, "--dry-run")
        assert (status, err.splitlines()[-1]) == (2, "fsvi-bench: planted: wants more rows")


def test_a_dry_run_downloads_nothing_to_check_settings(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FSVI_BENCH_DATA", raising=False)
    large = ("run", "--dataset", "yacht", "--splits", "0", "--method", "rand-a", "--measurement-points", 100_000)
    status, out, err = cli(*large, "--dry-run", "--out", tmp_path / "out", "--json")
    assert (status, json.loads(out)["missing"]) == (0, 2)
    assert "the raw data of yacht are not available locally" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [("--dry-run",), ()])
def test_a_flag_without_effect_is_reported(cli, tmp_path, flags):
    said = "--max-steps has no effect: the chosen methods lack this option, or are in closed form"
    status, _, err = cli(*TOY, "--out", tmp_path, "--max-steps", 5, *flags)
    assert (status, err.splitlines().count(said)) == (0, 1)
    assert said not in cli(*TOY, "--method", "rand-a", "--out", tmp_path, "--max-steps", 5, "--dry-run")[2]


def test_an_option_that_several_methods_take_is_reported(cli, tmp_path):
    run = (*TOY, "--method", "rand-a", "--method", "mean-field-vi", "--out", tmp_path, "--dry-run")
    said = "--set lr applies to rand-a, mean-field-vi; to set it for one method, write --set rand-a.lr=0.5"
    status, _, err = cli(*run, "--set", "lr=0.5")
    assert (status, err.splitlines()) == (0, [said])
    assert cli(*run, "--set", "rand-a.lr=0.5")[2] == ""


def test_a_second_run_computes_what_a_dry_run_says(cli, tmp_path):
    for rerun, missing in (("none", 4), ("none", 0), ("failed", 0), ("all", 4)):
        run = (*TOY, "--out", tmp_path, "--rerun", rerun)
        told = json.loads(cli(*run, "--dry-run", "--json")[1])
        assert (told["planned"], told["missing"]) == (4, missing)
        assert f"{missing} cells computed, {4 - missing} reused" in cli(*run)[2]


def test_an_interrupt_says_how_many_cells_are_finished(cli, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "from fsvi_bench.methods.base import Method\n"
        "class Stops(Method):\n"
        "    deterministic, families = True, ('full',)\n"
        "    def solve(self, problem): raise KeyboardInterrupt\n"
    )
    stops, end = ("--method", f"{path}:Stops"), "cells are finished: rerun the command to compute the rest"
    for methods, done in ((stops, "0 of 2"), (("--method", "exact", *stops), "4 of 6")):
        status, out, err = cli(
            "run", "--dataset", "toy", "--splits", "0-1", *methods, "--wandb", "off", "--out", tmp_path
        )
        assert (status, out) == (130, "")
        assert err.splitlines()[-1] == f"fsvi-bench: interrupted; {done} {end}"


def test_export_writes_two_tables(cli, tmp_path):
    assert cli(*TOY, "--out", tmp_path)[0] == 0
    status, text, _ = cli("export", tmp_path, "--out", tmp_path / "tables")
    assert status == 0
    assert "records.parquet: 4 rows" in text
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["records.parquet", "traces.parquet"]


def test_a_log_gets_a_line_per_group_and_for_its_first_failure(monkeypatch):
    text, now = io.StringIO(), 0.0
    console = Console(file=text, soft_wrap=True, width=200, get_time=lambda: now)
    monkeypatch.setattr(module, "stderr", console)
    with RichProgress() as progress:
        progress.start("cells", 40, {"a": 30, "b": 10})
        for place in range(40):
            now += 2
            group = "b" if place % 4 == 3 else "a"
            progress.advance("cells", f"cell {place}", group, "failed" if place in (5, 6, 8) else "ok")
    said = text.getvalue().splitlines()
    assert said[0] == "running methods 6/40: a: 4 ok, 1 failed so far (30.0/min, about 0:01:08 left)"
    assert "running methods 39/40: a: 27 ok, 3 failed (30.0/min, about 0:00:02 left)" in said
    assert said[-1] == "running methods 40/40: b: 10 ok (30.0/min)"
    assert len(said) == 5, said  # the first failure, two groups done, and one line each half minute


def test_rates_include_the_time_of_the_first_step(monkeypatch):
    text, now = io.StringIO(), 0.0
    monkeypatch.setattr(module, "stderr", Console(file=text, soft_wrap=True, width=200, get_time=lambda: now))
    with RichProgress() as progress:
        progress.start("parts", 8)
        now = 1790.0
        progress.advance("parts", "a")
        now = 1800.0
        progress.advance("parts", "b")
    assert text.getvalue().splitlines()[-1] == "parts 2/8: b (4.0/h, about 1:30:00 left)"


def test_rates_have_a_digit_before_the_point():
    assert [words_of_rate(rate) for rate in (12.34, 1.0, 0.5, 1 / 60, 1 / 90)] == [
        "12.3/s",
        "1.0/s",
        "30.0/min",
        "1.0/min",
        "40.0/h",
    ]


def test_a_terminal_shows_a_total_bar_and_one_for_each_active_group(monkeypatch):
    monkeypatch.setattr(module, "stderr", Console(file=io.StringIO(), force_terminal=True, width=150))
    groups = {f"group {name}": 3 for name in range(20)}
    with RichProgress() as progress:
        progress.start("cells", 60, groups)
        for group in groups:
            progress.advance("cells", "x", group)

        def shown():
            return [task.description for task in progress._bars.tasks if task.visible]

        assert shown() == ["running methods", *(f"  group {name}" for name in range(module._GROUPS_SHOWN))]
        progress.advance("cells", "x", "group 0", "diverged")
        progress.advance("cells", "x", "group 0")
        assert "  group 0" not in shown()
        overall = progress._bars.tasks[0]
        assert (overall.completed, overall.fields["last"]) == (22, "1 diverged; x")
