"""The experiments on networks: tiny ones run from end to end, twice alike."""

import pytest

from tests.papers.tiny import require_two_runs_alike, shrink

NETWORK = {"width": 6, "steps": 5, "minibatch": 10, "lr": 0.001, "draws": 5, "seed": 0}
TINY = {
    "gal2016-elbo": {
        "drop_rates": [0.0, 0.5, 0.75, 0.9],
        "repeats": 2,
        "N": 30,
        "N_test": 20,
        "network": {**NETWORK, "hidden_layers": 1, "length_scale": 0.01},
    },
    "gal2016-uncertainty": {
        "sizes": [10, 40, 160],
        "repeats": 2,
        "N_test": 20,
        "network": {
            **NETWORK,
            "hidden_layers": 2,
            "length_scale": 1.0,
            "temperature": 0.1,
            "start_rate": 0.1,
            "lr_of_rates": 0.01,
        },
    },
}


@pytest.fixture
def tiny(monkeypatch):
    shrink(monkeypatch, TINY)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_run_writes_everything_and_runs_twice_alike(name, tmp_path):
    require_two_runs_alike(name, tmp_path)
