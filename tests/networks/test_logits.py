"""Network tasks of logistic regressions: their data, files, refusals and scores."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fsvi_bench.errors import InputError
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.networks.official import CertifiedNetwork, departures
from fsvi_bench.networks.reference import Functions
from fsvi_bench.networks.sampling.build import target_of
from fsvi_bench.networks.scores import score_functions
from fsvi_bench.networks.task import LogitTask, NetworkTask, build, read_network_task, write_network_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.official import read_official
from fsvi_bench.tasks.raw import load_raw
from fsvi_bench.tasks.task import bind_task
from tests.networks.test_tasks import certificate, functions

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def logits() -> NetworkTask:
    return build("yacht", 0, "logit-100", "real")


@pytest.mark.parametrize("dataset", ["boston", "energy", "yacht"])
def test_logits_have_a_linear_tasks_features(dataset: str) -> None:
    """And the data set's targets, divided at the median of the training targets."""
    task, linear = build(dataset, 1, "logit-100", "real"), bind_task(read_official(dataset, 1).task)
    X, y = task.training()
    assert (task.name, task.level, task.noise_variance) == (f"{dataset}:1:logit-100", "C2", None)
    torch.testing.assert_close(task.network.features(X), linear.Phi, rtol=0, atol=1e-12)
    raw = load_raw(load_card(dataset), 1).y
    train, test = (raw[index.numpy()] for index in (linear.frozen.train_index, linear.frozen.test_index))
    assert y.tolist() == (train > np.median(train)).tolist()
    assert 0.45 < float(y.mean()) <= 0.5
    for row, target in zip(task.inputs_test, task.targets_test, strict=True):
        same = (linear.X_test - row).abs().amax(1) < 1e-9
        assert float(target) in (test[same.numpy()] > np.median(train))


def test_simulated_classes_come_from_the_true_weights() -> None:
    task = build("yacht", 0, "logit-100", "simulated")
    X, y = task.training()
    assert (task.name, task.level) == ("yacht:0:logit-100:simulated", "C1")
    assert set(y.tolist()) | set(task.targets_test.tolist()) == {0.0, 1.0}
    p = task.network.values(task.true_weights, X).sigmoid()
    assert abs(float((y - p).sum())) < 4 * float((p * (1 - p)).sum().sqrt())
    surprise = -(y * p.log() + (1 - y) * (1 - p).log())
    entropy = -(p * p.log() + (1 - p) * (1 - p).log())
    spread = (p * (1 - p) * p.logit().square()).sum().sqrt()
    assert abs(float((surprise - entropy).sum())) < 4 * float(spread)
    assert float(entropy.mean()) < 0.6  # a coin has 0.69


def test_logits_survive_their_file(logits: NetworkTask, tmp_path: Path) -> None:
    write_network_task(tmp_path / "t", logits)
    again = read_network_task(tmp_path / "t")
    assert (again.sha256, again.name) == (logits.sha256, "yacht:0:logit-100")
    assert torch.equal(again.training().y, logits.training().y)
    assert torch.equal(again.network.features(again.inputs_box), logits.network.features(logits.inputs_box))


def test_the_samplers_see_the_methods_likelihood(logits: NetworkTask) -> None:
    data = NetworkData.of(logits.network, [(*logits.training(), logits.noise_variance)])
    w = torch.randn(3, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = target_of(logits, logits.training())
    expected = -data.nll(w[None])[0]
    found = [float(target.log_likelihood(each)) for each in w.numpy()]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(
        target.x_new[20:40] @ w[0].numpy(), logits.network.values(w[0], logits.inputs_test), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"targets_test": torch.full((20,), 0.5, dtype=torch.float64)},
            "'targets_test' has numbers other than 0 and 1",
        ),
        ({"threshold": None}, "tensor 'threshold' is missing"),
        ({"linear_task": None}, "metadata 'linear_task' is missing"),
        ({"noise_variance": torch.tensor(0.1, dtype=torch.float64)}, "unknown tensor 'noise_variance'"),
        ({"model": "logit-50"}, "expected collapsed-H with H hidden units, such as collapsed-50, or logit-100"),
    ],
)
def test_broken_logits_are_refused(logits: NetworkTask, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    metadata = {n: v for n, v in (logits.metadata | change).items() if isinstance(v, str)}
    tensors = {n: v for n, v in (logits.tensors | change).items() if isinstance(v, torch.Tensor)}
    save_file(tensors, tmp_path / "t", metadata)
    with pytest.raises(InputError) as refusal:
        read_network_task(tmp_path / "t")
    assert message in str(refusal.value)


def test_logits_of_other_features_are_refused(logits: NetworkTask) -> None:
    assert isinstance(logits, LogitTask)
    other = replace(logits, linear_task="0" * 64)
    with pytest.raises(InputError, match="has the features of the linear task '000000000000'"):
        _ = other.network
    found = CertifiedNetwork(other, functions(3, 0), certificate(other, functions(3, 0)))
    assert departures(found) == ["it was made from other features"]
    assert departures(replace(found, task=logits)) == []


def test_noise_that_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"logit-100 got σ = 0\.1 for its noise, expected none"):
        build("yacht", 0, "logit-100", "real", 0.1)
    with pytest.raises(InputError, match="collapsed-10 got none for its noise, expected a number"):
        build("yacht", 0, "collapsed-10", "real")
    for too_little in (0.001, 0.0, -0.5, math.nan):
        with pytest.raises(
            InputError, match=f"collapsed-2 got σ = {too_little:g} for its noise, expected at least 0.01"
        ):
            build("toy", 0, "collapsed-2", "simulated", too_little)


def test_scores_of_logits(logits: NetworkTask) -> None:
    """Exact draws score at the floor and others above; the mean log loss is of the mean probabilities."""
    reference, q = functions(1000, 0, scale=2.0), functions(500, 1, scale=2.0)
    exact = score_functions(q, logits, reference).scores
    moved = Functions(*(f + 2 for f in q.tensors.values()))
    far = score_functions(moved, logits, reference).scores
    for name, score in exact.items():
        if name != "nlpd" and not name.startswith("variance_ranks"):
            assert score.value < score.floor + 4 * np.hypot(score.error, score.floor_error), name
            assert far[name].value > far[name].floor + 4 * far[name].error, name
    q = (1 / (1 + np.exp(-moved.f_test.numpy()))).mean(0)
    y = logits.targets_test.numpy()
    assert far["nlpd"].value == pytest.approx(-np.where(y == 1, np.log(q), np.log(1 - q)).mean(), rel=1e-12)
    assert far["nlpd"].error == pytest.approx(log_loss_error(moved.f_test.numpy(), y), rel=0.1)


def log_loss_error(f: np.ndarray, y: np.ndarray) -> float:
    """By the bootstrap over functions."""
    generator, p = np.random.default_rng(0), 1 / (1 + np.exp(-f * (2 * y - 1)))
    return float(np.std([-np.log(p[generator.integers(len(p), size=len(p))].mean(0)).mean() for _ in range(400)]))
