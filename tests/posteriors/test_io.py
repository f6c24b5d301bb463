"""`fsvi-posterior/1`: round trips of every kind, both spellings of a triangular factor, and refusals."""

from __future__ import annotations

import pickle
import re

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import load_file, save_file

from fsvi_bench.errors import InputError
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior
from fsvi_bench.posteriors.gaussian import FactorGaussian
from fsvi_bench.posteriors.io import KINDS, pack_tril, posterior_file, read_posterior, unpack_tril, write_posterior
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES, SamplesPosterior
from tests.posteriors.test_dropout import NAMES, make

f64 = torch.float64
ONE, EYE, HALF = torch.ones(3, dtype=f64), torch.eye(3, dtype=f64), torch.full((3,), 0.5, dtype=f64)
SCALAR, SAMPLES = HALF[0], torch.zeros(MINIMUM_SAMPLES, 3, dtype=f64)
FULL, FFG = {"mean": ONE, "scale_tril": EYE}, {"mean": ONE, "scale": ONE}
BERNOULLI = {"m": HALF, "retain_probability": SCALAR}
SPIKES = {"spike_weight": HALF, "mean": HALF, "scale": HALF}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "q.safetensors"


def save_broken(path, kind, tensors, **metadata):
    own = {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}  # none shares memory
    save_file(own, path, metadata={"format": "fsvi-posterior/1", "kind": kind, **metadata})


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
    with pytest.raises(InputError, match="the posterior has 6 weights, expected 7"):
        read_posterior(path, 7)
    with pytest.raises(InputError, match="it belongs to task 'abababababab', expected task cdcdcdcdcdcd"):
        read_posterior(path, 6, "cd" * 32)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(0, 10**6))
def test_packing_is_rows_of_the_lower_triangle(k, seed):
    tril = torch.randn(k, k, generator=torch.Generator().manual_seed(seed), dtype=f64).tril()
    packed = pack_tril(tril)
    assert packed.tolist() == [float(tril[i, j]) for i in range(k) for j in range(i + 1)]
    assert torch.equal(unpack_tril(packed, k), tril)


def test_a_full_factor_may_be_given_whole_and_ours_is_packed(path):
    save_broken(path, "gaussian-full", FULL)
    assert torch.equal(read_posterior(path).covariance_tril(), EYE)
    write_posterior(path, make("full"))
    assert load_file(path)["scale_tril_packed"].shape == (21,)


@pytest.mark.parametrize(
    "posterior",
    [
        *[FactorGaussian(HALF, torch.ones(3, r, dtype=f64)) for r in range(4)],
        BernoulliDropoutPosterior(HALF, torch.ones(3, dtype=torch.float64)),
        BernoulliDropoutPosterior(0 * HALF, torch.tensor(5e-324, dtype=torch.float64)),
        SpikeSlabPosterior(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), HALF, HALF),
    ],
)
def test_the_ends_that_belong_to_the_domain_are_read(path, posterior):
    write_posterior(path, posterior)
    for key, tensor in read_posterior(path).tensors().items():
        assert torch.equal(tensor, posterior.tensors()[key])


@pytest.mark.parametrize(
    ("kind", "tensors", "message"),
    [
        ("gaussian-full", {**FULL, "scale_tril": EYE[:2]}, "'scale_tril' has shape [2, 3], expected [3, 3]"),
        ("gaussian-full", {"mean": ONE, "scale_tril_packed": ONE}, "'scale_tril_packed' has shape [3], expected [6]"),
        ("gaussian-full", {**FULL, "scale_tril": EYE.float()}, "type float32, expected float64"),
        ("gaussian-full", {**FULL, "mean": ONE.float()}, "'mean' has type float32"),
        ("gaussian-full", {**FULL, "scale_tril": torch.ones(3, 3, dtype=f64)}, "entries above the diagonal"),
        ("gaussian-full", {**FULL, "scale_tril": -EYE}, "contains -1, expected positive"),
        ("gaussian-full", {**FULL, "scale_tril": torch.diag(ONE - EYE[1])}, "contains 0,"),
        ("gaussian-full", {**FULL, "extra": ONE}, "unknown tensor 'extra'"),
        ("gaussian-full", {**FULL, "scale_tril_packed": torch.ones(6, dtype=f64)}, "unknown tensor"),
        ("gaussian-full", {"mean": ONE}, "'scale_tril' is missing"),
        ("gaussian-full", {**FULL, "mean": EYE}, "'mean' has shape [3, 3], expected [k]"),
        ("gaussian-ffg", {**FFG, "scale": ONE[:2]}, "'scale' has shape [2], expected [3]"),
        ("gaussian-ffg", {**FFG, "scale": 0 * ONE}, "'scale' contains 0, expected positive"),
        ("gaussian-ffg", {**FFG, "scale": ONE / 0}, "'scale' contains NaN or infinity"),
        ("gaussian-ffg", {**FFG, "mean": ONE * float("nan")}, "'mean' contains NaN or infinity"),
        ("gaussian-ffg", FULL, "unknown tensor 'scale_tril'"),
        ("laplace", {"mean": ONE}, "kind 'laplace' is not one that this version scores"),
        ("gaussian-factor", {"mean": ONE, "factor": EYE[:2]}, "'factor' has shape [2, 3], expected [3, r] with 0 ≤ r ≤ 3"),
        ("gaussian-factor", {"mean": ONE, "factor": torch.ones(3, 4, dtype=f64)}, "'factor' has shape [3, 4], expected [3, r] with 0 ≤ r ≤ 3"),
        ("gaussian-factor", {"mean": ONE, "factor": ONE}, "'factor' has shape [3], expected [3, r]"),
        ("gaussian-factor", {"mean": ONE, "factor": EYE / 0}, "'factor' contains NaN or infinity"),
        ("gaussian-factor", {"mean": ONE, "factor": EYE.float()}, "'factor' has type float32"),
        ("gaussian-factor", {"mean": ONE, "scale_tril": EYE}, "unknown tensor 'scale_tril', and 'factor' is missing"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": 0 * HALF}, "'retain_probability' contains 0, expected numbers in (0, 1], the probability to KEEP"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": -SCALAR}, "'retain_probability' contains -0.5, expected"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": 3 * SCALAR}, "'retain_probability' contains 1.5, expected"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": SCALAR / 0}, "'retain_probability' contains NaN or infinity"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": HALF[:2]}, "'retain_probability' has shape [2], expected [] or [3]; give one number or one per weight"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": HALF[:1]}, "'retain_probability' has shape [1], expected [] or [3]"),
        ("bernoulli-dropout", {**BERNOULLI, "retain_probability": SCALAR.float()}, "'retain_probability' has type float32"),
        ("bernoulli-dropout", {**BERNOULLI, "m": HALF.float()}, "'m' has type float32, expected float64"),
        ("bernoulli-dropout", {**BERNOULLI, "m": HALF[None]}, "'m' has shape [1, 3], expected [k]"),
        ("bernoulli-dropout", {**BERNOULLI, "m": HALF * float("nan")}, "'m' contains NaN or infinity"),
        ("bernoulli-dropout", {**BERNOULLI, "m": None}, "tensor 'm' is missing; expected m, retain_probability"),
        ("bernoulli-dropout", {**BERNOULLI, "p": SCALAR}, "unknown tensor 'p'; expected m, retain_probability; remove it"),
        ("bernoulli-dropout", {"m": HALF, "dropout_rate": SCALAR}, "unknown tensor 'dropout_rate', and 'retain_probability' is missing"),
        ("spike-slab", {**SPIKES, "spike_weight": -HALF}, "'spike_weight' contains -0.5, expected numbers in [0, 1], the probability of an exact zero"),
        ("spike-slab", {**SPIKES, "spike_weight": 3 * HALF}, "'spike_weight' contains 1.5, expected numbers in [0, 1]"),
        ("spike-slab", {**SPIKES, "scale": 0 * HALF}, "'scale' contains 0, expected positive numbers"),
        ("spike-slab", {**SPIKES, "scale": -HALF}, "'scale' contains -0.5, expected positive numbers"),
        ("spike-slab", {**SPIKES, "mean": HALF[:2]}, "'mean' has shape [2], expected [3]"),
        ("spike-slab", {**SPIKES, "scale": SCALAR}, "'scale' has shape [], expected [3]"),
        ("spike-slab", {**SPIKES, "mean": HALF / 0}, "'mean' contains NaN or infinity"),
        ("spike-slab", {**SPIKES, "spike_weight": HALF.float()}, "'spike_weight' has type float32"),
        ("spike-slab", {**SPIKES, "mean": None}, "tensor 'mean' is missing; expected mean, scale, spike_weight"),
        ("spike-slab", {**SPIKES, "f": SCALAR}, "unknown tensor 'f'"),
        ("samples", {"samples": SAMPLES[:-1]}, "it has 9999 samples, expected at least 10000; draw more, or give them as particles"),
        ("samples", {"samples": SAMPLES[0]}, "'samples' has shape [3], expected [n, k]"),
        ("samples", {"samples": SAMPLES[None]}, "'samples' has shape [1, 10000, 3], expected [n, k]"),
        ("samples", {"samples": SAMPLES[:, :0]}, "'samples' has shape [10000, 0], expected [n, k]"),
        ("samples", {"samples": SAMPLES.float()}, "'samples' has type float32, expected float64"),
        ("samples", {"samples": SAMPLES / 0}, "'samples' contains NaN or infinity"),
        ("samples", {"samples": SAMPLES, "weights": HALF}, "unknown tensor 'weights'"),
        ("samples", {"draws": SAMPLES}, "unknown tensor 'draws', and 'samples' is missing"),
        ("particles", {"particles": SAMPLES[:1]}, "it has 1 particle, expected 2 or more; draw more"),
        ("particles", {"particles": SAMPLES}, "it has 10000 particles, expected fewer than 10000; give them as samples"),
        ("particles", {"particles": SAMPLES[:0]}, "'particles' has shape [0, 3], expected [n, k]"),
        ("particles", {"particles": SAMPLES[0]}, "'particles' has shape [3], expected [n, k]"),
        ("particles", {"particles": SAMPLES[None, :5]}, "'particles' has shape [1, 5, 3], expected [n, k]"),
        ("particles", {"particles": SAMPLES[:5].float()}, "'particles' has type float32, expected float64"),
        ("particles", {"particles": SAMPLES[:5] / 0}, "'particles' contains NaN or infinity"),
        ("particles", {"samples": SAMPLES[:5]}, "unknown tensor 'samples', and 'particles' is missing"),
        ("spike-and-slab", SPIKES, "kind 'spike-and-slab' is not one that this version scores; expected gaussian-full or gaussian-ffg or gaussian-factor or bernoulli-dropout or spike-slab or samples or particles or function-samples"),
    ],
)  # fmt: skip
def test_wrong_content_is_refused(path, kind, tensors, message):
    save_broken(path, kind, tensors)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read_posterior(path)
    assert "\n" not in str(caught.value)


def test_a_large_file_takes_no_memory_beyond_its_size(path):
    """A matrix of a million standard deviations would take 8 TB."""
    many = torch.ones(10**6, dtype=f64)
    save_broken(path, "gaussian-ffg", {"mean": many, "scale": many})
    with pytest.raises(InputError, match="the posterior has 1000000 weights, expected 20"):
        read_posterior(path, 20)


def test_wrong_metadata_and_pickles_are_refused(path):
    save_broken(path, "gaussian-ffg", FFG, format="fsvi-posterior/9")
    with pytest.raises(InputError, match="has format 'fsvi-posterior/9'"):
        read_posterior(path)
    save_broken(path, "gaussian-ffg", FFG, author="me")
    with pytest.raises(InputError, match="unknown metadata 'author'; expected format, kind, task_sha256"):
        read_posterior(path)
    path.write_bytes(pickle.dumps({"mean": [1.0]}))
    with pytest.raises(InputError, match="is not a safetensors file"):
        read_posterior(path)


@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damaged_files_are_refused_or_valid(tmp_path, data):
    path = tmp_path / "q.safetensors"
    write_posterior(path, make(data.draw(st.sampled_from(NAMES[:-1]))))
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(1, len(content)))]))
    try:
        q = read_posterior(path)
    except InputError:
        return
    assert torch.isfinite(q.mean).all()
    assert (q.covariance_tril().diagonal() >= 0).all()


def test_nothing_is_written_that_would_not_be_read(path):
    with pytest.raises(InputError, match=r"cannot write .*: it has 9 samples, expected at least 10000"):
        write_posterior(path, SamplesPosterior(SAMPLES[:9]))
    with pytest.raises(InputError, match=r"cannot write .*: it has 1 particle, expected 2 or more; draw more"):
        write_posterior(path, ParticlesPosterior(SAMPLES[:1]))
    with pytest.raises(ValueError, match="'m' contains NaN or infinity"):
        write_posterior(path, BernoulliDropoutPosterior(HALF / 0, SCALAR))
    assert not path.exists()


def test_equal_posteriors_are_equal_files():
    """safetensors itself writes metadata in another order each time; equal posteriors must make equal files."""
    files = {posterior_file(make("full"), "a" * 64) for _ in range(20)}
    assert len(files) == 1
    (content,) = files
    assert int.from_bytes(content[:8], "little") % 8 == 0
