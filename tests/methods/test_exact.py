"""EXACT as a Lightning module: the truth itself, its factorised optimum, and problems that do not see each other."""

from pathlib import Path

import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.methods.exact import Exact
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import load_method
from fsvi_bench.posteriors.base import unstack
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store
from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import bind_task
from fsvi_bench.training.trainer import choose_device, train
from tests.maths.draws import close, eye


@pytest.mark.parametrize("family", ["full", "ffg"])
def test_it_is_the_truth_or_has_its_mean_and_inverse_precisions(family):
    problems = [bind_task(build_task(load_card("toy"), split).task) for split in range(3)]
    method = Exact(problems, family)
    assert train(method, "cpu") > 0
    for q, problem in zip(unstack(method.posterior()), problems, strict=True):
        close(q.mean, problem.truth.posterior.mean, rtol=1e-12, atol=1e-14)
        if family == "full":
            close(q.scale_tril, problem.truth.covariance_tril, rtol=1e-10, atol=1e-14)
        else:
            precision = problem.Phi.mT @ problem.Phi / problem.frozen.noise_variance + eye(20)
            close(q.scale.square(), 1 / precision.diagonal(), rtol=1e-11, atol=0)


def test_methods_see_neither_test_rows_nor_truth():
    assert set(TrainingData.__dataclass_fields__) == {
        "X", "y", "Phi", "noise_variance", "low", "high", "feature_map",
    }  # fmt: skip


def test_a_method_from_a_file(tmp_path):
    path = tmp_path / "mine.py"
    half = "from fsvi_bench.methods.base import Method\nclass Half(Method):\n    pass\nboom = 1\n"
    for source, name, message in (
        (half, f"{path}:Half", r"is not a complete .*; implement loss or solve"),
        (half, f"{path}:Whole", "has no class 'Whole'"),
        (half, f"{path}:boom", "is not a subclass"),
        ("raise SystemExit(0)\n", f"{path}:Half", "cannot be imported: SystemExit"),
        ("1/0\n", f"{path}:Half", "cannot be imported: ZeroDivisionError"),
        ("", f"{'x' * 5000}.py:Half", "there is no file"),
    ):
        path.write_text(source)
        with pytest.raises(InputError, match=message):
            load_method(name)


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
    path.write_text(text.split('```python title="prior.py"\n')[1].split("```")[0])
    plan = make_plan(Request(datasets=["toy"], splits="0-1", methods=[f"{path}:Prior"]))
    records, _ = run(plan, Store(tmp_path / "out"), Resources(), Silent())
    assert [(record.family, record.status) for record in records] == [("full", "ok")] * 2 + [("ffg", "ok")] * 2
    for record in records:
        # The prior's ELBO has no KL to pay, and its KL to the posterior is the same for both spellings of N(0, I).
        assert record.scores.kl == pytest.approx(record.scores.elbo_gap, rel=1e-9)
    assert records[0].scores.kl == pytest.approx(records[2].scores.kl, rel=1e-12)
