"""The variance of stochastic gradients: the estimate itself, then KSW's tables 1 and 2 on a small network."""

import itertools
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fsvi_bench.papers.ksw2015.data import load_digits
from fsvi_bench.papers.ksw2015.measuring import (
    VarianceSettings,
    draw_rows,
    gradient_draws,
    gradient_variances,
    mean_variance,
    watched_parameters,
)
from fsvi_bench.papers.ksw2015.networks import Classifier, NoiseSettings, TrainSettings, train

TRAINING = TrainSettings(epochs=8, averaging=0.98, lr=3e-3)
SETTINGS = {"checkpoints": (0, 8), "minibatch": 50, "repetitions": 120, "coordinates": 500}


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def network(digits, kind):
    noise = NoiseSettings(kind=kind, granularity="weight" if kind == "variational-b" else "unit")
    return Classifier(digits, noise, 24, TRAINING.seed)


def measured(digits, kind, **changes):
    """Entries by place at the checkpoints, and the weights at the end."""
    settings, entries = VarianceSettings(**(SETTINGS | changes)), []
    for epochs, averaged in enumerate(train(network(digits, kind), digits, TRAINING)):
        if epochs in settings.checkpoints:
            entries += gradient_variances(averaged, digits, settings, TRAINING.seed, epochs)
    places = ("epochs", "layer", "parameter", "estimator")
    return {tuple(e[n] for n in places): (e["variance"], e["error"]) for e in entries}, averaged.state_dict()


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
        return torch.stack([draw_rows(10, M, sampling, generator) for _ in range(n)])

    without, replaced = draws("without-replacement", 6), draws("with-replacement", 6)
    assert all(len(set(row.tolist())) == 6 for row in without)
    assert any(len(set(row.tolist())) < 6 for row in replaced)
    for rows in (without, replaced):
        shares = torch.bincount(rows.flatten(), minlength=10) / rows.numel()
        assert (shares - 0.1).abs().max() < 4 * math.sqrt(0.09 / rows.numel())


def test_gradients_estimate_those_of_all_training_data(digits):
    # Without weight noise the mean over minibatches is the gradient of Σ log p over the training set.
    settings, net = VarianceSettings(**(SETTINGS | {"repetitions": 300})), network(digits, "gaussian-a")
    draws = gradient_draws(net, digits, settings, "no-noise", ("test",))[("top", "theta")]
    loss = torch.nn.functional.cross_entropy(net(digits.x_train), digits.y_train, reduction="sum")
    (full,) = torch.autograd.grad(-loss, [net.layers[-1].theta])
    error = draws.std(0) / math.sqrt(300)
    exact = full.flatten().double()  # 240 weights, all of which are looked at
    assert ((draws.mean(0) - exact).abs() < 4 * error + 1e-3).all()


# --- Tables 1 and 2 -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_table_1_local_varies_less_than_per_point_and_that_less_than_per_minibatch(digits):
    found, _ = measured(digits, "variational-b")
    for epochs, layer in itertools.product((0, 8), ("bottom", "top")):
        local, per_point, per_minibatch = (
            found[epochs, layer, "log_alpha", name] for name in ("local", "per-point", "per-minibatch")
        )
        for less, more in ((local, per_point), (per_point, per_minibatch)):
            relative = math.hypot(less[1] / less[0], more[1] / more[0])
            assert more[0] / less[0] * math.exp(-4 * relative) > 1  # measured ratios are between 1.5 and 17
        assert found[epochs, layer, "theta", "no-noise"] < found[epochs, layer, "theta", "local"]
    assert (0, "top", "log_alpha", "no-noise") not in found


@pytest.mark.slow
def test_table_2_per_point_is_local_where_the_noise_is_correlated(digits):
    found, _ = measured(digits, "variational-a")
    for place in itertools.product((0, 8), ("bottom", "top"), ("theta", "log_alpha")):
        local, per_point, per_minibatch = (found[*place, name] for name in ("local", "per-point", "per-minibatch"))
        assert local != per_point  # from streams of their own
        assert abs(local[0] - per_point[0]) < 4 * math.hypot(local[1], per_point[1])
        assert per_minibatch[0] > 1.2 * local[0]


@pytest.mark.slow
def test_measuring_changes_neither_the_network_nor_its_training(digits):
    found, weights = measured(digits, "variational-b", repetitions=3)
    *_, unmeasured = train(network(digits, "variational-b"), digits, TRAINING)
    torch.testing.assert_close(unmeasured.state_dict(), weights, rtol=0, atol=0)
    assert measured(digits, "variational-b", repetitions=3)[0] == found


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
