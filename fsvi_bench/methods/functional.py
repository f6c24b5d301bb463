"""What functional methods share: their options, and the optimum of RANDA's objective, regardless of the optimiser.

RANDA's optimum is not the point nearest to the posterior, so neither `kl_at_objective_optimum` nor `objective_gap` is a
lower bound of the KL.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import pad

from fsvi_bench.arithmetic import arithmetic
from fsvi_bench.errors import InputError
from fsvi_bench.files import sha256_of_json, write_atomically
from fsvi_bench.maths.batching import SIDE, matvec
from fsvi_bench.maths.functional_kl import Gaussian, MeasurementSets
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.maths.projection import RANK_TOLERANCE
from fsvi_bench.methods.base import GaussianOptions, Method, MethodOptions, Optimum
from fsvi_bench.methods.data import HELD_OUT_SETS, Batch, MeasurementDesign, Source, TaskData
from fsvi_bench.methods.natural import NaturalGaussian, NaturalGradient, natural_step
from fsvi_bench.posteriors.base import unstack
from fsvi_bench.posteriors.gaussian import GaussianPosterior
from fsvi_bench.posteriors.trainable import Average
from fsvi_bench.seeds import derive_seed
from fsvi_bench.sources import meaning_sha256
from fsvi_bench.tasks.fetch import cache_dir
from fsvi_bench.tasks.task import Task

#: Modules of methods with the same optimum: in evaluation mode their `loss` is the same formula.
SHARING = ("fsvi_bench.methods.rand_a", "fsvi_bench.methods.rand_a_ngd", "fsvi_bench.methods.ssge")
REFERENCE_STEPS, REFERENCE_AVERAGED = 1000, 800  #: steps of the natural-gradient run that computes RANDA's optimum
#: The run counts as converged if its second half lowered the objective by no more than this (nats) and moved the KL by
#: no more than this share; runs four times as long then end within 5% of its KL (boston, concrete, energy, M = 80).
CONVERGED_VALUE, CONVERGED_KL = 0.05, 0.02


_Found = tuple[GaussianPosterior, Float[Tensor, " k"]]  # averaged iterates, and the mean from the linear system


class MeasurementOptions(MethodOptions):
    """Measurement sets of the functional KL, and the weight of that KL."""

    M: PositiveInt = 80
    draw_A: Source = "mixed"
    kl_weight: NonNegativeFloat | Literal["N/B"] = 1.0
    kl_jitter: NonNegativeFloat = 0.0
    rank_tolerance: Annotated[float, Field(ge=0, lt=1)] = RANK_TOLERANCE

    @property
    def design(self) -> MeasurementDesign:
        return MeasurementDesign(self.M, self.draw_A, self.kl_jitter, self.rank_tolerance)


class FunctionalOptions(GaussianOptions, MeasurementOptions):
    """Adam on a functional objective. As in the paper, a step has as many rows as measurement points: `minibatch=M`."""

    minibatch: PositiveInt | Literal["full", "M"] = "M"  # type: ignore[assignment]

    def rows(self, N: int) -> int:
        return min(self.M, N) if self.minibatch == "M" else super().rows(N)


class FunctionalMethod(Method):
    """A method whose regulariser is the expected functional KL at random measurement sets."""

    Options: ClassVar[type[MethodOptions]] = FunctionalOptions

    @property
    def kl_weight(self) -> float:
        """The weight as a number. `N/B` is that of FBNN's code (Sun et al. 2019), which divides the KL by the
        minibatch's size and adds it to a mean log likelihood per point: N/n times the weight in the ELBO."""
        weight = self.options.kl_weight
        return self.problems.N / self.rows_per_step if weight == "N/B" else float(weight)

    def measured(self, q: Gaussian, batch: Batch) -> MeasurementSets:
        """The step's measurement sets, prepared.

        A network is linearised at q's mean μ: q's and the prior's function values at A are those of f(μ) + J(w − μ), so
        that their KL is a linear model's with the features J (Rudner et al. 2022). A step holds J constant.
        """
        if not self.is_network:
            return batch.A  # type: ignore[no-any-return]
        J = self.problems.jacobian(q.mean.detach(), batch.X_A)
        Phi_A = pad(J, (0, q.mean.shape[-1] - J.shape[-1]))
        return self.options.design.measure(Phi_A, span=not self.training)

    def optima(self, tasks: Sequence[Task]) -> Sequence[Optimum | None]:
        """From the cache, or by averaged natural gradients.

        None if the KL has weight 0, where there is no optimum, and for an objective other than RANDA's.
        """
        if self.kl_weight == 0 or type(self).loss.__module__ not in SHARING:
            return [None] * len(tasks)
        paths = [_cached_at(self, task) for task in tasks]
        found = {path: _read(path) for path in paths}
        missing = [path for path, optimum in found.items() if optimum is None]
        if missing:
            places = [paths.index(path) for path in missing]
            optima = _reference(self, places, [tasks[place] for place in places])
            for path, optimum in zip(missing, optima, strict=True):
                found[path] = optimum
                _write(path, optimum)
        return [found[path] for path in paths]


def _cached_at(method: FunctionalMethod, task: Task) -> Path:
    """The path of a cached optimum; its name is a hash of everything that determines the optimum."""
    design, code = asdict(method.options.design), meaning_sha256(__name__, *SHARING)
    decided_by = [task.frozen.sha256, method.family, method.kl_weight, design, code, arithmetic()]
    return cache_dir() / "optima" / task.frozen.dataset / f"{sha256_of_json(decided_by)[:24]}.json"


def _read(path: Path) -> Optimum | None:
    try:
        return Optimum(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _write(path: Path, optimum: Optimum) -> None:
    with contextlib.suppress(InputError):  # if the disk is full, it is computed again
        write_atomically(path, json.dumps(optimum._asdict()).encode())


def _reference(method: FunctionalMethod, places: Sequence[int], tasks: Sequence[Task]) -> list[Optimum]:
    """The optimal precision by averaged natural gradients, on measurement sets derived from each task.

    The mean decouples from the precision and solves (ΦᵀΦ/σ² + c E_A[VVᵀ]) μ = Φᵀy/σ², with the projectors of the same
    sets. If only one set in thousands sees some direction, this solution overfits to its sets. The natural gradients'
    averaged mean, or the exact one, is then better on the held-out sets, and the best of the three is used.
    """
    seeds = [derive_seed(task.frozen.sha256, "objective optimum") for task in tasks]
    data = TaskData(tasks, seeds, steps=REFERENCE_STEPS, design=method.options.design)
    q = NaturalGaussian(method.family, len(tasks), data.problems.k)
    average = Average(q)
    optimizer = NaturalGradient(q.parameters(), lr=0.5, decay=0.6)
    projector: Any = 0.0
    halves = []
    for step, batch in enumerate(data.train_dataloader(), 1):
        natural_step(q, optimizer, batch, method.kl_weight)
        projector += (batch.A.projector - projector) / step
        if step > REFERENCE_STEPS - REFERENCE_AVERAGED:
            average.update(q)
        if step in (REFERENCE_STEPS // 2, REFERENCE_STEPS):
            means = _optimal_means(batch.rows.gram + method.kl_weight * projector, batch.rows.moment)
            halves.append(list(zip(unstack(average.module.posterior()), means, strict=True)))
    return [
        _judged(method, place, task, *of_task) for place, task, *of_task in zip(places, tasks, *halves, strict=True)
    ]


def _optimal_means(hessian: Float[Tensor, "B k k"], moment: Float[Tensor, "B k"]) -> list[Float[Tensor, " k"]]:
    return [torch.linalg.pinv(H.clone(), hermitian=True) @ m.clone() for H, m in zip(hessian, moment, strict=True)]


def _judged(method: FunctionalMethod, place: int, task: Task, half: _Found, whole: _Found) -> Optimum:
    """The objective at the end of the whole run, and KL(· ‖ P_D) there if the run has converged."""
    (q_half, kl_half), (q, kl) = (_best(method, place, task, *found) for found in (half, whole))
    value = method.objective(place, task, q=q)
    settled = abs(kl - kl_half) <= CONVERGED_KL * abs(kl) + CONVERGED_KL
    settled = settled and method.objective(place, task, q=q_half) - value <= CONVERGED_VALUE
    return Optimum(value, kl if settled else None)


def _best(
    method: FunctionalMethod, place: int, task: Task, averaged: GaussianPosterior, solved: Float[Tensor, " k"]
) -> tuple[Gaussian, float]:
    """The averaged covariance with the best known mean, and KL(· ‖ P_D) there."""
    exact, batches = task.truth.posterior, method.held_out(place, task, HELD_OUT_SETS)
    means = [solved[: averaged.k], averaged.mean, exact.mean]
    mean = min(means, key=lambda mean: _of_mean(pad(mean[None], (0, -len(mean) % SIDE)), batches, method.kl_weight))
    kl = gaussian_kl_to_precision(mean, averaged.covariance_tril(), *exact)
    return Gaussian(mean[None], averaged.root[None]), float(kl.total)


def _of_mean(mean: Float[Tensor, "1 k_filled"], batches: Sequence[Batch], kl_weight: float) -> float:
    """The part of the objective that depends on the mean: ½‖y − Φμ‖²/σ² + ½c E_A‖Vᵀμ‖²."""
    rows = batches[0].rows
    residual = rows.y - matvec(rows.Phi, mean)
    seen = torch.cat([(A.project(mean.expand(len(A), -1)) * mean).sum(-1) for _, A, *_ in batches])
    return 0.5 * float(residual.square().sum() + kl_weight * seen.mean())
