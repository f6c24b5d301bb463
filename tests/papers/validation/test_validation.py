"""The validation page: its numbers against dense NumPy, its statistics by hand, and the committed page against both."""

import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.papers.claims import judge
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.papers.validation import experiment
from fsvi_bench.papers.validation.experiment import (
    compare,
    dropout,
    findings,
    gpflow,
    investigate,
    page,
    titsias_variance,
)
from fsvi_bench.tasks.official import read_official
from fsvi_bench.tasks.task import bind_task
from tests import reference

PAGE = Path(__file__).parents[3] / "docs" / "validation.md"
COMMAND = "run `fsvi-bench reproduce validation --out docs` and commit what it writes"
FILE = REPRODUCTIONS["validation"].file
SETTINGS = REPRODUCTIONS["validation"]._settings("paper")
MISSING = ["naval", "protein"]


def planted(dataset, split, nlpd, rmse, gap=math.nan):
    """A split with made-up numbers: Titsias's NLPD 0.1 below the exact one, GPflow's `gap` below that."""
    bound = -1.0 - split
    return {
        "dataset": dataset,
        "split": split,
        "task_sha256": "0" * 64,
        "converged": split != 1,
        "nlpd": nlpd,
        "rmse": rmse,
        "titsias_nlpd": nlpd - 0.1,
        "bound": bound,
        "noise": 0.1,
        "missing_share": 0.125,
        "nlpd_with_less_jitter": math.nan if split == 2 else nlpd + 0.001,
        "gpflow_bound": bound + gap,
        "gpflow_noise": 0.1 + 0 * gap,
        "gpflow_nlpd": nlpd - 0.1 - gap,
        "gpflow_rmse": rmse + 0 * gap,
    }


PLANTED = pd.DataFrame(
    [
        planted("boston", 0, 2.0, 1.0, gap=0.5),
        planted("boston", 1, 3.0, 2.0, gap=-0.25),
        planted("boston", 2, 4.0, 3.0),
        planted("yacht", 0, 1.0, 3.0, gap=-0.125),
        planted("yacht", 1, 1.5, 2.0),
        planted("yacht", 2, 2.0, 1.0),
    ]
)


@pytest.fixture
def published(monkeypatch):
    """Of MC dropout, made up: half a nat above boston's mean, a quarter below yacht's."""
    numbers = {"dropout_nlpd": [3.5, 1.25], "dropout_nlpd_spread": [0.25, 0.5]}
    rmse = {"dropout_rmse": [4.0, 5.0], "dropout_rmse_spread": [0.5, 1.0]}
    monkeypatch.setattr(
        experiment, "dropout", lambda: pd.DataFrame({"dataset": ["boston", "yacht"], **numbers, **rmse})
    )


def judged(found):
    return judge(FILE.claims, found)


def test_the_worst_data_set_decides_each_claim(published):
    """Boston: ours less theirs −0.5 and +0.25 in bound, so a mean shortfall of 0.125, and as much above in NLPD, as is
    yacht below. The exact posterior's means are 3 and 1.5, half a nat below and a quarter above the published ones."""
    verdicts = judged(findings(PLANTED, MISSING))
    assert [verdict.value for verdict in verdicts] == pytest.approx([0.125, 0.125, 0.25], rel=1e-12)
    assert [verdict.holds for verdict in verdicts] == [False, False, False]
    assert [verdict.statistic.rsplit(" (")[-1] for verdict in verdicts] == ["boston)", "boston)", "yacht)"]
    cases = [claim.at.of(findings(PLANTED, MISSING)) for claim in FILE.claims]
    assert cases == [
        {"boston": [pytest.approx(boston, rel=1e-12)], "yacht": [pytest.approx(yacht, rel=1e-12)]}
        for boston, yacht in ((0.125, -0.125), (0.125, -0.125), (-0.5, 0.25))
    ]


def test_the_page_says_what_was_found(published):
    """On the splits above; 2 of the 6 fits had not converged, and 2 have no factors with less jitter."""
    found = findings(PLANTED, MISSING)
    text = page(found, judged(found), "quick")
    words = " ".join(text.split())
    for said in (
        "This is a preview on a few splits; do not cite it.",
        "fsvi-bench reproduce validation --quick --out docs",
        "no official tasks yet and are left out: naval, protein.",
        "2 of the 6 fits behind our official tasks, on all",
        "at most 0.001 nats (boston split 0); 2 tasks could not be factorised with it.",
        "the exact posterior is better on boston; MC dropout is better on yacht. On yacht the difference is smaller",
        "| boston 0 | -1.0000 | -0.5000 | 0.100 | 0.100 | 2.0000 | 1.9000 | 1.4000 | 1.000 | 1.000 |",
        "is 12% of the Titsias variance",
    ):
        assert said in words, said
    assert "nan" not in text
    near = found["datasets"].assign(dropout_nlpd=[3.004, 1.25])
    near.attrs = found["datasets"].attrs
    words = " ".join(page({**found, "datasets": near}, judged(found), "paper").split())
    assert "better on none; MC dropout is better on yacht. On boston they are equal to the digits printed." in words
    assert "reproduce validation --out docs" in words


# --- References -------------------------------------------------------------------------------------------------------


def test_mc_dropouts_published_means_are_of_every_data_set():
    """Sums of its columns as Lakshminarayanan et al. (2017), table 1, cite them, so that no digit is changed unseen."""
    found = dropout()
    assert found["dataset"].tolist() == SETTINGS.datasets
    assert found.drop(columns="dataset").sum().round(9).to_dict() == {
        "dropout_nlpd": 10.91,
        "dropout_nlpd_spread": 0.75,
        "dropout_rmse": 20.08,
        "dropout_rmse_spread": 2.21,
    }


def test_gpflows_values_are_of_splits_that_are_compared():
    found = gpflow().set_index(["dataset", "split"])
    assert len(found) == 27
    assert set(found.index.get_level_values("dataset")) <= set(SETTINGS.datasets)
    assert found.loc[("concrete", 0), "gpflow_bound"] == pytest.approx(-0.416796788441991, rel=1e-14)


def test_a_missing_reference_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(experiment, "resource_dir", lambda name: tmp_path)
    with pytest.raises(InputError, match=r"cannot read .*gal2016_table_1\.csv: No such file or directory"):
        dropout()


def test_without_official_tasks_there_is_nothing_to_validate():
    with pytest.raises(InputError, match="none of the data sets has official tasks"):
        investigate(SETTINGS.model_copy(update={"datasets": ["toy"]}), None)


# --- What is committed ------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


@pytest.mark.slow
@pytest.mark.data
def test_the_committed_page_comes_out_again():
    """Words alike, and numbers, which other machines round otherwise, by a digit of the last place at most. 20 s."""
    found = investigate(SETTINGS, SimpleNamespace(data_dir=None))
    again, committed = (
        "\n".join(line.rstrip() for line in text.splitlines())
        for text in (page(found, judged(found), "paper"), PAGE.read_text(encoding="utf-8"))
    )
    words = [" ".join(NUMBER.sub("#", text).split()) for text in (again, committed)]
    assert words[0] == words[1], COMMAND
    for new, old in zip(NUMBER.findall(again), NUMBER.findall(committed), strict=True):
        digits, _, exponent = old.partition("e")
        last_place = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
        assert abs(float(new) - float(old)) <= 1.01 * last_place, COMMAND


def dense(problem):
    """NLPD and RMSE in original units of SoR and Titsias, with the N×N covariance of the linear model's targets."""
    task = problem.frozen
    Phi, Phi_test, noise = problem.Phi.numpy(), problem.Phi_test.numpy(), float(task.noise_variance)
    std, y_test = float(task.target_std), problem.y_test.numpy()
    cross, covariance = Phi_test @ Phi.T, Phi @ Phi.T + noise * np.eye(len(Phi))
    error = (y_test - cross @ np.linalg.solve(covariance, problem.y.numpy())) * std
    prior = (Phi_test**2).sum(1)
    linear = prior - np.einsum("nm,mn->n", cross, np.linalg.solve(covariance, cross.T)) + noise
    missing = float(task.outputscale) - prior
    nlpd = [
        (0.5 * np.log(2 * math.pi * variance * std**2) + 0.5 * error**2 / (variance * std**2)).mean()
        for variance in (linear, linear + missing)
    ]
    return *nlpd, np.sqrt((error**2).mean()), (missing / (linear + missing)).mean()


def test_mean_and_variance_are_titsias():
    """Eq. 6: mean k_xZ Σ⁻¹ k_ZX y/σ², variance k(x,x) − k_xZ (K⁻¹ − Σ⁻¹) k_Zx + σ², Σ = K + k_ZX k_XZ/σ².

    K has a condition number of 1e6 here.
    """
    problem = bind_task(read_official("diabetes", 0).task)
    task, Z, noise = problem.frozen, problem.frozen.inducing_points, float(problem.noise_variance)
    K, U, u = (
        reference.rbf_kernel(Z.numpy(), X.numpy(), task.lengthscales.numpy(), float(task.outputscale))
        for X in (Z, problem.X, problem.X_test)
    )
    K += float(task.jitter) * np.eye(len(K))
    inverse_sigma = np.linalg.inv(K + U @ U.T / noise)
    reduced = np.einsum("kn,kl,ln->n", u, np.linalg.inv(K) - inverse_sigma, u)
    assert titsias_variance(problem)[1].numpy() == pytest.approx(float(task.outputscale) - reduced + noise, rel=1e-8)
    mean = u.T @ inverse_sigma @ U @ problem.y.numpy() / noise
    assert (problem.Phi_test @ problem.truth.posterior.mean).numpy() == pytest.approx(mean, rel=1e-6, abs=1e-8)


@pytest.mark.data
@pytest.mark.parametrize(("name", "split"), [("boston", 0), ("concrete", 3), ("yacht", 10), ("energy", 3)])
def test_a_splits_numbers_are_what_dense_numpy_says_and_the_page_does(name, split):
    """The worst condition number here is 1e7; dense NumPy goes through differences of covariances, which lose another
    two digits."""
    official = read_official(name, split)
    problem = bind_task(official.task)
    row = compare(official, problem)
    assert [row[key] for key in ("nlpd", "titsias_nlpd", "rmse", "missing_share")] == pytest.approx(
        dense(problem), rel=1e-6
    )
    assert abs(row["nlpd_with_less_jitter"] - row["nlpd"]) < 0.01
    shown = f"| {name} {split} | {row['nlpd']:.3f} | {row['titsias_nlpd']:.3f} | {row['rmse']:#.3g} |"
    assert shown in PAGE.read_text(encoding="utf-8"), COMMAND
