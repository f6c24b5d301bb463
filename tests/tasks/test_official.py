"""The frozen tasks that travel with the package: whole sets of splits, each certified, and found before any fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.maths import features
from fsvi_bench.running.plan import load_protocol
from fsvi_bench.tasks import official
from fsvi_bench.tasks.build import departures, load_cached, split_indices
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tasks.certificate import certify, differences
from fsvi_bench.tasks.official import find_task, official_path, official_splits, official_tasks, read_official
from fsvi_bench.tasks.task import bind_task

FROZEN = [name for name in card_names() if official_splits(name)]


@pytest.mark.parametrize("name", FROZEN)
def test_every_split_of_a_data_set_is_frozen_with_its_standard_rows_and_a_certificate_within_the_limits(name):
    card = load_card(name)
    assert official_splits(name) == list(range(card.splits.count))
    for split in official_splits(name):
        task, certificate = (found := read_official(name, split)).task, found.certificate
        assert (task.k, certificate.task_sha256, certificate.data_sha256) == (100, task.sha256, card.source.sha256)
        for index, expected in zip((task.train_index, task.test_index), split_indices(card, split), strict=True):
            assert np.array_equal(index.numpy(), expected)
        assert certificate.fit is not None
        assert certificate.fit.settings == card.fit
        # A line search that gave up, which SciPy calls abnormal, is no end of a fit.
        assert certificate.fit.converged or certificate.fit.iterations == card.fit.max_iterations
        assert (float(task.jitter), certificate.jitter) == (card.fit.jitter, card.fit.jitter)
        # At the floor the card, not the data, would have chosen the noise.
        assert certificate.noise_variance == float(task.noise_variance) > 1.1 * card.fit.noise_floor
        certificate.require_limits()


@pytest.mark.data
@pytest.mark.parametrize("name", FROZEN)
def test_the_certificate_of_the_worst_conditioned_split_holds(name):
    """`fsvi-bench tasks verify` looks at all of them."""
    found = max((read_official(name, split) for split in official_splits(name)), key=worst_condition)
    task, stored = found.task, found.certificate
    assert differences(stored, certify(bind_task(task), stored.fit)) == []
    assert departures(task) == []


def worst_condition(found):
    return found.certificate.condition_precision


@pytest.mark.data
@pytest.mark.parametrize("name", FROZEN)
def test_a_certificate_holds_though_every_kernel_value_were_rounded_otherwise(name, monkeypatch):
    """Another machine's exponential function may be wrong in the last bit, each value otherwise: every kernel value is
    multiplied by 1 + u, |u| ≤ 2⁻⁵³, symmetrically in k(Z,Z)."""
    found = max((read_official(name, split) for split in official_splits(name)), key=worst_condition)
    generator = torch.Generator().manual_seed(0)
    exact_kernel = features.ard_kernel

    def rounded(*arguments):
        kernel = exact_kernel(*arguments)
        error = (2 * torch.rand(kernel.shape, generator=generator, dtype=torch.float64) - 1) * 2**-53
        if kernel.shape[-1] == kernel.shape[-2]:
            error = error.tril() + error.tril(-1).mT
        return kernel * (1 + error)

    monkeypatch.setattr(features, "ard_kernel", rounded)
    fresh = certify(bind_task(found.task), found.certificate.fit)
    assert fresh != found.certificate
    assert differences(found.certificate, fresh) == []
    fresh.require_limits()


def test_the_certificates_of_diabetes_hold():
    for split in official_splits("diabetes"):
        task, stored = (found := read_official("diabetes", split)).task, found.certificate
        assert differences(stored, certify(bind_task(task), stored.fit)) == []
        assert departures(task) == []


def test_a_data_set_without_them_has_what_was_fitted_here():
    assert official_splits("toy") == []
    assert (
        find_task("toy", 0) is None or find_task("toy", 0).task.sha256 == load_cached(load_card("toy"), 0).task.sha256
    )


def test_a_set_makes_each_problem_once():
    tasks = official_tasks(["diabetes", "toy"])
    assert tasks.datasets == ["diabetes"]
    assert list(tasks.tasks) == [("diabetes", split) for split in range(20)]
    problem = tasks.problem(("diabetes", 3))
    assert problem.frozen.sha256 == tasks.tasks["diabetes", 3].sha256
    assert tasks.problem(("diabetes", 3)) is problem


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "split-00.certificate.json").unlink(), "has no certificate beside it"),
        (lambda folder: (folder / "split-00.safetensors").write_bytes(b"x"), "is not a safetensors file"),
        (lambda folder: [(folder / f"split-01{end}").replace(folder / f"split-00{end}") for end in ENDS],
         "holds diabetes split 1"),
    ],
)  # fmt: skip
def test_a_damaged_one_is_refused_not_fitted_again(monkeypatch, tmp_path, damage, words):
    for split in (0, 1):
        for path in (
            official_path("diabetes", split),
            official_path("diabetes", split).with_suffix(".certificate.json"),
        ):
            copy = tmp_path / "diabetes" / "tasks" / "v1" / path.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(official, "resource_dir", lambda name: tmp_path)
    read_official.cache_clear()
    damage(tmp_path / "diabetes" / "tasks" / "v1")
    try:
        with pytest.raises(InputError, match=words):
            find_task("diabetes", 0)
    finally:
        read_official.cache_clear()


ENDS = (".safetensors", ".certificate.json")


def test_the_protocol_of_official_tasks_asks_for_these_alone():
    assert set(load_protocol("official").datasets) <= set(FROZEN)
