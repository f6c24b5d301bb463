"""Posterior files, `fsvi-posterior/1`: small safetensors that anybody's tool can write and we can score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError, quoted
from fsvi_bench.files import write_atomically
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES, SamplesPosterior
from fsvi_bench.tensorfile import TensorFile, read_tensor_file, tensor_file

FORMAT = "fsvi-posterior/1"
METADATA = {"format", "kind", "task_sha256"}


def pack_tril(tril: Float[Tensor, "k k"]) -> Float[Tensor, " packed"]:
    """Rows of the lower triangle, in order."""
    row, column = torch.tril_indices(tril.shape[-1], tril.shape[-1])
    return tril[row, column]


def unpack_tril(packed: Float[Tensor, " packed"], k: int) -> Float[Tensor, "k k"]:
    """The inverse of `pack_tril`."""
    row, column = torch.tril_indices(k, k)
    tril = torch.zeros(k, k, dtype=packed.dtype)
    tril[row, column] = packed
    return tril


def write_posterior(path: Path, posterior: Posterior, task_sha256: str | None = None) -> None:
    """Writes one posterior atomically, a full covariance as `scale_tril_packed`, with the task's identity if given.

    Raises:
        InputError: the place is not writable, or a posterior given as samples has too few.
        ValueError: a number is not finite; nothing is written.
    """
    if isinstance(posterior, SamplesPosterior) and posterior.S < MINIMUM_SAMPLES:
        raise InputError(f"cannot write {path}: {_too_few(posterior.S)}")
    write_atomically(path, posterior_file(posterior, task_sha256))


def posterior_file(posterior: Posterior, task_sha256: str | None = None) -> bytes:
    """The bytes of a posterior's file, see `write_posterior`.

    Raises:
        ValueError: a number is not finite.
    """
    metadata = {"format": FORMAT, "kind": posterior.kind}
    if task_sha256 is not None:
        metadata["task_sha256"] = task_sha256
    tensors = posterior.tensors()
    if isinstance(posterior, FullGaussian):
        tensors = {"mean": posterior.mean, "scale_tril_packed": pack_tril(posterior.scale_tril)}
    return tensor_file(tensors, metadata)


def read_posterior(
    path: Path,
    k: int | None = None,
    task_sha256: str | None = None,
    *,
    must_name_task: bool = False,
    content: bytes | None = None,
) -> Posterior:
    """Reads and checks one posterior; with `k` given it must have that many weights.

    A file may name its task in the metadata `task_sha256`, or must; one that names another than the one given is
    refused.

    Args:
        content: the file's bytes, where they have been read already; `path` then is but its name.

    Raises:
        InputError: it is not a valid `fsvi-posterior/1` file of a kind that this version scores, or has another k, or
            belongs to another task.
    """
    required = ("format", "kind", "task_sha256") if must_name_task else ("format", "kind")
    file = read_tensor_file(path, FORMAT, required, content)
    _check_metadata(file, task_sha256)
    kind = file.metadata["kind"]
    if kind not in _READERS:
        raise file.error(f"kind {quoted(kind)} is not one that this version scores; expected {' or '.join(KINDS)}")
    posterior = _READERS[kind](file)
    if k is not None and posterior.k != k:
        raise file.error(f"task has k={k} features, posterior has {posterior.k}; was it trained on another task?")
    return posterior


def _check_metadata(content: TensorFile, task_sha256: str | None) -> None:
    for key in sorted(set(content.metadata) - METADATA):
        raise content.error(f"unknown metadata {quoted(key)}; expected {', '.join(sorted(METADATA))}; remove it")
    named = content.metadata.get("task_sha256")
    if task_sha256 is not None and named not in (None, task_sha256):
        raise content.error(
            f"it is a posterior of task {quoted(named[:12])}, not of task {task_sha256[:12]}; give that task"
        )


def _read_ffg(content: TensorFile) -> FactorisedGaussian:
    content.require_names({"mean", "scale"})
    k = _length(content, "mean")
    _require(content, "scale", (k,))
    _require_positive(content, "scale", content.tensors["scale"])
    return FactorisedGaussian(content.tensors["mean"], content.tensors["scale"])


def _read_full(content: TensorFile) -> FullGaussian:
    packed = "scale_tril_packed" in content.tensors
    name = "scale_tril_packed" if packed else "scale_tril"
    content.require_names({"mean", name})
    k = _length(content, "mean")
    _require(content, name, (k * (k + 1) // 2,) if packed else (k, k))
    tril = unpack_tril(content.tensors[name], k) if packed else content.tensors[name]
    if bool(tril.triu(1).any()):
        raise content.error("'scale_tril' has entries above the diagonal, expected a lower-triangular factor")
    _require_positive(content, f"diagonal of {name}", tril.diagonal())
    return FullGaussian(content.tensors["mean"], tril)


def _read_bernoulli_dropout(content: TensorFile) -> BernoulliDropoutPosterior:
    content.require_names({"m", "retain_probability"})
    k = _length(content, "m")
    p = content.tensors["retain_probability"]
    content.require_dtype("retain_probability", torch.float64)
    if tuple(p.shape) not in ((), (k,)):
        raise content.error(
            f"'retain_probability' has shape {list(p.shape)}, expected [] or [{k}]; give one number or one per weight"
        )
    _require_range(content, "retain_probability", bool((p > 0).all()), "in (0, 1], the probability to KEEP a weight")
    return BernoulliDropoutPosterior(content.tensors["m"], p)


def _read_spike_slab(content: TensorFile) -> SpikeSlabPosterior:
    content.require_names({"spike_weight", "mean", "scale"})
    k = _length(content, "spike_weight")
    for name in ("mean", "scale"):
        _require(content, name, (k,))
    weight = content.tensors["spike_weight"]
    _require_range(content, "spike_weight", bool((weight >= 0).all()), "in [0, 1], the probability of an exact zero")
    _require_positive(content, "scale", content.tensors["scale"])
    return SpikeSlabPosterior(weight, content.tensors["mean"], content.tensors["scale"])


def _read_samples(content: TensorFile) -> SamplesPosterior:
    content.require_names({"samples"})
    shape = tuple(content.tensors["samples"].shape)
    if len(shape) != 2 or 0 in shape:
        raise content.error(f"'samples' has shape {list(shape)}, expected [S, k]; save one posterior per file")
    content.require_dtype("samples", torch.float64)
    if shape[0] < MINIMUM_SAMPLES:
        raise content.error(_too_few(shape[0]))
    return SamplesPosterior(content.tensors["samples"])


_READERS: Mapping[str, Callable[[TensorFile], Posterior]] = {
    "gaussian-full": _read_full,
    "gaussian-ffg": _read_ffg,
    "bernoulli-dropout": _read_bernoulli_dropout,
    "spike-slab": _read_spike_slab,
    "samples": _read_samples,
}
KINDS = tuple(_READERS)


def _too_few(S: int) -> str:
    return f"the posterior has {S} samples, expected at least {MINIMUM_SAMPLES}; draw more"


def _length(content: TensorFile, name: str) -> int:
    shape = tuple(content.tensors[name].shape)
    if len(shape) != 1 or 0 in shape:
        raise content.error(f"'{name}' has shape {list(shape)}, expected [k]; save one posterior per file")
    content.require_dtype(name, torch.float64)
    return shape[0]


def _require_range(content: TensorFile, name: str, above: bool, expected: str) -> None:
    low, high = map(float, content.tensors[name].aminmax())
    if not above or high > 1:
        raise content.error(f"'{name}' holds {high if above else low:g}, expected numbers {expected}")


def _require(content: TensorFile, name: str, shape: tuple[int, ...]) -> None:
    content.require_shape(name, shape)
    content.require_dtype(name, torch.float64)


def _require_positive(content: TensorFile, name: str, values: Tensor) -> None:
    smallest = float(values.min())
    if not smallest > 0 or not math.isfinite(smallest):
        raise content.error(f"'{name}' holds {smallest:g}, expected positive numbers (standard deviations)")
