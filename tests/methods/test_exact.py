"""EXACT as a Lightning module: the truth itself, its factorised optimum, and problems that do not see each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.methods.exact import Exact
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import load_method, method_names
from fsvi_bench.posteriors.base import unstack
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import bind_task
from fsvi_bench.training.trainer import choose_device, train

f64 = torch.float64


@pytest.fixture(scope="module")
def problems():
    return [bind_task(build_task(load_card("toy"), split).task) for split in range(7)]


def posteriors(problems, family):
    method = Exact(problems, family, [0] * len(problems))
    seconds = train(method, "cpu")
    assert seconds > 0
    return unstack(method.posterior())


def test_full_is_the_truth(problems):
    for q, problem in zip(posteriors(problems, "full"), problems, strict=True):
        assert torch.allclose(q.mean, problem.truth.posterior.mean, rtol=1e-12, atol=1e-14)
        assert torch.allclose(q.scale_tril, problem.truth.covariance_tril, rtol=1e-10, atol=1e-14)


def test_ffg_has_the_exact_mean_and_inverse_precisions(problems):
    for q, problem in zip(posteriors(problems, "ffg"), problems, strict=True):
        precision = problem.Phi.mT @ problem.Phi / problem.frozen.noise_variance + torch.eye(20, dtype=torch.float64)
        assert torch.allclose(q.scale.square(), 1 / precision.diagonal(), rtol=1e-11)
        assert torch.allclose(q.mean, problem.truth.posterior.mean, rtol=1e-12, atol=1e-14)


def test_methods_see_neither_test_rows_nor_truth():
    assert set(TrainingData.__dataclass_fields__) == {
        "X", "y", "Phi", "noise_variance", "low", "high", "feature_map",
    }  # fmt: skip


def test_names_and_refusals(tmp_path):
    assert "exact" in method_names()
    with pytest.raises(InputError, match="unknown method 'exat': did you mean 'exact'"):
        load_method("exat")
    with pytest.raises(InputError, match="option 'lr'"):
        load_method("exact").options({"lr": 0.1})
    with pytest.raises(InputError, match="there is no file"):
        load_method(f"{tmp_path}/none.py:Mine")


def test_a_method_from_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from fsvi_bench.methods.base import Method\nclass Half(Method):\n    pass\nboom = 1\n")
    with pytest.raises(InputError, match=r"is not a complete .*; implement loss or solve"):
        load_method(f"{path}:Half")
    with pytest.raises(InputError, match="has no class 'Whole'"):
        load_method(f"{path}:Whole")
    with pytest.raises(InputError, match="is no subclass"):
        load_method(f"{path}:boom")
    path.write_text("raise SystemExit(0)\n")
    with pytest.raises(InputError, match="cannot be imported: SystemExit"):
        load_method(f"{path}:Half")
    with pytest.raises(InputError, match="there is no file"):
        load_method(f"{'x' * 5000}.py:Half")
    path.write_text("1/0\n")
    with pytest.raises(InputError, match="cannot be imported: ZeroDivisionError"):
        load_method(f"{path}:Half")


def test_devices():
    assert choose_device("cpu") == "cpu"
    assert choose_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InputError, match="expected auto, cpu or cuda"):
        choose_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no CUDA GPU"):
            choose_device("cuda")


def test_the_example_in_contributing_runs(tmp_path):
    """A reader's first method: word for word what CONTRIBUTING.md shows."""
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    path = tmp_path / "prior.py"
    path.write_text(text.split("```python\n")[1].split("```")[0])
    plan = make_plan(Request(datasets=["toy"], splits="0-1", methods=[f"{path}:Prior"]))
    records = run(plan, Store(tmp_path / "out"), Resources(), Silent()).records
    assert [(record.family, record.status) for record in records] == [("full", "ok")] * 2 + [("ffg", "ok")] * 2
    for record in records:
        # The prior's ELBO has no KL to pay, and its KL to the posterior is the same for both spellings of N(0, I).
        assert record.scores.kl == pytest.approx(record.scores.elbo_gap, rel=1e-9)
    assert records[0].scores.kl == pytest.approx(records[2].scores.kl, rel=1e-12)
