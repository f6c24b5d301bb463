"""Cards against the independent description of the data sets, and the standard splits against their hashes."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.tasks.build import require_split, split_indices
from fsvi_bench.tasks.card import FileSource, all_names, card_names, find_card, load_card, load_image_card
from fsvi_bench.tasks.official import load_task
from fsvi_bench.tasks.own import make_task
from fsvi_bench.tasks.raw import RawData, load_raw
from fsvi_bench.tasks.splits import index_sha256, parse_ranges, splits_sha256, standard_splits
from tests.conftest import REFERENCE

UCI = json.loads((REFERENCE / "uci_splits.json").read_text())
MASKED = json.loads((REFERENCE / "uci_datasets.json").read_text())  #: data sets with published test masks


def test_every_data_set_has_a_card():
    assert set(card_names()) == {*UCI, *MASKED, "diabetes", "toy"}
    assert set(all_names()) - set(card_names()) == {"mnist"}
    assert (len(UCI), len(MASKED)) == (9, 8)


@pytest.mark.parametrize("name", card_names())
def test_a_card_says_what_a_reader_needs(name):
    card = load_card(name)
    assert card.name == name
    for text in (card.title, card.description, card.citation, card.terms, card.target.meaning, card.target.unit):
        assert len(text) >= 2
    assert len(card.feature_columns) == card.D
    assert card.target.column not in card.feature_columns
    assert card.fit.max_iterations == 5000


@pytest.mark.parametrize("name", card_names())
def test_fits_start_where_the_papers_do_except_on_two_data_sets_where_that_can_fail(name):
    fit = load_card(name).fit
    papers = (fit.initial_lengthscale, fit.initial_noise_variance, fit.initial_rows) == (1, 1e-4, None)
    assert papers == (name not in ("parkinsons", "pumadyn32nm"))


def test_the_card_of_images_says_what_a_reader_needs():
    card = load_image_card("mnist")
    assert find_card("mnist") is card
    assert card.name == "mnist"
    for text in (card.title, card.description, card.citation, card.terms):
        assert len(text) >= 2
    assert len({file.sha256 for file in card.files}) == 4
    for file in card.files:
        assert len(file.urls) == 2
        assert all(url.startswith("https://") and url.endswith(f"/{file.path}") for url in file.urls)


@pytest.mark.parametrize("name", UCI)
def test_cards_agree_with_the_independent_description(name):
    card, expected = load_card(name), UCI[name]
    assert isinstance(card.source, FileSource)
    assert card.source.path == expected["file"]
    assert card.source.sha256 == expected["sha256"]
    assert all(url.startswith("https://") and url.endswith(expected["file"]) for url in card.source.urls)
    assert card.n == expected["n"]
    assert list(card.feature_columns) == expected["feature_columns"]
    assert card.target.column == expected["target_column"]
    assert card.splits.count == expected["n_splits"]
    assert card.splits.sha256 == splits_sha256(standard_splits(card.n, card.splits.count))


@pytest.mark.parametrize("name", MASKED)
def test_cards_with_test_masks_agree_with_the_independent_description(name):
    card, expected = load_card(name), MASKED[name]
    data, masks = card.files
    assert (data.path, data.sha256) == (expected["file"], expected["sha256"])
    assert (masks.path, masks.sha256) == (expected["masks"], expected["masks_sha256"])
    assert all(url.startswith("https://") and url.endswith(file.path) for file in card.files for url in file.urls)
    assert (card.n, card.D + 1) == (expected["n"], expected["columns"])
    assert card.feature_columns == (*range(card.D),)
    assert card.target.column == card.D
    assert (card.splits.count, card.splits.sha256) == (expected["n_splits"], expected["splits_sha256"])


@pytest.mark.data
@pytest.mark.parametrize("name", MASKED)
def test_files_with_test_masks_have_the_values_that_pandas_reads(name):
    card, expected = load_card(name), MASKED[name]
    raw = load_raw(card, 0)
    assert raw.sha256 == expected["sha256"]
    assert RawData.of(raw.X, raw.y).sha256 == expected["values_sha256"]
    assert card.n - len(np.unique(raw.X, axis=0)) == expected["repeated_inputs"]
    assert np.flatnonzero(raw.X.min(0) == raw.X.max(0)).tolist() == expected["constant"]
    splits = [split_indices(card, split, raw) for split in range(card.splits.count)]
    assert splits_sha256(splits) == expected["splits_sha256"]
    assert [len(test) for _, test in splits] == expected["n_test"]
    assert [test[:5].tolist() for _, test in splits] == expected["first_test"]
    # Ten folds: each row is a test row once, and a training row of the other nine splits.
    assert np.array_equal(np.sort(np.concatenate([test for _, test in splits])), np.arange(card.n))
    for train, test in splits:
        assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(card.n))


@pytest.mark.parametrize("name", UCI)
def test_every_standard_split_has_its_published_indices(name):
    expected = UCI[name]
    splits = list(standard_splits(expected["n"], expected["n_splits"]))
    assert len(splits) == len(expected["splits"])
    for (train, test), said in zip(splits, expected["splits"], strict=True):
        assert index_sha256(train) == said["train_sha256"]
        assert index_sha256(test) == said["test_sha256"]
        assert (len(train), len(test)) == (said["n_train"], said["n_test"])
        assert test[:5].tolist() == said["first_test"]


def test_boston_states_its_ethical_problem_and_why_it_is_kept():
    ethics = load_card("boston").ethics
    assert ethics is not None
    assert "segregation" in ethics
    assert "compared" in ethics


@pytest.mark.data
@pytest.mark.parametrize("name", UCI)
def test_raw_data_have_the_cards_size_and_notes(name):
    card = load_card(name)
    raw = load_raw(card, 0)
    assert raw.X.shape == (card.n, card.D)
    assert np.isfinite(raw.X).all()
    assert np.isfinite(raw.y).all()
    repeated = card.n - len(np.unique(raw.X, axis=0))
    said = {"concrete": 38, "power": 41, "protein": 1756, "wine": 240}
    assert repeated == said.get(name, 0)
    constant = np.flatnonzero(raw.X.min(0) == raw.X.max(0)).tolist()
    assert constant == ([8, 11] if name == "naval" else [])


def test_diabetes_is_bundled_and_follows_the_same_protocol():
    card = load_card("diabetes")
    raw = load_raw(card, 0)
    assert raw.X.shape == (442, 10)
    # The hash is over the values themselves, so it can be recomputed without the package's code.
    digest = hashlib.sha256(raw.X.astype("<f8").tobytes() + raw.y.astype("<f8").tobytes()).hexdigest()
    assert raw.sha256 == digest == card.source.sha256
    train, test = split_indices(card, 3, raw)
    stream = np.random.RandomState(1)
    permutation = [stream.choice(442, 442, replace=False) for _ in range(4)][3]
    assert train.tolist() == permutation[:398].tolist()
    assert test.tolist() == permutation[398:].tolist()


def test_toy_follows_the_papers_recipe():
    card = load_card("toy")
    draws = [load_raw(card, split) for split in range(20)]
    assert len({raw.sha256 for raw in draws}) == 20
    x = np.concatenate([raw.X[:40, 0].reshape(2, 20) for raw in draws], axis=1)
    # 400 draws a cluster: the mean's standard error is 0.015, the standard deviation's 0.011; five of each is a bug.
    assert np.abs(x.mean(1) - [-1.2, 1.2]).max() < 5 * 0.3 / 20
    assert np.abs(x.std(1) - 0.3).max() < 5 * 0.3 / np.sqrt(800)
    train, test = split_indices(card, 0, draws[0])
    assert train.tolist() == list(range(40))
    assert len(test) == card.n - 40
    assert np.diff(draws[0].X[40:, 0]) == pytest.approx(5 / 199)


def test_images_are_refused_where_tasks_are_needed():
    for function in (load_card, load_task):
        with pytest.raises(InputError, match=r"^mnist is a data set of images, expected one for regression, such as"):
            function("mnist")
    with pytest.raises(InputError, match="mnist is a data set of images"):
        load_task("mnist:0")
    with pytest.raises(InputError, match="name is 'mnist', the name of a published data set"):
        make_task(np.eye(30), np.arange(30.0), k=2, name="mnist")


def test_a_split_out_of_range_says_which_there_are():
    with pytest.raises(InputError, match="boston has no split 20; its splits run from 0 to 19"):
        require_split(load_card("boston"), 20)


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3", [0, 1, 2, 3]), ("0,3,5", [0, 3, 5]), (" 2 - 4 , 3 ,9", [2, 3, 4, 9]), ("7", [7])]
)
def test_ranges(text, numbers):
    assert parse_ranges(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "-1", "1-", "3-1", "1;2", "1..4", "0x1"])
def test_nonsense_ranges_are_refused(text):
    with pytest.raises(InputError, match="--splits"):
        parse_ranges(text)
