"""EXACT: the posterior in closed form, and its best factorised approximation (Burt et al. 2020, section 4)."""

from __future__ import annotations

from fsvi_bench.maths.blr import blr_posterior
from fsvi_bench.methods.base import ExactLimit
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.weight_space import WeightSpaceMethod, nearest
from fsvi_bench.posteriors.gaussian import GaussianPosterior


class Exact(WeightSpaceMethod):
    """Full family: the exact posterior itself, with KL 0.

    Factorised family: the minimiser of KL(q ‖ P_D) over factorised q, which has the exact mean and the variances
    1/Λ_ii. (Setting the gradient of ½[Σ Λ_ii s_i² − Σ log s_i²] in s_i² to zero gives s_i² = 1/Λ_ii.)
    """

    deterministic = True
    exact_limits = {"full": ExactLimit({}, tolerance=1e-9), "ffg": ExactLimit({}, tolerance=1e-9)}

    def solve(self, problem: TrainingData) -> GaussianPosterior:
        return nearest(self.family, blr_posterior(problem.Phi, problem.y, problem.noise_variance))
