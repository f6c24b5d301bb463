"""Frozen references against NumPy, SciPy and the route that scoring takes; what is read is what was written."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.references import References, freeze, read_references, write_references
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.scoring.scores import score
from tests.leaderboard.boards import entry
from tests.leaderboard.planted import planted_tasks

TASKS = planted_tasks()


@pytest.fixture(scope="module")
def frozen():
    return freeze(TASKS, [])


class Dense:
    """One problem in NumPy, by inverses; nothing of `maths` but the features themselves."""

    def __init__(self, problem):
        self.task = problem.frozen
        self.Phi, self.Phi_test, self.Phi_box = (
            phi.numpy() for phi in (problem.Phi, problem.Phi_test, problem.Phi_box)
        )
        self.y, self.y_test = problem.y.numpy(), problem.y_test.numpy()
        self.noise, self.std = float(problem.frozen.noise_variance), float(problem.frozen.target_std)
        self.precision = self.Phi.T @ self.Phi / self.noise + np.eye(self.Phi.shape[1])
        self.covariance = np.linalg.inv(self.precision)
        self.mean = self.covariance @ self.Phi.T @ self.y / self.noise

    def predictive(self, Phi):
        return Phi @ self.mean, np.einsum("nk,kl,nl->n", Phi, self.covariance, Phi) + self.noise


def kl_of_normals(mean, variance, other):
    """KL(N(mean, variance) ‖ N(mean, other)) by quadrature."""
    p, q = norm(mean, math.sqrt(variance)), norm(mean, math.sqrt(other))
    reach = 12 * math.sqrt(variance)
    return quad(lambda y: p.pdf(y) * (p.logpdf(y) - q.logpdf(y)), mean - reach, mean + reach, epsabs=1e-13)[0]


@pytest.mark.parametrize("number", range(3))
def test_each_task_has_what_numpy_says(frozen, number):
    """Condition numbers are below 100 here: dense inverses keep 1e-10."""
    found = frozen.tasks[number]
    dense = Dense(TASKS.problem(found.place))
    assert (found.task_sha256, found.k, found.N, found.N_test) == (TASKS.tasks[found.place].sha256, 5, 30, 10)
    variances = 1 / np.diag(dense.precision)
    trace = np.trace(dense.precision @ np.diag(variances))
    floor = 0.5 * (trace - 5 - np.linalg.slogdet(dense.precision)[1] - np.log(variances).sum())
    assert floor > 0.1
    assert found.ffg_floor == pytest.approx(floor, rel=1e-10)
    mean, variance = dense.predictive(dense.Phi_test)
    exact, mode = norm(mean, np.sqrt(variance)), norm(mean, math.sqrt(dense.noise))
    for value, predictive in ((found.nlpd_exact, exact), (found.map_nlpd, mode)):
        expected = math.log(dense.std) - predictive.logpdf(dense.y_test).mean()
        assert value == pytest.approx(expected, rel=1e-10)
    errors = dense.y_test - mean
    assert found.rmse_exact == pytest.approx(dense.std * math.sqrt(np.mean(errors**2)), rel=1e-10)
    inside = {level: np.mean(np.abs(norm.cdf(errors / np.sqrt(variance)) - 0.5) <= int(level) / 200)
              for level in ("50", "90", "95")}  # fmt: skip
    assert found.coverage_exact == inside
    marginal = multivariate_normal(np.zeros(30), dense.Phi @ dense.Phi.T + dense.noise * np.eye(30))
    assert found.log_evidence == pytest.approx(marginal.logpdf(dense.y), rel=1e-10)
    assert found.noise_variance == dense.noise
    assert found.condition_precision < 100
    assert found.condition_precision == pytest.approx(np.linalg.cond(dense.precision), rel=1e-9)
    assert (found.rand_a_full, found.rand_a_ffg, found.rand_a_predictive_kl_box) == (None, None, None)


@pytest.mark.parametrize("number", range(3))
def test_the_maps_predictive_kl_is_that_of_its_densities(frozen, number):
    """By adaptive quadrature of the two densities at every test input, and at some of the box."""
    found = frozen.tasks[number]
    dense = Dense(TASKS.problem(found.place))
    mean, variance = dense.predictive(dense.Phi_test)
    expected = np.mean([kl_of_normals(m, v, dense.noise) for m, v in zip(mean, variance, strict=True)])
    assert found.map_predictive_kl_test == pytest.approx(expected, rel=1e-9)
    _, variance = dense.predictive(dense.Phi_box)
    ratio = variance / dense.noise
    assert found.map_predictive_kl_box == pytest.approx(0.5 * np.mean(ratio - 1 - np.log(ratio)), rel=1e-10)


@pytest.mark.parametrize("number", range(3))
def test_scoring_says_the_same_of_the_map_and_of_the_floor(frozen, number):
    """Bernoulli dropout that keeps every weight is the point mass; its mixture is integrated to some 1e-8 nats."""
    found = frozen.tasks[number]
    problem = TASKS.problem(found.place)
    exact = problem.truth.posterior
    mode = score(BernoulliDropoutPosterior(exact.mean, torch.tensor(1.0, dtype=torch.float64)), problem)
    assert mode.kl == math.inf
    assert found.map_predictive_kl_test == pytest.approx(mode.predictive_kl_test, abs=1e-7)
    assert found.map_predictive_kl_box == pytest.approx(mode.predictive_kl_box, abs=1e-7)
    assert found.map_nlpd == pytest.approx(mode.nlpd, abs=1e-9)
    best = score(FactorisedGaussian(exact.mean, exact.precision_tril.square().sum(-1).rsqrt()), problem)
    assert found.ffg_floor == pytest.approx(best.kl, rel=1e-12)
    for factor in (0.9, 1.1):
        other = FactorisedGaussian(exact.mean, factor * exact.precision_tril.square().sum(-1).rsqrt())
        assert score(other, problem).kl > best.kl


def test_rand_a_is_not_frozen_from_scores_that_nobody_ran(frozen):
    with pytest.raises(
        InputError, match=r"rand-a-full has no re-run to rely on \(re-scored only.*verify it with --rerun"
    ):
        freeze(TASKS, [entry("rand-a-full", frozen, again=False)])


def test_rand_a_is_frozen_from_its_verified_submissions_alone(frozen):
    full = entry("rand-a-full", frozen)
    ffg = entry("rand-a-ffg", frozen, "ffg", diverged=[("boston", 1)])
    others = [entry("rand-a", frozen), entry("rand-a-full-2", frozen), entry("exact-full", frozen, kl=0.0)]
    found = freeze(TASKS, [*others, ffg, full])
    for task, of_full, of_ffg in zip(found.tasks, full.verification.cells, ffg.verification.cells, strict=True):
        assert task.rand_a_full == of_full.scores.kl
        assert task.rand_a_predictive_kl_box == of_full.scores.predictive_kl_box
        assert task.rand_a_ffg == (None if task.place == ("boston", 1) else of_ffg.scores.kl)
    assert found.model_copy(update={"tasks": frozen.tasks}) == frozen
    none = [
        entry("rand-a-full", frozen, verified=False),
        entry("rand-a-ffg", frozen, "full"),  # another family under that name
        entry("rand-a-full", frozen.model_copy(update={"tasks": tuple(
            task.model_copy(update={"task_sha256": "e" * 64}) for task in frozen.tasks)})),
    ]  # fmt: skip
    for each in none:
        assert freeze(TASKS, [each]) == frozen
    endless = entry("rand-a-full", frozen, kl=math.inf, predictive_kl_box=None)
    assert freeze(TASKS, [endless]) == frozen


def test_what_is_written_is_read_and_the_same_twice(tmp_path, frozen):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    write_references(first, frozen)
    write_references(second, freeze(TASKS, []))
    assert first.read_bytes() == second.read_bytes()
    again = read_references(first)
    assert again == frozen
    assert again.datasets == ("boston", "energy")
    assert again.splits == {"boston": [0, 1], "energy": [2]}
    assert again.test_train_ratio("boston") == pytest.approx(1 / 3, rel=1e-15)
    assert list(again.by_place) == list(TASKS.tasks)


def test_splits_come_in_order_whatever_the_order_of_the_tasks(frozen):
    shuffled = type(TASKS)(dict(reversed(TASKS.tasks.items())), TASKS.load)
    found = freeze(shuffled, [])
    assert [task.place for task in found.tasks] == [("energy", 0), ("boston", 0), ("boston", 1)]
    assert found.by_place == frozen.by_place


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.update(extra=1), "extra"),
        (lambda text: text.update(format="fsvi-references/2"), "format"),
        (lambda text: text.update(protocol="other"), "protocol"),
        (lambda text: text["tasks"][0].update(ffg_floor="1.0"), "tasks.0.ffg_floor"),
        (lambda text: text["tasks"][0].update(ffg_floor=None), "tasks.0.ffg_floor"),
        (lambda text: text["tasks"][0].update(N=30.5), "tasks.0.N"),
        (lambda text: text["tasks"][0].update(N=0), "tasks.0.N"),
        (lambda text: text["tasks"][0].update(task_sha256="abc"), "tasks.0.task_sha256"),
        (lambda text: text["tasks"][0].update(coverage_exact={"50": 0.5}), "tasks.0.coverage_exact"),
        (lambda text: text["tasks"][1].pop("rand_a_full"), "tasks.1.rand_a_full"),
        (lambda text: text["tasks"].append(text["tasks"][0]), "stands twice"),
        (lambda text: text["tasks"].pop(), "in their order"),
        (lambda text: text["tasks"].clear(), "tasks"),
        (lambda text: text["datasets"].reverse(), "in their order"),
    ],
)
def test_anything_else_is_refused_by_field(tmp_path, frozen, change, said):
    text = json.loads(frozen.model_dump_json())
    change(text)
    path = tmp_path / "reference.json"
    path.write_text(json.dumps(text))
    with pytest.raises(InputError) as refusal:
        read_references(path)
    assert said in str(refusal.value)
    assert "freeze" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_is_no_file_of_references_is_refused(tmp_path):
    with pytest.raises(InputError, match="make it with 'fsvi-bench leaderboard freeze'"):
        read_references(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot read"):
        read_references(tmp_path)
    (tmp_path / "half.json").write_text('{"format": ')
    with pytest.raises(InputError, match="is not fsvi-references/1"):
        read_references(tmp_path / "half.json")
    with pytest.raises(InputError, match="no official tasks"):
        freeze(planted_tasks({}), [])
    with pytest.raises(ValueError, match="at least 1"):
        References(datasets=(), tasks=())
