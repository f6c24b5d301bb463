"""Secrets are kept, and what is drawn from them is what docs/leaderboard/verification.md says."""

import stat
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from fsvi_bench.errors import InputError, TaskRefused
from fsvi_bench.leaderboard import edition as edition_module
from fsvi_bench.leaderboard import ranked_tasks
from fsvi_bench.leaderboard.edition import (
    EDITION_FILE,
    EDITIONS,
    Edition,
    Place,
    Secret,
    close_edition,
    make_board,
    read_edition,
    read_secret,
    write_edition,
)
from fsvi_bench.leaderboard.ranked_tasks import TASKS, TRAINING_SHARE, WITH_REAL_TARGETS, make_task, runs, training_seed
from fsvi_bench.tasks.official import read_official
from fsvi_bench.tasks.raw import RawData
from fsvi_bench.tasks.task import raw_data
from tests.leaderboard.boards import SECRET, edition


def test_a_board_of_ones_own_has_a_secret_that_only_its_owner_reads(tmp_path):
    made = make_board(tmp_path, "v1", ["yacht"], tmp_path / "secret")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert read_secret(made, tmp_path / "secret").sha256 == made.secret_sha256
    assert (tmp_path / "secret").read_text().strip() not in (tmp_path / EDITIONS / "v1" / EDITION_FILE).read_text()
    with pytest.raises(InputError, match="is open and needs its secret"):
        read_secret(made, None)
    with pytest.raises(InputError, match="exists"):
        make_board(tmp_path, "v1", ["yacht"], tmp_path / "another")


@pytest.mark.parametrize("folder", ["entries", "editions"])
def test_a_board_that_cannot_be_made_leaves_no_secret(tmp_path, folder):
    (tmp_path / folder).write_text("a file")
    with pytest.raises(InputError, match=f"leaderboard's folder .*{folder} is not writable"):
        make_board(tmp_path, "v1", ["yacht"], tmp_path / "secret")
    assert not (tmp_path / "secret").exists()


def test_an_edition_that_cannot_be_written_leaves_no_secret(tmp_path, monkeypatch):
    def refuse(*_):
        raise InputError("planted")

    monkeypatch.setattr(edition_module, "write_edition", refuse)
    with pytest.raises(InputError, match="planted"):
        make_board(tmp_path, "v1", ["yacht"], tmp_path / "secret")
    assert not (tmp_path / "secret").exists()


def test_a_closed_edition_publishes_its_secret_and_stays_the_same(tmp_path):
    made = make_board(tmp_path, "v1", ["yacht"], tmp_path / "secret")
    closed = close_edition(tmp_path, made, read_secret(made, tmp_path / "secret"))
    assert read_edition(tmp_path, "v1") == closed
    assert read_secret(closed, None) == read_secret(made, tmp_path / "secret")
    assert closed.sha256 == made.sha256


SPOILT = {
    "chmod 600": lambda path: path.chmod(0o644),
    "SHA-256 differs": lambda path: path.write_text("00" * 32),
    "hexadecimal": lambda path: path.write_text("not hexadecimal"),
    "cannot read": Path.unlink,
}


@pytest.mark.parametrize(("match", "spoil"), SPOILT.items(), ids=SPOILT)
def test_a_damaged_secret_is_refused(tmp_path, match, spoil):
    made = make_board(tmp_path, "v1", ["yacht"], tmp_path / "secret")
    spoil(tmp_path / "secret")
    with pytest.raises(InputError, match=match):
        read_secret(made, tmp_path / "secret")


@pytest.mark.parametrize(
    "change",
    [
        {"secret": None},
        {"status": "open"},
        {"secret": "00" * 32},
        {"datasets": []},
        {"datasets": ["yacht", "yacht"]},
        {"seeds": 0},
        {"seeds": 2, "replicated_tasks": 0},
        {"replicated_tasks": 1},  # with one seed
        {"name": "../v2"},
        {"more": 1},
    ],
)
def test_what_is_no_edition_is_refused(change):
    with pytest.raises(ValueError, match=r"\w"):
        Edition.model_validate(edition().model_dump() | change)


def test_an_edition_is_called_as_its_folder(tmp_path):
    write_edition(tmp_path, edition())
    (tmp_path / EDITIONS / "v2").rename(tmp_path / EDITIONS / "v3")
    with pytest.raises(InputError, match="expected 'v3'"):
        read_edition(tmp_path, "v3")
    with pytest.raises(InputError, match="unknown edition 'v1': expected one of v3"):
        read_edition(tmp_path, "v1")


def test_the_latest_edition_is_by_number(tmp_path):
    with pytest.raises(InputError, match="leaderboard init"):
        read_edition(tmp_path)
    for name in ("v9", "v10", "v2"):
        write_edition(tmp_path, edition().model_copy(update={"name": name}))
    assert read_edition(tmp_path).name == "v10"


def test_a_data_set_without_official_tasks_is_refused():
    with pytest.raises(InputError, match="'nowhere' has no official tasks"):
        runs(edition(["nowhere"]))


def test_init_takes_all_data_sets_with_official_tasks(tmp_path, cli):
    init = ("leaderboard", "init", "--root", tmp_path / "board", "--secret", tmp_path / "secret")
    status, _, err = cli(*init, "--dataset", "boston", "--dataset", "toy")
    assert status == 2
    assert "--dataset 'toy' has no official tasks; choose from airfoil, boston, concrete," in err
    assert cli(*init)[0] == 0
    files = (Path(__file__).parents[2] / "datasets").glob("*/tasks/*.safetensors")
    assert sorted(read_edition(tmp_path / "board").datasets) == sorted(path.parents[1].name for path in files)


def test_every_purpose_has_a_stream_of_its_own():
    seeds = {SECRET.seed(*purpose) for purpose in [("a",), ("b",), ("a", "b"), ("a", 1), ("a", 2)]}
    assert len(seeds | {Secret(b"\1" * 32).seed("a")}) == 6


def ranked(number=0, secret=SECRET):
    return make_task(Place("ranked", "diabetes", number), edition(), secret)[0]


@pytest.fixture(scope="module")
def made():
    return {number: ranked(number) for number in range(TASKS)}


@pytest.mark.parametrize("seeds", [1, 3])
def test_runs_are_of_five_ranked_and_five_official_tasks_a_data_set(seeds):
    found = runs(edition(["diabetes", "yacht"], seeds=seeds))
    assert len(set(found)) == len(found) == 2 * (5 * seeds + 5)
    assert sum(place.kind == "ranked" for place, _ in found) == 2 * 5 * seeds


def test_only_the_replicated_tasks_have_several_seeds():
    of = edition(["diabetes", "yacht"], seeds=3, replicated_tasks=2)
    found = [run for run in runs(of) if run[0].kind == "ranked"]
    seeds = [0, 1, 2, 0, 1, 2, 0, 0, 0]
    tasks = [0, 0, 0, 1, 1, 1, 2, 3, 4]
    expected = [(dataset, *each) for dataset in of.datasets for each in zip(tasks, seeds, strict=True)]
    assert [(place.dataset, place.number, seed) for place, seed in found] == expected
    assert of.sha256 != edition(["diabetes", "yacht"], seeds=3).sha256


def test_ranked_tasks_are_drawn_as_promised(made):
    raw = raw_data(read_official("diabetes", 0).task)
    for number, task in made.items():
        frozen, official = task.frozen, read_official("diabetes", number).task
        train, test = frozen.train_index.numpy(), frozen.test_index.numpy()
        assert sorted([*train, *test]) == list(range(len(raw.y)))
        assert len(train) == round(0.8 * len(raw.y))
        assert torch.allclose(task.X.mean(0), torch.zeros(10, dtype=torch.float64), atol=1e-12)
        for name in ("lengthscales", "outputscale", "noise_variance"):
            ratio = getattr(frozen, name) / getattr(official, name)
            assert bool(((ratio >= 0.75) & (ratio <= 1.25)).all())
        distinct = {tuple(row) for row in frozen.inducing_points.tolist()}
        assert len(distinct) == frozen.k
        assert distinct <= {tuple(row) for row in task.X.tolist()}
        task.certificate.require_limits()
        if number < WITH_REAL_TARGETS:
            standardised = (raw.y[train] - raw.y[train].mean()) / raw.y[train].std()
            np.testing.assert_allclose(task.y.numpy(), standardised, atol=1e-12)
    assert len({each.sha256 for each in made.values()}) == TASKS


def test_what_an_edition_asks_for_as_a_whole_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"^the edition: 'datasets' names a data set twice; fix this field$"):
        make_board(tmp_path, "v1", ["yacht", "yacht"], tmp_path / "secret")
    assert list(tmp_path.iterdir()) == []


def test_targets_of_the_model_are_calibrated():
    """Under the model z = Lᵀ(w − m) with Λ = LLᵀ is standard normal, w being known: mean of |z|²/k is 1 over draws."""
    squares = []
    for number in (3, 4):
        for key in range(20):
            secret = Secret(bytes([key]) * 32)
            task = ranked(number, secret)
            stream = secret.stream("task", "v2", "diabetes", number, 0, "weights")
            error = torch.from_numpy(stream.standard_normal(task.k)) - task.truth.posterior.mean
            squares.append(float(((task.truth.posterior.precision_tril.mT @ error) ** 2).mean()))
    # The mean of 40 · k squares: standard deviation √(2/(40 k)).
    assert abs(np.mean(squares) - 1) < 4 * np.sqrt(2 / (40 * task.k))


def test_the_same_secret_makes_the_same_task_and_another_makes_another(made):
    again = ranked()
    assert again.sha256 == made[0].sha256
    assert again.y.equal(made[0].y)
    assert ranked(secret=Secret(b"\7" * 32)).sha256 != again.sha256


def test_an_input_that_is_constant_in_training_alone_keeps_its_unit():
    """NumPy's deviation of a constant is not always 0; divided by it, test inputs would be far from all others."""
    stream = partial(SECRET.stream, "rare")
    official = read_official("diabetes", 0).task
    raw = raw_data(official)
    X = raw.X.copy()
    X[:, 1] = 0.1
    N = round(TRAINING_SHARE * len(X))
    assert X[:N, 1].std() > 0
    X[stream("rows").permutation(len(X))[N : N + 2], 1] = 0.1001
    raw = RawData.of(X, raw.y)
    task = ranked_tasks._draw(0, replace(official, data_sha256=raw.sha256), raw, stream)
    assert task.X[:, 1].abs().max() < 1e-12
    assert task.X_test[:2, 1].tolist() == pytest.approx([1e-4, 1e-4], abs=1e-12)


def test_seeds_do_not_depend_on_the_entry(made):
    def seed(kind, task, number, secret=SECRET):
        return training_seed(Place(kind, "diabetes", 0), task.sha256, number, edition(), secret)

    assert len({seed("ranked", task, number) for task in made.values() for number in range(3)}) == 3 * TASKS
    assert seed("official", made[0], 0, None) == seed("official", made[0], 0, Secret(b"\1" * 32))


def test_a_draw_that_cannot_be_certified_is_drawn_again_and_counted(monkeypatch):
    calls = []

    def refuse_twice(task):
        calls.append(task)
        if len(calls) < 3:
            raise TaskRefused("no")
        return task.certificate

    monkeypatch.setattr(ranked_tasks, "certify", refuse_twice)
    assert make_task(Place("ranked", "diabetes", 0), edition(), SECRET)[1] == 2
    monkeypatch.setattr(ranked_tasks, "certify", lambda task: (_ for _ in ()).throw(TaskRefused("never")))
    with pytest.raises(TaskRefused, match="none of 20 draws"):
        ranked()
