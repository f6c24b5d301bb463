"""The experiments on networks: tiny ones run from end to end, twice alike; statistics of hand-made parts are right."""

from dataclasses import fields

import pytest

from fsvi_bench.reproductions import experiment, ksw2015_variance
from fsvi_bench.reproductions.base import Workshop
from fsvi_bench.reproductions.ksw2015_variance_claims import Timed
from fsvi_bench.reproductions.registry import REPRODUCTIONS
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources

TRAINING = {"epochs": 2, "minibatch": 300, "averaging": 0.5}
TINY = {
    "ksw2015-variance": {
        "networks": 2,
        "width": 6,
        "checkpoints": [0, 1, 2],
        "minibatch": 10,
        "repetitions": 4,
        "coordinates": 20,
        "training": TRAINING,
        "law": {"sizes": [1, 10, 100], "repetitions": 10, "passes": 10},
        "timing": {"width": 6, "minibatch": 10, "rounds": 1, "repeats": 2},
    },
    "ksw2015-fig1": {"widths": [4, 8], "repeats": 2, "training": TRAINING},
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


def clockless(timing):
    """Stands in for a clock, whose readings differ from run to run."""
    estimators = timing.settings.estimators
    return Timed(
        seconds={name: (1.0, 3.0) for name in estimators},
        ratio_to_local={name: (float(place), float(place)) for place, name in enumerate(estimators)},
    )


@pytest.fixture
def tiny(monkeypatch):
    """The quick scale of every experiment on networks made tiny; everything else stays as its YAML has it."""
    read = experiment.read_yaml

    def read_tiny(path):
        content = read(path)
        return {**content, "quick": TINY[path.stem]} if path.stem in TINY else content

    monkeypatch.setattr(experiment, "read_yaml", read_tiny)
    monkeypatch.setattr(ksw2015_variance, "time_steps", clockless)


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
