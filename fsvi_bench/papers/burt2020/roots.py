"""Not in Burt et al. (2020): the KL of EXACT-FFG depends on the root of k(Z,Z) that defines the features."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pandas as pd
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.blr import (
    blr_posterior,
    covariance_tril,
    log_evidence,
    mean_field_optimum_kl,
    predictive_variance,
)
from fsvi_bench.maths.features import ard_kernel as rbf_kernel
from fsvi_bench.maths.gaussian import normal_kl
from fsvi_bench.papers.burt2020.feature_roots import (
    Square,
    cholesky_rotation,
    diagonalising_rotation,
    factorised_floor,
    largest_floor,
    levelled,
    random_rotation,
    spectral_rotations,
)
from fsvi_bench.papers.experiment import ExperimentContext, Frames, Row, as_row, joined
from fsvi_bench.papers.problems import Source
from fsvi_bench.papers.streams import stream
from fsvi_bench.running.runner import require_data
from fsvi_bench.strict import Plain
from fsvi_bench.tasks.official import Split, official_splits
from fsvi_bench.tasks.task import Task
from fsvi_bench.threads import use_one_thread

OWN, ORDERS, SYMMETRIC, EIGENVECTORS, RANDOM = "own", "orders", "symmetric", "eigenvectors", "random"
SPLIT = ["dataset", "split"]


class Settings(Plain):
    """The number of splits of each data set with official tasks, and of orders of Z and random rotations."""

    datasets: tuple[str, ...] = Field(min_length=1)
    splits: int = Field(ge=2)
    permutations: int = Field(ge=2)
    seed: int

    @property
    def chosen(self) -> list[Split]:
        """The official tasks of the data sets that have at least two."""
        splits = {dataset: official_splits(dataset)[: self.splits] for dataset in self.datasets}
        return [(dataset, split) for dataset, its in splits.items() if len(its) > 1 for split in its]

    def require_data(self, data_dir: Path | None) -> None:
        """Raises InputError if raw data are not on this machine and cannot be downloaded."""
        require_data(self.chosen, data_dir)


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """The splits of the data sets with at least two official tasks; the others are listed."""
    sources = [Source.of(*split, context.data_dir) for split in settings.chosen]
    left_out = [dataset for dataset in settings.datasets if dataset not in {source.dataset for source in sources}]
    for dataset in left_out:
        context.note(f"{dataset} is left out: it has fewer than two official tasks")
    if not sources:
        raise InputError(f"none of {', '.join(left_out)} has two official tasks; name data sets with at least two")
    parts = context.table(examine_source, {"source": sources}, settings=settings)
    frames = joined(parts.drop(columns="source"))
    frames |= judged(**frames)
    frames["floors"].attrs["left_out"] = (
        f"; left out, fewer than two official tasks: {', '.join(left_out)}" if left_out else ""
    )
    return frames


def examine_source(source: Source, settings: Settings) -> Row:
    """The rows of each frame of `examine`."""
    use_one_thread()
    return as_row(examine(source.load(), settings))


def examine(problem: Task, settings: Settings) -> Frames:
    """One task: a row per root with floor and predictive KL [nats]; the differences of features computed directly from
    each root; and, for the whole task, the largest floor of any root, the floor of a rotation that achieves it, and the
    floor in Λ's eigenvectors.
    """
    C = problem.truth.posterior.precision_tril
    tril = cast(Tensor, problem.feature_map.tril)  # official tasks have a sparse GP's features only
    generator = stream("cpu", settings.seed, problem.sha256, "orders")
    symmetric, eigenvectors = spectral_rotations(tril)
    orders = [torch.randperm(problem.k, generator=generator) for _ in range(settings.permutations)]
    rotations = {
        OWN: [torch.eye(problem.k, dtype=torch.float64)],
        ORDERS: [cholesky_rotation(tril, order) for order in orders],
        SYMMETRIC: [symmetric],
        EIGENVECTORS: [eigenvectors],
        RANDOM: [random_rotation(problem.k, generator) for _ in orders],
    }
    roots = pd.DataFrame(
        [(kind, *floor_and_predictive_kl(problem, Q)) for kind, choices in rotations.items() for Q in choices],
        columns=["root", "floor", "predictive"],
    )
    whole = {
        "largest": largest_floor(C),
        "levelled": factorised_floor(levelled(C), C),
        "diagonal": factorised_floor(diagonalising_rotation(C).mT @ C, C),
    }
    frames = {
        "roots": roots,
        "splits": pd.DataFrame([whole]),
        "direct": compare_directly(problem, orders[0], roots.groupby("root")["floor"].first()),
    }
    return {name: frame.assign(dataset=problem.dataset, split=problem.split) for name, frame in frames.items()}


def floor_and_predictive_kl(problem: Task, Q: Square) -> tuple[float, float]:
    """EXACT-FFG's KL with the features Qᵀφ, and the mean KL of the exact predictive to its predictive at test inputs.

    The means agree. Its variances are Σ φ'_i²/Λ'_ii + σ²; the exact ones do not depend on Q.
    """
    truth, noise = problem.truth, problem.noise_variance
    C = truth.posterior.precision_tril
    factor = Q.mT @ C
    exact = predictive_variance(problem.Phi_test, truth.covariance_tril, noise)
    factorised = (problem.Phi_test @ Q).square() @ factor.square().sum(-1).reciprocal() + noise
    zero = torch.zeros_like(exact)
    return factorised_floor(factor, C), float(normal_kl(zero, exact, zero, factorised).mean())


def compare_directly(problem: Task, order: Tensor, floors: pd.Series[float]) -> pd.DataFrame:
    """Roots factorised from k(Z,Z) + jitter·I, features by solving with them, and posteriors from those features: the
    largest differences from the task's values, one row per root.

    The evidence is in nats and relative to its absolute value; the kernel between test inputs relative to its largest
    value; predictive means and standard deviations (including noise) in units of the task's predictive standard
    deviations; floors relative to `floors`, which are computed by rotation.
    """
    task, rows = problem.frozen, []
    Z, scales = task.inducing_points, (task.lengthscales, task.outputscale)
    K = rbf_kernel(Z, Z, *scales) + task.jitter * torch.eye(len(Z), dtype=torch.float64)
    cross = [rbf_kernel(Z, X, *scales) for X in (problem.X, problem.X_test)]
    own_evidence, own_kernel, own_predictive, _ = implied(problem, problem.Phi, problem.Phi_test)
    for kind, root in direct_roots(K, order).items():
        from_root = [torch.linalg.solve(root, with_inputs).mT for with_inputs in cross]
        evidence, kernel, predictive, floor = implied(problem, *from_root)
        apart = (evidence - own_evidence).abs()
        kernels = (kernel - own_kernel).abs().max() / own_kernel.abs().max()
        predictives = ((predictive - own_predictive).abs() / own_predictive[1]).max()
        found = apart, apart / own_evidence.abs(), kernels, predictives, (floor / floors[kind] - 1).abs()
        rows.append((kind, *map(float, found)))
    return pd.DataFrame(rows, columns=["root", "evidence", "evidence_share", "kernel", "predictive", "floor"])


def implied(problem: Task, Phi: Float[Tensor, "N k"], Phi_test: Float[Tensor, "n k"]) -> tuple[Tensor, ...]:
    """From features: the evidence; kernel, predictive means and standard deviations at the test inputs; the floor."""
    posterior = blr_posterior(Phi, problem.y, problem.noise_variance)
    evidence = log_evidence(Phi, problem.y, problem.noise_variance, posterior)
    variance = predictive_variance(Phi_test, covariance_tril(posterior.precision_tril), problem.noise_variance)
    predictive = torch.stack([Phi_test @ posterior.mean, variance.sqrt()])
    return evidence, Phi_test @ Phi_test.mT, predictive, mean_field_optimum_kl(posterior.precision_tril)


def direct_roots(K: Square, order: Tensor) -> dict[str, Square]:
    """Roots R of K = RRᵀ, computed from K alone (R = Pᵀ chol(PKPᵀ) for permuted rows)."""
    eigenvalues, U = torch.linalg.eigh(K)
    permuted = torch.linalg.cholesky(K[order][:, order])[order.argsort()]
    scaled = U * eigenvalues.sqrt()
    return {OWN: torch.linalg.cholesky(K), ORDERS: permuted, SYMMETRIC: scaled @ U.mT, EIGENVECTORS: scaled}


def judged(roots: pd.DataFrame, splits: pd.DataFrame, direct: pd.DataFrame) -> Frames:
    """Frames for claims, tables and the figure, by split and by data set."""
    floors, predictive = (by_split(roots, value) for value in ("floor", "predictive"))
    below_own = roots["floor"] < roots.groupby(SPLIT)["floor"].transform("first")  # OWN is the first
    ranks = below_own[roots["root"] == ORDERS].groupby(roots["dataset"]).mean()
    differences = direct.drop(columns=["split", "root"]).groupby("dataset", sort=False)
    return {
        "floors by split": floors.reset_index(),
        "predictive by split": predictive.reset_index(),
        "ranks": ranks.reset_index(name="rank"),
        "floors": by_data_set(floors.assign(largest=splits.set_index(SPLIT)["largest"])),
        "predictive": by_data_set(predictive),
        "differences": differences.max(skipna=False).reset_index(),
    }


def by_split(roots: pd.DataFrame, value: str) -> pd.DataFrame:
    """One row per split: the value, or median, by kind of root; for orders of Z also the 5% and 95% quantiles.

    Raises:
        ValueError: a value is NaN, which pandas would skip.
    """
    if roots[value].isna().any():
        raise ValueError(f"some {value} is not a number")
    orders = roots[roots["root"] == ORDERS].groupby(SPLIT)[value]
    medians = roots.pivot_table(value, SPLIT, "root", aggfunc="median", sort=False)
    return medians.assign(low=orders.quantile(0.05), high=orders.quantile(0.95))


def by_data_set(splits: pd.DataFrame) -> pd.DataFrame:
    """Means over a data set's splits, and its place and label in the figure."""
    groups = splits.groupby("dataset", sort=False)
    means = groups.mean().assign(splits=groups.size()).reset_index()
    return means.assign(place=means.index, label=means["dataset"] + "\n" + means["splits"].astype(str) + " splits")
