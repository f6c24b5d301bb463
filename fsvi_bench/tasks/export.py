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
from fsvi_bench.tasks.task import Task
from fsvi_bench.tensorfile import tensor_file

FORMAT = "fsvi-training-problem/1"
Format = Literal["npz", "safetensors"]


def training_tensors(problem: Task) -> dict[str, Tensor]:
    """X [N,D], y [N], Phi [N,k], noise_variance [], low [D], high [D] and the feature map, all float64.

    `inducing_points` [k,D] (of an RBF grid: its centres), `lengthscales` [D], `outputscale` [], and, of whitened
    features, `feature_tril` [k,k] = chol(k(Z,Z) + jitter·I) make φ at any further input.
    """
    low, high = problem.bounding_box
    features = problem.feature_map
    tensors = {
        "X": problem.X, "y": problem.y, "Phi": problem.Phi, "noise_variance": problem.frozen.noise_variance,
        "low": low, "high": high, "inducing_points": features.inducing_points, "lengthscales": features.lengthscales,
        "outputscale": features.outputscale,
    }  # fmt: skip
    return tensors if features.tril is None else {**tensors, "feature_tril": features.tril}


def training_words(problem: Task) -> dict[str, str]:
    """What tells the problem from others; `task_sha256` goes into the posterior's file."""
    task = problem.frozen
    return {
        "format": FORMAT,
        "dataset": task.dataset,
        "split": str(task.split),
        "features": task.features,
        "k": str(task.k),
        "task_sha256": task.sha256,
    }


def training_file(problem: Task, form: str) -> bytes:
    """The bytes of a problem's file; in an `npz` the words are arrays of text without an axis.

    Raises:
        InputError: an unknown format.
    """
    tensors, words = training_tensors(problem), training_words(problem)
    if form == "safetensors":
        return tensor_file(tensors, words)
    if form != "npz":
        raise unknown_name("format", form, get_args(Format))
    stream = io.BytesIO()
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    arrays |= {name: np.array(word) for name, word in words.items()}
    np.savez(stream, **arrays)
    return stream.getvalue()


def export_problem(problem: Task, out: Path, form: str) -> Path:
    """Writes `OUT/<data set>/split-NN.<format>` and returns its path.

    Raises:
        InputError: an unknown format, features that are not finite, or a place that is not writable.
    """
    if not bool(torch.isfinite(problem.Phi).all()):
        raise InputError(f"the features of {problem.frozen.dataset} split {problem.frozen.split} are not finite")
    path = out / problem.frozen.dataset / f"split-{problem.frozen.split:02d}.{form}"
    write_atomically(path, training_file(problem, form))
    return path
