"""The options that functional methods share: weights, sources of A and of chance, averaging, learning rates."""

from __future__ import annotations

import pytest
import torch

from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import unstack
from fsvi_bench.scoring.scores import trace_scores
from tests.methods.table import (
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


@pytest.mark.slow
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
