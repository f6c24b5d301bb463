"""The variance of stochastic gradients: the estimate, how minibatches are drawn, and which parameters are watched."""

import itertools
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fsvi_bench.papers.ksw2015 import measuring
from fsvi_bench.papers.ksw2015.data import load_digits
from fsvi_bench.papers.ksw2015.measuring import (
    VarianceSettings,
    draw_rows,
    gradient_draws,
    gradient_variances,
    mean_variance,
    watched_parameters,
)
from fsvi_bench.papers.ksw2015.networks import ESTIMATORS, Classifier, NoiseSettings, cross_entropies
from fsvi_bench.papers.side_by_side import streams

SETTINGS = {"checkpoints": (0, 8), "minibatch": 50, "repetitions": 120, "coordinates": 500}


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def network(digits, kind):
    noise = NoiseSettings(kind=kind, granularity="weight" if kind == "variational-b" else "unit")
    return Classifier(digits, [noise], 24, [0])


# --- A variance and its standard error ----------------------------------------------------------------------------------


def test_the_jackknife_equals_leaving_out_row_by_row():
    draws = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).exp()
    (variance, error), values = mean_variance(draws), draws.numpy()
    assert variance == pytest.approx(values.var(0, ddof=1).mean(), rel=1e-13)
    left_out = [np.delete(values, r, 0).var(0, ddof=1).mean() for r in range(9)]
    expected = math.sqrt(8 / 9 * np.square(left_out - np.mean(left_out)).sum())
    assert error == pytest.approx(expected, rel=1e-11)


# --- Where minibatches come from ----------------------------------------------------------------------------------------


def test_minibatches_are_drawn_as_they_say():
    def draws(sampling, M, n=300):
        generator = torch.Generator().manual_seed(0)
        return torch.cat([draw_rows(10, M, sampling, [generator]) for _ in range(n)])

    without, replaced = draws("without-replacement", 6), draws("with-replacement", 6)
    assert all(len(set(row.tolist())) == 6 for row in without)
    assert any(len(set(row.tolist())) < 6 for row in replaced)
    for rows in (without, replaced):
        shares = torch.bincount(rows.flatten(), minlength=10) / rows.numel()
        assert (shares - 0.1).abs().max() < 4 * math.sqrt(0.09 / rows.numel())


def test_gradients_estimate_those_of_all_training_data(digits):
    # Without weight noise the mean over minibatches is the gradient of Σ log p over the training set.
    settings, net = VarianceSettings(**(SETTINGS | {"repetitions": 300})), network(digits, "gaussian-a")
    (draws,) = gradient_draws(net, digits, settings, "no-noise", ("test",))[("top", "theta")]
    loss = torch.nn.functional.cross_entropy(net(digits.x_train)[0], digits.y_train, reduction="sum")
    (full,) = torch.autograd.grad(-loss, [net.layers[-1].theta])
    error = draws.std(0) / math.sqrt(300)
    exact = full.flatten().double()  # 240 weights, all of which are looked at
    assert ((draws.mean(0) - exact).abs() < 4 * error + 1e-3).all()


# --- Tables 1 and 2 -----------------------------------------------------------------------------------------------------


def test_one_weight_sample_per_minibatch_has_its_variance_in_two_parts(digits, monkeypatch):
    group, M, stack = ("top", "theta"), 2, torch.Generator().manual_seed(0)
    draws = {name: torch.randn(2, 5, 3, dtype=torch.float64, generator=stack) for name in (*ESTIMATORS, "no-noise")}
    monkeypatch.setattr(measuring, "gradient_draws", lambda *given: {group: draws[given[3]]})
    settings = VarianceSettings(**(SETTINGS | {"minibatch": M}))
    found = {
        (row["estimator"], row["network"]): row
        for row in gradient_variances(network(digits, "variational-b"), digits, settings, 0)
    }
    for place in range(2):
        (own, its_error), (shared, error) = (
            mean_variance(draws[name][place]) for name in ("per-point", "per-minibatch")
        )
        row = found["per-minibatch", place]
        assert row["variance"] == pytest.approx(own + (1 - 1 / M) * shared, rel=1e-14)
        assert row["error"] == pytest.approx(math.hypot(its_error, (1 - 1 / M) * error), rel=1e-14)
        assert (found["per-point", place]["variance"], found["per-point", place]["error"]) == (own, its_error)


@pytest.mark.parametrize("kind", ["variational-a", "variational-b"])
def test_its_gradients_are_of_all_training_data_with_the_same_weights(digits, kind, monkeypatch):
    few = digits._replace(x_train=digits.x_train[:103], y_train=digits.y_train[:103])
    noise = NoiseSettings(kind=kind, granularity="weight" if kind == "variational-b" else "unit")
    net = Classifier(few, [noise] * 2, 24, [0, 1])
    changes = {"repetitions": 9, "long_repetitions": 3, "coordinates": 10**6}
    settings, drawn = VarianceSettings(**(SETTINGS | changes)), []
    for part in (1000, 20):  # 103 = 5 · 20 + 3
        monkeypatch.setattr(measuring, "PART", part)
        drawn.append(gradient_draws(net, few, settings, "per-minibatch", ("test",)))
    generators = streams("cpu", "test", "noise", seeds=net.seeds)
    for repetition in range(3):
        likelihoods = -cross_entropies(net(few.x_train, generators, "per-minibatch"), few.y_train)
        watched = watched_parameters(net, "per-minibatch")
        for group, expected in zip(watched, torch.autograd.grad(likelihoods.sum(), watched.values()), strict=True):
            for found in drawn:
                assert found[group].shape[:2] == (2, 3)
                torch.testing.assert_close(
                    found[group][:, repetition], expected.flatten(1).double(), rtol=1e-4, atol=1e-4
                )  # in float32


@pytest.mark.parametrize("kind", ["variational-a", "variational-b"])
def test_that_variance_is_the_one_of_minibatches(digits, kind):
    """Against gradients drawn one by one. Standard errors are 4 to 15%."""
    few = digits._replace(x_train=digits.x_train[:100], y_train=digits.y_train[:100])
    net, generator = network(few, kind), torch.Generator().manual_seed(1)
    settings = VarianceSettings(**(SETTINGS | {"minibatch": 10, "repetitions": 400, "coordinates": 10**6}))
    found = list(gradient_variances(net, few, settings, 0))
    watched = watched_parameters(net, "per-minibatch")
    draws = []
    for _ in range(400):
        rows = torch.randint(100, (10,), generator=generator)
        losses = cross_entropies(net(few.x_train[rows], [generator], "per-minibatch"), few.y_train[rows])
        draws.append(torch.autograd.grad(10 * losses.sum(), list(watched.values())))
    for group, gradients in zip(watched, zip(*draws, strict=True), strict=True):
        cells = {row["estimator"]: row for row in found if (row["layer"], row["parameter"]) == group}
        variance, error = mean_variance(torch.stack(gradients).flatten(1).double())
        of_parts = cells["per-minibatch"]
        assert abs(of_parts["variance"] - variance) < 4 * math.hypot(error, of_parts["error"])
        assert max(error / variance, of_parts["error"] / of_parts["variance"]) < 0.2
        assert variance > 2 * cells["per-point"]["variance"]  # so the second part counts


def test_what_is_watched(digits):
    learnt, fixed = (network(digits, kind) for kind in ("variational-b", "gaussian-b"))
    everything = list(itertools.product(("bottom", "top"), ("theta", "log_alpha")))
    assert list(watched_parameters(learnt, "local")) == everything
    for watched in (watched_parameters(fixed, "local"), watched_parameters(learnt, "no-noise")):
        assert list(watched) == [("bottom", "theta"), ("top", "theta")]


@pytest.mark.parametrize(
    "changes", [{"repetitions": 2}, {"minibatch": 0}, {"checkpoints": ()}, {"checkpoints": (-1,)}, {"coordinates": 0}]
)
def test_impossible_measurements_are_refused(changes):
    with pytest.raises(ValidationError):
        VarianceSettings(**(SETTINGS | changes))


def test_a_sample_per_point_in_the_top_layer_needs_none_below(digits):
    """Against gradients with a sample per point in all layers. Standard errors are 2 to 5%; one sample per minibatch
    below would raise the top layer's variances by 30%, and none below would divide them by 14."""
    few = digits._replace(x_train=digits.x_train[:100], y_train=digits.y_train[:100])
    net, generator = network(few, "variational-b"), torch.Generator().manual_seed(2)
    changes = {"minibatch": 10, "repetitions": 600, "long_repetitions": 300, "coordinates": 10**6}
    draws = gradient_draws(net, few, VarianceSettings(**(SETTINGS | changes)), "per-point", ("test",))
    watched, expected = watched_parameters(net, "per-point"), []
    for _ in range(600):
        rows = torch.randint(100, (10,), generator=generator)
        losses = cross_entropies(net(few.x_train[rows], [generator], "per-point"), few.y_train[rows])
        expected.append(torch.autograd.grad(10 * losses.sum(), list(watched.values())))
    for group, gradients in zip(watched, zip(*expected, strict=True), strict=True):
        (found,), (layer, _) = draws[group], group
        assert len(found) == {"bottom": 300, "top": 600}[layer]
        (variance, error), (its_variance, its_error) = map(
            mean_variance, (torch.stack(gradients).flatten(1).double(), found)
        )
        assert abs(variance - its_variance) < 4 * math.hypot(error, its_error)
        assert max(error / variance, its_error / its_variance) < 0.05


def test_with_noise_on_inputs_the_local_estimator_is_a_sample_per_point(digits):
    net = network(digits, "variational-a")
    outputs = [net(digits.x_train[:50], streams("cpu", "test", seeds=[0]), each) for each in ("local", "per-point")]
    assert torch.equal(*outputs)
    rows = gradient_variances(net, digits, VarianceSettings(**(SETTINGS | {"repetitions": 3})), 0)
    cells = {(row["layer"], row["parameter"], row["estimator"]): row["variance"] for row in rows}
    assert all(cells[*group, "per-point"] == cells[*group, "local"] for group in watched_parameters(net, "local"))
