"""docs/how-to/other-tools.md as it stands: tasks exported, its NumPy script run on its own, the folders scored."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fsvi_bench.networks.official import load_network
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.running import posterior_folder
from fsvi_bench.scoring import scores
from fsvi_bench.scoring.scores import score
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import save
from fsvi_bench.tasks.export import training_tensors
from fsvi_bench.tasks.frozen import read_task
from fsvi_bench.tasks.task import bind_task

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "other-tools.md").read_text()
SCRIPT = PAGE.split('```python title="posteriors.py"\n')[1].split("```")[0]
TOY_NETWORK = load_network("toy:0:collapsed-2:simulated").sha256
TASKS = [f"tasks/toy/split-{split:02d}.safetensors" for split in range(2)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with two toy tasks in `tasks`."""
    monkeypatch.chdir(tmp_path)
    for split, path in enumerate(TASKS):
        save(build_task(load_card("toy"), split), Path(path))
    return tmp_path


def run_script():
    """In a process that has NumPy and safetensors, and where nothing else of ours is imported."""
    code = f"{SCRIPT}\nimport sys\nassert not {{'torch', 'fsvi_bench'}} & set(sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr


def test_the_script_writes_what_is_scored(folder, cli):
    status, out, err = cli("tasks", "export", *TASKS, "--out", "problems")
    assert (status, err) == (0, "")
    assert out.splitlines() == ["problems/toy/split-00.npz", "problems/toy/split-01.npz"]
    run_script()
    for name, kind in (("laplace", "full"), ("diagonal", "ffg")):
        status, out, _ = cli("score", "--posteriors", name, "--task-set", "tasks", "--json")
        assert status == 0
        files = json.loads(out)
        assert [(f["file"], f["dataset"], f["split"]) for f in files] == [
            ("toy/split-00.safetensors", "toy", 0), ("toy/split-01.safetensors", "toy", 1),
        ]  # fmt: skip
        for file, task in zip(files, TASKS, strict=True):
            problem = bind_task(read_task(Path(task)))
            expected = score(read_posterior(Path(name, file["file"]), 20), problem)
            assert file["scores"] == json.loads(expected.model_dump_json())
            assert file["task_sha256"] == problem.frozen.sha256
            # Laplace is exact for this model, and the diagonal of its covariance is not even the best diagonal.
            assert abs(expected.kl) < 1e-9 if kind == "full" else expected.kl > 1


def test_the_pages_score_commands_are_those_tested():
    commands = re.findall(r"^fsvi-bench (score .*)$", PAGE, re.MULTILINE)
    assert commands == [
        "score --posteriors laplace --task-set tasks",
        "score --posteriors diagonal --task-set tasks --json",
    ]


def test_an_exported_task_holds_what_methods_see_and_no_more(folder, cli):
    problem = bind_task(read_task(Path(TASKS[0])))
    for form in ("npz", "safetensors"):
        assert cli("tasks", "export", TASKS[0], "--out", form, "--format", form)[0] == 0
    with np.load("npz/toy/split-00.npz", allow_pickle=False) as stored:
        arrays = dict(stored)
    with safe_open("safetensors/toy/split-00.safetensors", framework="np") as stream:
        tensors, words = {name: stream.get_tensor(name) for name in stream.keys()}, stream.metadata()  # noqa: SIM118
    documented = {"X", "y", "Phi", "noise_variance", "low", "high", "inducing_points", "lengthscales", "outputscale"}
    assert set(tensors) == documented
    assert set(arrays) == documented | set(words)
    assert {name: str(arrays[name]) for name in words} == words
    assert (words["k"], words["task_sha256"]) == ("20", problem.frozen.sha256)
    for name, tensor in tensors.items():
        assert tensor.dtype == np.float64
        assert np.array_equal(tensor, arrays[name])
    assert np.array_equal(tensors["X"], problem.X.numpy())
    assert np.array_equal(tensors["y"], problem.y.numpy())
    assert (tensors["X"].shape, tensors["Phi"].shape) == ((40, 1), (40, 20))  # none of the 200 test points
    # The page's formula for features of an RBF grid.
    scaled = (tensors["X"] - tensors["inducing_points"][:, 0]) / tensors["lengthscales"]
    assert np.allclose(tensors["Phi"], np.exp(-0.5 * scaled**2), rtol=1e-12)


@pytest.mark.data
def test_whitened_features_are_made_as_the_page_says(boston):
    made = {name: tensor.numpy() for name, tensor in training_tensors(boston).items()}
    Z, ell = made["inducing_points"] / made["lengthscales"], made["lengthscales"]
    squared = ((made["X"][:, None] / ell - Z) ** 2).sum(-1)
    kernel = made["outputscale"] * np.exp(-0.5 * squared)
    # Conditioning of L: about 1e4.
    assert np.allclose(np.linalg.solve(made["feature_tril"], kernel.T).T, made["Phi"], rtol=1e-7, atol=1e-9)


def test_a_file_written_byte_by_byte_as_the_page_says_is_read(tmp_path):
    """What somebody in R or Julia does."""
    k, words = 3, '"format": "fsvi-posterior/1", "kind": "gaussian-ffg"'
    header = (
        f'{{"__metadata__": {{{words}}}, "mean": {{"dtype": "F64", "shape": [{k}], "data_offsets": [0, {8 * k}]}}, '
        f'"scale": {{"dtype": "F64", "shape": [{k}], "data_offsets": [{8 * k}, {16 * k}]}}}}'
    ).encode()
    path = tmp_path / "q.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<6d", 1, 2, 3, 0.5, 0.25, 1))
    q = read_posterior(path)
    assert torch.equal(q.mean, torch.tensor([1, 2, 3], dtype=torch.float64))
    assert torch.equal(q.scale, torch.tensor([0.5, 0.25, 1], dtype=torch.float64))


def test_a_bad_file_does_not_affect_the_others(folder, cli):
    cli("tasks", "export", *TASKS, "--out", "problems")
    run_script()
    bad = Path("laplace/toy/split-01.safetensors")
    whole = bad.read_bytes()
    bad.write_bytes(b"nonsense")
    Path("laplace/nowhere.safetensors").write_bytes(Path("laplace/toy/split-00.safetensors").read_bytes())
    status, out, err = cli("score", "--posteriors", "laplace", "--task-set", "tasks", "--json")
    files = {file["file"]: file for file in json.loads(out)}
    assert status == 1
    assert err.startswith("toy/split-01.safetensors: ")
    assert files["toy/split-01.safetensors"]["scores"] is None
    # By its metadata a file is found wherever it lies.
    assert files["nowhere.safetensors"]["scores"] == files["toy/split-00.safetensors"]["scores"]
    bad.write_bytes(whole)
    status, out, _ = cli("score", "--posteriors", "laplace", "--task-set", "tasks")
    assert status == 0
    assert "3 of 3 files scored" in out


def test_scores_that_are_not_numbers_are_no_result(folder, cli, monkeypatch):
    from safetensors.numpy import save_file

    Path("q/toy").mkdir(parents=True)
    path = Path("q/toy/split-00.safetensors")
    save_file(
        {"mean": np.zeros(20), "scale": np.ones(20)},
        path,
        metadata={"format": "fsvi-posterior/1", "kind": "gaussian-ffg"},
    )

    def planted(q, task):
        return score(q, task).model_copy(update={"nlpd": math.nan})

    monkeypatch.setattr(scores, "score", planted)
    monkeypatch.setattr(posterior_folder, "score", planted)
    status, _, err = cli("score", "--posteriors", "q", "--task-set", "tasks")
    assert (status, err) == (1, "toy/split-00.safetensors: these scores are not numbers: nlpd\n")
    status, _, err = cli("score", "--task", "tasks/toy/split-00.safetensors", "--posterior", str(path))
    assert status == 2
    assert "these scores are not numbers: nlpd; the posterior's numbers are too large or too small" in err


@pytest.mark.parametrize(
    ("metadata", "place", "said"),
    [
        ({}, "toy/split-00.safetensors", None),
        ({}, "toy/split-07.safetensors", "'toy' split 7, which is not among the 2 tasks"),
        ({}, "elsewhere.safetensors", "does not say which task"),
        ({"task_sha256": "0" * 64}, "toy/split-00.safetensors", "not among the 2 tasks"),
        (
            {"task_sha256": TOY_NETWORK},
            "q.safetensors",
            "belongs to the network task toy:0:collapsed-2:simulated; score it",
        ),
    ],
)
def test_which_task_a_file_is_of(folder, cli, metadata, place, said):
    from safetensors.numpy import save_file

    path = Path("q", place)
    path.parent.mkdir(parents=True)
    tensors = {"mean": np.zeros(20), "scale": np.ones(20)}
    save_file(tensors, path, metadata={"format": "fsvi-posterior/1", "kind": "gaussian-ffg", **metadata})
    status, _, err = cli("score", "--posteriors", "q", "--task-set", "tasks")
    assert status == (0 if said is None else 1)
    assert err == "" if said is None else said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["score", "--posteriors", "none", "--task-set", "tasks"], "there is no folder none"),
        (["score", "--posteriors", "tasks", "--task-set", "none"], "unknown task file, folder or data set"),
        (["score", "--posterior", "q"], "give one of these combinations"),
        (["score", "--posteriors", "q", "--posterior", "q"], "give one of these combinations"),
        (["tasks", "export", "toy", "--out", "o"], "toy has no official tasks; build tasks with"),
        (["tasks", "export", TASKS[0], "--out", "o", "--format", "csv"], "unknown format 'csv'"),
        (["tasks", "export", TASKS[0], "--out", "o", "--splits", "0"], "--splits applies to data sets"),
        (["tasks", "export", "bostn", "--out", "o"], "did you mean 'boston'"),
    ],
)
def test_invalid_requests_are_refused_in_one_sentence(folder, cli, arguments, said):
    before = sorted(folder.rglob("*"))
    status, out, err = cli(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert sorted(folder.rglob("*")) == before
