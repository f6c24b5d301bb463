"""The variance of stochastic gradients: the estimate itself, then KSW's tables 1 and 2 on a small network."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.papers.ksw2015.data import load_digits
from fsvi_bench.papers.ksw2015.gradient_variance import (
    NO_NOISE,
    Estimate,
    GradientVarianceSettings,
    Minibatches,
    gradient_draws,
    gradient_variance,
    mean_variance,
    measure,
    watched_parameters,
    with_estimator,
)
from fsvi_bench.papers.ksw2015.layers import NoiseSettings
from fsvi_bench.papers.ksw2015.network import NetworkSettings
from fsvi_bench.papers.ksw2015.train import TrainSettings, build, train


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def settings(kind, **changes):
    granularity = "weight" if kind == "variational-b" else "unit"
    defaults = {
        "network": NetworkSettings(24, noise=NoiseSettings(kind, granularity=granularity)),
        "training": TrainSettings(epochs=8, averaging=0.98, lr=3e-3),
        "checkpoints": (0, 8),
        "minibatch": 50,
        "repetitions": 120,
        "coordinates": 500,
    }
    return GradientVarianceSettings(**(defaults | changes))


# --- A variance and its standard error ----------------------------------------------------------------------------------


def test_the_jackknife_equals_leaving_out_row_by_row():
    draws = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).exp()
    estimate, values = mean_variance(draws), draws.numpy()
    assert estimate.value == pytest.approx(values.var(0, ddof=1).mean(), rel=1e-13)
    left_out = [np.delete(values, r, 0).var(0, ddof=1).mean() for r in range(9)]
    expected = math.sqrt(8 / 9 * np.square(left_out - np.mean(left_out)).sum())
    assert estimate.standard_error == pytest.approx(expected, rel=1e-11)


def test_standard_errors_are_those_seen_over_repetitions():
    # 400 experiments of 60 rows with four columns, of which two are equal: dependence between columns must count.
    g = torch.Generator().manual_seed(1)
    draws = torch.randn(400, 60, 3, dtype=torch.float64, generator=g)[..., [0, 0, 1, 2]]
    estimates = [mean_variance(experiment) for experiment in draws]
    values = np.array([e.value for e in estimates])
    seen = values.std(ddof=1)
    claimed = math.sqrt(np.mean([e.standard_error**2 for e in estimates]))
    assert abs(values.mean() - 1) < 4 * seen / math.sqrt(400)
    assert claimed == pytest.approx(
        seen, rel=4 / math.sqrt(2 * 400)
    )  # a standard deviation of 400 values is known to 3.5 %
    exact = math.sqrt(2 / 59 * (4 + 1 + 1) / 16)  # Var s² = 2/(R − 1), weights ½, ¼, ¼
    assert seen == pytest.approx(exact, rel=0.15)


def test_a_ratio_has_the_error_of_both():
    ratio = Estimate(6.0, 0.6).ratio(Estimate(2.0, 0.1))
    assert (ratio.value, ratio.standard_error) == pytest.approx((3.0, 3 * math.hypot(0.1, 0.05)))
    assert math.isnan(Estimate(0.0, 0.0).ratio(Estimate(1.0, 0.1)).value)


# --- Where minibatches come from ----------------------------------------------------------------------------------------


def test_minibatches_are_drawn_as_they_say():
    def draws(sampling, M, n=300):
        batches = Minibatches(10, M, sampling, torch.Generator().manual_seed(0))
        return torch.stack([next(batches) for _ in range(n)])

    without, replaced, fixed = draws("without-replacement", 6), draws("with-replacement", 6), draws("fixed", 6)
    assert all(len(set(row.tolist())) == 6 for row in without)
    assert any(len(set(row.tolist())) < 6 for row in replaced)
    assert (fixed == fixed[0]).all()
    for rows in (without, replaced):
        shares = torch.bincount(rows.flatten(), minlength=10) / rows.numel()
        assert (shares - 0.1).abs().max() < 4 * math.sqrt(0.09 / rows.numel())
    with pytest.raises(InputError, match="at most 10"):
        Minibatches(10, 11, "without-replacement", torch.Generator())


def test_gradients_estimate_those_of_all_training_data(digits):
    # Without weight noise the mean over minibatches is the gradient of Σ log p over the training set.
    config = settings("gaussian-a", repetitions=300)
    net = build(digits, config.network, 0)
    silent = with_estimator(net, NO_NOISE)
    draws = gradient_draws(silent, digits, [("top", "theta")], config, ("test",))[("top", "theta")]
    loss = torch.nn.functional.cross_entropy(net(digits.x_train), digits.y_train, reduction="sum")
    (full,) = torch.autograd.grad(-loss, [net.noisy_layers[-1].theta])
    error = draws.std(0) / math.sqrt(300)
    exact = full.flatten().double()  # 240 weights, all of which are looked at
    assert ((draws.mean(0) - exact).abs() < 4 * error + 1e-3).all()


# --- Tables 1 and 2 -----------------------------------------------------------------------------------------------------


def test_table_1_local_varies_less_than_per_point_and_that_less_than_per_minibatch(digits):
    result = gradient_variance(digits, settings("variational-b"))
    for epochs in (0, 8):
        for layer in ("bottom", "top"):
            local, per_point, per_minibatch = (
                result.variance(epochs, layer, "log_alpha", name) for name in ("local", "per-point", "per-minibatch")
            )
            for less, more in ((local, per_point), (per_point, per_minibatch)):
                ratio = more.ratio(less)
                least = ratio.value * math.exp(-4 * ratio.standard_error / ratio.value)
                assert least > 1  # measured ratios are between 1.5 and 17
            silent = result.variance(epochs, layer, "theta", NO_NOISE)
            assert silent.value < result.variance(epochs, layer, "theta", "local").value
    with pytest.raises(KeyError):
        result.variance(0, "top", "log_alpha", NO_NOISE)


def test_table_2_per_point_is_local_where_the_noise_is_correlated(digits):
    result = gradient_variance(digits, settings("variational-a"))
    for epochs in (0, 8):
        for layer in ("bottom", "top"):
            for parameter in ("theta", "log_alpha"):
                local, per_point, per_minibatch = (
                    result.variance(epochs, layer, parameter, name) for name in ("local", "per-point", "per-minibatch")
                )
                difference = math.hypot(local.standard_error, per_point.standard_error)
                assert local != per_point  # from streams of their own
                assert abs(local.value - per_point.value) < 4 * difference
                assert per_minibatch.value > 1.2 * local.value


def test_fixed_data_leave_the_noise_alone(digits):
    config = settings("variational-b", sampling="fixed", repetitions=40)
    net = build(digits, config.network, 0)
    entries = {(e.layer, e.parameter, e.estimator): e.variance.value for e in measure(net, digits, config, 0)}
    assert entries["top", "theta", NO_NOISE] == 0
    moving = replace(config, sampling="with-replacement")
    with_data = {(e.layer, e.parameter, e.estimator): e.variance.value for e in measure(net, digits, moving, 0)}
    assert 0 < entries["top", "theta", "local"] < with_data["top", "theta", "local"]


def test_measuring_changes_neither_the_network_nor_its_training(digits):
    config = settings("variational-b", repetitions=3)
    measured = gradient_variance(digits, config)
    net = build(digits, config.network, config.training.seed)
    assert train(net, digits, config.training) == measured.run
    assert gradient_variance(digits, config) == measured


def test_what_is_watched():
    digits = load_digits()
    learnt, fixed = (
        build(digits, NetworkSettings(8, noise=NoiseSettings(k)), 0) for k in ("variational-b", "gaussian-b")
    )
    assert watched_parameters(learnt) == [
        (layer, name) for layer in ("bottom", "top") for name in ("theta", "log_alpha")
    ]
    assert watched_parameters(fixed) == [("bottom", "theta"), ("top", "theta")]


@pytest.mark.parametrize(
    "changes", [{"repetitions": 2}, {"minibatch": 0}, {"sampling": "all"}, {"checkpoints": (9,)}, {"coordinates": 0}]
)
def test_impossible_measurements_are_refused(changes):
    with pytest.raises(InputError):
        settings("variational-b", **changes)


def test_quick_and_paper_scale_can_be_made():
    for kind in ("variational-a", "variational-b"):
        paper, quick = GradientVarianceSettings.paper(kind), GradientVarianceSettings.quick(kind)
        assert (paper.network.width, paper.minibatch, paper.checkpoints) == (1200, 1000, (0, 10, 100))
        assert quick.network.width < paper.network.width
        assert quick.network.noise.kind == kind
