"""`fsvi-posterior/1`: round trips, both spellings of a triangular factor, and refusals."""

from __future__ import annotations

import pickle

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import load_file, save_file

from fsvi_bench.errors import InputError
from fsvi_bench.posteriors.base import unstack
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.io import pack_tril, posterior_file, read_posterior, unpack_tril, write_posterior

f64 = torch.float64


def random_posterior(family, k, seed):
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(k, generator=g, dtype=f64)
    scale = torch.randn(k, generator=g, dtype=f64).exp()
    if family == "ffg":
        return FactorisedGaussian(mean, scale)
    return FullGaussian(mean, torch.randn(k, k, generator=g, dtype=f64).tril(-1) + torch.diag(scale))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "q.safetensors"


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["full", "ffg"]), st.integers(1, 12), st.integers(0, 10**6))
def test_what_is_written_is_read_back_bit_for_bit(tmp_path, family, k, seed):
    q = random_posterior(family, k, seed)
    write_posterior(tmp_path / "q.safetensors", q)
    found = read_posterior(tmp_path / "q.safetensors", k)
    assert found.family == family
    assert torch.equal(found.mean, q.mean)
    assert torch.equal(found.covariance_tril(), q.covariance_tril())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(0, 10**6))
def test_packing_is_rows_of_the_lower_triangle(k, seed):
    tril = random_posterior("full", k, seed).scale_tril
    packed = pack_tril(tril)
    assert packed.tolist() == [float(tril[i, j]) for i in range(k) for j in range(i + 1)]
    assert torch.equal(unpack_tril(packed, k), tril)


def test_a_full_factor_may_be_given_whole(path):
    q = random_posterior("full", 4, 0)
    metadata = {"format": "fsvi-posterior/1", "kind": "gaussian-full"}
    save_file({"mean": q.mean, "scale_tril": q.scale_tril}, path, metadata=metadata)
    assert torch.equal(read_posterior(path).covariance_tril(), q.scale_tril)


def test_ours_are_packed(path):
    write_posterior(path, random_posterior("full", 4, 0))
    assert load_file(path)["scale_tril_packed"].shape == (10,)


def save_broken(path, kind="gaussian-full", metadata=None, **tensors):
    own = {name: tensor.clone() for name, tensor in tensors.items()}  # safetensors refuses shared memory
    save_file(own, path, metadata={"format": "fsvi-posterior/1", "kind": kind, **(metadata or {})})


ONE, EYE = torch.ones(3, dtype=f64), torch.eye(3, dtype=f64)


@pytest.mark.parametrize(
    ("kind", "tensors", "message"),
    [
        ("gaussian-full", {"mean": ONE, "scale_tril": EYE[:2]}, r"'scale_tril' has shape \[2, 3\], expected \[3, 3\]"),
        ("gaussian-full", {"mean": ONE, "scale_tril_packed": ONE}, r"'scale_tril_packed' has shape \[3\], expected \[6\]"),
        ("gaussian-full", {"mean": ONE, "scale_tril": EYE.float()}, r"type float32, expected float64"),
        ("gaussian-full", {"mean": ONE.float(), "scale_tril": EYE}, r"'mean' has type float32"),
        ("gaussian-full", {"mean": ONE, "scale_tril": torch.ones(3, 3, dtype=f64)}, r"entries above the diagonal"),
        ("gaussian-full", {"mean": ONE, "scale_tril": -EYE}, r"holds -1, expected positive"),
        ("gaussian-full", {"mean": ONE, "scale_tril": torch.diag(torch.tensor([1, 0, 1.0], dtype=f64))}, r"holds 0,"),
        ("gaussian-full", {"mean": ONE, "scale_tril": EYE, "extra": ONE}, r"unknown tensor 'extra'"),
        ("gaussian-full", {"mean": ONE, "scale_tril": EYE, "scale_tril_packed": torch.ones(6, dtype=f64)}, r"unknown tensor"),
        ("gaussian-full", {"mean": ONE}, r"'scale_tril' is missing"),
        ("gaussian-full", {"mean": EYE, "scale_tril": EYE}, r"'mean' has shape \[3, 3\], expected \[k\]"),
        ("gaussian-ffg", {"mean": ONE, "scale": torch.ones(2, dtype=f64)}, r"'scale' has shape \[2\], expected \[3\]"),
        ("gaussian-ffg", {"mean": ONE, "scale": 0 * ONE}, r"'scale' holds 0, expected positive"),
        ("gaussian-ffg", {"mean": ONE, "scale": ONE / 0}, r"'scale' holds NaN or infinity"),
        ("gaussian-ffg", {"mean": ONE * float("nan"), "scale": ONE}, r"'mean' holds NaN or infinity"),
        ("gaussian-ffg", {"mean": ONE, "scale_tril": EYE}, r"unknown tensor 'scale_tril'"),
        ("laplace", {"mean": ONE}, r"kind 'laplace' is not one that this version scores"),
    ],
)  # fmt: skip
def test_wrong_content_is_refused(path, kind, tensors, message):
    save_broken(path, kind, **tensors)
    with pytest.raises(InputError, match=message):
        read_posterior(path)


def test_another_k_is_refused(path):
    write_posterior(path, random_posterior("ffg", 99, 0))
    with pytest.raises(
        InputError, match=r"task has k=100 features, posterior has 99; was it trained on another task\?"
    ):
        read_posterior(path, 100)


def test_wrong_format_and_pickles_are_refused(path):
    save_broken(path, "gaussian-ffg", {"format": "fsvi-posterior/9"}, mean=ONE, scale=ONE)
    with pytest.raises(InputError, match="has format 'fsvi-posterior/9'"):
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
    write_posterior(path, random_posterior(data.draw(st.sampled_from(["full", "ffg"])), 3, 0))
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(1, len(content)))]))
    try:
        q = read_posterior(path)
    except InputError:
        return
    assert torch.isfinite(q.mean).all()
    assert (q.covariance_tril().diagonal() > 0).all()


def test_a_batch_is_taken_apart():
    full = FullGaussian(torch.zeros(2, 3, dtype=f64), torch.eye(3, dtype=f64).repeat(2, 1, 1))
    ffg = FactorisedGaussian(torch.arange(6, dtype=f64).reshape(2, 3), torch.ones(2, 3, dtype=f64))
    assert [q.k for q in unstack(full)] == [3, 3]
    assert unstack(ffg)[1].mean.tolist() == [3, 4, 5]


def test_a_posterior_may_name_its_task_and_is_then_held_to_it(path):
    write_posterior(path, random_posterior("ffg", 3, 0), "ab" * 32)
    assert read_posterior(path, 3, "ab" * 32).k == 3
    with pytest.raises(InputError, match="it is a posterior of task 'abababababab', not of task cdcdcdcdcdcd"):
        read_posterior(path, 3, "cd" * 32)


def test_unknown_metadata_are_refused(path):
    save_broken(path, "gaussian-ffg", {"author": "me"}, mean=ONE, scale=ONE)
    with pytest.raises(InputError, match="unknown metadata 'author'; expected format, kind, task_sha256"):
        read_posterior(path)


def test_equal_posteriors_are_equal_files():
    """safetensors itself writes metadata in another order each time; equal posteriors must make equal files."""
    q = random_posterior("full", 5, 3)
    files = {posterior_file(q, "a" * 64) for _ in range(20)}
    assert len(files) == 1
    (content,) = files
    assert int.from_bytes(content[:8], "little") % 8 == 0
