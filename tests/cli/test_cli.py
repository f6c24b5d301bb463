"""The command line: its contract, its errors (one sentence, status 2, nothing written), and what goes where."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.tasks.frozen import read_task
from tests.conftest import REFERENCE

TASK = REFERENCE / "tasks" / "boston-00.safetensors"
FULL = REFERENCE / "posteriors" / "boston-00-full.safetensors"
EXPECTED = json.loads((REFERENCE / "expected.json").read_text())


def test_help_does_not_wait_for_torch():
    """What makes `--help` answer at once: none of the heavy packages is imported (a clock decides no test)."""
    code = (
        "import sys\nfrom fsvi_bench.cli.app import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as e:\n    assert e.code == 0, e.code\n"
        "heavy = {'torch', 'pytorch_lightning', 'gpytorch', 'scipy', 'sklearn', 'wandb', 'numpy', 'matplotlib'}\n"
        "loaded = heavy & set(sys.modules)\nassert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("run", "score", "datasets", "tasks", "methods"):
        assert command in done.stdout


def test_results_are_read_without_lightning():
    """Whose import takes longer than a report: only what trains needs it."""
    code = "import sys\nimport fsvi_bench.running.store\nassert 'pytorch_lightning' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.data
def test_score_prints_one_object_of_scores(cli):
    status, out, err = cli("score", "--task", TASK, "--posterior", FULL, "--json")
    assert (status, err) == (0, "")
    scores = json.loads(out)
    for name, value in EXPECTED["boston-00"]["posterior_full"].items():
        if isinstance(value, dict):
            assert scores[name] == {key: pytest.approx(number, rel=1e-9) for key, number in value.items()}
        else:
            assert scores[name] == pytest.approx(value, rel=1e-9)
    status, out, _ = cli("score", "--task", TASK, "--posterior", FULL)
    assert status == 0
    assert "11.39759528" in out


@pytest.mark.data
@pytest.mark.parametrize("name", ["boston-00", "concrete-03"])
def test_run_on_a_task_file_gives_the_reference_values(cli, tmp_path, name):
    task = REFERENCE / "tasks" / f"{name}.safetensors"
    status, out, _ = cli("run", "--task", task, "--method", "exact", "--out", tmp_path, "--json", "--wandb", "off")
    assert status == 0
    records = {record["family"]: record for record in json.loads(out)}
    expected = EXPECTED[name]
    for family, values in (("full", expected["exact"]), ("ffg", expected["exact_ffg"])):
        for score, value in values.items():
            assert records[family]["scores"][score] == pytest.approx(value, rel=1e-9)
    assert abs(records["full"]["scores"]["kl"]) < 1e-9
    assert records["full"]["scores"]["log_evidence"] == pytest.approx(expected["log_evidence"], rel=1e-9)


def test_run_in_a_process_of_its_own(tmp_path):
    """The installed command: JSON alone on stdout, progress on stderr, status 0; the second run computes nothing."""
    command = [
        sys.executable,
        "-m",
        "fsvi_bench",
        "run",
        "--dataset",
        "toy",
        "--method",
        "exact",
        "--splits",
        "0-1",
        "--json",
        "--wandb",
        "off",
    ]
    first = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert first.returncode == 0, first.stderr
    records = json.loads(first.stdout)
    assert [(record["split"], record["family"]) for record in records] == [
        (0, "full"),
        (1, "full"),
        (0, "ffg"),
        (1, "ffg"),
    ]
    assert "running methods 4/4: toy exact ffg: 2 ok" in first.stderr
    assert "Warning" not in first.stderr
    assert (tmp_path / "fsvi-bench-results" / "cells" / "toy").is_dir()
    second = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert json.loads(second.stdout) == records
    assert second.stderr == ""


def test_a_failed_cell_is_listed_and_the_status_is_1(cli, tmp_path):
    path = tmp_path / "bad.py"
    path.write_text(
        "from fsvi_bench.methods.base import Method\n"
        "class Bad(Method):\n"
        "    'Fails.'\n"
        "    deterministic = True\n"
        "    def solve(self, problem): raise RuntimeError('planted')\n"
    )
    arguments = ("run", "--dataset", "toy", "--splits", "0", "--method", f"{path}:Bad", "--out", tmp_path / "o")
    status, out, err = cli(*arguments, "--wandb", "off")
    assert status == 1
    assert "toy split 0 Bad full seed 0: failed: RuntimeError: planted" in err
    assert "Traceback" not in err
    assert "1 not ok" in out


def test_wandb_off_imports_nothing_of_it_and_offline_writes_a_run(tmp_path):
    code = (
        "import sys\nfrom fsvi_bench.cli.app import main\n"
        "def call(*a):\n    try:\n        main(list(a))\n    except SystemExit as e:\n        assert e.code == 0, e.code\n"
        "call('run', '--dataset', 'toy', '--method', 'exact', '--splits', '0', '--out', 'off', '--wandb', 'off')\n"
        "assert 'wandb' not in sys.modules\n"
        "call('run', '--dataset', 'toy', '--method', 'exact', '--splits', '0', '--out', 'on', '--wandb', 'offline')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "off" / "wandb").exists()
    assert len(list((tmp_path / "on" / "wandb").glob("offline-run-*/run-*.wandb"))) == 2


def test_a_failing_wandb_costs_no_cell(cli, tmp_path, monkeypatch):
    from fsvi_bench.presenting import wandb_runs
    from tests.presenting.wandb_processes import refuse

    monkeypatch.setattr(wandb_runs, "log_once", refuse)
    arguments = ("run", "--dataset", "toy", "--method", "exact", "--splits", "0", "--out", tmp_path)
    status, out, err = cli(*arguments, "--wandb", "offline", "--json")
    assert status == 0
    assert len(json.loads(out)) == 2
    assert "W&B logging stopped (ConnectionError: planted)" in err


def test_lists(cli):
    status, out, _ = cli("datasets", "list", "--json")
    assert status == 0
    assert {card["name"] for card in json.loads(out)} >= {"boston", "diabetes", "toy", "protein"}
    status, out, _ = cli("datasets", "list")
    assert "heating load" in out
    status, out, _ = cli("methods", "list", "--json")
    (exact,) = [entry for entry in json.loads(out) if entry["name"] == "exact"]
    assert exact["families"] == ["full", "ffg"]
    status, out, _ = cli("methods", "list")
    assert status == 0
    assert "exact" in out


def test_datasets_prepare_and_verify(cli):
    assert cli("datasets", "prepare", "diabetes", "toy")[0] == 0
    status, out, _ = cli("datasets", "verify", "diabetes")
    assert (status, out) == (0, "diabetes: data and 20 splits are as its card says\n")
    status, out, _ = cli("datasets", "verify")
    assert status == 0
    assert len(out.splitlines()) == 11


def test_unknown_names_and_usage(refused):
    assert "did you mean 'boston'? known: boston, concrete" in refused("run", "--dataset", "bostn")
    assert "did you mean 'exact'" in refused("run", "--method", "exat")
    assert "boston has no split 20; its splits run from 0 to 19" in refused(
        "run", "--dataset", "boston", "--splits", "20"
    )
    assert "--foo" in refused("run", "--foo")
    assert "(see fsvi-bench run --help)" in refused("run", "--foo")
    assert "(see fsvi-bench tasks export --help)" in refused("tasks", "export", "nope")
    assert "(see fsvi-bench --help)" in refused("rum")
    assert "requires an argument" in refused("run", "--splits")
    assert "score takes --task FILE with --posterior FILE, or --posteriors FOLDER" in refused("score")
    assert "expected auto, cpu or cuda" in refused("run", "--device", "tpu")
    assert "expected local" in refused("run", "--executor", "slurm")
    assert "expected auto, online, offline or off" in refused("run", "--wandb", "maybe")
    assert "--max-steps is 0" in refused("run", "--max-steps", "0")
    assert "--measurement-points" in refused("run", "--measurement-points", "many")
    assert "--set" in refused("run", "--set", "lr")


def test_data_that_are_missing_or_altered(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FSVI_BENCH_DATA", raising=False)
    monkeypatch.setenv("FSVI_BENCH_MIRROR", "http://127.0.0.1:9")
    arguments = ("run", "--dataset", "yacht", "--out", tmp_path / "o")
    (tmp_path / "cache" / "data" / "UCI_Datasets" / "yacht" / "data").mkdir(parents=True)
    said = refused(*arguments)
    assert "put the file at" in said
    assert "$FSVI_BENCH_DATA" in said
    folder = tmp_path / "mirror" / "UCI_Datasets" / "yacht" / "data"
    folder.mkdir(parents=True)
    (folder / "data.txt").write_bytes(b"1 2 3\n")
    assert "is not the yacht data: its SHA-256 is" in refused(*arguments, "--data-dir", tmp_path / "mirror")
    assert "which is not a folder" in refused(*arguments, "--data-dir", tmp_path / "none")
    assert "fsvi-bench datasets prepare yacht" in refused("datasets", "verify", "yacht", "--data-dir", tmp_path)


def test_broken_task_files(refused, tmp_path):
    task = read_task(TASK)
    path = tmp_path / "task.safetensors"

    def said(metadata=None, **changes):
        tensors = {name: t.clone() for name, t in {**task.tensors, **changes}.items()}
        save_file(tensors, path, metadata={**task.metadata, **(metadata or {})})
        run_says = refused("run", "--task", path, "--out", tmp_path)
        assert refused("score", "--task", path, "--posterior", FULL) == run_says
        return run_says

    f64 = torch.float64
    assert "'input_mean' has shape [5], expected [13]" in said(input_mean=torch.zeros(5, dtype=f64))
    assert "'lengthscales' holds NaN or infinity" in said(lengthscales=torch.full((13,), float("nan"), dtype=f64))
    assert "unknown tensor 'extra'" in said(extra=torch.zeros(1, dtype=f64))
    assert "has format 'fsvi-task/0'" in said({"format": "fsvi-task/0"})
    assert "'noise_variance' holds -0.1, expected positive" in said(noise_variance=torch.tensor(-0.1, dtype=f64))
    path.write_bytes(pickle.dumps(task.metadata))
    assert "is not a safetensors file" in refused("run", "--task", path)
    assert "cannot read" in refused("tasks", "show", tmp_path / "none.safetensors")
    (tmp_path / "empty").mkdir()
    assert "no task lies in" in refused("tasks", "verify", tmp_path / "empty")
    assert "did you mean 'boston'?" in refused("tasks", "show", "bosten")
    assert "toy has no official tasks" in refused("tasks", "verify", "toy")
    assert "is a certificate, and no task is named" in refused(
        "tasks", "verify", tmp_path / "split-00.certificate.json"
    )


def test_broken_posterior_files(refused, tmp_path):
    path = tmp_path / "q.safetensors"
    q = read_posterior(FULL)

    def said():
        return refused("score", "--task", TASK, "--posterior", path)

    metadata = {"format": "fsvi-posterior/1", "kind": "gaussian-ffg"}
    save_file({"mean": q.mean[:99].clone(), "scale": torch.ones(99, dtype=torch.float64)}, path, metadata=metadata)
    assert "task has k=100 features, posterior has 99; was it trained on another task?" in said()
    path.write_bytes(pickle.dumps([1.0]))
    assert "is not a safetensors file" in said()
    path.unlink()
    assert "cannot read" in said()


def test_infinity_is_a_word_in_json(cli, tmp_path):
    import torch

    from fsvi_bench.posteriors.gaussian import FactorisedGaussian
    from fsvi_bench.posteriors.io import write_posterior

    cli("tasks", "build", "--dataset", "toy", "--splits", "0", "--out", tmp_path)
    path = tmp_path / "q.safetensors"
    scale = torch.full((20,), 1e-160, dtype=torch.float64)
    write_posterior(path, FactorisedGaussian(torch.zeros(20, dtype=torch.float64), scale))
    status, out, _ = cli("score", "--task", tmp_path / "toy" / "split-00.safetensors", "--posterior", path, "--json")
    assert status == 0
    assert json.loads(out)["reverse_kl"] == "Infinity"
    write_posterior(path, FactorisedGaussian(torch.zeros(20, dtype=torch.float64), scale * 1e300 * 1e167))
    status, out, err = cli("score", "--task", tmp_path / "toy" / "split-00.safetensors", "--posterior", path)
    assert (status, out) == (2, "")
    assert "the posterior's numbers reach" in err


def test_another_tasks_certificate_is_refused(cli, tmp_path):
    cli("tasks", "build", "--dataset", "toy", "--splits", "0,1", "--out", tmp_path)
    first, second = (tmp_path / "toy" / f"split-0{split}.safetensors" for split in (0, 1))
    first.write_bytes(second.read_bytes())
    commands = [("tasks", "show", first), ("tasks", "verify", first), ("run", "--task", first, "--out", tmp_path)]
    for command in [*commands, ("score", "--task", first, "--posterior", FULL)]:
        status, _, err = cli(*command)
        assert status == 2
        assert "certifies task" in err


def test_a_cache_that_cannot_be_written_is_said_before_anything_is_made(refused, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(blocked))
    assert "set $FSVI_BENCH_CACHE" in refused("run", "--dataset", "toy", "--out", tmp_path / "out")


def test_no_arguments_is_a_question(cli):
    for arguments in ((), ("tasks",)):
        status, out, err = cli(*arguments)
        assert (status, err) == (2, "")
        assert "Usage" in out


def test_an_output_folder_that_cannot_be_written(refused, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "is not writable" in refused("run", "--dataset", "toy", "--out", blocked / "out")
    assert "is not writable" in refused("run", "--dataset", "toy", "--out", "/proc/fsvi-bench")
    assert "is not writable" in refused("tasks", "build", "--dataset", "toy", "--out", blocked)


def test_a_full_disk_behind_stdout_is_one_sentence(tmp_path):
    """/dev/full says that no space is left, as a full disk does."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fsvi_bench", "methods", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert (
        done.stderr
        == "fsvi-bench: no space is left where the output goes; what was finished is kept, make space and run again\n"
    )


def test_the_version(cli):
    from fsvi_bench import __version__

    assert cli("--version") == (0, f"{__version__}\n", "")
