"""What Burt et al. (2020) do not show: the KL of EXACT-FFG depends on the root of k(Z,Z) that makes the features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from pydantic import BaseModel, ConfigDict, Field
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
    cholesky_rotation,
    diagonalising_rotation,
    eigenvector_rotation,
    factorised_floor,
    largest_floor,
    levelled,
    random_rotation,
    symmetric_rotation,
)
from fsvi_bench.papers.claims import Values
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.official import official_splits, read_official
from fsvi_bench.tasks.task import Task, bind_task

OWN, ORDERS, SYMMETRIC, EIGENVECTORS, RANDOM = "own", "orders", "symmetric", "eigenvectors", "random"
SPLIT = ["dataset", "split"]
FOUND = ["evidence", "evidence_share", "kernel", "predictive", "floor"]  #: as `compare_directly` has them


class Settings(BaseModel):
    """The first `splits` of each data set that has official tasks; so many orders of Z, and as many rotations."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    datasets: tuple[str, ...] = Field(min_length=1)
    splits: int = Field(ge=2)
    permutations: int = Field(ge=2)
    seed: int


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """All splits of the data sets that have official tasks; the others are named."""
    found, left_out = [], []
    for dataset in settings.datasets:
        places = official_splits(dataset)[: settings.splits]
        if len(places) < 2:
            laboratory.note(f"{dataset} has less than two official tasks: left out")
            left_out.append(dataset)
            continue
        tasks = (bind_task(read_official(dataset, place).task, laboratory.data_dir) for place in places)
        found += [examine(task, settings) for task in tasks]
    if not found:
        raise InputError(
            f"none of {', '.join(settings.datasets)} has two official tasks or more; name data sets that have"
        )
    roots, splits = (
        pd.concat([tried for tried, _ in found], ignore_index=True),
        pd.DataFrame([split for _, split in found]),
    )
    largest = splits.set_index(SPLIT)["largest"]
    floors = by_data_set(by_split(roots, "floor").assign(largest=largest))
    floors.attrs["left_out"] = f"; left out, fewer than two official tasks: {', '.join(left_out)}" if left_out else ""
    worst = splits.groupby("dataset", sort=False)[FOUND].apply(pd.DataFrame.max, skipna=False).reset_index()

    def name_data_sets(axes: Axes) -> None:
        axes.set(xlim=(-0.5, len(floors) - 0.5))
        axes.set_xticks(floors["place"], floors["dataset"] + "\n" + floors["splits"].astype(str) + " splits")

    return Findings(
        frames={
            "roots": roots,
            "splits": splits,
            "floors": floors,
            "predictive": by_data_set(by_split(roots, "predictive")),
            "differences": worst,
        },
        statistics={**identities(splits), **dependence(roots)},
        drawings={"data sets": name_data_sets},
    )


def examine(problem: Task, settings: Settings) -> tuple[pd.DataFrame, dict[str, str | float]]:
    """All roots of one task, a row each with floor and predictive KL [nats]; and what is found of the task as a whole:
    the largest floor of any root, that of a rotation that reaches it, that in Λ's eigenvectors, and differences.

    Raises:
        ValueError: the task's features have no root, as an RBF grid's.
    """
    tril, task, C = problem.feature_map.tril, problem.frozen, problem.truth.posterior.precision_tril
    if tril is None:
        raise ValueError(f"{task.dataset} has features without a root")
    generator = torch.Generator().manual_seed(derive_seed(settings.seed, task.sha256, "orders") % 2**63)
    orders = [torch.randperm(task.k, generator=generator) for _ in range(settings.permutations)]
    rotations: dict[str, Iterable[Tensor]] = {
        OWN: [torch.eye(task.k, dtype=torch.float64)],
        ORDERS: (cholesky_rotation(tril, order) for order in orders),
        SYMMETRIC: [symmetric_rotation(tril)],
        EIGENVECTORS: [eigenvector_rotation(tril)],
        RANDOM: (random_rotation(task.k, generator) for _ in orders),
    }
    tried = pd.DataFrame(
        [(kind, *_floor_and_predictive(problem, Q)) for kind, choices in rotations.items() for Q in choices],
        columns=["root", "floor", "predictive"],
    )
    return tried.assign(dataset=task.dataset, split=task.split), {
        "dataset": task.dataset,
        "split": task.split,
        "largest": float(largest_floor(C)),
        "levelled": float(factorised_floor(levelled(C), C)),
        "diagonal": float(factorised_floor(diagonalising_rotation(C).mT @ C, C)),
        **compare_directly(problem, orders[0], tried.groupby("root")["floor"].first().to_dict()),
    }


def _floor_and_predictive(problem: Task, Q: Float[Tensor, "k k"]) -> tuple[float, float]:
    """EXACT-FFG's KL with the features Qᵀφ, and the mean KL of the exact predictive to its own at the test inputs.

    Their means agree. The variances are Σ φ'_i²/Λ'_ii + σ² for the one, and do not depend on Q for the other.
    """
    truth, noise = problem.truth, problem.frozen.noise_variance
    C = truth.posterior.precision_tril
    factor = Q.mT @ C
    exact = predictive_variance(problem.Phi_test, truth.covariance_tril, noise)
    factorised = (problem.Phi_test @ Q).square() @ factor.square().sum(-1).reciprocal() + noise
    zero = torch.zeros_like(exact)
    return float(factorised_floor(factor, C)), float(normal_kl(zero, exact, zero, factorised).mean())


def compare_directly(problem: Task, order: Tensor, floors: Mapping[Any, float]) -> dict[str, float]:
    """Roots factorised from k(Z,Z) + jitter·I, features by solving with them, posteriors from those features: the
    largest differences from the task's own.

    Evidence in nats and as a share of its absolute value; kernel between test inputs, as a share of its largest value;
    predictive means and deviations (noise included) in the own predictive's deviations; floors relative to `floors`,
    which are by rotation.
    """
    feature_map = problem.feature_map
    kernel, Z = (feature_map.lengthscales, feature_map.outputscale), feature_map.inducing_points
    K = rbf_kernel(Z, Z, *kernel) + problem.frozen.jitter * torch.eye(len(Z), dtype=torch.float64)
    cross, cross_test = (rbf_kernel(Z, X, *kernel) for X in (problem.X, problem.X_test))
    own, differences = _implied(problem, problem.Phi, problem.Phi_test), []
    for kind, root in direct_roots(K, order).items():
        other = _implied(problem, torch.linalg.solve(root, cross).mT, torch.linalg.solve(root, cross_test).mT)
        evidence = abs(own.evidence - other.evidence)
        apart = torch.stack([own.mean - other.mean, own.deviation - other.deviation]) / own.deviation
        kernels = (own.kernel - other.kernel).abs().max() / own.kernel.abs().max()
        floor = abs(other.floor / floors[kind] - 1)
        row = evidence, evidence / abs(own.evidence), float(kernels), float(apart.abs().max()), floor
        differences.append(row)
    return dict(pd.DataFrame(differences, columns=FOUND).max(skipna=False))


def direct_roots(K: Float[Tensor, "k k"], order: Tensor) -> dict[str, Float[Tensor, "k k"]]:
    """Roots R of K = RRᵀ (with the rows in another order, R = Pᵀ chol(PKPᵀ)), from K alone."""
    eigenvalues, U = torch.linalg.eigh(K)
    permuted = torch.empty_like(K)
    permuted[order] = torch.linalg.cholesky(K[order][:, order])
    scaled = U * eigenvalues.sqrt()
    return {OWN: torch.linalg.cholesky(K), ORDERS: permuted, SYMMETRIC: scaled @ U.mT, EIGENVECTORS: scaled}


class _Implied(NamedTuple):
    evidence: float
    kernel: Float[Tensor, "N_test N_test"]
    mean: Float[Tensor, " N_test"]
    deviation: Float[Tensor, " N_test"]
    floor: float


def _implied(problem: Task, Phi: Float[Tensor, "N k"], Phi_test: Float[Tensor, "N_test k"]) -> _Implied:
    """What one root's features imply."""
    noise = problem.frozen.noise_variance
    posterior = blr_posterior(Phi, problem.y, noise)
    variance = predictive_variance(Phi_test, covariance_tril(posterior.precision_tril), noise)
    return _Implied(
        float(log_evidence(Phi, problem.y, noise, posterior)),
        Phi_test @ Phi_test.mT,
        Phi_test @ posterior.mean,
        variance.sqrt(),
        float(mean_field_optimum_kl(posterior.precision_tril)),
    )


def by_split(roots: pd.DataFrame, value: str) -> pd.DataFrame:
    """One row a split: by kind of root, of several the median; of the orders of Z the 5% and 95% quantile, too."""
    if roots[value].isna().any():  # pandas would pass over it
        raise ValueError(f"some {value} is not a number")
    wide = roots.pivot_table(value, SPLIT, "root", aggfunc="median", sort=False)
    orders = roots[roots["root"] == ORDERS].groupby(SPLIT)[value]
    return wide.assign(low=orders.quantile(0.05), high=orders.quantile(0.95))


def by_data_set(splits: pd.DataFrame) -> pd.DataFrame:
    """Means over a data set's splits, and where it stands in the figure."""
    groups = splits.groupby("dataset", sort=False)
    means = groups.mean().assign(splits=groups.size()).reset_index()
    return means.assign(place=means.index, edge=means.index + 0.5)


def identities(splits: pd.DataFrame) -> dict[str, Values]:
    """What no root moves, to rounding, and the two ends between which it moves the floor; by split."""
    by_case = splits.set_index(splits["dataset"] + " split " + splits["split"].astype(str))
    found = {
        "log evidence: largest difference between roots, share of its absolute value": by_case["evidence_share"],
        "kernel at test inputs: largest difference between roots, share of its largest value": by_case["kernel"],
        "exact predictive: largest difference between roots, in its standard deviations": by_case["predictive"],
        "floor: largest relative difference between rotating and features from the root itself": by_case["floor"],
        "diagonalising root: largest floor [nats]": by_case["diagonal"],
        "levelling root: largest relative difference from k/2 log(tr Lambda/k) - 1/2 log det Lambda": (
            by_case["levelled"] / by_case["largest"] - 1
        ),
    }
    return {name: values.to_dict() for name, values in found.items()}


def dependence(roots: pd.DataFrame) -> dict[str, Values]:
    """How the floor moves: ratios within splits, by data set; and one mean rank of each data set, whose splits share
    rows as data sets do not."""
    floors, predictive = by_split(roots, "floor"), by_split(roots, "predictive")
    below = roots["floor"] < roots.groupby(SPLIT)["floor"].transform("first")  # OWN is the first
    ranks = below.groupby([roots["dataset"], roots["root"]]).mean().xs(ORDERS, level="root") - 0.5
    official = "of the data sets with official tasks"
    ratios = {
        f"order of Z: 95% over 5% quantile of the floors, least {official}": floors["high"] / floors["low"],
        f"symmetric root's floor over the median order's, least {official}": floors[SYMMETRIC] / floors[ORDERS],
        f"eigenvector root's floor over the median order's, greatest {official}": floors[EIGENVECTORS] / floors[ORDERS],
        f"random rotations' median floor over the median order's, least {official}": floors[RANDOM] / floors[ORDERS],
        f"eigenvector root's predictive KL over the median order's, greatest {official}": predictive[EIGENVECTORS]
        / predictive[ORDERS],
    }
    return {
        "order of Z: distance from 1/2 of the mean rank of the task's own order": ranks.to_list(),
        **{name: of_splits.groupby("dataset").agg(list).to_dict() for name, of_splits in ratios.items()},
    }


BURT2020_ROOTS = Experiment("burt2020-roots", Settings, investigate)
