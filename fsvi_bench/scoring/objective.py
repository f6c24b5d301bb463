"""What a method's objective asks for, apart from what its optimiser made of it.

`kl_at_objective_optimum` is KL(q* ‖ P_D) at the objective's own optimum q* within the family, and `objective_gap` how
far above its least known value the objective is at a given q (nats). RANDA's optimum is not the point nearest to the
posterior: neither number is a floor of the KL. An objective's `loss` is its value along a run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.blr import PrecisionGaussian, blr_posterior, covariance_tril, mean_field_optimum_scale
from fsvi_bench.maths.functional_kl import Measurement
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.maths.measurement import measure
from fsvi_bench.maths.projection import row_space
from fsvi_bench.posteriors.base import Family, Posterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian, GaussianPosterior
from fsvi_bench.scoring.loss import Loss, align_factor, functional_kl, misfit, weight_space_loss
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.task import Task
from fsvi_bench.tasks.training_problems import TrainingProblems
from fsvi_bench.variational.likelihood import FullBatch
from fsvi_bench.variational.measurement import MeasuredSet, MeasurementDesign, MeasurementStream, align
from fsvi_bench.variational.natural import NaturalDescent, StepSize

HELD_OUT_SETS = 256  #: frozen measurement sets on which RANDA's objective is evaluated; the same for every method
TRACED_SETS = 4  #: the first of them, on which it is followed along a run: 2% of a quick run's time
MAX_DESIGN_STEPS, DESIGN_TOLERANCE = 5000, 1e-6  #: of the search for FIXEDA's factorised optimum; nats
REFERENCE_STEPS, REFERENCE_AVERAGING = 1000, 0.8  #: of the natural-gradient run that stands for RANDA's optimum
#: The run counts as converged if its second half lowered the objective by no more than this (nats) and moved the KL by
#: no more than this share; runs four times as long then end within 5% of its KL (boston, concrete, energy, M = 80).
CONVERGED_VALUE, CONVERGED_KL = 0.05, 0.02


class ObjectiveScores(NamedTuple):
    """Each is None where it cannot be computed."""

    kl_at_objective_optimum: float | None
    objective_gap: float | None


class Objective(ABC):
    """Something that a method minimises over posteriors q of its kind."""

    @abstractmethod
    def loss(self, problem: Task) -> Loss:
        """The objective in nats as a function of q, to be evaluated again and again along a run.

        It is what is minimised, not what one step sees of it: all training rows and closed forms, no samples, and where
        measurement sets are random, the same few for all q. With its constants, so that a −ELBO plus the log evidence
        is a KL. It draws from no stream of the training, and costs about what the scores of a trace cost.
        """

    def scores(self, q: Posterior, problem: Task) -> ObjectiveScores:
        """Both scores of one posterior on one problem; unless a class knows its optimum, neither."""
        return ObjectiveScores(None, None)


def _kl(q: GaussianPosterior, exact: PrecisionGaussian) -> float:
    return float(gaussian_kl_to_precision(q.mean, q.covariance_tril(), *exact).total)


def _nearest(family: Family, exact: PrecisionGaussian) -> GaussianPosterior:
    """The Gaussian of a family with the least KL to an exact one."""
    if family == "full":
        return FullGaussian(exact.mean, covariance_tril(exact.precision_tril))
    return FactorisedGaussian(exact.mean, mean_field_optimum_scale(exact.precision_tril))


@dataclass(frozen=True)
class WeightSpaceKL(Objective):
    """−ELBO with its KL in weight space: KL(q ‖ P_D) minus the log evidence, so that all is known in closed form."""

    def loss(self, problem: Task) -> Loss:
        return weight_space_loss(problem)

    def scores(self, q: GaussianPosterior, problem: Task) -> ObjectiveScores:  # type: ignore[override]
        exact = problem.truth.posterior
        least = _kl(_nearest(q.family, exact), exact)
        return ObjectiveScores(least, _kl(q, exact) - least)


@dataclass(frozen=True)
class ExpectedFunctionalKL(Objective):
    """−E_q[log p(y|w)] + kl_weight · E_A KL(Q_A ‖ P_A) (Burt et al. 2020, eq. 6).

    Evaluated with all training rows on `HELD_OUT_SETS` frozen sets. The optimum comes from averaged natural gradients
    on other sets; where these are still on their way, as with few measurement points, it is not known. The least known
    value is the one that they reached, so a gap may be slightly negative.
    """

    design: MeasurementDesign
    kl_weight: float

    def loss(self, problem: Task) -> Loss:
        """On the first `TRACED_SETS` of the held-out sets: the same for every method, seed and step."""
        return _functional_loss(problem, self.design, self.kl_weight, _held_out_features(problem, self.design))

    def scores(self, q: GaussianPosterior, problem: Task) -> ObjectiveScores:  # type: ignore[override]
        if self.kl_weight == 0:
            return ObjectiveScores(None, None)
        reference = _reference(_ByIdentity(problem, problem.frozen.sha256), self, q.family)
        gap = self.value(q, problem) - reference.value
        return ObjectiveScores(reference.kl if reference.converged else None, None if math.isnan(gap) else gap)

    def value(self, q: GaussianPosterior, problem: Task) -> float:
        """The objective at q without the terms that no q changes, on the held-out sets."""
        held_out = _held_out(_ByIdentity(problem, problem.frozen.sha256), self.design)
        mean, factor = align(q.mean[None]), align_factor(q.covariance_tril())[None]
        likelihood = float(FullBatch(TrainingProblems.of([problem])).value(mean, factor))
        kls = torch.cat([m.kl(mean.expand(n, -1), factor.expand(n, -1, -1)) for n, m in held_out])
        return likelihood + self.kl_weight * float(kls.mean())


@dataclass(frozen=True, eq=False)
class FixedFunctionalKL(Objective):
    """The same at one measurement set for all time, given by its features [M,k].

    If A sees every weight it is the weight-space objective. If not, its infimum over full covariances is approached as
    q collapses in the directions that A does not see, and KL(q ‖ P_D) goes to infinity on the way. A factorised q has
    an optimum, at which some scales are as a rule 0: then too the KL is infinite.
    """

    Phi_A: Float[Tensor, "M k"]
    design: MeasurementDesign
    kl_weight: float

    def loss(self, problem: Task) -> Loss:
        return _functional_loss(problem, self.design, self.kl_weight, align(self.Phi_A[None]))

    def scores(self, q: GaussianPosterior, problem: Task) -> ObjectiveScores:  # type: ignore[override]
        basis = row_space(self.Phi_A, self.design.rank_tolerance)
        all_seen = basis.shape[1] == problem.frozen.k
        if self.kl_weight == 0 or self.design.kl_jitter:
            # Jitter has no closed form, but it does not keep a full q from collapsing where A does not look either.
            collapses = self.kl_weight > 0 and q.family == "full" and not all_seen
            return ObjectiveScores(math.inf if collapses else None, None)
        if all_seen:
            return self._all_seen(q, problem)
        if q.family == "full":
            return ObjectiveScores(math.inf, self.value(q, problem) - self.infimum(problem, basis))
        least, optimum = self.diagonal_optimum(problem, basis)
        singular = bool((optimum.scale == 0).any())
        kl = math.inf if singular else _kl(optimum, problem.truth.posterior)
        return ObjectiveScores(kl, self.value(q, problem) - least)

    def value(self, q: GaussianPosterior, problem: Task) -> float:
        """The objective at q without the terms that no q changes."""
        measurement = measure(align(self.Phi_A[None]), rank_tolerance=self.design.rank_tolerance, avoid_inverse=True)
        mean, factor = align(q.mean[None]), align_factor(q.covariance_tril())[None]
        likelihood = FullBatch(TrainingProblems.of([problem])).value(mean, factor)
        return float(likelihood + self.kl_weight * measurement.kl(mean, factor))

    def infimum(self, problem: Task, basis: Float[Tensor, "k r"]) -> float:
        """inf over μ and Σ, for rank r < k.

        With G = ΦᵀΦ/σ², the covariance given its marginal S = VᵀΣV is best collapsed to w = V v − N G_NN⁻¹G_NV v, which
        leaves ½ tr(S (G_VV − G_VN G_NN⁻¹ G_NV)) of the likelihood; then S⁻¹ = (that Schur complement)/c + I.
        """
        gram, moment = problem.Phi.mT @ problem.Phi, problem.Phi.mT @ problem.y
        gram, moment = gram / problem.frozen.noise_variance, moment / problem.frozen.noise_variance
        full_basis = torch.linalg.qr(basis, mode="complete").Q
        V, unseen = basis, full_basis[:, basis.shape[1] :]
        schur = (
            V.mT
            @ gram
            @ (V - unseen @ torch.linalg.pinv(unseen.mT @ gram @ unseen, hermitian=True) @ (unseen.mT @ gram @ V))
        )
        identity = torch.eye(V.shape[1], dtype=V.dtype)
        covariance_part = 0.5 * self.kl_weight * torch.logdet(schur / self.kl_weight + identity)
        return float(covariance_part - 0.5 * moment @ self._optimal_mean(gram, moment, V))

    def diagonal_optimum(self, problem: Task, basis: Float[Tensor, "k r"]) -> tuple[float, FactorisedGaussian]:
        """The least value over factorised q, and where it is taken; scales that vanish there are 0.

        In d = s² the covariance part is c/2 [aᵀd − r − log det Vᵀdiag(d)V] with a_i = [ΦᵀΦ/σ²]_ii/c + [VVᵀ]_ii: convex,
        and a D-optimal design problem after scaling, which d_i ← d_i h_i/a_i with h = diag V(Vᵀdiag(d)V)⁻¹Vᵀ solves
        monotonically (Silvey, Titterington and Torsney 1978). By duality the value is within c/2 · r log max h_i/a_i of
        the least one.
        """
        gram, moment = problem.Phi.mT @ problem.Phi, problem.Phi.mT @ problem.y
        gram, moment = gram / problem.frozen.noise_variance, moment / problem.frozen.noise_variance
        c, r = self.kl_weight, basis.shape[1]
        a = gram.diagonal() / c + basis.square().sum(-1)
        d = r / (len(a) * a)  # aᵀd = r, which every step keeps and without which the bound says nothing
        for _ in range(MAX_DESIGN_STEPS):
            tril = torch.linalg.cholesky(basis.mT @ (d[:, None] * basis))
            ratio = torch.linalg.solve_triangular(tril, basis.mT, upper=False).square().sum(0) / a
            if 0.5 * c * r * math.log(max(float(ratio.max()), 1.0)) < DESIGN_TOLERANCE:
                break
            d = (d * ratio).clamp(min=1e-300)
        mean = self._optimal_mean(gram, moment, basis)
        value = 0.5 * c * float(a @ d - r - 2 * tril.diagonal().log().sum()) - 0.5 * float(moment @ mean)
        # What cannot support the optimum, by the bound of Harman and Pronzato (2007), is on its way to 0.
        excess = r * max(float(ratio.max()) - 1, 0.0)
        support = 1 + excess / 2 - math.sqrt(excess * (4 + excess - 4 / r)) / 2
        return value, FactorisedGaussian(mean, torch.where(ratio < support, 0.0, d.sqrt()))

    def _optimal_mean(self, gram: Float[Tensor, "k k"], moment: Float[Tensor, " k"], V: Tensor) -> Float[Tensor, " k"]:
        """(ΦᵀΦ/σ² + c VVᵀ)⁺ Φᵀy/σ², Burt et al. 2020, appendix E."""
        return torch.linalg.pinv(gram + self.kl_weight * V @ V.mT, hermitian=True) @ moment

    def _all_seen(self, q: GaussianPosterior, problem: Task) -> ObjectiveScores:
        """c·KL(q ‖ P_c) up to a constant, where P_c is the posterior under the noise variance cσ²."""
        tempered = blr_posterior(problem.Phi, problem.y, self.kl_weight * problem.frozen.noise_variance)
        optimum = _nearest(q.family, tempered)
        gap = self.kl_weight * (_kl(q, tempered) - _kl(optimum, tempered))
        return ObjectiveScores(_kl(optimum, problem.truth.posterior), gap)


class _ByIdentity:
    """A problem that caches tell apart by its task alone."""

    def __init__(self, problem: Task, task_sha256: str) -> None:
        self.problem, self.task_sha256 = problem, task_sha256

    def __hash__(self) -> int:
        return hash(self.task_sha256)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.task_sha256 == self.task_sha256


@lru_cache(maxsize=8)
def _held_out(key: _ByIdentity, design: MeasurementDesign) -> list[tuple[int, Measurement]]:
    """The frozen sets, prepared, in batches of (size, measurement)."""
    stream = _held_out_stream(key.problem, design)
    batches = []
    for _ in range(HELD_OUT_SETS // 16):
        Phi_A = stream.draw(16)[:, 0].clone()
        # Some q to be judged are all but singular: their covariance is not to be inverted.
        batches.append(
            (16, measure(Phi_A, jitter=design.kl_jitter, rank_tolerance=design.rank_tolerance, avoid_inverse=True))
        )
    return batches


def _held_out_stream(problem: Task, design: MeasurementDesign) -> MeasurementStream:
    seed = derive_seed(problem.frozen.sha256, "held-out measurement sets")
    return MeasurementStream(TrainingProblems.of([problem]), design, [seed])


def _held_out_features(problem: Task, design: MeasurementDesign) -> Float[Tensor, "sets M k"]:
    return _held_out_stream(problem, design).draw(TRACED_SETS)[:, 0].clone()


def _functional_loss(
    problem: Task, design: MeasurementDesign, kl_weight: float, Phi_A: Float[Tensor, "sets M k"]
) -> Loss:
    """−E_q[log p(y|w)] + kl_weight · the mean over these sets of KL(Q_A ‖ P_A), with the design's jitter."""
    of_data = misfit(problem)
    if kl_weight == 0:
        return of_data
    sets = measure(Phi_A, jitter=design.kl_jitter, rank_tolerance=design.rank_tolerance, avoid_inverse=True)
    return lambda q: of_data(q) + kl_weight * functional_kl(sets, len(Phi_A), q)


class _Reference(NamedTuple):
    """What stands for RANDA's optimum: the objective there, KL(· ‖ P_D), and whether the run had come to its end."""

    value: float
    kl: float
    converged: bool


@lru_cache(maxsize=256)
def _reference(key: _ByIdentity, objective: ExpectedFunctionalKL, family: Family) -> _Reference:
    """Λ by natural gradients, averaged.

    The mean decouples from it, and is solved for: (ΦᵀΦ/σ² + c E_A[VVᵀ]) μ = Φᵀy/σ², with the projectors of the same
    sets. Where a direction is seen by one set in thousands that solution fits its own sets only; then the natural
    gradients' averaged mean, or the exact one, does better on the held-out sets and stands.
    """
    data = TrainingProblems.of([key.problem])
    likelihood, exact, k = FullBatch(data), key.problem.truth.posterior, data.k
    sets = _Projectors(data, objective.design, derive_seed(key.task_sha256, "objective optimum"))
    descent = NaturalDescent(
        family, likelihood, sets.__next__, StepSize(), REFERENCE_STEPS, objective.kl_weight, REFERENCE_AVERAGING
    )

    def best_known() -> tuple[float, float]:
        averaged = descent.posterior(k)[0]
        hessian = (likelihood.precision + objective.kl_weight * sets.mean)[0, :k, :k].clone()
        solved = torch.linalg.pinv(hessian, hermitian=True) @ likelihood.moment[0, :k].clone()
        candidates = [_with_mean(averaged, mean) for mean in (solved, averaged.mean, exact.mean)]
        values = [objective.value(q, key.problem) for q in candidates]
        return min(values), _kl(candidates[values.index(min(values))], exact)

    descent.run(range(REFERENCE_STEPS // 2))
    value_before, kl_before = best_known()
    descent.run(range(REFERENCE_STEPS // 2, REFERENCE_STEPS))
    value, kl = best_known()
    moved = abs(kl - kl_before) > CONVERGED_KL * abs(kl) + CONVERGED_KL
    return _Reference(value, kl, not moved and value_before - value <= CONVERGED_VALUE)


def _with_mean(q: GaussianPosterior, mean: Float[Tensor, " k"]) -> GaussianPosterior:
    if q.family == "ffg":
        return FactorisedGaussian(mean, q.covariance_tril().diagonal())
    return FullGaussian(mean, q.covariance_tril())


class _Projectors:
    """Measurements one by one, and the mean of their projectors VVᵀ."""

    def __init__(self, data: TrainingProblems, design: MeasurementDesign, seed: int) -> None:
        self._sets: Iterator[MeasuredSet] = iter(MeasurementStream(data, design, [seed]))
        k = align(data.Phi).shape[-1]
        self._identity = torch.eye(k, dtype=torch.float64)[None]
        self.mean, self._count = torch.zeros(1, k, k, dtype=torch.float64), 0

    def __next__(self) -> Measurement:
        measurement: Measurement = next(self._sets).measurement
        self._count += 1
        self.mean += (measurement.project(self._identity) - self.mean) / self._count
        return measurement
