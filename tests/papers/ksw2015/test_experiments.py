"""The experiments on networks: tiny ones run from end to end, twice alike."""

import json

import numpy as np
import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.papers.base import Workshop
from fsvi_bench.papers.experiment import Laboratory
from fsvi_bench.papers.ksw2015 import variance
from fsvi_bench.papers.ksw2015.data import ImageSource
from fsvi_bench.papers.ksw2015.measuring import TIMED
from fsvi_bench.papers.parts import Parts, Row
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources
from tests.papers.tiny import require_two_runs_alike, shrink

TRAINING = {"minibatch": 300, "averaging": 0.5}
TINY = {
    "ksw2015-variance": {
        "networks": 2,
        "width": 6,
        "training": TRAINING,
        "variance": {"checkpoints": [0, 1, 2], "minibatch": 10, "repetitions": 4, "coordinates": 20},
        "law": {"sizes": [1, 10, 100], "repetitions": 10, "passes": 10},
        "timing": {"width": 6, "minibatch": 10, "rounds": 1, "repeats": 2},
    },
    "ksw2015-fig1": {"widths": [4, 8], "repeats": 2, "training": {**TRAINING, "epochs": 2}},
}


def clockless(timing):
    """Stands in for a clock, whose readings differ from run to run."""
    return Row(rounds=[{"repeat": n, **{name: 1.0 + place for place, name in enumerate(TIMED)}} for n in range(2)])


@pytest.fixture
def tiny(monkeypatch):
    shrink(monkeypatch, TINY)
    monkeypatch.setattr(variance, "time_steps", clockless)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_run_writes_everything_and_runs_twice_alike(name, tmp_path):
    require_two_runs_alike(name, tmp_path)


# --- Images -----------------------------------------------------------------------------------------------------------


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, words):
        self.notes.append(words)


def write_mnist(folder, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 256, (80, 3, 3), dtype=np.uint8), np.arange(80) % 10
    folder.mkdir(exist_ok=True)
    np.savez(folder / "mnist.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_mnist_is_used_when_its_file_is_there_and_may_move(tmp_path):
    name, notes = "ksw2015-fig1", Notes()

    def make(folder):
        return REPRODUCTIONS[name].make(Workshop(tmp_path / "out", True, Resources(data_dir=folder), notes))

    first = make(write_mnist(tmp_path / "here"))
    numbers = json.loads((tmp_path / "out" / f"{name}-quick.json").read_text())
    assert set(numbers["frames"]["networks"]["images"]) == {"mnist"}
    assert numbers["tables"][0]["title"].startswith("Test error on mnist [%]")
    assert notes.notes == []
    moved = make(write_mnist(tmp_path / "there"))
    assert (first.reused, moved.computed) == (0, 0)
    assert make(write_mnist(tmp_path / "there", seed=1)).reused == 0
    make(tmp_path)
    assert notes.notes == ["no MNIST in the data folder: scikit-learn's bundled digits stand in for it"]


def test_images_that_change_meanwhile_are_refused(tmp_path):
    workshop = Workshop(tmp_path / "out", True, Resources(data_dir=write_mnist(tmp_path)), Silent())
    found = ImageSource.find(Laboratory(Parts("x", workshop), workshop.resources.data_dir, True, print))
    assert found.load().name == "mnist"
    write_mnist(tmp_path, seed=1)
    with pytest.raises(InputError, match="changed while they were in use"):
        found.load()
