"""`fsvi-task/1`: what is written is read back, and whatever is wrong is refused with got, expected and a fix."""

from __future__ import annotations

import pickle
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import save_file

from fsvi_bench.errors import InputError
from fsvi_bench.tasks.frozen import TENSOR_NAMES, FrozenTask, read_task, write_task


def make_task(seed=0, k=3, n_train=5, n_test=4, split=0):
    """A random valid task of the toy data set (its inputs have one dimension)."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    rows = torch.randperm(240, generator=g)[: n_train + n_test]
    return FrozenTask(
        dataset="toy",
        split=split,
        data_sha256="ab" * 32,
        features="sgpr-rbf-ard",
        inducing_points=normal(k, 1),
        lengthscales=normal(1).exp(),
        outputscale=normal(1).exp()[0],
        noise_variance=normal(1).exp()[0],
        jitter=torch.tensor(1e-6, dtype=torch.float64),
        input_mean=normal(1),
        input_std=normal(1).exp(),
        target_mean=normal(1)[0],
        target_std=normal(1).exp()[0],
        train_index=rows[:n_train],
        test_index=rows[n_train:],
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "task.safetensors"


def save_broken(path, *, metadata=None, drop=(), **changes):
    """Writes a valid task with some tensors or metadata replaced, by safetensors alone."""
    task = make_task()
    tensors = {name: t.clone() for name, t in {**task.tensors, **changes}.items() if name not in drop}
    save_file(tensors, path, metadata={**task.metadata, **(metadata or {})})


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9), st.integers(0, 19))
def test_what_is_written_is_read_back(tmp_path, seed, k, n_train, n_test, split):
    write_task(tmp_path / "task.safetensors", task := make_task(seed, k, n_train, n_test, split))
    found = read_task(tmp_path / "task.safetensors")
    assert found.metadata == task.metadata
    for name in TENSOR_NAMES:
        assert torch.equal(getattr(found, name), getattr(task, name))
    assert found.sha256 == task.sha256


def test_identity_covers_every_tensor_and_the_defining_metadata():
    task = make_task()
    others = [{name: getattr(task, name) + 1} for name in TENSOR_NAMES]
    others += [{"dataset": "boston"}, {"split": 1}, {"data_sha256": "cd" * 32}, {"features": "rbf-grid"}]
    assert len({task.sha256, *(replace(task, **changes).sha256 for changes in others)}) == 1 + len(others)


def test_identity_does_not_depend_on_further_metadata(path):
    save_broken(path, metadata={"note": "hello"})
    assert read_task(path).sha256 == make_task().sha256


def test_identity_is_a_constant_of_the_format(boston_task):
    """Committed: a change of this number orphans every published score."""
    assert boston_task.sha256 == "0e5891f4b227f55bd5328931f207b090916818341dee6d8e14b132fd48b397a6"


f64 = torch.float64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengthscales": torch.ones(2, dtype=f64)}, r"'lengthscales' has shape \[2\], expected \[1\]"),
        ({"inducing_points": torch.ones(3, dtype=f64)}, r"'inducing_points' has shape \[3\], expected \[k, D\]"),
        ({"noise_variance": torch.ones(1, dtype=f64)}, r"'noise_variance' has shape \[1\], expected \[\]"),
        ({"train_index": torch.zeros(0, dtype=torch.int64)}, r"'train_index' has shape \[0\]"),
        ({"input_mean": torch.tensor([float("nan")], dtype=f64)}, r"'input_mean' contains NaN or infinity"),
        ({"target_std": torch.tensor(float("inf"), dtype=f64)}, r"'target_std' contains NaN or infinity"),
        ({"noise_variance": torch.tensor(0.0, dtype=f64)}, r"'noise_variance' contains 0, expected positive"),
        ({"noise_variance": torch.tensor(-1.0, dtype=f64)}, r"'noise_variance' contains -1, expected positive"),
        ({"lengthscales": torch.zeros(1, dtype=f64)}, r"'lengthscales' contains 0, expected positive"),
        ({"jitter": torch.tensor(-1e-6, dtype=f64)}, r"'jitter' is -1e-06, expected 0 or more"),
        ({"jitter": torch.tensor(1e-6).to(torch.float8_e4m3fn)}, r"'jitter' has type float8_e4m3fn, expected float64"),
        ({"jitter": torch.tensor(1e-6)}, r"'jitter' has type float32, expected float64"),
        ({"test_index": torch.arange(4, dtype=torch.int32)}, r"'test_index' has type int32, expected int64"),
        ({"drop": ("jitter",)}, "tensor 'jitter' is missing"),
        ({"lenghtscales": torch.ones(1, dtype=f64)}, r"unknown tensor 'lenghtscales'"),
        ({"train_index": torch.tensor([0, 1, 240])}, r"row numbers run from 0 to 240, expected 0 to 239"),
        ({"train_index": torch.tensor([-1, 1, 2])}, r"row numbers run from -1"),
        ({"train_index": torch.tensor([3, 3])}, r"contain a row twice"),
        ({"inducing_points": torch.ones(3, 2, dtype=f64), "lengthscales": torch.ones(2, dtype=f64),
          "input_mean": torch.ones(2, dtype=f64), "input_std": torch.ones(2, dtype=f64)}, r"D=2 columns, but toy has 1"),
    ],
)  # fmt: skip
def test_wrong_tensors_are_refused(path, changes, message):
    save_broken(path, **changes)
    with pytest.raises(InputError, match=message):
        read_task(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"format": "fsvi-task/2"}, r"has format 'fsvi-task/2' in its metadata, expected 'fsvi-task/1'"),
        ({"format": "fsvi-posterior/1"}, r"is it the right kind of file"),
        ({"dataset": "bosten"}, r"unknown data set 'bosten': did you mean 'boston'"),
        ({"split": "one"}, r"metadata 'split' is 'one', expected a whole number"),
        ({"split": "-1"}, r"metadata 'split' is '-1'"),
        ({"features": "relu"}, r"'features' is 'relu', expected one of: sgpr-rbf-ard, rbf-grid"),
        ({"features": "rbf-grid"}, r"of an rbf-grid task is not 1, which the format requires"),
        ({"split": "9" * 5000}, r"metadata 'split' is '9{60}'\.\.\., expected a whole number"),
        ({"split": "20"}, r"'split' is 20, but toy has splits 0 to 19"),
        ({"dataset": "\x1b[31mred"}, r"unknown data set '.x1b\[31mred'"),
    ],
)
def test_wrong_metadata_are_refused(path, metadata, message):
    save_broken(path, metadata=metadata)
    with pytest.raises(InputError, match=message):
        read_task(path)


def test_missing_metadata_are_refused(path):
    save_file(make_task().tensors, path, metadata={"format": "fsvi-task/1"})
    with pytest.raises(InputError, match="metadata 'dataset' is missing"):
        read_task(path)
    save_file(make_task().tensors, path)
    with pytest.raises(InputError, match="has no format in its metadata"):
        read_task(path)


class _Payload:
    """Unpickling this would raise; the reader must never get that far."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def huge(path):
    with path.open("wb") as stream:
        stream.truncate(2**30)


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (lambda path: path.write_bytes(pickle.dumps(_Payload())), "is not a safetensors file"),
        (lambda path: torch.save({"format": "fsvi-task/1"}, path), "is not a safetensors file"),
        (huge, "has more than .* bytes"),
        (lambda path: None, "cannot read"),
        (lambda path: path.mkdir(), "cannot read .*: Is a directory"),
    ],
)
def test_what_is_no_such_file_is_refused_unopened(path, put, words):
    put(path)
    with pytest.raises(InputError, match=words):
        read_task(path)


@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damaged_files_are_refused_or_harmless(tmp_path, data):
    """Any byte changed, any tail cut: either an InputError, or the damage hit a value and a valid task comes back."""
    path = tmp_path / "task.safetensors"
    write_task(path, make_task())
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[position] ^= data.draw(st.integers(1, 255))
    else:
        content = content[:position]
    path.write_bytes(bytes(content))
    try:
        task = read_task(path)
    except InputError:
        return
    assert task.dataset == "toy"
    assert task.metadata["format"] == "fsvi-task/1"


def test_nothing_is_written_when_a_number_is_not_finite(path):
    task = replace(make_task(), target_mean=torch.tensor(float("nan"), dtype=f64))
    with pytest.raises(ValueError, match="target_mean"):
        write_task(path, task)
    assert list(path.parent.iterdir()) == []
