"""EXACT: the posterior in closed form, and its best factorised approximation (Burt et al. 2020, section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from fsvi_bench.maths.blr import blr_posterior, covariance_tril, mean_field_optimum_scale
from fsvi_bench.methods.base import ExactLimit, Method
from fsvi_bench.posteriors.base import Family
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian, GaussianPosterior
from fsvi_bench.scoring.objective import Objective, WeightSpaceKL


class Exact(Method):
    """Full family: the exact posterior itself, KL 0.

    Factorised family: the optimum of KL(q ‖ P_D) over factorised q, which keeps the exact mean and takes the variances
    1/Λ_ii. (Setting the gradient of ½[Σ Λ_ii s_i² − Σ log s_i²] in s_i² to zero gives s_i² = 1/Λ_ii.)
    """

    deterministic: ClassVar[bool] = True
    exact_limits: ClassVar[Mapping[Family, ExactLimit]] = {
        "full": ExactLimit({}, tolerance=1e-9),
        "ffg": ExactLimit({}, tolerance=1e-9),
    }
    automatic_optimization = False

    @property
    def num_steps(self) -> int:
        return 1

    def training_step(self, batch: Any, batch_idx: int) -> None:
        data = self.problems
        # One by one: in a batch, LAPACK's last bits depend on how a matrix happens to be aligned in memory, and a
        # problem's result must not depend on its place among the others.
        solved = [blr_posterior(*problem) for problem in zip(data.Phi, data.y, data.noise_variance, strict=True)]
        mean = torch.stack([exact.mean for exact in solved])
        if self.family == "full":
            trils = torch.stack([covariance_tril(exact.precision_tril) for exact in solved])
            self._posterior: GaussianPosterior = FullGaussian(mean, trils)
        else:
            scales = torch.stack([mean_field_optimum_scale(exact.precision_tril) for exact in solved])
            self._posterior = FactorisedGaussian(mean, scales)

    def objectives(self) -> Sequence[Objective]:
        return [WeightSpaceKL()] * len(self.problems)

    def posterior(self) -> GaussianPosterior:
        return self._posterior
