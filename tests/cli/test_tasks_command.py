"""`fsvi-bench tasks`: built, shown and verified, by files, folders and names."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fsvi_bench.cli import tasks as tasks_command
from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.running import runner
from fsvi_bench.tasks.build import load_cached
from fsvi_bench.tasks.certificate import read_certified, save
from fsvi_bench.tasks.frozen import read_task, write_task
from fsvi_bench.tasks.official import official_path, read_official
from fsvi_bench.tasks.own import make_task
from fsvi_bench.tasks.sets import read_member, splits_of


def test_tasks_show_says_where_a_fit_started(cli, tmp_path):
    g = np.random.default_rng(0)
    X = g.normal(size=(60, 2))
    task = make_task(X, np.sin(2 * X[:, 0]) + 0.1 * g.normal(size=60), k=8, initial_rows=1000)
    used = task.certificate.fit.start
    assert (used.used, used.converged) == (True, True)
    told = f"the exact GP of {task.N} rows ({used.evidence_per_row:+.5f} nats per row, {used.iterations} iterations)"
    for start, words in (
        (used, told),
        (used.model_copy(update={"used": False}), f"as set, which was better than {told}"),
        (used.model_copy(update={"converged": False}), f"{used.iterations} iterations, not converged)"),
        (None, ""),
    ):
        fit = task.certificate.fit.model_copy(update={"start": start})
        save((task.frozen, task.certificate.model_copy(update={"fit": fit})), tmp_path / "t.safetensors")
        status, out, _ = cli("tasks", "show", tmp_path / "t.safetensors")
        assert status == 0
        lines = [line for line in out.splitlines() if line.startswith(" start ")]
        assert len(lines) == (start is not None)
        assert words in " ".join(lines)


def test_tasks_build_show_and_verify(cli, tmp_path):
    status, out, _ = cli("tasks", "build", "--dataset", "toy", "--splits", "0,2", "--out", tmp_path)
    paths = out.split()
    assert status == 0
    assert paths == [str(tmp_path / "toy" / f"split-0{split}.safetensors") for split in (0, 2)]
    status, out, _ = cli("tasks", "verify", *paths)
    assert status == 0
    assert out.count("certificate holds") == 2
    assert cli("tasks", "verify", *(tmp_path / "toy").iterdir())[0] == 0
    status, out, _ = cli("tasks", "show", paths[0])
    assert read_task(tmp_path / "toy" / "split-00.safetensors").sha256 in out
    status, out, _ = cli("tasks", "show", paths[0], "--json")
    assert json.loads(out)[0]["dataset"] == "toy"
    by_folder, by_files = (cli("tasks", "verify", *named) for named in ([tmp_path], paths))
    assert by_folder == by_files
    assert by_folder[1].splitlines()[-1].startswith("2 of 2 hold; the two computations of each posterior agree to ")
    shown = [json.loads(cli("tasks", "show", name, "--json")[1]) for name in ("diabetes", "diabetes:3")]
    assert [len(each) for each in shown] == [20, 1]
    assert shown[0][3] == shown[1][0]


def test_a_task_that_left_the_cache_is_named(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(tasks_command, "load_cached", lambda card, split: load_cached(card, split) if split else None)
    status, out, err = cli("tasks", "build", "--dataset", "toy", "--splits", "0,2", "--out", tmp_path)
    assert (status, out) == (1, f"{tmp_path / 'toy' / 'split-02.safetensors'}\n")
    assert "toy split 0: its file in the cache was removed or damaged" in err


def test_tasks_build_writes_a_set_for_each_data_set(cli, refused, tmp_path, monkeypatch):
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runner, "build_task", lambda card, split, raw: read_official(card.name, split))  # for a fit
    build = ("tasks", "build", "--dataset", "diabetes", "--as-set", "--workers", "1", "--out", tmp_path)
    status, out, _ = cli(*build, "--splits", "0-1")
    path = official_path("diabetes", tmp_path)
    assert (status, out.split()) == (0, [str(path)])
    assert splits_of(path) == [0, 1]
    for split in (0, 1):
        written, official = read_member(path, split), read_official("diabetes", split)
        assert (written.task.sha256, written.certificate) == (official.task.sha256, official.certificate)
    assert "--as-set needs the first splits of a data set, got diabetes with 1" in refused(*build, "--splits", "1")


def test_a_data_set_with_a_refused_task_gets_no_set(cli, tmp_path, monkeypatch):
    def refuse(card, split, raw):
        raise TaskRefused("planted")

    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runner, "build_task", refuse)
    build = ("tasks", "build", "--splits", "0", "--as-set", "--workers", "1", "--out", tmp_path)
    status, out, err = cli(*build)
    assert (status, out) == (1, "")
    assert "diabetes split 0: planted" in err
    assert not official_path("diabetes", tmp_path).exists()


def test_a_folder_takes_precedence_over_official_tasks_of_its_name(cli, tmp_path, monkeypatch):
    cli("tasks", "build", "--dataset", "toy", "--splits", "0", "--out", tmp_path)
    (tmp_path / "toy").rename(tmp_path / "diabetes")
    monkeypatch.chdir(tmp_path)
    (shown,) = json.loads(cli("tasks", "show", "diabetes", "--json")[1])
    assert shown["dataset"] == "toy"


def test_tasks_verify_finds_a_task_that_is_not_the_certificates(cli, tmp_path):
    cli("tasks", "build", "--dataset", "toy", "--splits", "0", "--out", tmp_path)
    path = tmp_path / "toy" / "split-00.safetensors"
    task = read_task(path)
    write_task(path, replace(task, noise_variance=task.noise_variance * 1.01))
    certificate = path.with_suffix(".certificate.json")
    content = json.loads(certificate.read_text())
    certificate.write_text(json.dumps({**content, "task_sha256": read_task(path).sha256}))
    status, out, err = cli("tasks", "verify", path, "diabetes:0")
    assert status == 1
    assert out.splitlines()[-1].startswith("1 of 2 hold; ")
    assert "its certificate says noise_variance" in err
    assert "log_evidence" in err


def test_an_invalid_file_does_not_stop_the_others_from_being_verified(cli, refused, tmp_path):
    folder = tmp_path / "tasks"
    cli("tasks", "build", "--dataset", "toy", "--splits", "0", "--out", folder)
    stray = folder / "a.safetensors"  # before toy/ in order
    stray.write_bytes(b"no tensors")
    status, out, err = cli("tasks", "verify", folder)
    assert status == 2
    assert out.splitlines()[-1].startswith("1 of 2 hold; ")
    assert err.startswith(str(stray))
    assert err.count("\n") == 1
    assert str(stray) in refused("tasks", "verify", stray)


@pytest.mark.parametrize("splits", [["diabetes:0,3"], ["diabetes", "--splits", "0,3"]])
def test_tasks_export_writes_frozen_tasks_into_files_of_their_own(cli, tmp_path, splits):
    status, out, _ = cli("tasks", "export", *splits, "--format", "task", "--out", tmp_path)
    paths = [tmp_path / "diabetes" / f"split-0{split}.safetensors" for split in (0, 3)]
    assert (status, out.split()) == (0, list(map(str, paths)))
    for path, split in zip(paths, (0, 3), strict=True):
        official, (task, certificate) = read_official("diabetes", split), read_certified(path)
        assert (task.sha256, certificate) == (official.task.sha256, official.certificate)
    assert cli("tasks", "verify", *paths)[0] == 0


def test_the_file_of_a_set_stands_for_all_of_its_tasks(cli):
    by_file, by_name = (cli("tasks", "show", name, "--json") for name in (official_path("protein"), "protein"))
    assert by_file == by_name
    status, out, _ = cli("tasks", "verify", "diabetes:1-2")
    assert status == 0
    assert [line.split(": ")[0] for line in out.splitlines()[:2]] == ["diabetes:1", "diabetes:2"]


def test_run_and_score_take_an_official_task_by_its_name(cli, refused, tmp_path):
    run = ("run", "--task", "diabetes:3", "--method", "exact", "--family", "ffg", "--out", tmp_path, "--json")
    status, out, _ = cli(*run)
    (record,) = json.loads(out)
    assert (status, record["split"]) == (0, 3)
    assert record["task_sha256"] == read_official("diabetes", 3).task.sha256
    (posterior,) = tmp_path.rglob("posterior.safetensors")
    status, out, _ = cli("score", "--task", "diabetes:3", "--posterior", posterior, "--json")
    assert status == 0
    assert json.loads(out)["kl"] == record["scores"]["kl"]
    assert "names 20 tasks, expected one" in refused("score", "--task", "diabetes:0-19", "--posterior", posterior)


def test_missing_data_of_one_task_do_not_stop_the_others_from_being_verified(cli, tmp_path, monkeypatch):
    verified = tasks_command.verification

    def verification(task, stored, data_dir):
        if task.dataset == "boston":
            raise InputError("the raw data of boston are not here")
        return verified(task, stored, data_dir)

    monkeypatch.setattr(tasks_command, "verification", verification)
    status, out, err = cli("tasks", "verify", "boston:0", "diabetes:0")
    assert (status, err.strip()) == (2, "the raw data of boston are not here")
    assert "diabetes:0: certificate holds" in out
    assert "1 of 2 hold" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["build", "--dataset", "diabetes", "--splits", "1,3", "--as-set"], "--as-set needs the first splits"),
        (["build", "--dataset", "toy", "--splits", "0-2", "--as-set"], "each split of toy has its own data"),
        (["export", "nowhere", "--splits", "0"], "unknown data set 'nowhere'"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_fit(cli, tmp_path, monkeypatch, words, message):
    monkeypatch.setattr(runner, "fit_missing", lambda *given: pytest.fail("it was fitted"))
    status, out, err = cli("tasks", *words, "--out", tmp_path / "out")
    assert (status, out) == (2, "")
    assert message in err
    assert not (tmp_path / "out").exists()


def test_a_check_writes_no_set(cli):
    assert cli("tasks", "build", "--dataset", "toy", "--check", "--as-set")[0] == 2


def test_a_task_without_a_certificate_cannot_be_written_below_a_file(cli, tmp_path):
    save((read_official("diabetes", 0).task, None), tmp_path / "bare" / "split-00.safetensors")
    (tmp_path / "file").write_text("")
    status, _, err = cli("tasks", "export", tmp_path / "bare" / "split-00.safetensors", "--format", "task", "--out",
                         tmp_path / "file")  # fmt: skip
    assert status == 2
    assert "Traceback" not in err
