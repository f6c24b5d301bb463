"""Names of common array shapes; *B stands for any number of leading problem axes."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

PerProblem = Float[Tensor, "*B"]  #: one number per problem; for an elementwise function, any shape
Vector = Float[Tensor, "*B k"]  #: k weights
Matrix = Float[Tensor, "*B k k"]
Square = Float[Tensor, "*B n n"]  #: of any size
Features = Float[Tensor, "*B N k"]  #: Φ, with N rows
Targets = Float[Tensor, "*B N"]
Shared = Float[Tensor, "*B #k"]  #: one number per weight, or one shared by all
