"""A task's certificate: how the task was fitted, and evidence that its exact posterior is exact up to rounding."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from fsvi_bench.errors import InputError, TaskRefused, invalid_field
from fsvi_bench.files import is_file, replace_together
from fsvi_bench.maths.blr import blr_posterior_cholesky, blr_posterior_woodbury
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.strict import Plain
from fsvi_bench.tasks.card import FitSettings
from fsvi_bench.tasks.frozen import FrozenTask, read_task, task_file

if TYPE_CHECKING:
    from fsvi_bench.tasks.task import Task

WOODBURY_MAX_N = 2000  #: the N×N route costs O(N³); above this only the QR and Cholesky routes are compared


class Limits(Plain):
    """Limits that every task must satisfy. A certificate records those in force when it was written."""

    posterior_relative_difference: float = 1e-6
    posterior_kl: float = 1e-6  #: nats, between two computations of one posterior
    bound_relative_difference: float = 1e-6
    condition_precision: float = 1e15


class Start(Plain):
    """The exact GP of some rows, where a fit may start (`FitSettings.initial_rows`)."""

    rows: int
    used: bool  #: whether it was the start, because its bound on all rows was higher than that of the settings
    evidence_per_row: float  #: nats
    iterations: int
    converged: bool


class Fit(Plain):
    """How the optimiser found the task's parameters. Bounds are totals in nats over standardised targets."""

    bound: float
    bound_per_point: float
    iterations: int
    evaluations: int
    converged: bool
    message: str
    gradient_norm: float
    seconds: float
    settings: FitSettings
    versions: dict[str, str]
    start: Start | None = None


class PosteriorCheck(Plain):
    """A second computation of the exact posterior, compared with the one used for scoring (QR of [Φ/σ; I])."""

    method: Literal["cholesky", "woodbury"]
    mean_relative_difference: float
    covariance_relative_difference: float
    kl: float | None  #: KL(used for scoring ‖ second); None if the second has no precision factor


class Certificate(Plain):
    """`fsvi-certificate/1`."""

    format: Literal["fsvi-certificate/1"] = "fsvi-certificate/1"
    dataset: str
    split: int
    task_sha256: str
    data_sha256: str
    k: int
    N: int
    noise_variance: float
    jitter: float
    condition_inducing: float  #: condition number of k(Z,Z) + jitter·I; 1 for an RBF grid, which factorises nothing
    condition_precision: float  #: condition number of Λ
    log_evidence: float
    bound: float  #: the collapsed bound, recomputed from the features: log evidence − tr(K − ΦΦᵀ)/(2σ²)
    posterior_checks: Annotated[tuple[PosteriorCheck, ...], Field(min_length=1)]
    limits: Limits = Limits()
    fit: Fit | None = None

    def largest_difference(self) -> float:
        """The largest relative difference between computations of the posterior."""
        return max(
            max(check.mean_relative_difference, check.covariance_relative_difference) for check in self.posterior_checks
        )

    def require_limits(self) -> None:
        """Raises TaskRefused if a value exceeds this version's limits or is NaN.

        The limits recorded in a file are informative only: they cannot loosen the current ones.
        """
        limits = Limits()
        gap = 0.0 if self.fit is None else abs(self.bound - self.fit.bound) / max(1.0, abs(self.bound))
        measured = [
            ("condition number of the posterior precision", self.condition_precision, limits.condition_precision),
            ("relative difference between fitted and recomputed bound", gap, limits.bound_relative_difference),
        ]
        for check in self.posterior_checks:
            routes, limit = f"between the QR and {check.method} posteriors", limits.posterior_relative_difference
            measured += [
                (f"relative difference in mean {routes}", check.mean_relative_difference, limit),
                (f"relative difference in covariance {routes}", check.covariance_relative_difference, limit),
                (f"KL {routes}", abs(check.kl or 0.0), limits.posterior_kl),
            ]
        for what, value, limit in measured:
            if not value <= limit:
                raise TaskRefused(
                    f"task {self.dataset} split {self.split} is refused: the {what} is {value:.3g}, "
                    f"expected at most {limit:g}; refit it with a larger noise floor or jitter"
                )


class CertifiedTask(NamedTuple):
    """A task with the certificate that vouches for it."""

    task: FrozenTask
    certificate: Certificate


def certify(problem: Task, fit: Fit | None = None) -> Certificate:
    """Computes a task's certificate from the task and its data, without checking the limits.

    Raises:
        TaskRefused: a computation of the posterior fails numerically.
    """
    task, truth = problem.frozen, problem.truth
    try:
        checks = _posterior_checks(problem)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise TaskRefused(
            f"task {task.dataset} split {task.split} is refused: its posterior precision cannot be factorised; "
            "refit it with a larger noise floor or jitter"
        ) from error
    tril = problem.feature_map.tril
    return Certificate(
        dataset=task.dataset,
        split=task.split,
        task_sha256=task.sha256,
        data_sha256=task.data_sha256,
        k=task.k,
        N=problem.N,
        noise_variance=float(task.noise_variance),
        jitter=float(task.jitter),
        condition_inducing=1.0 if tril is None else _condition(tril),
        condition_precision=_condition(truth.posterior.precision_tril),
        log_evidence=float(truth.log_evidence),
        bound=_bound_from_features(problem),
        posterior_checks=checks,
        fit=fit,
    )


def _posterior_checks(problem: Task) -> tuple[PosteriorCheck, ...]:
    """Compares the posterior used for scoring (QR) with that of each alternative route."""
    mean, tril = problem.truth.posterior.mean, problem.truth.covariance_tril
    data = problem.Phi, problem.y, problem.noise_variance
    other = blr_posterior_cholesky(*data)
    kl = float(gaussian_kl_to_precision(mean, tril, *other).total)
    routes: list[tuple[Any, ...]] = [("cholesky", other.mean, torch.cholesky_inverse(other.precision_tril), kl)]
    if problem.N <= WOODBURY_MAX_N:
        routes.append(("woodbury", *blr_posterior_woodbury(*data), None))
    return tuple(
        PosteriorCheck(
            method=route,
            mean_relative_difference=_relative_difference(mean, other_mean),
            covariance_relative_difference=_relative_difference(tril @ tril.mT, covariance),
            kl=kl,
        )
        for route, other_mean, covariance, kl in routes
    )


def _relative_difference(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference over the largest absolute entry of `a`."""
    return float((a - b).abs().max() / a.abs().max())


def _condition(tril: Tensor) -> float:
    """Condition number of LLᵀ."""
    return float(torch.linalg.cond(tril) ** 2)


def _bound_from_features(problem: Task) -> float:
    """Titsias's bound through the features: log N(y; 0, ΦΦᵀ + σ²I) − Σ_n (k(x_n,x_n) − ‖φ(x_n)‖²)/(2σ²).

    For an RBF grid the prior covariance is exactly ΦΦᵀ, so the bound equals the log evidence.
    """
    task, evidence = problem.frozen, problem.truth.log_evidence
    missing_trace = problem.N * task.outputscale - problem.Phi.square().sum()
    return float(evidence if task.features == "rbf-grid" else evidence - missing_trace / (2 * task.noise_variance))


def differences(stored: Certificate, fresh: Certificate) -> list[str]:
    """How a stored certificate differs from a recomputed one; empty if they agree.

    Deterministic float64 results differ between machines by rounding, far less than 1e-8 relative. Condition numbers
    depend on the smallest singular value, which may be off by 1%. Rounding errors are compared by order of magnitude.
    """
    found = []
    close = {"log_evidence": 1e-8, "bound": 1e-8, "condition_inducing": 1e-2, "condition_precision": 1e-2}
    for name in Certificate.model_fields:
        old, new = getattr(stored, name), getattr(fresh, name)
        near = name in close and math.isclose(old, new, rel_tol=close[name])
        if not (old == new or near or name in ("posterior_checks", "limits", "fit")):
            found.append(f"its certificate says {name} {old}, recomputed {new}")
    if [check.method for check in stored.posterior_checks] != [check.method for check in fresh.posterior_checks]:
        found.append("its certificate lists different posterior checks from those of this version")
    elif (old := stored.largest_difference()) > max(100 * (new := fresh.largest_difference()), 1e-10):
        found.append(f"its certificate says the posterior is accurate to {old:.1e}, recomputed {new:.1e}")
    return found


def read_certified(path: Path) -> tuple[FrozenTask, Certificate | None]:
    """A task file, and the certificate next to it if there is one.

    Raises:
        InputError: either is not valid, or the certificate belongs to another task.
    """
    task, certificate_file = read_task(path), certificate_path(path)
    if not is_file(certificate_file):
        return task, None
    try:
        return task, certificate_of(task, certificate_file.read_bytes(), certificate_file)
    except OSError as error:
        raise InputError(f"cannot read {certificate_file}: {error.strerror}") from error


def certificate_of(task: FrozenTask, text: str | bytes, where: Path) -> Certificate:
    """Parses a task's certificate.

    Raises:
        InputError: it is not `fsvi-certificate/1`, or belongs to another task.
    """
    try:
        certificate = Certificate.model_validate_json(text)
    except ValidationError as error:
        raise InputError(f"{where} is not a valid certificate: {invalid_field(error)}; build the task again") from error
    if certificate.task_sha256 != task.sha256:
        raise InputError(
            f"{where} certifies task {certificate.task_sha256[:12]}..., but {task.dataset} split {task.split} is "
            f"{task.sha256[:12]}...; build the task again"
        )
    return certificate


def save(built: tuple[FrozenTask, Certificate | None], path: Path) -> None:
    """Writes a task, and its certificate next to it if it has one.

    Raises:
        InputError: the path is not writable.
        TaskRefused: a number of the certificate is not finite.
    """
    task, certificate = built
    text = None if certificate is None else f"{certificate_json(certificate, indent=2)}\n".encode()
    replace_together(path.parent, {certificate_path(path).name: text}, path.name, task_file(task))


def certificate_path(task_path: Path) -> Path:
    """`split-00.safetensors` → `split-00.certificate.json`."""
    return task_path.with_suffix(".certificate.json")


def certificate_json(certificate: Certificate, indent: int | None = None) -> str:
    """A certificate as JSON.

    Raises:
        TaskRefused: a number is not finite.
    """
    try:
        return json.dumps(certificate.model_dump(mode="json"), indent=indent, allow_nan=False)
    except ValueError as error:
        raise TaskRefused(
            f"the certificate of {certificate.dataset} split {certificate.split} contains NaN or infinity; refit the "
            "task"
        ) from error
