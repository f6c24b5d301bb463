"""The options that functional methods share: weights, sources of A and of chance, averaging, learning rates."""

from __future__ import annotations

import math

import pytest
import torch

from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import unstack
from fsvi_bench.scoring.scores import trace_scores
from fsvi_bench.training.trainer import train
from tests.methods.table import (
    f64,
    method_on,
    of_objective,
    terms,
    toys,
    trained_method,
)

families = pytest.mark.parametrize("family", ["full", "ffg"])


# --- Options that all of them share -----------------------------------------------------------------------------------


def test_a_weight_of_N_over_B_is_that_number():
    data = TrainingData.of(toys()[:1])
    for name in ("rand-a", "fixed-a", "ssge"):
        settings = {"M": 10, "minibatch": 10, "max_steps": 9}
        if name == "fixed-a":
            settings["optimizer"] = "adam"
        word, number, other = (
            trained_method(name, data, "full", {**settings, "kl_weight": weight}).posterior()
            for weight in ("N/B", 4, 1)
        )
        assert torch.equal(word.mean, number.mean)
        assert torch.equal(word.scale_tril, number.scale_tril)
        assert not torch.equal(word.mean, other.mean)


@pytest.mark.parametrize(("source", "from_data"), [("mixed", 5), ("data", 11), ("box", 0)])
def test_where_measurement_points_come_from(source, from_data, toy):
    """M = 11, so that half is rounded down. A training input's features are among Φ's rows, a drawn input's are not."""
    data = TrainingData.of([toy])
    method = method_on("fixed-a", data, "full", {"M": 11, "draw_A": source})
    among = (method.Phi_A[0][:, None] == toy.Phi[None]).all(-1)
    assert among.any(1).tolist() == [True] * from_data + [False] * (11 - from_data)
    assert among.sum(0).max() <= 1  # distinct


@pytest.mark.parametrize(
    "settings",
    [
        {"M": 30, "minibatch": 7},
        {"M": 10, "minibatch": "full", "draw_A": "data"},
        {"M": 10, "minibatch": "full", "draw_A": "box"},
    ],
    ids=["minibatch", "data", "box"],
)
def test_each_source_of_chance_follows_the_seed(settings):
    """One source at a time: the rows of the minibatch (M = 30 sees all weights), of A, and A's uniform inputs. Two
    copies of one problem part if their seeds differ."""
    problem = toys()[0]
    method = trained_method(
        "rand-a", TrainingData.of([problem] * 3), "full", {**settings, "max_steps": 10}, seeds=[1, 2, 1]
    )
    one, other, again = unstack(method.posterior())
    assert torch.equal(one.mean, again.mean)
    assert not torch.equal(one.mean, other.mean)


@families
def test_averaging_takes_the_mean_of_the_last_iterates(family):
    """Of mean, off-diagonal factor and log diagonal, over the last quarter of the steps."""
    data, settings = TrainingData.of(toys()[:1]), {"M": 10, "minibatch": 20, "max_steps": 40}
    iterates = []
    method = method_on("rand-a", data, family, settings)
    train(method, "cpu", lambda steps, _: iterates.append(method.posterior()[0]), list(range(31, 41)))
    averaged = trained_method("rand-a", data, family, {**settings, "averaging": 0.25}).posterior()[0]
    assert len(iterates) == 10
    assert torch.allclose(averaged.mean, torch.stack([q.mean for q in iterates]).mean(0), rtol=1e-12, atol=1e-14)
    trils = torch.stack([q.covariance_tril() for q in iterates])
    assert torch.allclose(averaged.covariance_tril().tril(-1), trils.tril(-1).mean(0), rtol=1e-12, atol=1e-14)
    log_diagonal = trils.diagonal(dim1=-2, dim2=-1).log().mean(0)
    assert torch.allclose(averaged.covariance_tril().diagonal().log(), log_diagonal, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [
        ("constant", lambda t: 1),
        ("linear", lambda t: 1 - t / 20),
        ("cosine", lambda t: (1 + math.cos(math.pi * t / 20)) / 2),
    ],
)
def test_learning_rate_schedules(schedule, factor):
    """Adam's step is elementwise proportional to the learning rate: the second step's size tells its rate, given
    the same first step; the first step moves every mean by lr itself (m/√v = ±1, but for Adam's ε)."""
    data = TrainingData.of(toys()[:1])
    settings = {"M": 30, "minibatch": "full", "max_steps": 20, "lr": 0.05, "lr_schedule": schedule}
    means, rates = {}, []
    method = method_on("rand-a", data, "full", settings)

    def observe(steps, seconds):
        means[steps] = method.posterior()[0].mean
        rates.append(method.trainer.optimizers[0].param_groups[0]["lr"])

    train(method, "cpu", observe, list(range(21)))
    assert torch.allclose((means[1] - means[0]).abs(), torch.full((20,), 0.05, dtype=f64), rtol=1e-6)
    rates.pop()  # of a step that is not taken
    assert rates == pytest.approx([0.05 * factor(step) for step in range(20)], rel=1e-12)
    # The last step, by an independent Adam on the same gradients, would be as large as its rate allows at most.
    assert float((means[20] - means[19]).abs().max()) <= 10 * rates[-1]
    assert (float((means[20] - means[19]).abs().max()) < 1e-2 * 0.05) == (schedule == "cosine")


@families
def test_fixed_a_by_adam_and_by_lbfgs_descend_the_same_objective(family, toy):
    """With an A that sees all weights both arrive at its optimum, EXACT of that family."""
    data = TrainingData.of([toy])
    objective = method_on("fixed-a", data, family, {"M": 30})
    adam = {"optimizer": "adam", "lr": 0.5, "lr_schedule": "cosine", "max_steps": 1000}
    for settings, close in (({"max_steps": 500}, 1e-8), (adam, 1e-3)):
        method = trained_method("fixed-a", data, family, {"M": 30, **settings})
        kl_at_optimum, gap = of_objective(objective, 0, toy, terms(method.posterior()[0]))
        assert -1e-9 < gap < close
        assert trace_scores(method.posterior()[0], toy).kl == pytest.approx(kl_at_optimum, abs=close)


def test_lbfgs_ends_early_and_says_nothing_is_wrong(toy):
    seen = []
    method = trained_method("fixed-a", TrainingData.of([toy]), "ffg", {"M": 30}, lambda steps, _: seen.append(steps))
    assert method.finished
    assert method.num_steps == 15000
    assert seen
    assert seen[-1] < 15000
    exact = method_on("exact", TrainingData.of([toy]), "ffg")
    assert of_objective(exact, 0, toy, terms(method.posterior()[0]))[1] < 1e-9
