"""The options that functional methods share: weights, sources of A and of chance, averaging, learning rates."""

import pytest
import torch

from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import unstack
from tests.methods.table import (
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
