"""What a method may see of B problems of equal shape: training rows and features, never test rows or the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.tasks.task import FeatureMap, Task


@dataclass(frozen=True, eq=False)
class TrainingProblems:
    """B problems side by side."""

    X: Float[Tensor, "B N D"]
    y: Float[Tensor, "B N"]
    Phi: Float[Tensor, "B N k"]
    noise_variance: Float[Tensor, " B"]
    low: Float[Tensor, "B D"]  #: lower corner of the bounding box of X
    high: Float[Tensor, "B D"]
    feature_map: FeatureMap

    @staticmethod
    def of(problems: Sequence[Task]) -> TrainingProblems:
        """Stacks problems whose X and Phi agree in shape."""
        return TrainingProblems(
            X=torch.stack([p.X for p in problems]),
            y=torch.stack([p.y for p in problems]),
            Phi=torch.stack([p.Phi for p in problems]),
            noise_variance=torch.stack([p.frozen.noise_variance for p in problems]),
            low=torch.stack([p.bounding_box[0] for p in problems]),
            high=torch.stack([p.bounding_box[1] for p in problems]),
            feature_map=FeatureMap.stack([p.feature_map for p in problems]),
        )

    def to(self, device: torch.device) -> TrainingProblems:
        return TrainingProblems(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    def only(self, problem: int) -> TrainingProblems:
        """A batch of one, as a copy: where a problem lies in memory must not depend on the others."""
        one = slice(problem, problem + 1)
        tensors = {f.name: getattr(self, f.name)[one].clone() for f in fields(self) if f.name != "feature_map"}
        return TrainingProblems(**tensors, feature_map=FeatureMap.stack([self.feature_map[problem]]))

    def __len__(self) -> int:
        return len(self.y)

    @property
    def k(self) -> int:
        return int(self.Phi.shape[-1])
