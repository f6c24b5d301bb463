"""The data that methods may see, for B problems of equal shape: training rows and features, but no test rows or exact
posterior."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError, whole_number
from fsvi_bench.maths.batching import Stacked, products
from fsvi_bench.tasks.task import FeatureMap, Task, box_inputs


def require_task(value: object) -> Task:
    """Returns the value if it is a task.

    Raises:
        InputError: it is not a task.
    """
    if isinstance(value, Task):
        return value
    if isinstance(value, str | Path):
        load = "load_network" if str(value).count(":") >= 2 else "load_task"
        raise InputError(f"the task is the name {str(value)!r}, expected a Task; load it with {load}({str(value)!r})")
    raise InputError(
        f"the task is of type {type(value).__name__}, expected a Task; get one from load_task or make_task"
        + ("; methods take networks as NetworkData" if hasattr(value, "certificate") else "")
    )


def checked_seeds(seeds: Iterable[int] | int | None, count: int) -> tuple[int, ...]:
    """One seed per task; None: 0, 1, ...

    Raises:
        InputError: there are more or fewer, or one is not a whole number.
    """
    given = list(range(count)) if seeds is None else list(seeds) if isinstance(seeds, Iterable) else [seeds]
    if len(given) != count:
        raise InputError(f"got {len(given)} seeds for {count} tasks, expected one for each")
    return tuple(whole_number("seed", seed) for seed in given)


@dataclass(frozen=True, eq=False)
class TrainingData(Stacked):
    """B problems side by side."""

    X: Float[Tensor, "B N D"]
    y: Float[Tensor, "B N"]
    Phi: Float[Tensor, "B N k"]
    noise_variance: Float[Tensor, " B"]
    low: Float[Tensor, "B D"]  #: lower corner of the bounding box of X
    high: Float[Tensor, "B D"]
    feature_map: FeatureMap

    @staticmethod
    def of(problems: Stacked | Sequence[Task] | Task) -> Any:
        """Stacks tasks with equal shapes of X and Phi; `TrainingData` or `NetworkData` are returned unchanged.

        Raises:
            InputError: something is not a task, or the numbers of rows, inputs or features differ.
        """
        if isinstance(problems, Stacked):
            return problems
        several = isinstance(problems, Sequence) and not isinstance(problems, str)
        problems = [require_task(problem) for problem in (problems if several else [problems])]  # type: ignore[union-attr]
        shapes = sorted({(*p.X.shape, p.frozen.k) for p in problems})
        if len(shapes) != 1:
            got = " and ".join(f"N={N}, D={D}, k={k}" for N, D, k in shapes) or "none"
            raise InputError(
                f"tasks that are trained side by side must have equal shapes, got {got}; train them one by one"
            )
        return TrainingData(
            X=torch.stack([p.X for p in problems]),
            y=torch.stack([p.y for p in problems]),
            Phi=torch.stack([p.Phi for p in problems]),
            noise_variance=torch.stack([p.frozen.noise_variance for p in problems]),
            low=torch.stack([p.bounding_box[0] for p in problems]),
            high=torch.stack([p.bounding_box[1] for p in problems]),
            feature_map=FeatureMap.stack([p.feature_map for p in problems]),
        )

    def rotated(self, basis: Float[Tensor, "B k k"]) -> TrainingData:
        """The same functions with the weights' coordinates in an orthonormal basis, its columns: features Φ·basis."""
        turned = [Phi.clone() @ of_problem.clone() for Phi, of_problem in zip(self.Phi, basis, strict=True)]
        before = self.feature_map.rotation
        rotation = basis if before is None else before @ basis
        return replace(self, Phi=torch.stack(turned), feature_map=replace(self.feature_map, rotation=rotation))

    @property
    def Phi_box(self) -> Float[Tensor, "B 1000 k"]:
        """Features at the inputs of `predictive_kl_box`, which depend on the training inputs alone."""
        return self.feature_map(box_inputs(self.low, self.high))

    def functions(self, w: Float[Tensor, "B S k"], x: Float[Tensor, "B n D"], seed: int) -> Float[Tensor, "B S n"]:
        """f of draws of a posterior over the weights; the seed is for models that draw more."""
        return products(self.feature_map(x), w)

    @property
    def k(self) -> int:
        return int(self.Phi.shape[-1])

    @property
    def N(self) -> int:
        return int(self.y.shape[1])
