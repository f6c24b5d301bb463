"""EXACT-FFG's KL by the root of the features: against features, posteriors and floors written out; its statistics."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.linalg import sqrtm

from fsvi_bench.errors import InputError
from fsvi_bench.papers.burt2020.feature_roots import cholesky_rotation, factorised_floor
from fsvi_bench.papers.burt2020.roots import (
    EIGENVECTORS,
    ORDERS,
    OWN,
    RANDOM,
    SYMMETRIC,
    compare_directly,
    examine,
    investigate,
    judged,
)
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.tasks.official import read_official
from fsvi_bench.tasks.task import bind_task
from tests import reference


def settings(**values):
    found = REPRODUCTIONS["burt2020-roots"]._settings("quick")
    return type(found).model_validate(found.model_dump() | values)


@pytest.fixture(scope="module")
def problem():
    """Diabetes comes with scikit-learn; cond k(Z,Z) is 1e6."""
    return bind_task(read_official("diabetes", 0).task)


@pytest.fixture(scope="module")
def found(problem):
    return examine(problem, settings(permutations=3))


@pytest.fixture(scope="module")
def floors(found):
    """By kind of root."""
    return found["roots"].groupby("root")["floor"].agg(list)


# --- One task ---------------------------------------------------------------------------------------------------------


def written_out(problem, root):
    """Floor and mean predictive KL of EXACT-FFG with features R⁻¹k(Z, x), by inverses and loops."""
    kernel = (problem.frozen.lengthscales.numpy(), float(problem.frozen.outputscale))
    Z, noise = problem.frozen.inducing_points.numpy(), float(problem.frozen.noise_variance)
    Phi, Phi_test = (
        np.linalg.solve(root, reference.rbf_kernel(Z, X.numpy(), *kernel)).T for X in (problem.X, problem.X_test)
    )
    _, covariance = reference.blr_posterior(Phi, problem.y.numpy(), noise)
    variances = 1 / np.diag(Phi.T @ Phi / noise + np.eye(len(Z)))
    floor = 0.5 * (np.linalg.slogdet(covariance)[1] - np.log(variances).sum())
    divergences = []
    for row in Phi_test:
        exact, approximate = row @ covariance @ row + noise, row @ (variances * row) + noise
        divergences.append(0.5 * (exact / approximate - 1 - math.log(exact / approximate)))
    return floor, np.mean(divergences)


def test_floors_and_predictive_kls_equal_those_of_each_root_written_out(problem, found):
    task = problem.frozen
    K = reference.rbf_kernel(
        task.inducing_points.numpy(), task.inducing_points.numpy(), task.lengthscales.numpy(), float(task.outputscale)
    ) + float(task.jitter) * np.eye(task.k)
    eigenvalues, U = np.linalg.eigh(K)
    roots = {OWN: np.linalg.cholesky(K), SYMMETRIC: sqrtm(K).real, EIGENVECTORS: U * np.sqrt(eigenvalues)}
    for kind, root in roots.items():
        floor, predictive = written_out(problem, root)
        # eps · cond(K), 1e-10, and as much again for covariances by an inverse.
        row = found["roots"][found["roots"]["root"] == kind]
        assert row["floor"].to_list() == [pytest.approx(floor, rel=1e-8)]
        assert row["predictive"].to_list() == [pytest.approx(predictive, rel=1e-7)]


def test_the_floors_lie_between_the_ends_and_only_orders_and_rotations_have_many(problem, found, floors):
    assert floors.map(len).to_dict() == {OWN: 1, ORDERS: 3, SYMMETRIC: 1, EIGENVECTORS: 1, RANDOM: 3}
    split, every = found["splits"].iloc[0], [floor for of_kind in floors for floor in of_kind]
    assert len(set(every)) == len(every)
    assert abs(split["diagonal"]) < 1e-12 < min(every)
    assert max(every) < split["largest"] == pytest.approx(split["levelled"], rel=1e-12)


def test_a_wrong_floor_and_another_kernel_are_seen(problem, floors):
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    C = problem.truth.posterior.precision_tril
    in_order = factorised_floor(cholesky_rotation(problem.feature_map.tril, order).mT @ C, C)
    by_rotation = {kind: floors[kind][0] for kind in (OWN, SYMMETRIC, EIGENVECTORS)} | {ORDERS: in_order}

    def largest(task=problem, **wrong):
        return compare_directly(task, order, by_rotation | wrong).drop(columns="root").max()

    assert largest().max() < 1e-9
    for kind, floor in by_rotation.items():
        assert largest(**{kind: 1.01 * floor})["floor"] == pytest.approx(0.01 / 1.01, rel=1e-6)
    other = bind_task(problem.frozen)
    # What a cached property would compute: features a thousandth too long.
    other.__dict__.update(Phi=1.001 * problem.Phi, Phi_test=1.001 * problem.Phi_test)
    seen = largest(other)
    assert seen["kernel"] == pytest.approx(1 - 1.001**-2, rel=1e-6)
    y, kernel, noise = problem.y.numpy(), (problem.Phi @ problem.Phi.mT).numpy(), float(problem.noise_variance)
    covariances = (size**2 * kernel + noise * np.eye(len(y)) for size in (1, 1.001))
    was, now = (reference.gaussian_log_density(y, 0 * y, covariance) for covariance in covariances)
    apart = abs(now - was)
    assert seen[["evidence", "evidence_share"]].to_list() == pytest.approx([apart, apart / abs(now)], rel=1e-6)
    assert seen["predictive"] > 1e-4


# --- Statistics -------------------------------------------------------------------------------------------------------


def planted(dataset, split, scale):
    """Orders' floors from 10 to 20 times the scale in steps of one: their quantiles are known."""
    floors = {OWN: [12.5], ORDERS: range(10, 21), SYMMETRIC: [45.0], EIGENVECTORS: [3.0], RANDOM: [60.0, 60.0]}
    roots = pd.DataFrame([(kind, scale * floor) for kind, found in floors.items() for floor in found])
    roots = roots.set_axis(["root", "floor"], axis=1).assign(dataset=dataset, split=split)
    predictive = roots["floor"].where(roots["root"] != EIGENVECTORS, 30 * scale)
    direct = {"evidence": 1e-9, "evidence_share": 1e-12 * scale, "kernel": 1e-13, "predictive": 1e-10, "floor": 1e-12}
    whole = {"largest": 70.0, "levelled": 70.7, "diagonal": -1e-9 * scale}
    own = {"dataset": dataset, "split": split}
    frames = {"roots": roots.assign(predictive=predictive), "splits": pd.DataFrame([{**own, **whole}])}
    return frames | {"direct": pd.DataFrame([{**own, "root": OWN, **direct}])}


@pytest.fixture
def two_data_sets():
    """Frames of data sets a and b, the scale of which is twice that of a."""
    found = [
        planted(name, split, scale * (1 + split)) for name, scale in (("b", 2.0), ("a", 1.0)) for split in range(3)
    ]
    return {name: pd.concat([each[name] for each in found], ignore_index=True) for name in found[0]}


def verdicts(frames):
    frames = frames | judged(**frames)
    return [claim.judge(claim.at.of(frames)) for claim in REPRODUCTIONS["burt2020-roots"].file.claims]


def test_statistics_of_planted_floors(two_data_sets):
    roots = two_data_sets["roots"]
    roots.loc[(roots["root"] == SYMMETRIC) & (roots["dataset"] == "b"), "floor"] *= 30 / 45
    # In b the symmetric root is two, in a three times as far as the median order.
    expected = {
        "log evidence: largest": (6e-12, "b, split 2, own"), "kernel at test": (1e-13, "b, split 0, own and 5 more"),
        "exact predictive: largest": (1e-10, "b, split 0, own and 5 more"),
        "floor: largest relative": (1e-12, "b, split 0, own and 5 more"), "diagonalising root": (6e-9, "b, split 2"),
        "levelling root": (0.01, "b, split 0 and 5 more"), "order of Z: 95%": (19.5 / 10.5, None),
        "order of Z: distance": (0.5 - 3 / 11, None), "symmetric root's floor": (2.0, "b"),
        "eigenvector root's floor": (0.2, None), "random rotations": (4.0, None),
        "eigenvector root's predictive": (2.0, None),
    }  # fmt: skip
    found = verdicts(two_data_sets)
    for start, (value, case) in expected.items():
        (verdict,) = [verdict for verdict in found if verdict.statistic.startswith(start)]
        assert verdict.value == pytest.approx(value, rel=1e-9)
        assert case is None or verdict.statistic.endswith(f" ({case})")
    assert len(found) == len(expected)
    failed = {verdict.statistic.split(":")[0].split("'")[0] for verdict in found if not verdict.holds}
    assert failed == {"levelling root", "order of Z", "eigenvector root"}


def test_with_a_failed_split_no_identity_holds(two_data_sets):
    """The last of all, where Python's max would pass over it."""
    for name, columns in (("splits", ["levelled", "diagonal"]), ("direct", two_data_sets["direct"].columns[3:])):
        two_data_sets[name].loc[two_data_sets[name].index[-1], columns] = math.nan
    lost = [verdict for verdict in verdicts(two_data_sets) if math.isnan(verdict.value)]
    assert len(lost) == 6
    assert not any(verdict.holds for verdict in lost)
    two_data_sets["roots"].loc[3, "floor"] = math.nan
    with pytest.raises(ValueError, match="some floor is not a number"):
        judged(**two_data_sets)


def test_data_sets_without_official_tasks_are_left_out_and_named():
    notes = []

    class Told:
        note, data_dir = notes.append, None

    with pytest.raises(InputError, match="none of toy has two official tasks"):
        investigate(settings(datasets=["toy"]), Told())
    assert notes == ["toy is left out: it has fewer than two official tasks"]
