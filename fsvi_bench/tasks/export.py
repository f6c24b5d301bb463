"""Exports the training part of a task to a file that can be read without torch or this package.

Inputs and targets are standardised, as in training. Test rows and the exact posterior are not exported.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fsvi_bench.errors import InputError, unknown_name
from fsvi_bench.files import write_atomically
from fsvi_bench.tasks.certificate import Certificate, save
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.task import Task, bind_task
from fsvi_bench.tensorfile import write_tensor_file

FORMAT = "fsvi-training-problem/1"
FORMATS = {"npz": "npz", "safetensors": "safetensors", "task": "safetensors"}  #: format -> file extension


def training_tensors(problem: Task) -> dict[str, Tensor]:
    """X [N,D], y [N], Phi [N,k], noise_variance [], low [D], high [D] and the feature map, all float64.

    `inducing_points` [k,D] (the centres of an RBF grid), `lengthscales` [D], `outputscale` [] and, for whitened
    features, `feature_tril` [k,k] = chol(k(Z,Z) + jitter·I) define φ at any other input.
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
    """Writes a task to a folder in one of `FORMATS` and returns the file's path.

    `task` writes the frozen task itself (`fsvi-task/1`) and its certificate, if any. `npz` and `safetensors` write
    `training_tensors` and metadata that identify the problem (in an `npz`, as zero-dimensional text arrays). Copy its
    `task_sha256` to the posterior file.

    Raises:
        InputError: the format is unknown, the raw data cannot be loaded, the features are not finite, or the path is
            not writable.
    """
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    path = split_path(out, task.dataset, task.split, FORMATS[form])
    if form == "task":
        save((task, certificate), path)
        return path
    tensors = training_tensors(bind_task(task, data_dir))
    if not bool(tensors["Phi"].isfinite().all()):
        raise InputError(f"the features of {task.dataset} split {task.split} are not finite; build the task again")
    metadata = {name: str(getattr(task, name)) for name in ("dataset", "split", "features", "k")}
    metadata |= {"format": FORMAT, "task_sha256": task.sha256}
    if form == "safetensors":
        write_tensor_file(path, tensors, metadata)
        return path
    arrays: dict[str, Any] = tensors | metadata
    np.savez(stream := io.BytesIO(), **arrays)
    write_atomically(path, stream.getvalue())
    return path
