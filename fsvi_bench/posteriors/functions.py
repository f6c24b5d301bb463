"""Functions drawn from a posterior, for tools without weights: values at the inputs that scores use."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from fsvi_bench.posteriors.base import Approximation


@dataclass(frozen=True, eq=False)
class FunctionSamplesPosterior(Approximation):
    """n ≥ 2 equally weighted functions, given by their values without noise, for standardised targets.

    `f_test` has the values at the test inputs, in the order of the split, and `f_box` those at the 1,000 inputs of
    `Task.Phi_box`. Functions may be equal.
    """

    f_test: Float[Tensor, "n N_test"]
    f_box: Float[Tensor, "n_box P"]

    kind = "function-samples"
    parameters = {"f_test": 0, "f_box": 0}

    @property
    def n(self) -> int:
        """Number of functions."""
        return len(self.f_test)

    def malformed(self) -> str | None:
        n = len(self.f_box)
        return (
            None if n == self.n else f"its f_box has {n} rows, expected the {self.n} of f_test, one for each function"
        )

    def wrong_number(self) -> str | None:
        return None if self.n >= 2 else f"it has {self.n} function, expected 2 or more; draw more"
