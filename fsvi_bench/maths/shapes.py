"""Names of the shapes that most formulas take: *B are leading axes of problems, any number of them or none."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

PerProblem = Float[Tensor, "*B"]  #: one number for each problem; of an elementwise function, any shape
Vector = Float[Tensor, "*B k"]  #: k weights
Matrix = Float[Tensor, "*B k k"]
Square = Float[Tensor, "*B n n"]  #: of any side
Features = Float[Tensor, "*B N k"]  #: Φ, of N rows
Targets = Float[Tensor, "*B N"]
Shared = Float[Tensor, "*B #k"]  #: one number for each weight, or one for all of them
