"""FIXEDA: the functional KL at a single measurement set, drawn once (Burt et al. 2020, section 4 and appendix E)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Self

import torch
from jaxtyping import Float, Int
from pydantic import PositiveInt, model_validator
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import blr_posterior
from fsvi_bench.maths.functional_kl import Gaussian, functional_kl
from fsvi_bench.maths.projection import row_space
from fsvi_bench.methods.base import ExactLimit, Method, Optimum
from fsvi_bench.methods.data import Batch, MeasurementStream, Rows, TaskData, expected_nll, fill_columns
from fsvi_bench.methods.functional import FunctionalMethod, FunctionalOptions
from fsvi_bench.methods.lbfgs import LBFGS
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.weight_space import kl_to, nearest
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.posteriors.trainable import TrainableGaussian, TrainablePosterior
from fsvi_bench.tasks.task import Task

MAX_DESIGN_STEPS, DESIGN_TOLERANCE = 5000, 1e-6  #: for the factorised optimum; the tolerance is in nats


#: With M ≥ k, A determines every weight.
_EXACT_LIMIT = ExactLimit({"M": 60, "max_steps": 300}, tolerance=1e-6)


class FixedA(FunctionalMethod):
    """−E_q[log p(y|w)] + kl_weight · KL(Q_A ‖ P_A) with the same A throughout the run.

    With M < k the optimum is degenerate: Σ shrinks without limit in the directions that A does not constrain, and
    KL(q ‖ P_D) rises with the number of steps. The mean converges: (ΦᵀΦ + σ²VVᵀ)⁺Φᵀy is one optimal mean (appendix E).

    Args:
        A: measurement inputs [B,M,D] (standardised) to use in place of a draw; their number replaces the option M.

    Raises:
        InputError: as `Method`, or A has a different shape.
    """

    class Options(FunctionalOptions):
        """`lbfgs`, as in the paper, uses all training rows at every step and ignores learning rates; `adam` uses
        minibatches and learning rates."""

        optimizer: Literal["lbfgs", "adam"] = "lbfgs"
        minibatch: PositiveInt | Literal["full", "M"] = "full"

        @model_validator(mode="after")
        def _consistent(self) -> Self:
            if self.optimizer == "lbfgs" and (self.minibatch != "full" or self.averaging):
                raise ValueError(
                    "optimizer=lbfgs requires minibatch=full and averaging=0; choose optimizer=adam for other values"
                )
            return self

    exact_limits = {"full": _EXACT_LIMIT, "ffg": _EXACT_LIMIT}
    Phi_A: Float[Tensor, "B M k"]
    converged_at: Int[Tensor, " B"]  #: the step after which an L-BFGS has converged, −1 before that
    evaluated: Int[Tensor, " B"]  #: number of gradients that each L-BFGS has evaluated

    def __init__(self, *args: Any, A: Float[Tensor, "B M D"] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        data = self.problems
        if A is None:
            Phi_A = MeasurementStream(data, self.options.design, self.streams).draw(range(1))[0, ..., : data.k]
        else:
            Phi_A = _features(data, torch.as_tensor(A, dtype=torch.float64))
        self.register_buffer("Phi_A", Phi_A.clone())
        self.register_buffer("converged_at", torch.full_like(self.diverged_at, -1))
        self.register_buffer("evaluated", torch.zeros_like(self.diverged_at))
        self.automatic_optimization = self.options.optimizer == "adam"

    def initial(self) -> TrainablePosterior:
        if self.options.optimizer == "adam":
            return super().initial()
        # L-BFGS's steps depend on the gradient's scale, which a learning rate of some entries would change.
        return TrainableGaussian(self.family, len(self.problems), self.problems.k, basis=self.basis)

    def loss(self, q: Gaussian, batch: Batch) -> Float[Tensor, " B"]:
        return expected_nll(q, batch.rows) + self.kl_weight * functional_kl(q, batch.A)

    def data(self) -> TaskData:
        return self._data(fixed_A=self.Phi_A)

    def configure_optimizers(self) -> Any:
        """One Adam for all problems, or one L-BFGS per problem."""
        if self.automatic_optimization:
            return super().configure_optimizers()
        self._alone = [self.q.only(place) for place in range(len(self.problems))]
        return [LBFGS(one.parameters()) for one in self._alone]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        if self.automatic_optimization:
            return super().training_step(batch, batch_idx)
        optimizers = self.optimizers()
        optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
        losses, stopped = torch.zeros_like(self.evaluated, dtype=torch.float64), self.stopped_after()
        for place, optimizer in enumerate(optimizers):
            if stopped[place] is None:
                losses[place] = self._iterate(place, optimizer, batch)
        self.note(losses, losses[[each is None for each in stopped]])
        return None

    def _iterate(self, place: int, optimizer: Any, batch: Batch) -> float:
        """One iteration for one problem alone, since each line search needs a different number of losses."""
        alone = batch.only(place)

        def loss() -> Tensor:
            self.evaluated[place] += 1
            return self.loss(self._alone[place](), alone)[0]

        value = float(optimizer.step(closure=loss))
        if optimizer.optimizer.converged:
            self.converged_at[place] = self.steps_done
        return value

    def stopped_after(self) -> Sequence[int | None]:
        steps = torch.maximum(self.diverged_at, self.converged_at).tolist()
        return [None if step < 0 else step + 1 for step in steps]

    def evaluations(self) -> Sequence[int]:
        return super().evaluations() if self.automatic_optimization else self.evaluated.tolist()

    def cost(self) -> dict[str, int]:
        return {**super().cost(), "measurement_rows": self.Phi_A.shape[1]}

    def held_out(self, place: int, task: Task, sets: int) -> Sequence[Batch]:
        Phi_A = fill_columns(self.Phi_A[place : place + 1].cpu())
        return [Batch(Rows.whole(TrainingData.of(task)), self.options.design.measure(Phi_A, span=True))]

    optima = Method.optima  #: one problem at a time, each with its own A

    def optimum(self, place: int, task: Task) -> Optimum | None:
        """If A determines every weight, the objective is that of weight space. Otherwise its infimum over full
        covariances is approached as q collapses in the directions that A does not constrain, and KL(q ‖ P_D) tends to
        infinity. A factorised q has an optimum at which some scales are usually 0; the KL is then infinite too."""
        c, exact = self.kl_weight, task.truth.posterior
        V = row_space(self.Phi_A[place].cpu(), self.options.rank_tolerance)
        all_seen = V.shape[1] == task.frozen.k
        if c == 0 or self.options.kl_jitter:
            # With jitter there is no closed form, but a full q still collapses in the directions outside A's span.
            collapses = c > 0 and self.family == "full" and not all_seen
            return Optimum(math.nan, math.inf) if collapses else None
        if all_seen:
            # c·KL(q ‖ P_c) up to a constant, where P_c is the posterior under the noise variance cσ².
            found = nearest(self.family, blr_posterior(task.Phi, task.y, c * task.frozen.noise_variance))
            q, kl = Gaussian(found.mean, found.root), kl_to(exact, found)
        elif self.family == "full":
            q, kl = collapsed_optimum(task, V, c), math.inf
        else:
            q, singular = factorised_optimum(task, V, c)
            kl = math.inf if singular else kl_to(exact, FactorisedGaussian(*q))
        return Optimum(self.objective(place, task, q=Gaussian(q.mean[None], q.root[None])), kl)


def _features(data: TrainingData, A: Float[Tensor, "B M D"]) -> Float[Tensor, "B M k"]:
    B, D = len(data), data.X.shape[-1]
    if A.ndim != 3 or A.shape[::2] != (B, D) or not A.shape[1]:
        raise InputError(
            f"A has shape {list(A.shape)}, expected [{B}, M, {D}]: M measurement inputs of {D} numbers for each of "
            f"{B} tasks; reshape it"
        )
    # Computed problem by problem on copies, so that LAPACK's rounding does not depend on the batch.
    return torch.stack([data.feature_map[problem](inputs.clone()) for problem, inputs in enumerate(A)])


def optimal_mean(task: Task, V: Float[Tensor, "k r"], c: float) -> tuple[Float[Tensor, " k"], Float[Tensor, "k n"]]:
    """H⁺Φᵀy/σ² and a root of H⁺, where H = ΦᵀΦ/σ² + c VVᵀ (Burt et al. 2020, appendix E).

    Computed from the singular values of [Φ/σ; √c Vᵀ]. Those of H are their squares: using them would lose half of the
    digits, and with them directions that affect the value.
    """
    sigma = task.frozen.noise_variance.sqrt()
    U, s, W = torch.linalg.svd(torch.cat([task.Phi / sigma, c**0.5 * V.mT]), full_matrices=False)
    known = s > s[0] * len(U) * torch.finfo(s.dtype).eps
    root = (W[known] / s[known, None]).mT
    return root @ (U[: len(task.y), known].mT @ (task.y / sigma)), root


def collapsed_optimum(task: Task, V: Float[Tensor, "k r"], c: float) -> Gaussian:
    """The limit at which the objective attains its infimum over full covariances, for rank r < k, by a root [k,r].

    Let K = VᵀH⁺V. For a given marginal S = VᵀΣV the best covariance collapses onto w = H⁺V K⁻¹v, the least-squares
    solution under Vᵀw = v, which leaves ½ tr(S (K⁻¹ − cI)) of the likelihood. Then S = cK, and Σ = c H⁺V K⁻¹ VᵀH⁺,
    which is c RQ(RQ)ᵀ for H⁺ = RRᵀ and an orthonormal basis Q of the columns of RᵀV.
    """
    mean, root = optimal_mean(task, V, c)
    return Gaussian(mean, c**0.5 * root @ torch.linalg.qr(root.mT @ V).Q)


def factorised_optimum(task: Task, V: Float[Tensor, "k r"], c: float) -> tuple[Gaussian, bool]:
    """The minimiser of the objective over factorised q, and whether some of its scales are 0.

    In d = s² the covariance part is c/2 [aᵀd − r − log det Vᵀdiag(d)V] with a_i = [ΦᵀΦ/σ²]_ii/c + [VVᵀ]_ii. It is
    convex, and after scaling it is a D-optimal design problem, which d_i ← d_i h_i/a_i with
    h = diag V(Vᵀdiag(d)V)⁻¹Vᵀ solves monotonically (Silvey, Titterington and Torsney 1978). By duality the value is
    within c/2 · r log max h_i/a_i of the minimum; it may be above the tolerance after `MAX_DESIGN_STEPS`.
    """
    r = V.shape[1]
    a = task.Phi.square().sum(0) / (task.frozen.noise_variance * c) + V.square().sum(-1)
    d = r / (len(a) * a)  # aᵀd = r: every step preserves it, and the bound requires it
    for _ in range(MAX_DESIGN_STEPS):
        tril = torch.linalg.cholesky(V.mT @ (d[:, None] * V))
        ratio = torch.linalg.solve_triangular(tril, V.mT, upper=False).square().sum(0) / a
        if 0.5 * c * r * math.log(max(float(ratio.max()), 1.0)) < DESIGN_TOLERANCE:
            break
        d = (d * ratio).clamp(min=1e-300)
    # By the bound of Harman and Pronzato (2007), these entries are 0 at the optimum.
    excess = r * max(float(ratio.max()) - 1, 0.0)
    support = 1 + excess / 2 - math.sqrt(excess * (4 + excess - 4 / r)) / 2
    return Gaussian(optimal_mean(task, V, c)[0], d.sqrt()), bool((ratio < support).any())
