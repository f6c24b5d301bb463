"""Tasks for other tools: what a method may see of one, as a file that needs neither torch nor this package.

Inputs and targets are standardised as training has them. Test rows and the exact posterior are not among them.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fsvi_bench.errors import InputError, unknown_name
from fsvi_bench.files import write_atomically
from fsvi_bench.tasks.certificate import Certificate, CertifiedTask, save
from fsvi_bench.tasks.frozen import FrozenTask, write_task
from fsvi_bench.tasks.task import Task, bind_task
from fsvi_bench.tensorfile import write_tensor_file

FORMAT = "fsvi-training-problem/1"
Format = Literal["npz", "safetensors", "task"]


def training_tensors(problem: Task) -> dict[str, Tensor]:
    """X [N,D], y [N], Phi [N,k], noise_variance [], low [D], high [D] and the feature map, all float64.

    `inducing_points` [k,D] (of an RBF grid: its centres), `lengthscales` [D], `outputscale` [], and, of whitened
    features, `feature_tril` [k,k] = chol(k(Z,Z) + jitter·I) make φ at any further input.
    """
    low, high = problem.bounding_box
    own = {"X": problem.X, "y": problem.y, "Phi": problem.Phi, "noise_variance": problem.noise_variance}
    of_map = problem.feature_map.tensors
    if "tril" in of_map:
        of_map["feature_tril"] = of_map.pop("tril")
    return {**own, "low": low, "high": high, **of_map}


def split_path(out: Path, dataset: str, split: int, ending: str = "safetensors") -> Path:
    """`OUT/<data set>/split-NN.<ending>`."""
    return out / dataset / f"split-{split:02d}.{ending}"


def export_task(
    task: FrozenTask, certificate: Certificate | None, out: Path, form: str, data_dir: Path | None = None
) -> Path:
    """Writes a task in one of the formats into a folder and returns the file's path.

    `task` is the frozen task itself (`fsvi-task/1`), with the certificate beside it, if it has one.

    Raises:
        InputError: an unknown format, raw data that cannot be had, or a place that is not writable.
    """
    if form not in get_args(Format):
        raise unknown_name("format", form, get_args(Format))
    if form != "task":
        return export_problem(bind_task(task, data_dir), out, form)
    path = split_path(out, task.dataset, task.split)
    if certificate is None:
        write_task(path, task)
    else:
        save(CertifiedTask(task, certificate), path)
    return path


def export_problem(problem: Task, out: Path, form: str) -> Path:
    """Writes what a method may see of a task, as `npz` or `safetensors`, and returns the file's path.

    With the tensors go words that tell the problem from others, in an `npz` as arrays of text without an axis;
    `task_sha256` goes into the posterior's file.

    Raises:
        InputError: features that are not finite, or a place that is not writable.
    """
    if not bool(torch.isfinite(problem.Phi).all()):
        raise InputError(f"the features of {problem.dataset} split {problem.split} are not finite")
    tensors = training_tensors(problem)
    words = {name: str(getattr(problem.frozen, name)) for name in ("dataset", "split", "features", "k")}
    words |= {"format": FORMAT, "task_sha256": problem.sha256}
    path = split_path(out, problem.dataset, problem.split, form)
    if form == "safetensors":
        write_tensor_file(path, tensors, words)
        return path
    arrays: dict[str, Any] = tensors | words
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    write_atomically(path, stream.getvalue())
    return path
