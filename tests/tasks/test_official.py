"""The frozen tasks that travel with the package: whole sets of splits, each certified, and found before any fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fsvi_bench.errors import InputError
from fsvi_bench.maths import features
from fsvi_bench.running.options import Request
from fsvi_bench.running.plan import load_protocol, make_plan
from fsvi_bench.tasks import official
from fsvi_bench.tasks.build import departures, load_cached
from fsvi_bench.tasks.card import card_names, load_card
from fsvi_bench.tasks.certificate import CertifiedTask, certify, differences, save
from fsvi_bench.tasks.official import (
    find_task,
    load_task,
    official_path,
    official_splits,
    official_tasks,
    read_named,
    read_official,
    sources,
)
from fsvi_bench.tasks.sets import read_member, splits_of, write_set
from fsvi_bench.tasks.splits import splits_sha256
from fsvi_bench.tasks.task import bind_task

ROOT = Path(__file__).resolve().parents[2]
IDENTITIES = json.loads((Path(__file__).parent / "official_v1.json").read_text())  #: taken when each split had a file
FROZEN = [name for name in card_names() if official_splits(name)]


def test_diabetes_and_the_development_sets_are_among_them():
    assert {"diabetes", "boston", "concrete"} <= set(FROZEN)


def test_identities_equal_the_frozen_ones():
    assert {name: [read_official(name, split).task.sha256 for split in official_splits(name)] for name in FROZEN} == (
        IDENTITIES
    )


@pytest.mark.parametrize("name", FROZEN)
def test_every_split_of_a_data_set_is_frozen_with_its_standard_rows_and_a_certificate_within_the_limits(name):
    card = load_card(name)
    assert official_splits(name) == list(range(card.splits.count))
    tasks = [read_official(name, split).task for split in official_splits(name)]
    assert splits_sha256([(task.train_index.numpy(), task.test_index.numpy()) for task in tasks]) == card.splits.sha256
    for split in official_splits(name):
        task, certificate = (found := read_official(name, split)).task, found.certificate
        assert (task.k, certificate.task_sha256, certificate.data_sha256) == (100, task.sha256, card.source.sha256)
        assert certificate.fit is not None
        assert certificate.fit.settings == card.fit
        # A line search that gave up, which SciPy calls abnormal, is no end of a fit.
        assert certificate.fit.converged or certificate.fit.iterations == card.fit.max_iterations
        assert (float(task.jitter), certificate.jitter) == (card.fit.jitter, card.fit.jitter)
        # Standardised targets that are nothing but noise have −½ log(2πe) = −1.419 nats per point.
        assert certificate.fit.bound_per_point > -1.3
        # At the floor the card, not the data, would have chosen the noise.
        assert certificate.noise_variance == float(task.noise_variance) > 1.1 * card.fit.noise_floor
        certificate.require_limits()


WITHOUT_DATA = [pytest.param(name, marks=() if name == "diabetes" else pytest.mark.data) for name in FROZEN]


@pytest.mark.parametrize("name", WITHOUT_DATA)
def test_the_certificate_of_the_worst_conditioned_split_holds_and_though_every_kernel_value_were_rounded_otherwise(
    name, monkeypatch
):
    """`fsvi-bench tasks verify` looks at all splits.

    Another machine's exponential function may be wrong in the last bit, each value otherwise: every kernel value is
    multiplied by 1 + u, |u| ≤ 2⁻⁵³, symmetrically in k(Z,Z).
    """
    members = [read_official(name, split) for split in official_splits(name)]
    task, stored = max(members, key=lambda member: member.certificate.condition_precision)
    assert differences(stored, certify(bind_task(task), stored.fit)) == []
    assert departures(task) == []
    generator, exact_kernel = torch.Generator().manual_seed(0), features.ard_kernel

    def rounded(*arguments):
        kernel = exact_kernel(*arguments)
        error = (2 * torch.rand(kernel.shape, generator=generator, dtype=torch.float64) - 1) * 2**-53
        if kernel.shape[-1] == kernel.shape[-2]:
            error = error.tril() + error.tril(-1).mT
        return kernel * (1 + error)

    monkeypatch.setattr(features, "ard_kernel", rounded)
    fresh = certify(bind_task(task), stored.fit)
    assert fresh != stored
    assert differences(stored, fresh) == []
    fresh.require_limits()


def test_a_data_set_without_them_has_what_was_fitted_here():
    assert official_splits("toy") == []
    load_task("toy")
    assert find_task("toy", 0).task.sha256 == load_cached(load_card("toy"), 0).task.sha256


def test_a_set_makes_each_problem_once():
    tasks = official_tasks(["diabetes", "toy"])
    assert list(tasks.tasks) == [("diabetes", split) for split in range(20)]
    problem = tasks.problem(("diabetes", 3))
    assert problem.frozen.sha256 == tasks.tasks["diabetes", 3].sha256
    assert tasks.problem(("diabetes", 3)) is problem


@pytest.fixture
def copied(monkeypatch, tmp_path):
    """A copy of two of diabetes' official tasks, in place of the set that is in the package."""
    path = tmp_path / "diabetes" / "tasks" / "v1.safetensors"
    write_set(path, [read_official("diabetes", split) for split in (0, 1)])
    monkeypatch.setattr(official, "resource_dir", lambda name: tmp_path)
    read_official.cache_clear()
    yield path
    read_official.cache_clear()


def rewrite(path, metadata=lambda words: words, tensors=lambda tensors: tensors):
    with safe_open(path, "pt") as stream:
        kept, words = {name: stream.get_tensor(name) for name in stream.keys()}, stream.metadata()  # noqa: SIM118
    save_file(tensors(kept), path, metadata=metadata(words))


def with_words(**words):
    """A file with some of its metadata replaced; `None` drops one."""
    return lambda path: rewrite(path, lambda own: {k: v for k, v in (own | words).items() if v is not None})


def with_tensors(change):
    return lambda path: rewrite(
        path, tensors=lambda own: {k: v for k, v in (own | change(own)).items() if v is not None}
    )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(b"x"), "is not a safetensors file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is not a safetensors file"),
        (with_words(format="fsvi-task/1"), "expected 'fsvi-task-set/1'"),
        (with_words(dataset="boston"), "has D=10 columns, but boston has"),
        (with_words(dataset="yacht"), "has D=10 columns, but yacht has"),
        (with_words(**{"certificate.0": "{}"}), "is not a valid certificate"),
        (with_words(**{"certificate.0": None}), "has no certificate"),
        (lambda path: rewrite(path, lambda words: words | {"certificate.0": words["certificate.1"]}),
         "certifies task .* but diabetes split 0 is"),
        (with_tensors(lambda own: {"lengthscales": own["lengthscales"].float()}), "has type float32, expected float64"),
        (with_tensors(lambda own: {"outputscale": own["outputscale"][:1]}), "expected the same leading axis of splits"),
        (with_tensors(lambda own: {"outputscale": own["outputscale"].flip(0)}), "certifies task"),
        (with_tensors(lambda own: {"jitter": None}), "'jitter' is missing"),
    ],
)  # fmt: skip
def test_a_damaged_one_is_refused_not_fitted_again(copied, damage, words):
    damage(copied)
    with pytest.raises(InputError, match=words):
        find_task("diabetes", 0)


def test_another_data_sets_tasks_are_refused(copied):
    write_set(copied, [read_member(ROOT / "datasets" / "boston" / "tasks" / "v1.safetensors", split) for split in (0,)])
    with pytest.raises(InputError, match="contains boston, expected diabetes"):
        read_official("diabetes", 0)


def test_a_split_is_read_without_the_others(copied, monkeypatch):
    """What is not asked for may be broken."""
    rewrite(copied, tensors=lambda t: t | {"lengthscales": t["lengthscales"] * torch.tensor([[1.0], [torch.nan]])})
    assert read_official("diabetes", 0).task.sha256 == IDENTITIES["diabetes"][0]
    with pytest.raises(InputError, match="'lengthscales' contains NaN"):
        read_official("diabetes", 1)


def test_a_set_is_written_and_read_to_the_bit(tmp_path):
    members = [read_official("yacht", split) for split in range(3)]
    write_set(tmp_path / "set.safetensors", members)
    assert splits_of(tmp_path / "set.safetensors") == [0, 1, 2]
    for split, member in enumerate(members):
        found = read_member(tmp_path / "set.safetensors", split)
        assert (found.task.sha256, found.certificate) == (member.task.sha256, member.certificate)
    with pytest.raises(InputError, match="has no split 3; its splits run from 0 to 2"):
        read_member(tmp_path / "set.safetensors", 3)
    for others in (members[1:], [*members, read_official("boston", 3)]):
        with pytest.raises(InputError, match=r"splits 0, 1, \.\.\. of one data set"):
            write_set(tmp_path / "other.safetensors", others)
    assert not (tmp_path / "other.safetensors").exists()


def test_a_broken_set_fails_when_it_is_read_and_hides_no_other_file(tmp_path):
    for name in "ab":
        write_set(tmp_path / f"{name}.safetensors", [read_official("yacht", split) for split in range(2)])
    rewrite(tmp_path / "a.safetensors", tensors=lambda own: own | {"train_index": own["train_index"][:1]})
    broken, *others = sources(tmp_path)
    assert [source.read()[0].split for source in others] == [0, 1]
    with pytest.raises(InputError, match="expected the same leading axis of splits in all"):
        broken.read()


def test_splits_of_different_sizes_share_a_set(tmp_path):
    members = []
    for split in range(3):
        task, certificate = read_official("yacht", split)
        task = replace(task, train_index=task.train_index[split:], test_index=task.test_index[: 31 - split % 2])
        members.append(CertifiedTask(task, certificate.model_copy(update={"task_sha256": task.sha256})))
    write_set(path := tmp_path / "set.safetensors", members)
    for split, member in enumerate(members):
        found = read_member(path, split)
        assert (found.task.sha256, found.certificate) == (member.task.sha256, member.certificate)
    # A row number that is overwritten with the padding is missed by the certificate.
    rewrite(path, tensors=lambda own: own | {"train_index": own["train_index"].index_fill(1, torch.tensor([0]), -1)})
    with pytest.raises(InputError, match="certifies task"):
        read_member(path, 0)


def test_tasks_are_named_by_data_set_and_split_by_file_or_by_folder(tmp_path):
    assert [str(source) for source in sources("boston:0,3-4")] == ["boston:0", "boston:3", "boston:4"]
    assert [str(source) for source in sources("protein")] == [f"protein:{split}" for split in range(5)]
    assert sources(official_path("protein")) == sources("protein")
    save(read_official("yacht", 2), tmp_path / "a" / "yacht.safetensors")
    write_set(tmp_path / "b.safetensors", [read_official("boston", 0)])
    assert list(map(str, sources(tmp_path))) == [f"{tmp_path}/a/yacht.safetensors", f"{tmp_path}/b.safetensors:0"]
    assert [source.read()[0].sha256 for source in sources(tmp_path)] == [
        IDENTITIES["yacht"][2],
        IDENTITIES["boston"][0],
    ]
    assert read_named("boston:7")[0].sha256 == load_task("boston:7").sha256 == IDENTITIES["boston"][7]
    assert read_named(tmp_path / "a" / "yacht.safetensors")[1] == read_official("yacht", 2).certificate


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("boston:20", "boston has no official task of split 20; its splits: 0 to 19"),
        ("boston:0-1", "names 2 tasks, expected one"),
        ("boston:", "is not understood"),
        ("bosten:0", "did you mean 'boston'"),
        ("toy:0", "toy has no official tasks"),
    ],
)
def test_what_names_no_task_is_refused(name, words):
    with pytest.raises(InputError, match=words):
        read_named(name)
    with pytest.raises(InputError, match=words):
        make_plan(Request(task_files=[name], methods=["exact"]))


def test_the_protocol_of_official_tasks_asks_for_these_alone():
    assert set(load_protocol("official").datasets) <= set(FROZEN)
