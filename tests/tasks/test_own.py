"""Tasks on the user's own data: fitted now, saved with the data, found again, and used by the command line."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_diabetes

from fsvi_bench.errors import InputError
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.posteriors.io import write_posterior
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tasks.frozen import read_task
from fsvi_bench.tasks.official import list_tasks, load_task, read_official
from fsvi_bench.tasks.own import make_task
from fsvi_bench.tasks.splits import standard_splits
from fsvi_bench.tasks.task import bind_task


def data(n=60, D=2, seed=0):
    g = np.random.default_rng(seed)
    X = g.normal(size=(n, D)) * 10 + 3
    return X, 100 * np.sin(X / 10).sum(1) + g.normal(size=n)


TEST_ROW = next(standard_splits(60, 1, seed=1, train_fraction=0.9))[1][0]


@pytest.fixture(scope="module")
def task():
    return make_task(*data(), k=8, name="mine")


def test_it_is_fitted_and_certified_as_official_tasks_are(task):
    assert (task.dataset, task.split, task.k, task.N, len(task.y_test)) == ("mine", 0, 8, 54, 6)
    task.certificate.require_limits()
    assert task.certificate.fit.settings.k == 8
    assert task.certificate.bound == pytest.approx(task.certificate.fit.bound, rel=1e-6)
    assert task.X.mean(0).abs().max() < 1e-13
    assert task.y.square().mean() == pytest.approx(1.0, rel=1e-13)
    assert task.noise_variance is task.frozen.noise_variance


def test_the_rows_are_the_standard_split_at_the_defaults_and_others_by_the_seed(task):
    train, test = next(standard_splits(60, 1))
    assert np.array_equal(task.frozen.train_index.numpy(), train)
    assert np.array_equal(task.frozen.test_index.numpy(), test)
    other = make_task(*data(), k=8, name="mine", seed=2, test_fraction=0.25)
    assert (other.N, len(other.y_test)) == (45, 15)
    assert not torch.equal(other.frozen.inducing_points, task.frozen.inducing_points)


def test_splits_are_the_seeds_permutations_in_order_and_can_be_run_together(task, tmp_path, cli):
    further = make_task(*data(), k=8, name="mine", split=2)
    *_, (train, test) = standard_splits(60, 3)
    assert (further.dataset, further.split) == ("mine", 2)
    assert np.array_equal(further.frozen.train_index.numpy(), train)
    assert np.array_equal(further.frozen.test_index.numpy(), test)
    paths = [tmp_path / f"{each.split}.safetensors" for each in (task, further)]
    for each, path in zip((task, further), paths, strict=True):
        each.save(path)
    files = [word for path in paths for word in ("--task", path)]
    status, out, err = cli("run", *files, "--method", "exact", "--wandb", "off", "--json", "--out", tmp_path / "out")
    assert status == 0, err
    assert [(r["dataset"], r["split"], r["status"]) for r in json.loads(out)] == [
        ("mine", split, "ok") for _ in ("full", "ffg") for split in (0, 2)
    ]


def test_the_inducing_points_depend_on_the_seed_and_not_on_the_name(task):
    renamed = make_task(*data(), k=8, name="another")
    assert torch.equal(renamed.frozen.inducing_points, task.frozen.inducing_points)
    assert renamed.sha256 != task.sha256


def test_a_fit_that_finds_nothing_but_noise_is_reported_with_what_mends_it():
    g = np.random.default_rng(0)
    X = g.normal(size=(400, 30))
    y = np.sin(X[:, 4]) + 0.3 * g.normal(size=400)
    with pytest.warns(UserWarning, match="no better than noise alone.* change initial_lengthscale, ") as caught:
        make_task(X, y, k=20)
    assert [each.filename for each in caught if "noise alone" in str(each.message)] == [__file__]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the fit of")
        found = make_task(X, y, k=20, initial_lengthscale=5.5, initial_noise_variance=0.1, initial_rows=200)
    assert found.certificate.fit.bound_per_point > -1.2
    settings = found.certificate.fit.settings
    assert (settings.initial_lengthscale, settings.initial_noise_variance, settings.initial_rows) == (5.5, 0.1, 200)


def test_rows_without_noise_are_no_start_for_a_fit_to_all():
    """The exact GP of 20 rows has no noise, but 3% of all rows are outliers, and no gradient leads back from there."""
    g = np.random.default_rng(5)
    X = g.uniform(-2, 2, size=(400, 2))
    y = X[:, 0] + (g.random(400) < 0.03) * 3 * g.normal(size=400)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the fit of")
        usual, fit = (make_task(X, y, k=10, initial_rows=rows).certificate.fit for rows in (None, 20))
    assert fit.bound_per_point == usual.bound_per_point  # the same start
    assert (usual.start, fit.start.used) == (None, False)
    assert fit.start.evidence_per_row > 3


def test_pandas_and_columns_of_targets_are_the_same_task(task):
    X, y = data()
    frame, column = pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame({"y": y})
    for inputs, targets in ((frame, pd.Series(y)), (frame, column), (torch.from_numpy(X), torch.from_numpy(y))):
        assert make_task(inputs, targets, k=8, name="mine").sha256 == task.sha256


def test_it_is_saved_with_its_data_and_loaded_again(task, tmp_path):
    path = tmp_path / "folder" / "mine.safetensors"
    task.save(path)
    tensors = load_file(path)
    assert np.array_equal(tensors["X"].numpy(), data()[0])
    assert np.array_equal(tensors["y"].numpy(), data()[1])
    found = load_task(str(path))
    assert found.sha256 == task.sha256
    assert np.array_equal(found.exact.mean, task.exact.mean)
    assert found.certificate == task.certificate


def damaged(task, tmp_path, *, drop=(), metadata=None, **changes):
    path = tmp_path / "task.safetensors"
    task.save(path)
    tensors = {name: tensor for name, tensor in {**load_file(path), **changes}.items() if name not in drop}
    save_file(tensors, path, metadata={**task.frozen.metadata, **(metadata or {})})
    return path


@pytest.mark.parametrize("path", [".", "mine", "mine.0"])
def test_tasks_are_saved_by_names_that_folders_are_searched_for(task, path):
    """`mine.0` and `mine.1` would share a certificate's name."""
    with pytest.raises(InputError, match=rf"the path '{path}' does not end in \.safetensors"):
        task.save(path)


def test_a_file_whose_data_are_not_the_tasks_is_refused(task, tmp_path):
    X, y = (torch.from_numpy(part) for part in data())
    cases = [
        ({"X": X + 1}, "'X' and 'y' have SHA-256 .* expected .*; save the task again"),
        ({"drop": ("y",)}, "tensor 'y' is missing"),
        ({"y": y[:-1].clone()}, r"'y' has shape \[59\], expected \[60\]"),
        ({"X": X[:, :1].clone()}, r"'X' has shape \[60, 1\], expected \[60, 2\]"),
        ({"X": X.float()}, "'X' has type float32, expected float64"),
        ({"metadata": {"dataset": "boston"}}, "the name of a published data set, but the data are your own"),
        ({"metadata": {"dataset": "../etc"}}, r"metadata 'dataset' is '\.\./etc', expected up to 60 letters"),
        ({"train_index": torch.tensor([0, 60])}, "row numbers run from 0 to 60, expected 0 to 59"),
        ({"train_index": torch.tensor([3, 3])}, "contain a row twice"),
        ({"drop": ("X", "y")}, "unknown data set 'mine'"),
    ]
    for changes, words in cases:
        with pytest.raises(InputError, match=words):
            read_task(damaged(task, tmp_path, **changes))


@pytest.mark.usefixtures("no_figures")
def test_the_command_line_takes_the_file(task, tmp_path, cli, monkeypatch):
    monkeypatch.delenv("FSVI_BENCH_DATA", raising=False)
    path, posterior = tmp_path / "mine.safetensors", tmp_path / "q.safetensors"
    task.save(path)
    covariance_tril = task.truth.covariance_tril
    write_posterior(posterior, FullGaussian(task.truth.posterior.mean, covariance_tril))
    status, out, err = cli("score", "--task", path, "--posterior", posterior, "--json")
    assert (status, err) == (0, "")
    assert abs(json.loads(out)["kl"]) < 1e-9
    run = ("run", "--task", path, "--method", "exact", "--wandb", "off", "--json", "--out", tmp_path / "out")
    status, out, _ = cli(*run)
    assert status == 0
    records = json.loads(out)
    assert {record["dataset"] for record in records} == {"mine"}
    assert {record["task_sha256"] for record in records} == {task.sha256}
    for command in (("tasks", "verify", path), ("tasks", "show", path), ("report", tmp_path / "out")):
        status, out, err = cli(*command)
        assert status == 0, err


BAD = [
    ((np.zeros((5, 2, 2)), np.arange(5.0)), {}, r"X has shape \[5, 2, 2\] and y \[5\], expected \[n, D\] and \[n\]"),
    ((data()[0], data()[1][:-1]), {}, r"y \[59\], expected"),
    ((np.where(data()[0] > 3, np.nan, 0), data()[1]), {}, "X contains NaN or infinity in row"),
    ((np.ma.masked_array(data()[0], data()[0] > 1), data()[1]), {}, "X has masked entries, expected only numbers"),
    ((data()[0], np.full(60, np.inf)), {}, "y contains NaN or infinity in row 0"),
    ((data()[0].astype(str), data()[1]), {}, "X is not numeric"),
    ((pd.DataFrame({"a": range(60), "city": ["x"] * 60}), data()[1]), {}, "column 'city' of X is not numeric"),
    (
        (pd.DataFrame(data()[0], columns=["a", "a"]), data()[1]),
        {},
        "X has 2 columns named 'a', expected unique .* drop",
    ),
    ((pd.DataFrame({"when": pd.date_range("2020", periods=60)}), data()[1]), {}, "column 'when' of X"),
    (([[1, 2], [3]], [1, 2]), {}, "X is not numeric"),
    ((data()[0], "y"), {}, "y is 'y', expected numbers"),
    (data(), {"split": -1}, "split is -1, expected 0 or more"),
    (data(), {"split": 1000}, "split is 1000, expected"),
    (("mine.csv", "y"), {}, "X is 'mine.csv', expected numbers; read a file first, with pandas.read_csv,"),
    ((data()[0] + 1j, data()[1]), {}, "X is not numeric"),
    ((data()[0], np.ones(60)), {}, "all 60 targets are 1, expected at least two"),
    (
        (data()[0], np.eye(60)[TEST_ROW]),
        {},
        "all 54 training targets are 0, expected at least two values; choose another",
    ),
    (data(), {"k": 100}, "k is 100, expected at most the 54 distinct training inputs"),
    (data(), {"k": 0}, "k is 0, expected 1 or more"),
    (data(), {"k": "few"}, "k is 'few', expected a whole number"),
    (data(), {"test_fraction": 0.0}, "test_fraction is 0.0, expected more than 0"),
    (data(), {"test_fraction": 1.5}, "test_fraction is 1.5, expected less than 1"),
    (
        data(),
        {"test_fraction": 0.001},
        "test_fraction is 0.001, which leaves no training rows or no test rows out of 60",
    ),
    (data(), {"seed": -1}, "seed is -1, expected 0 or more"),
    (data(), {"initial_noise_variance": 1e-6}, "initial_noise_variance is 1e-06, expected 2e-06 or more"),
    ((data()[0] * [1, 1e200], data()[1]), {}, r"the values of input column 1 reach \S+e\+\d+ and .*; rescale"),
    ((data()[0], data()[1] * 1e-200), {}, "the values of the target reach .*e-19. and .*; rescale them"),
    ((data()[0], data()[1] * 1e-162), {}, "the values of the target reach .* and .*; rescale them"),
    ((torch.from_numpy(data()[0]) + 1j, data()[1]), {}, "X is not numeric"),
    (((torch.from_numpy(data()[0]) + 1j).conj(), data()[1]), {}, "X is not numeric"),  # conjugated only when read
    (data(), {"name": "boston"}, "name is 'boston', the name of a published data set"),
    (
        data(),
        {"name": "mine-collapsed-5"},
        "name is 'mine-collapsed-5', a name of network tasks, but the task is linear",
    ),
    (data(), {"name": None}, "name is None, expected text"),
    (data(), {"name": "a/b"}, "name is 'a/b', expected up to 60 letters, digits, - and _"),
    ((np.zeros((0, 2)), np.zeros(0)), {}, "expected"),
]


@pytest.mark.parametrize(("values", "options", "words"), BAD)
def test_bad_input_is_refused_in_one_sentence(values, options, words):
    with pytest.raises(InputError, match=words) as refused:
        make_task(*values, **{"k": 8, **options})
    assert "\n" not in str(refused.value)


# --- Tasks by name ----------------------------------------------------------------------------------------------------


def test_every_data_set_has_tasks():
    found = list_tasks()
    assert list(found) == card_names()
    assert all(found[name] == load_card(name).splits.count for name in found)


def test_an_official_task_is_loaded_by_name_and_saved_without_its_data(tmp_path):
    task, official = load_task("diabetes", split=3), read_official("diabetes", 3)
    assert task.sha256 == official.task.sha256
    assert (task.dataset, task.split, task.k) == ("diabetes", 3, 100)
    assert task.certificate.fit == official.certificate.fit
    assert task.exact.log_evidence == pytest.approx(official.certificate.log_evidence, rel=1e-8)
    task.save(tmp_path / "d.safetensors")
    assert {"X", "y"}.isdisjoint(load_file(tmp_path / "d.safetensors"))
    assert load_task(tmp_path / "d.safetensors").sha256 == task.sha256


def test_what_has_no_official_task_is_made_once(monkeypatch):
    from fsvi_bench.tasks import official

    first = load_task("toy", split=5)
    monkeypatch.setattr(official, "build_task", lambda *_: pytest.fail("made again"))
    assert load_task("toy", split=5).sha256 == first.sha256


@pytest.mark.parametrize(
    ("name", "split", "words"),
    [
        ("bosten", 0, "unknown data set or task file 'bosten': did you mean 'boston'"),
        ("none.safetensors", 0, r"cannot read .*none\.safetensors"),
        ("diabetes", 20, "diabetes has no split 20"),
        *(
            (name, 0, r"is of type \w+, expected a string or a path; pass one of list_tasks\(\)")
            for name in (None, 3, ["boston"])
        ),
        *(("boston", split, "split is .*, expected a whole number of 0 or more") for split in ("0", 1.5, -1, None)),
    ],
)
def test_names_that_are_none_are_refused(name, split, words):
    with pytest.raises(InputError, match=words):
        load_task(name, split=split)


def test_diabetes_as_own_data_has_the_standard_split_and_its_fit_is_as_good():
    X, y = load_diabetes(return_X_y=True, scaled=False)
    own = make_task(X, y, k=20, name="my-diabetes")
    assert torch.equal(own.X, bind_task(read_official("diabetes", 0).task).X)
    assert 0.3 < float(own.noise_variance) < 0.6


def test_a_fit_whose_line_search_goes_too_far_turns_back():
    """An almost linear target: L-BFGS tries outputscales that underflow."""
    g = np.random.default_rng(0)
    X = g.standard_normal((100, 2))
    task = make_task(X, X[:, 0] + 0.1 * g.standard_normal(100), k=20)
    assert task.fit is not None
    assert np.isfinite(task.fit.bound)
