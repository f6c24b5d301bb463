"""A Gaussian whose parameters autograd sees, for methods that write a loss and leave the rest to Lightning."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fsvi_bench.posteriors.base import Family
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.variational.parameters import rounded_up


class AutogradGaussian(nn.Module):
    """q(w) = N(mean, LLᵀ) of B problems over k weights, started at the prior N(0, I).

    L has a log diagonal; below it are numbers for `full`, and zeros for any other family. Problems lie in blocks of
    whole cache lines, so that an optimiser's vectorised loops treat a problem alike alone and in any batch.
    """

    def __init__(self, family: Family, B: int, k: int) -> None:
        super().__init__()
        self.k, c = k, rounded_up(k)
        self._mean, self._log_diagonal = (nn.Parameter(torch.zeros(B, c, dtype=torch.float64)) for _ in range(2))
        below = nn.Parameter(torch.zeros(B, c, c, dtype=torch.float64)) if family == "full" else None
        self._below = below

    def forward(self, problem: int) -> tuple[Float[Tensor, " k"], Float[Tensor, "k k"]]:
        """Mean and L of one problem, as copies: where they lie in memory must not depend on the batch."""
        k = self.k
        tril = self._log_diagonal[problem].clone().exp().diag_embed()
        if self._below is not None:
            tril = tril + self._below[problem].tril(-1)
        return self._mean[problem, :k].clone(), tril[:k, :k].clone()

    def posterior(self) -> FullGaussian | FactorisedGaussian:
        """All problems' q as it is now, free of autograd."""
        with torch.no_grad():
            pairs = [self(problem) for problem in range(len(self._mean))]
        mean, tril = torch.stack([mean for mean, _ in pairs]), torch.stack([tril for _, tril in pairs])
        if self._below is None:
            return FactorisedGaussian(mean, tril.diagonal(dim1=-2, dim2=-1).clone())
        return FullGaussian(mean, tril)
