"""`fsvi-posterior/1` files of the kinds that are not Gaussian: round trips and refusals."""

import re

import pytest
import torch
from safetensors.torch import save_file

from fsvi_bench.errors import InputError
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior
from fsvi_bench.posteriors.io import KINDS, read_posterior, write_posterior
from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES, SamplesPosterior
from tests.posteriors.test_dropout import NAMES, make

HALF = torch.full((3,), 0.5, dtype=torch.float64)
SCALAR = HALF[0]
SAMPLES = torch.zeros(MINIMUM_SAMPLES, 3, dtype=torch.float64)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "q.safetensors"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read_back_bit_for_bit(path, name):
    q = make(name)
    write_posterior(path, q, "ab" * 32)
    found = read_posterior(path, q.k, "ab" * 32)
    assert type(found) is type(q)
    assert found.kind == q.kind
    assert found.kind in KINDS
    assert found.tensors().keys() == q.tensors().keys()
    for key, tensor in q.tensors().items():
        assert torch.equal(found.tensors()[key], tensor)
    assert torch.equal(found.mean, q.mean)


@pytest.mark.parametrize(
    "posterior",
    [
        BernoulliDropoutPosterior(HALF, torch.ones(3, dtype=torch.float64)),
        BernoulliDropoutPosterior(0 * HALF, torch.tensor(5e-324, dtype=torch.float64)),
        SpikeSlabPosterior(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), HALF, HALF),
    ],
)
def test_the_ends_that_belong_to_the_domain_are_read(path, posterior):
    write_posterior(path, posterior)
    for key, tensor in read_posterior(path).tensors().items():
        assert torch.equal(tensor, posterior.tensors()[key])


def without(tensors, name):
    return {key: tensor for key, tensor in tensors.items() if key != name}


BERNOULLI = {"m": HALF, "retain_probability": SCALAR}
SPIKES = {"spike_weight": HALF, "mean": HALF, "scale": HALF}
DRAWS = {"samples": SAMPLES}


@pytest.mark.parametrize(
    ("kind", "tensors", "message"),
    [
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": 0 * HALF}, "'retain_probability' holds 0, expected numbers in (0, 1], the probability to KEEP"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": -SCALAR}, "'retain_probability' holds -0.5, expected"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": 3 * SCALAR}, "'retain_probability' holds 1.5, expected"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": SCALAR / 0}, "'retain_probability' holds NaN or infinity"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": HALF[:2]}, "'retain_probability' has shape [2], expected [] or [3]; give one number or one per weight"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": HALF[:1]}, "'retain_probability' has shape [1], expected [] or [3]"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": SCALAR.float()}, "'retain_probability' has type float32"),
        ("bernoulli-dropout", {**BERNOULLI, "m": HALF.float()}, "'m' has type float32, expected float64"),
        ("bernoulli-dropout", {**BERNOULLI, "m": HALF[None]}, "'m' has shape [1, 3], expected [k]"),
        ("bernoulli-dropout", {**BERNOULLI, "m": HALF * float("nan")}, "'m' holds NaN or infinity"),
        ("bernoulli-dropout", without(BERNOULLI, "m"), "tensor 'm' is missing; expected m, retain_probability"),
        ("bernoulli-dropout", {**BERNOULLI, "p": SCALAR}, "unknown tensor 'p'; expected m, retain_probability; remove it"),
        ("bernoulli-dropout", {"m": HALF, "dropout_rate": SCALAR}, "unknown tensor 'dropout_rate' and no 'retain_probability'"),
        ("spike-slab", {**SPIKES, "spike_weight": -HALF}, "'spike_weight' holds -0.5, expected numbers in [0, 1], the probability of an exact zero"),
        ("spike-slab", {**SPIKES, "spike_weight": 3 * HALF}, "'spike_weight' holds 1.5, expected numbers in [0, 1]"),
        ("spike-slab", {**SPIKES, "scale": 0 * HALF}, "'scale' holds 0, expected positive numbers"),
        ("spike-slab", {**SPIKES, "scale": -HALF}, "'scale' holds -0.5, expected positive numbers"),
        ("spike-slab", {**SPIKES, "mean": HALF[:2]}, "'mean' has shape [2], expected [3]"),
        ("spike-slab", {**SPIKES, "scale": SCALAR}, "'scale' has shape [], expected [3]"),
        ("spike-slab", {**SPIKES, "mean": HALF / 0}, "'mean' holds NaN or infinity"),
        ("spike-slab", {**SPIKES, "spike_weight": HALF.float()}, "'spike_weight' has type float32"),
        ("spike-slab", without(SPIKES, "mean"), "tensor 'mean' is missing; expected mean, scale, spike_weight"),
        ("spike-slab", {**SPIKES, "f": SCALAR}, "unknown tensor 'f'"),
        ("samples", {"samples": SAMPLES[:-1]}, "the posterior has 9999 samples, expected at least 10000; draw more"),
        ("samples", {"samples": SAMPLES[0]}, "'samples' has shape [3], expected [S, k]"),
        ("samples", {"samples": SAMPLES[None]}, "'samples' has shape [1, 10000, 3], expected [S, k]"),
        ("samples", {"samples": SAMPLES[:, :0]}, "'samples' has shape [10000, 0], expected [S, k]"),
        ("samples", {"samples": SAMPLES.float()}, "'samples' has type float32, expected float64"),
        ("samples", {"samples": SAMPLES / 0}, "'samples' holds NaN or infinity"),
        ("samples", {**DRAWS, "weights": HALF}, "unknown tensor 'weights'"),
        ("samples", {"draws": SAMPLES}, "unknown tensor 'draws' and no 'samples'"),
        ("spike-and-slab", SPIKES, "kind 'spike-and-slab' is not one that this version scores; expected gaussian-full or gaussian-ffg or bernoulli-dropout or spike-slab or samples"),
    ],
)  # fmt: skip
def test_wrong_content_is_refused(path, kind, tensors, message):
    own = {name: tensor.clone() for name, tensor in tensors.items()}  # safetensors refuses shared memory
    save_file(own, path, metadata={"format": "fsvi-posterior/1", "kind": kind})
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read_posterior(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_another_k_is_refused(path, name):
    write_posterior(path, make(name))
    with pytest.raises(InputError, match=r"task has k=7 features, posterior has 6; was it trained on another task\?"):
        read_posterior(path, 7)


def test_nothing_is_written_that_would_not_be_read(path):
    with pytest.raises(InputError, match=r"cannot write .*: the posterior has 9 samples, expected at least 10000"):
        write_posterior(path, SamplesPosterior(SAMPLES[:9]))
    with pytest.raises(ValueError, match="'m' holds NaN or infinity"):
        write_posterior(path, BernoulliDropoutPosterior(HALF / 0, SCALAR))
    assert not path.exists()
