"""Tasks for other tools: what a method may see of one, as a file that needs neither torch nor this package.

Inputs and targets are standardised as training has them. Test rows and the exact posterior are not among them.
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
FORMATS = {"npz": "npz", "safetensors": "safetensors", "task": "safetensors"}  #: and how their files end


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

    `task` is the frozen task itself (`fsvi-task/1`), with the certificate beside it, if it has one. `npz` and
    `safetensors` are what a method may see of it. With those tensors go words that tell the problem from others, in an
    `npz` as arrays of text without an axis; `task_sha256` goes into the posterior's file.

    Raises:
        InputError: an unknown format, raw data that cannot be had, features that are not finite, or a place that is not
            writable.
    """
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    path = split_path(out, task.dataset, task.split, FORMATS[form])
    if form == "task":
        save((task, certificate), path)
        return path
    tensors = training_tensors(bind_task(task, data_dir))
    if not bool(tensors["Phi"].isfinite().all()):
        raise InputError(f"the features of {task.dataset} split {task.split} are not finite")
    words = {name: str(getattr(task, name)) for name in ("dataset", "split", "features", "k")}
    words |= {"format": FORMAT, "task_sha256": task.sha256}
    if form == "safetensors":
        write_tensor_file(path, tensors, words)
        return path
    arrays: dict[str, Any] = tensors | words
    np.savez(stream := io.BytesIO(), **arrays)
    write_atomically(path, stream.getvalue())
    return path
