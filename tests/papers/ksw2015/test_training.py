"""The classifier and its training: objective, averaging, validation, determinism."""

import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import cross_entropy

from fsvi_bench.papers.ksw2015.data import Images, ImageSource, load_digits
from fsvi_bench.papers.ksw2015.fig1 import train_and_test
from fsvi_bench.papers.ksw2015.networks import (
    Classifier,
    NoiseSettings,
    TrainSettings,
    averaged_copy,
    error_rate,
    split,
    step,
    train,
)
from fsvi_bench.papers.streams import stream
from fsvi_bench.seeds import derive_seed


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def few(images, n=60):
    return images._replace(x_train=images.x_train[:n], y_train=images.y_train[:n])


def network(images, kind="variational-b", seed=0, width=16, **noise):
    return Classifier(images, NoiseSettings(kind=kind, **noise), width, seed)


def test_the_network_is_relu_layers_with_the_papers_dropout_rates(digits):
    net = network(digits, "gaussian-a")
    assert [tuple(layer.theta.shape) for layer in net.layers] == [(64, 16), (16, 16), (16, 16), (16, 10)]
    assert [layer.mean_drop_rate() for layer in net.layers] == pytest.approx([0.2, 0.5, 0.5, 0.5])
    x = digits.x_test[:5]
    expected = x
    for i, layer in enumerate(net.layers):
        expected = expected @ layer.theta + layer.bias
        expected = expected if i == 3 else expected.clamp(min=0)
    torch.testing.assert_close(net(x), expected)


def test_a_step_goes_down_cross_entropy_and_scaled_kl(digits):
    images, scale = few(digits), 1 / 3
    net, (x, y) = network(images), (images.x_train, images.y_train)
    expected = cross_entropy(net(x, stream("cpu", "noise")), y) + scale * net.kl() / 60
    gradient = torch.autograd.grad(expected, net.layers[0].theta)[0]
    before, optimizer = net.layers[0].theta.clone(), torch.optim.SGD(net.parameters(), lr=0.1)
    objective = step(net, optimizer, x, y, stream("cpu", "noise"), scale / 60)
    assert objective.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(net.layers[0].theta, before - 0.1 * gradient)
    assert net.kl().item() > 100  # so that a scale left out would show


def test_averaging_is_the_corrected_moving_average():
    net, decay = torch.nn.Linear(1, 1, bias=False), 0.9
    averaged = averaged_copy(net, decay)
    assert averaged.module.weight.item() == net.weight.item()  # before the first step
    values = [3.0, -1.0, 0.5, 8.0]
    for value in values:
        with torch.no_grad():
            net.weight.fill_(value)
        averaged.update_parameters(net)
    weights = [decay ** (len(values) - 1 - t) for t in range(len(values))]
    expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert averaged.module.weight.item() == pytest.approx(expected, rel=1e-6)


def test_the_validation_set_is_held_out(digits):
    kept, validation = split(digits, TrainSettings(validation_share=0.25))
    assert len(validation[0]) == round(0.25 * 1438)
    assert len(kept.x_train) + len(validation[0]) == 1438
    everything = [row.numpy().tobytes() for row in torch.cat([kept.x_train, validation[0]])]
    assert sorted(everything) == sorted(row.numpy().tobytes() for row in digits.x_train)


def test_the_validation_set_chooses_the_epoch(digits):
    settings = TrainSettings(epochs=4, averaging=0.9)
    trained = train_and_test("no dropout", 16, 0, settings, ImageSource(name="digits", sha256=digits.sha256()))
    training = settings.model_copy(update={"seed": derive_seed("width sweep", 0, 0) % 2**31})
    kept, validation = split(digits, training)
    errors = [
        (error_rate(averaged, *validation), error_rate(averaged, digits.x_test, digits.y_test))
        for averaged in train(network(digits, "none", training.seed), kept, training)
    ][1:]
    assert errors[trained["best_epoch"] - 1] == (min(errors)[0], trained["test_error"])
    assert all(on_validation > min(errors)[0] for on_validation, _ in errors[: trained["best_epoch"] - 1])


def test_the_error_is_the_share_of_wrong_classes():
    x = torch.eye(4)
    net = Classifier(Images("four", x, torch.arange(4), x, torch.arange(4)), NoiseSettings(kind="none"), 4, 0)
    with torch.no_grad():
        for layer in net.layers:
            layer.theta.copy_(x)
    assert error_rate(net, x, torch.tensor([0, 1, 2, 0])) == 0.25


@pytest.mark.parametrize(
    "changes",
    [{"epochs": -1}, {"minibatch": 0}, {"lr": 0.0}, {"averaging": 1.0}, {"validation_share": 1.0}, {"kl_scale": -1.0}],
)
def test_impossible_training_is_refused(changes):
    with pytest.raises(ValidationError):
        TrainSettings(**changes)
