"""`fsvi-bench tasks build --check`: an official task fitted again, compared, and never written."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fsvi_bench.errors import TaskRefused
from fsvi_bench.running import runner
from fsvi_bench.tasks.certificate import CertifiedTask
from fsvi_bench.tasks.official import official_path, official_splits, read_official


def contents(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def plant(monkeypatch, change):
    """In place of a fit: the official task itself, changed."""

    def build_task(card, split, raw):
        found = read_official(card.name, split)
        return change(found)

    monkeypatch.setattr(runner, "build_task", build_task)


def worse(found):
    fit = found.certificate.fit
    fit = fit.model_copy(update={"bound_per_point": fit.bound_per_point - 1})
    task = replace(found.task, noise_variance=2 * found.task.noise_variance)
    return CertifiedTask(task, found.certificate.model_copy(update={"fit": fit}))


@pytest.mark.slow
def test_a_refit_reproduces_the_official_task_of_diabetes(cli):
    """A real fit, with whatever kernels and versions this machine has: within the tolerances, and nothing is written."""
    folders = official_path("diabetes").parent, Path(os.environ["FSVI_BENCH_CACHE"])
    before = [contents(folder) for folder in folders]
    status, out, err = cli("tasks", "build", "--check", "--dataset", "diabetes", "--workers", "1")
    assert (status, err.count("Traceback")) == (0, 0), out
    assert out.splitlines()[0] in {
        "diabetes split 0: the refit is the official task, to the last bit",
        "diabetes split 0: the refit agrees with the official task",
    }
    bound = read_official("diabetes", 0).certificate.fit.bound_per_point
    assert f"bound per training point: official {bound:.6f}, refitted {bound:.2f}" in out
    assert out.count("tolerance") == 3
    assert "exceeded" not in out
    assert [contents(folder) for folder in folders] == before


def test_a_refit_that_differs_has_status_1_and_says_by_how_much(cli, monkeypatch):
    plant(monkeypatch, worse)
    status, out, _ = cli("tasks", "build", "--check", "--dataset", "diabetes", "--splits", "2,0", "--workers", "1")
    assert status == 1
    lines = out.splitlines()
    assert [line for line in lines if "split" in line] == [
        f"diabetes split {split}: the refit DIFFERS from the official task" for split in (0, 2)
    ]
    bound = read_official("diabetes", 0).certificate.fit.bound_per_point
    values = f"official {bound:.6f}, refitted {bound - 1:.6f}; difference 1 nats"
    assert f"bound per training point: {values}, tolerance 0.01 (exceeded)" in lines[1]


def test_a_refit_without_a_certificate_is_a_departure(cli, monkeypatch):
    def refuse(found):
        raise TaskRefused("planted: the condition number is too large")

    plant(monkeypatch, refuse)
    status, out, err = cli("tasks", "build", "--check", "--dataset", "diabetes", "--workers", "1")
    assert (status, out) == (1, "")
    assert "diabetes split 0: planted: the condition number is too large" in err


def test_split_0_is_checked_unless_another_is_named(cli, monkeypatch):
    plant(monkeypatch, lambda found: found)
    out = cli("tasks", "build", "--check", "--workers", "1")[1]
    assert [line.split(":")[0] for line in out.splitlines() if "split" in line] == ["diabetes split 0"]
    out = cli("tasks", "build", "--check", "--splits", "0-19", "--workers", "1")[1]
    assert out.count("is identical to") == len(official_splits("diabetes")) == 20
