"""The classifier and its training: objective, averaging, validation, networks side by side."""

import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import cross_entropy

from fsvi_bench.papers.ksw2015 import fig1
from fsvi_bench.papers.ksw2015.data import Images, ImageSource, load_digits
from fsvi_bench.papers.ksw2015.fig1 import train_and_test
from fsvi_bench.papers.ksw2015.networks import (
    Classifier,
    NoiseSettings,
    TrainSettings,
    adam,
    cross_entropies,
    errors,
    split,
    step,
    train,
)
from fsvi_bench.papers.side_by_side import MovingAverage, Replayed, streams, without_denormals
from fsvi_bench.papers.streams import stream
from fsvi_bench.seeds import derive_seed


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def few(images, n=60):
    return images._replace(x_train=images.x_train[:n], y_train=images.y_train[:n])


def network(images, kind="variational-b", seed=0, width=16, **noise):
    return Classifier(images, [NoiseSettings(kind=kind, **noise)], width, [seed])


def test_the_network_is_relu_layers_with_the_papers_dropout_rates(digits):
    net = network(digits, "gaussian-a")
    assert [tuple(layer.theta.shape) for layer in net.layers] == [(1, 64, 16), (1, 16, 16), (1, 16, 16), (1, 16, 10)]
    assert [layer.mean_drop_rates() for layer in net.layers] == [pytest.approx([p]) for p in (0.2, 0.5, 0.5, 0.5)]
    x = digits.x_test[:5]
    expected = x
    for i, layer in enumerate(net.layers):
        expected = expected @ layer.theta[0] + layer.bias[0]
        expected = expected if i == 3 else expected.clamp(min=0)
    torch.testing.assert_close(net(x)[0], expected)


def test_a_step_goes_down_cross_entropy_and_scaled_kl(digits):
    images, scale = few(digits), 1 / 3
    net, (x, y) = network(images), (images.x_train, images.y_train)
    (expected,) = cross_entropy(net(x, [stream("cpu", "noise")])[0], y) + scale * net.kl() / 60
    gradient = torch.autograd.grad(expected, net.layers[0].theta)[0]
    before, optimizer = net.layers[0].theta.clone(), torch.optim.SGD(net.parameters(), lr=0.1)
    objective = step(net, optimizer, x, y, [stream("cpu", "noise")], torch.tensor([scale / 60]))
    assert objective.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(net.layers[0].theta, before - 0.1 * gradient)
    assert net.kl().item() > 100  # so that a scale left out would show


def test_training_scales_each_networks_kl_by_its_training_images(digits):
    """Three epochs of one minibatch, against the steps written down."""
    images, scales, seeds = few(digits), [1 / 3, 0.0], [0, 1]
    noise = [NoiseSettings(kind="variational-a", granularity="unit")] * 2
    settings = TrainSettings(epochs=3, minibatch=100, lr=0.01, validation_share=0.25, averaging=0.0)
    *_, trained = train(Classifier(images, noise, 16, seeds), images, settings, scales)
    expected = Classifier(images, noise, 16, seeds)
    draws, orders = (streams("cpu", "networks", role, seeds=seeds) for role in ("noise", "order"))
    _, kept = split(60, 0.25, seeds)
    optimizer = torch.optim.Adam(expected.parameters(), lr=0.01)
    for _ in range(3):
        rows = torch.stack([of_one[torch.randperm(45, generator=g)] for of_one, g in zip(kept, orders, strict=True)])
        parts = zip(expected(images.x_train[rows], draws), images.y_train[rows], scales, expected.kl(), strict=True)
        optimizer.zero_grad()
        sum(cross_entropy(logits, y) + scale * kl / 45 for logits, y, scale, kl in parts).backward()
        optimizer.step()
        for layer in expected.layers:
            layer.project()
    for ours, theirs in zip(trained.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_averaging_is_the_corrected_moving_average():
    net, decay = torch.nn.Linear(1, 1, bias=False), 0.9
    averaged = MovingAverage(net, decay)
    assert averaged.module.weight.item() == net.weight.item()  # before the first step
    values = [3.0, -1.0, 0.5, 8.0]
    for value in values:
        with torch.no_grad():
            net.weight.fill_(value)
        averaged.update()
    weights = [decay ** (len(values) - 1 - t) for t in range(len(values))]
    expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert averaged.module.weight.item() == pytest.approx(expected, rel=1e-6)


def test_the_validation_set_is_held_out(digits):
    out, kept = split(1438, 0.25, [0, 5])
    assert out.shape == (2, round(0.25 * 1438))
    everything = torch.cat([out, kept], dim=1).sort().values
    assert torch.equal(everything, torch.arange(1438).expand(2, -1))
    assert not torch.equal(out[0], out[1])
    torch.testing.assert_close(split(1438, 0.25, [5])[0], out[1:])
    settings, (x, y) = TrainSettings(epochs=1, validation_share=0.25), (digits.x_train, digits.y_train)
    unseen = digits._replace(x_train=x.index_fill(0, out[0], torch.nan), y_train=y)
    *_, trained = train(network(digits), unseen, settings)
    assert all(p.isfinite().all() for p in trained.parameters())


def test_the_validation_set_chooses_the_epoch(digits):
    settings, source = TrainSettings(epochs=4, averaging=0.9), ImageSource(name="digits", sha256=digits.sha256())
    (found,) = train_and_test(16, [("no dropout", 0)], settings, source)["networks"]
    seed = derive_seed("width sweep", 0, 0) % 2**31
    (out,), _ = split(len(digits.x_train), settings.validation_share, [seed])
    validation, test = (digits.x_train[out], digits.y_train[out]), (digits.x_test, digits.y_test)
    trained = train(network(digits, "none", seed), digits, settings)
    by_epoch = [(errors(each, *validation).item(), errors(each, *test).item()) for each in trained][1:]
    assert by_epoch[found["best_epoch"] - 1] == (min(by_epoch)[0], found["test_error"])
    assert all(on_validation > min(by_epoch)[0] for on_validation, _ in by_epoch[: found["best_epoch"] - 1])
    assert found["last_test_error"] == by_epoch[-1][1]


# --- Side by side -----------------------------------------------------------------------------------------------------

STACKS = [["none", "bernoulli", "gaussian-a", "variational-a"], ["gaussian-b", "variational-b"]]


@pytest.mark.parametrize("kinds", STACKS)
def test_networks_side_by_side_train_as_they_do_alone(digits, kinds):
    """Rounding alone differs: products of several matrices add up in another order. It grows with the steps."""
    settings, scales = TrainSettings(epochs=1, averaging=0.9, lr=0.01), [1 / 3, 1.0, 1.0, 1 / 3][: len(kinds)]
    noise, seeds = [NoiseSettings(kind=kind) for kind in kinds], [3, 4, 3, 5][: len(kinds)]
    *_, stack = train(Classifier(digits, noise, 32, seeds), digits, settings, scales)
    x, y = digits.x_train, digits.y_train
    for place, (of_one, seed, scale) in enumerate(zip(noise, seeds, scales, strict=True)):
        one = Classifier(digits, [of_one], 32, [seed])
        start = cross_entropies(one(x), y).mean().item()
        *_, one = train(one, digits, settings, [scale])
        alone, beside = (cross_entropies(each(x), y).mean(1) for each in (one, stack))
        assert beside[place].item() == pytest.approx(alone.item(), rel=1e-5)
        assert alone.item() < start  # it has learnt something
        assert stack.kl()[place].item() == pytest.approx(one.kl().item(), rel=1e-5)


def test_one_of_a_stack_computes_what_the_stack_does(digits):
    noise = [NoiseSettings(kind=kind) for kind in STACKS[0]]
    stack, x = Classifier(digits, noise, 8, [0, 1, 2, 3]), digits.x_test[:7]
    together = stack(x, streams("cpu", "noise", seeds=range(4)))
    for place in range(4):
        one = Classifier(digits, [noise[place]], 8, [place])
        torch.testing.assert_close(one(x, streams("cpu", "noise", seeds=[place]))[0], together[place])
        assert one.kl().item() == pytest.approx(stack.kl()[place].item(), rel=1e-6)
    assert stack.kl().tolist()[:3] == [0, 0, 0]


def test_a_fixed_alpha_stays_where_it_is_beside_one_that_is_learnt(digits):
    noise = [NoiseSettings(kind=kind) for kind in STACKS[1]]
    *_, trained = train(Classifier(digits, noise, 8, [0, 1]), digits, TrainSettings(epochs=2, lr=0.01))
    fixed, learnt = torch.tensor([layer.mean_drop_rates() for layer in trained.layers]).T
    torch.testing.assert_close(fixed, torch.tensor([0.2, 0.5, 0.5, 0.5]))
    assert (learnt[:3] - fixed[:3]).abs().min() > 1e-3


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_replayed_steps_are_the_steps(digits, device):
    """With minibatches of another size in between, which are computed without the graph."""
    images = digits.to(device)

    def trained(replay):
        noise = streams(device, "noise", seeds=[0, 1])
        net = Classifier(images, [NoiseSettings(kind="variational-b")] * 2, 16, [0, 1])
        optimizer, scale = adam(net, 1e-3), torch.full((2,), 1e-3, device=device)

        def one(rows):
            step(net, optimizer, images.x_train[rows], images.y_train[rows], noise, scale)

        one = Replayed(one, noise, torch.device(device)) if replay else one
        choices = torch.Generator().manual_seed(0)
        for count in [100, 100, 38, 100, 100, 100, 38, 100, 100]:
            one(torch.randint(1438, (2, count), generator=choices).to(device))
        return [p.detach() for p in net.parameters()]

    for ours, theirs in zip(trained(True), trained(False), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("changes", [{"epochs": 0}, {"validation_share": 0.0}])
def test_a_width_sweep_needs_an_epoch_and_a_validation_set(changes):
    with pytest.raises(ValidationError, match="the validation set chooses the epoch"):
        fig1.Settings(images="digits", widths=(4, 8), repeats=2, training=changes)


def test_noise_on_inputs_and_on_weights_cannot_share_a_stack(digits):
    with pytest.raises(ValueError, match="noise gaussian-a per layer, gaussian-b per layer in one stack, expected"):
        Classifier(digits, [NoiseSettings(kind="gaussian-a"), NoiseSettings(kind="gaussian-b")], 8, [0, 1])


def test_the_error_is_the_share_of_wrong_classes():
    x = torch.eye(4)
    net = Classifier(Images("four", x, torch.arange(4), x, torch.arange(4)), [NoiseSettings(kind="none")], 4, [0])
    with torch.no_grad():
        for layer in net.layers:
            layer.theta.copy_(x[None])
    assert errors(net, x, torch.tensor([0, 1, 2, 0])).tolist() == [0.25]


@pytest.mark.parametrize(
    "changes",
    [{"epochs": -1}, {"minibatch": 0}, {"lr": 0.0}, {"averaging": 1.0}, {"validation_share": 1.0}],
)
def test_impossible_training_is_refused(changes):
    with pytest.raises(ValidationError):
        TrainSettings(**changes)


def test_denormals_are_flushed_within_the_block_alone():
    def halved():
        return float(torch.tensor(1.5e-38) / 2)

    with without_denormals():
        assert halved() == 0
        with without_denormals():
            pass
        assert halved() == 0
    assert halved() > 0
