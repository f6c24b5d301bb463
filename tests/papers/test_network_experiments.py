"""The experiments on networks: tiny ones run from end to end, twice alike; statistics of hand-made parts are right."""

import pytest

from fsvi_bench.papers import experiment
from fsvi_bench.papers.base import Workshop
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources

TINY = {
    "gal2016-elbo": {
        "drop_rates": [0.0, 0.5, 0.75, 0.9],
        "repeats": 2,
        "N": 30,
        "N_test": 20,
        "network": {"width": 6, "hidden_layers": 1, "steps": 5, "minibatch": 10, "draws": 5},
    },
    "gal2016-uncertainty": {
        "sizes": [10, 40, 160],
        "repeats": 2,
        "N_test": 20,
        "network": {"width": 6, "hidden_layers": 2, "steps": 5, "draws": 5},
    },
}


@pytest.fixture
def tiny(monkeypatch):
    """The quick scale of every experiment on networks made tiny; everything else stays as its YAML has it."""
    read = experiment.read_yaml

    def read_tiny(path):
        content = read(path)
        return {**content, "quick": TINY[path.stem]} if path.stem in TINY else content

    monkeypatch.setattr(experiment, "read_yaml", read_tiny)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_run_writes_everything_and_runs_twice_alike(name, tmp_path):
    made = []
    for each in ("a", "b"):
        made.append(REPRODUCTIONS[name].make(Workshop(tmp_path / each, True, Resources(), Silent())))
    first, second = made
    assert first.computed > 0
    assert [path.suffix for path in first.files] == [".png", ".svg", ".json", ".csv"]
    for one, other in zip(first.files, second.files, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.suffix
    again = REPRODUCTIONS[name].make(Workshop(tmp_path / "a", True, Resources(), Silent()))
    assert (again.computed, again.reused) == (0, first.computed)
    assert again.claims == first.claims
