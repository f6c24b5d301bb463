"""Posterior files, `fsvi-posterior/1`: safetensors files that any tool can write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError, quoted
from fsvi_bench.files import write_atomically
from fsvi_bench.posteriors.base import Approximation, Posterior, wrong_size
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior, SpikeSlabPosterior
from fsvi_bench.posteriors.functions import FunctionSamplesPosterior
from fsvi_bench.posteriors.gaussian import FactorGaussian, FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.particles import ParticlesPosterior
from fsvi_bench.posteriors.samples import DrawnPosterior, SamplesPosterior
from fsvi_bench.tensorfile import TensorFile, read_tensor_file, tensor_file

FORMAT = "fsvi-posterior/1"
METADATA = {"format", "kind", "task_sha256"}
_CLASSES: Mapping[str, type[Approximation]] = {
    each.kind: each
    for each in (
        FullGaussian,
        FactorisedGaussian,
        FactorGaussian,
        BernoulliDropoutPosterior,
        SpikeSlabPosterior,
        SamplesPosterior,
        ParticlesPosterior,
        FunctionSamplesPosterior,
    )
}
KINDS = tuple(_CLASSES)


def pack_tril(tril: Float[Tensor, "k k"]) -> Float[Tensor, " packed"]:
    """Rows of the lower triangle, in order."""
    return tril[torch.tril_indices(*tril.shape).unbind()]


def unpack_tril(packed: Float[Tensor, " packed"], k: int) -> Float[Tensor, "k k"]:
    """The inverse of `pack_tril`."""
    tril = torch.zeros(k, k, dtype=packed.dtype)
    tril[torch.tril_indices(k, k).unbind()] = packed
    return tril


def write_posterior(path: Path, posterior: Approximation, task_sha256: str | None = None) -> None:
    """Writes one posterior atomically, a full covariance as `scale_tril_packed`, with the task's identity if given.

    Raises:
        InputError: the path is not writable, or the posterior has too few or too many draws.
        ValueError: a number is not finite; nothing is written.
    """
    if (wrong := posterior.wrong_number()) is not None:
        raise InputError(f"cannot write {path}: {wrong}")
    write_atomically(path, posterior_file(posterior, task_sha256))


def posterior_file(posterior: Approximation, task_sha256: str | None = None) -> bytes:
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
    content: bytes | None = None,
) -> Posterior:
    """Reads and checks one posterior over weights; see `read_approximation`.

    Raises:
        InputError: as `read_approximation`, or the file contains functions without weights.
    """
    posterior = read_approximation(path, k, task_sha256, content)
    if not isinstance(posterior, Posterior):
        raise InputError(f"{path} has the kind '{posterior.kind}', expected one with weights")
    return posterior


def read_approximation(
    path: Path,
    k: int | None = None,
    task_sha256: str | None = None,
    content: bytes | None = None,
) -> Approximation:
    """Reads and checks one posterior over weights or functions; if `k` is given, weights must have this number.

    A file may name its task in the metadata `task_sha256`; it is refused if this is not the given one.

    Args:
        content: the file's bytes, if they have been read already; `path` is then only used in errors.

    Raises:
        InputError: it is not a valid `fsvi-posterior/1` file of a kind that this version can score, has another k, or
            belongs to another task.
    """
    file = read_tensor_file(path, FORMAT, ("format", "kind"), content)
    _check_metadata(file, task_sha256)
    kind = file.metadata["kind"]
    if kind not in KINDS:
        raise file.error(f"kind {quoted(kind)} is not one that this version scores; expected {' or '.join(KINDS)}")
    posterior = _read(file)
    if k is not None and isinstance(posterior, Posterior) and posterior.k != k:
        raise file.error(wrong_size(posterior.k, k))
    return posterior


def named_task(path: Path) -> str | None:
    """The SHA-256 of the task that a posterior file names in its metadata, if it does.

    Raises:
        InputError: it is not a posterior file.
    """
    return read_tensor_file(path, FORMAT, ("format", "kind")).metadata.get("task_sha256")


def _check_metadata(content: TensorFile, task_sha256: str | None) -> None:
    for key in sorted(set(content.metadata) - METADATA):
        raise content.error(f"unknown metadata {quoted(key)}; expected {', '.join(sorted(METADATA))}; remove it")
    named = content.metadata.get("task_sha256")
    if task_sha256 is not None and named not in (None, task_sha256):
        raise content.error(
            f"it belongs to task {quoted(named[:12])}, expected task {task_sha256[:12]}; use the task it belongs to"
        )


def _read(file: TensorFile) -> Approximation:
    """The posterior with the file's tensors as fields; its class checks their values."""
    kind = _CLASSES[file.metadata["kind"]]
    if kind is FunctionSamplesPosterior:
        _require_functions(file)
    else:
        _require_tensors(file, kind)
    posterior = kind(*(file.tensors[name] for name in kind.parameters))
    if wrong := posterior.malformed() or posterior.out_of_domain() or posterior.wrong_number():
        raise file.error(wrong)
    return posterior


def _require_functions(file: TensorFile) -> None:
    """Raises InputError unless the tensors are function values: names, types and numbers of axes."""
    if "f_train" in file.tensors:
        raise file.error(
            "its functions are at a network's inputs; give --task a network's name, such as toy:0:collapsed-2:simulated"
        )
    file.require_names(set(FunctionSamplesPosterior.parameters))
    for name, tensor in file.tensors.items():
        file.require_dtype(name, torch.float64)
        if tensor.ndim != 2 or 0 in tensor.shape:
            raise file.error(f"'{name}' has shape {list(tensor.shape)}, expected [n, inputs]; export it again")


def _require_tensors(file: TensorFile, kind: type[Approximation]) -> None:
    """Raises InputError unless names, types and shapes are those of the kind; a packed factor is unpacked."""
    tensors, packed, (first, *others) = file.tensors, "scale_tril_packed", kind.parameters
    file.require_names({packed if name == "scale_tril" and packed in tensors else name for name in kind.parameters})
    shape, form = list(tensors[first].shape), "[n, k]" if issubclass(kind, DrawnPosterior) else "[k]"
    if len(shape) != len(form.split()) or 0 in shape:
        raise file.error(f"'{first}' has shape {shape}, expected {form}; save one posterior per file")
    k = shape[-1]
    for name in tensors:
        file.require_dtype(name, torch.float64)
    if packed in tensors:
        file.require_shape(packed, (k * (k + 1) // 2,))
        tensors["scale_tril"] = unpack_tril(tensors[packed], k)
    for name in others:
        if name == "factor":
            _require_factor(file, k)
        elif name != "retain_probability":
            file.require_shape(name, (k,) * kind.parameters[name])
        elif tensors[name].shape not in ((), (k,)):
            got = list(tensors[name].shape)
            raise file.error(f"'{name}' has shape {got}, expected [] or [{k}]; give one number or one per weight")


def _require_factor(file: TensorFile, k: int) -> None:
    shape = list(file.tensors["factor"].shape)
    if len(shape) != 2 or shape[0] != k or shape[1] > k:
        raise file.error(
            f"'factor' has shape {shape}, expected [{k}, r] with 0 ≤ r ≤ {k}; the covariance is factor @ factor.T"
        )
