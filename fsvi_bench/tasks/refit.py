"""Compares a frozen task with another fit of the same split, by their bounds and exact predictions.

A fit starts from the same bytes on every machine, and on one machine it is reproducible. Across machines it is not:
L-BFGS takes thousands of steps on a bound with condition numbers of 1e4 to 1e8, and a BLAS that rounds differently
leads to another path. Both results are good fits. `benchmarks/refit_kernels.py` measures how much they differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.blr import predictive_variance
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import CertifiedTask
from fsvi_bench.tasks.raw import RawData
from fsvi_bench.tasks.task import Task, bind_task

#: Tolerances for the predictions of a refit: three to five times the largest differences measured with other BLAS
#: kernels, 0.066 and 0.019 (`benchmarks/README.md`). The tolerance for the bound is in the data set's card.
MEAN_TOLERANCE = 0.2  #: predictive standard deviations of the frozen task, root mean square over test inputs
SPREAD_TOLERANCE = 0.1  #: log ratio of predictive standard deviations, root mean square over test inputs


@dataclass(frozen=True)
class Distance:
    """One quantity of both fits, and their difference."""

    what: str
    unit: str  #: of `apart` and `tolerance`
    frozen: float  #: for a function of the test inputs, its mean in standardised units
    refitted: float
    apart: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance; False for NaN."""
        return self.apart <= self.tolerance


@dataclass(frozen=True)
class Refit:
    """The comparison of a frozen task with a second fit of its split."""

    dataset: str
    split: int
    identical: bool  #: bitwise
    distances: tuple[Distance, ...]
    other_versions: tuple[str, ...]  #: libraries whose version has changed, as "scipy 1.17.0, then 1.16.3"

    @property
    def holds(self) -> bool:
        return self.identical or all(distance.holds for distance in self.distances)


def compare(frozen: CertifiedTask, refitted: CertifiedTask, raw: RawData) -> Refit:
    """Compares the frozen task with another fit of the same split.

    Raises:
        InputError: the raw data are not those of the tasks.
    """
    task, other = frozen.task, refitted.task
    fit, other_fit = frozen.certificate.fit, refitted.certificate.fit
    assert fit is not None
    assert other_fit is not None
    assert (task.dataset, task.split) == (other.dataset, other.split)
    bound, other_bound = fit.bound_per_point, other_fit.bound_per_point
    (mean, sd), (other_mean, other_sd) = (_predictions(bind_task(each, raw=raw)) for each in (task, other))
    bounds = bound, other_bound, abs(bound - other_bound)
    means = float(mean.mean()), float(other_mean.mean()), _rms((other_mean - mean) / sd)
    sds = float(sd.mean()), float(other_sd.mean()), _rms((other_sd / sd).log())
    distances = (
        Distance("bound per training point", "nats", *bounds, load_card(task.dataset).refit_tolerance),
        Distance("predictive means at test inputs (r.m.s.)", "predictive sd", *means, MEAN_TOLERANCE),
        Distance("predictive sds at test inputs (r.m.s.)", "in logarithm", *sds, SPREAD_TOLERANCE),
    )
    then, now = fit.versions, other_fit.versions
    versions = tuple(
        f"{name} {now.get(name)}, then {then.get(name)}"
        for name in sorted(then.keys() | now.keys())
        if now.get(name) != then.get(name)
    )
    return Refit(task.dataset, task.split, task.sha256 == other.sha256, distances, versions)


def _predictions(problem: Task) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Mean and standard deviation (noise included) of the exact predictive at the test inputs."""
    truth, Phi = problem.truth, problem.Phi_test
    variance = predictive_variance(Phi, truth.covariance_tril, problem.noise_variance)
    return (Phi @ truth.posterior.mean[:, None])[:, 0], variance.sqrt()


def _rms(values: Float[Tensor, " n"]) -> float:
    """Root mean square."""
    return float(values.square().mean().sqrt())
