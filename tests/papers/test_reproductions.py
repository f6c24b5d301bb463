"""Every experiment, made tiny, runs from end to end in seconds, twice alike."""

import json

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.papers import experiment
from fsvi_bench.papers.experiment import ExperimentContext
from fsvi_bench.papers.ksw2015 import data, variance
from fsvi_bench.papers.ksw2015.data import ImageSource
from fsvi_bench.papers.ksw2015.measuring import TIMED
from fsvi_bench.papers.registry import REPRODUCTIONS
from fsvi_bench.papers.workspace import Workspace
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources
from tests.tasks.small_images import card_for, draw, idx, write

NETWORK = {"width": 6, "steps": 5, "minibatch": 10, "lr": 0.001, "draws": 5, "seed": 0}
CONCRETE = {"temperature": 0.1, "start_rate": 0.1, "lr_of_rates": 0.01}
TRAINING = {"minibatch": 300, "averaging": 0.5}
#: What takes the place of the quick scale.
TINY = {
    "atlas": {
        "datasets": ["toy"], "splits": 1, "seeds": 2,
        "chains": {"datasets": {"toy": 2}, "shares": [0.9], "chains": 20, "rounds": 0.01},
        "scores": {"M": 10, "S": [25, 100], "seeds": 2},
    },
    "burt2020-roots": {"permutations": 2},
    "burt2020-shrinkage": {"datasets": ["diabetes"], "M": 20, "S": [25, 100], "seeds": 2, "steps": [1, 2]},
    "burt2020-theory": {
        "draws": 2, "cases": [[1, 3]], "steps": 3, "curve_draws": 9, "widths": [5], "networks": 9, "pairs": [[1, 2]],
        "seen_networks": 4, "finest": 4,
    },
    "gal2016-6.3": {"points": [4, 20, 100], "repeats": 2, "lengthscales_per_decade": 2, "mask_weights": 4},
    "gal2016-elbo": {
        "repeats": 2, "N": 30, "N_test": 20, "network": {**NETWORK, "hidden_layers": 1, "length_scale": 0.01},
    },
    "gal2016-uncertainty": {
        "sizes": [10, 40, 160], "repeats": 2, "N_test": 20,
        "network": {**NETWORK, **CONCRETE, "hidden_layers": 2, "length_scale": 1.0},
    },
    "hron2018-fig1-3": {}, "hron2018-moments": {}, "hron2018-limits": {}, "hron2018-fig5": {"points": 19, "starts": 2},
    "ksw2015-fig1": {"widths": [4, 8], "repeats": 2, "training": {**TRAINING, "epochs": 2}},
    "ksw2015-fig2": {},
    "ksw2015-variance": {
        "networks": 2, "width": 6, "training": TRAINING,
        "variance": {"checkpoints": [0, 1, 2], "minibatch": 10, "repetitions": 4, "coordinates": 20},
        "law": {"sizes": [1, 10, 100], "repetitions": 10, "passes": 10},
        "timing": {"width": 6, "minibatch": 10, "rounds": 1, "repeats": 2},
    },
    "tuning": {
        "splits": 1, "methods": {"rand-a": ["full"], "ivon": ["ffg"], "ensemble": ["particles"]}, "steps": 3, "budgets": [2, 3],
        "screening": {"splits": 1, "steps": 2, "kept": 1},
        "paper": {"lr": 0.01, "schedule": "constant", "max_steps": 3}, "curve": [1, 3],
    },
}  # fmt: skip


DRAWN_TWICE = {"atlas", "ksw2015-fig1"}  #: one drawing after the other shows for all that a figure repeats itself


def clockless(settings, images):
    """Stands in for a clock, whose readings differ from run to run."""
    return {"rounds": [{"repeat": n, **{name: 1.0 + place for place, name in enumerate(TIMED)}} for n in range(2)]}


@pytest.fixture
def tiny(monkeypatch):
    read = experiment.read_yaml

    def read_tiny(path):
        content = read(path)
        return {**content, "quick": content["quick"] | TINY[path.stem]}

    monkeypatch.setattr(experiment, "read_yaml", read_tiny)
    monkeypatch.setattr(variance, "time_steps", clockless)


def make(name, root, data_dir=None):
    return REPRODUCTIONS[name].make(Workspace(root, "quick", Resources(data_dir=data_dir), Silent()))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_run_writes_everything_and_is_reproducible(name, tmp_path, monkeypatch):
    first = make(name, tmp_path / "a")
    assert [path.suffix for path in first.files][:4] == [".png", ".svg", ".json", ".csv"]
    if name not in DRAWN_TWICE:
        monkeypatch.setattr(experiment, "write_figure", lambda figure, stem: [])
    second = make(name, tmp_path / "b")
    for one, other in zip(first.files[-len(second.files) :], second.files, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.suffix
    if first.computed:
        again = make(name, tmp_path / "a")
        assert (again.computed, again.reused, again.claims) == (0, first.computed + first.reused, first.claims)


# --- Images -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def put_mnist(monkeypatch):
    """Writes 80 images in the format of MNIST to a folder, and makes their card that of MNIST."""

    def put(folder, seed=0):
        arrays = draw(seed, n=60, n_test=20, shape=(3, 3))
        card = card_for(arrays)
        monkeypatch.setattr(data, "load_image_card", {"mnist": card}.get)
        write(folder, card, [idx(array) for array in arrays])
        return folder

    return put


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_mnist_is_used_where_the_settings_say_so_and_may_move(tmp_path, monkeypatch, put_mnist):
    monkeypatch.setitem(TINY, "ksw2015-fig1", {**TINY["ksw2015-fig1"], "images": "mnist"})

    def made(folder):
        return make("ksw2015-fig1", tmp_path / "out", folder)

    first = made(put_mnist(tmp_path / "here"))
    numbers = json.loads((tmp_path / "out" / "ksw2015-fig1-quick.json").read_text())
    assert set(numbers["frames"]["networks"]["images"]) == {"mnist"}
    assert numbers["tables"][0]["title"].startswith("Test error on mnist [%]")
    moved = made(put_mnist(tmp_path / "there"))
    assert (first.reused, moved.computed) == (0, 0)
    assert made(put_mnist(tmp_path / "there", seed=1)).reused == 0


def test_images_that_change_meanwhile_are_refused(tmp_path, put_mnist):
    workspace = Workspace(tmp_path / "out", "quick", Resources(data_dir=put_mnist(tmp_path)), Silent())
    found = ImageSource.find(ExperimentContext("x", workspace), "mnist")
    assert found.load().name == "mnist"
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte\.gz is not the mnist data"):
        found.load()
