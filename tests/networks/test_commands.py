"""`fsvi-bench networks`, and scores of functions from Python."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

import fsvi_bench
from fsvi_bench.cli.commands import NetworksBuild
from fsvi_bench.cli.networks import _chosen
from fsvi_bench.networks import official, plan
from fsvi_bench.networks.plan import Model, Sampling, planned_tasks
from fsvi_bench.networks.reference import Certificate, Functions, write_reference
from fsvi_bench.networks.scores import score_functions
from fsvi_bench.networks.task import NetworkTask, build, write_network_task
from tests.networks.test_tasks import certificate, functions


@pytest.fixture(scope="module")
def toy() -> NetworkTask:
    return build("toy", 0, "collapsed-2", "simulated", 0.5)


@pytest.fixture
def datasets(tmp_path: Path, toy: NetworkTask, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data sets with one network task, in place of the package's."""
    path = official.official_path("toy", 0, "collapsed-2", "simulated", tmp_path)
    reference = Functions(*(tensor.float() for tensor in functions(600, 0).tensors.values()))
    write_network_task(path, toy)
    write_reference(path, reference, certificate(toy, reference))
    monkeypatch.setattr(official, "resource_dir", lambda name: tmp_path)
    return path


def test_tasks_are_listed(datasets: Path, cli) -> None:
    status, out, _ = cli("networks", "list")
    assert status == 0
    assert "toy:0:collapsed-2:simulated" in out
    assert "-30.00" in out
    status, out, _ = cli("networks", "list", "--json")
    assert json.loads(out)[0]["level"] == "C0"


def test_a_task_is_its_data_sets(datasets: Path, cli) -> None:
    status, out, _ = cli("networks", "verify")
    assert status == 0
    assert "toy:0:collapsed-2:simulated: matches its data set" in out


@pytest.mark.parametrize("name", ["inputs_box", "simulated_targets", "input_mean"])
def test_another_task_is_not(datasets: Path, toy: NetworkTask, cli, name: str) -> None:
    moved = replace(toy, **{name: toy.tensors[name] + 1e-6})
    reference = official.load_network(datasets).reference
    write_network_task(datasets, moved)
    write_reference(datasets, reference, certificate(moved, reference))
    status, out, err = cli("networks", "verify", datasets)
    assert (status, out) == (1, "")
    assert f"its {name} differs from that of toy:0:collapsed-2:simulated" in err


def test_a_damaged_task_does_not_stop_the_others(datasets: Path, cli) -> None:
    status, out, err = cli("networks", "verify", datasets.with_name("missing.safetensors"), datasets)
    assert status == 2
    assert "missing.safetensors" in err
    assert "matches its data set" in out
    status, out, err = cli("networks", "verify", "nope")
    assert (status, out) == (2, "")
    assert "nope is neither a file nor the name of a network task" in err
    cut = datasets.with_name("cut.safetensors")
    cut.write_bytes(datasets.read_bytes()[:-10])
    status, out, err = cli("networks", "verify", cut)
    assert (status, out) == (2, "")
    assert f"{cut} is not a safetensors file" in err


@pytest.mark.usefixtures("short_scores")
def test_functions_are_scored_from_python(datasets: Path, toy: NetworkTask) -> None:
    network = fsvi_bench.load_network("toy:0:collapsed-2:simulated")
    q = functions(40, 1)
    found = fsvi_bench.score({name: f.numpy() for name, f in q.tensors.items()}, network)
    expected = score_functions(q, toy, network.reference).scores["w2_box"]
    assert found["w2_box"] == expected.value
    assert found["w2_box.floor"] == expected.floor
    with pytest.raises(fsvi_bench.InputError, match="expected a dict of f_train, f_test and f_box"):
        fsvi_bench.score(torch.zeros(40, 20), network)
    with pytest.raises(fsvi_bench.InputError, match="'f_test' contains NaN"):
        fsvi_bench.score(q.tensors | {"f_test": q.f_test * torch.nan}, network)
    with pytest.raises(fsvi_bench.InputError, match="tensor 'f_box' is missing"):
        fsvi_bench.score({"f_train": q.f_train, "f_test": q.f_test}, network)


def test_the_plan_names_each_task_once() -> None:
    planned = planned_tasks()
    assert "toy:0:collapsed-2:simulated" in planned
    assert all(name.startswith(each.of.dataset) for name, each in planned.items())


def test_a_misspelt_task_is_refused(cli, tmp_path: Path) -> None:
    status, _, err = cli("networks", "build", "yacth", "--out", tmp_path)
    assert status == 2
    assert "unknown network task 'yacth'" in err


def test_a_whole_name_is_one_task_and_its_first_parts_are_several() -> None:
    def chosen(*names: str) -> list[str]:
        return [name for name, _, _ in _chosen(NetworksBuild(out=Path("out"), names=names))]

    assert chosen("yacht:0:collapsed-10") == ["yacht:0:collapsed-10"]
    assert chosen("boston") == [
        "boston:0:collapsed-50",
        "boston:1:collapsed-50",
        "boston:0:logit-100",
        "boston:1:logit-100",
        "boston:0:logit-100:simulated",
    ]
    assert chosen() == list(planned_tasks())


@pytest.mark.parametrize(
    ("change", "message"),
    [({"draws": 1999}, "the chains have 3998 draws in all, expected at least 4000"), ({"rank_draws": 18}, "19")],
)
def test_runs_that_are_shorter_than_what_is_kept_are_refused(change: dict[str, int], message: str) -> None:
    assert Sampling(**TINY).chains == 2
    with pytest.raises(ValidationError, match=message):
        Sampling(**TINY | change)


TINY = {
    "chains": 2, "warmup": 200, "draws": 2000, "runs": 4, "particles": 128, "moves": 2, "ladders": 4, "ladder_warmup": 50,
    "ladder_draws": 100, "bounds": 2, "temperatures": 50, "annealed": 2, "ranks": 3, "rank_warmup": 100, "rank_draws": 100,
}  # fmt: skip


@pytest.mark.data
@pytest.mark.slow
def test_a_logistic_regression_is_built_and_verified(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limits that do not ask for long runs: the samplers agree, and the bounds enclose log Z."""
    model = Model(dataset="yacht", model="logit-100", simulated=(0,), sampling=Sampling(**TINY))
    monkeypatch.setattr(plan, "read_yaml", lambda path: {"models": [model.model_dump()]})
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    all_checks, of_length = Certificate._checks, ("ESS", "R̂", "number of data sets", "gap")
    monkeypatch.setattr(
        Certificate,
        "_checks",
        lambda self: [each for each in all_checks(self) if not any(word in each[0] for word in of_length)],
    )
    status, out, err = cli("networks", "build", "--out", tmp_path / "out", "--workers", "1")
    assert status == 0, err
    assert len(out.split()) == 1
    monkeypatch.setattr(official, "resource_dir", lambda name: tmp_path / "out")
    status, out, _ = cli("networks", "verify")
    assert status == 0
    assert "yacht:0:logit-100:simulated: matches its data set, and its certificate (C1) is within the limits" in out
    found = official.load_network("yacht:0:logit-100:simulated")
    monkeypatch.setattr(Certificate, "_checks", all_checks)
    assert len(found.certificate.failures()) >= 4  # far too short
    with pytest.raises(
        fsvi_bench.InputError, match="yacht:0:logit-100:simulated was read from a file, which has no seed"
    ):
        _ = found.task.true_weights
    # The true weights are one draw of the posterior.
    task = build("yacht", 0, "logit-100", "simulated")
    for place, x in found.task.inputs.items():
        f = found.reference.at(place)
        z = (task.network.values(task.true_weights, x) - f.mean(0)) / f.std(0)
        assert 0.3 < float(z.square().mean().sqrt()) < 2


@pytest.mark.slow
def test_pieces_are_kept_and_a_short_run_is_refused(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = Sampling(
        chains=2, warmup=100, draws=2000, runs=2, particles=64, moves=2, ladders=2, ladder_warmup=20, ladder_draws=20
    )
    # Quadrature at a noise of 1 takes seconds.
    model = Model(dataset="toy", model="collapsed-2", noise_scale=1.0, simulated=(0,), sampling=sampling)
    monkeypatch.setattr(plan, "read_yaml", lambda path: {"models": [model.model_dump()]})
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    status, out, err = cli("networks", "build", "--out", tmp_path / "out", "--workers", "1")
    assert (status, out) == (1, "")
    assert "toy:0:collapsed-2:simulated is refused: the smallest bulk ESS is" in err
    assert "the largest error of E f" not in err  # the chains agree with the quadrature
    assert err.count("ladder") == 2
    status, _, err = cli("networks", "build", "--out", tmp_path / "out", "--workers", "1")
    assert status == 1
    assert "ladder 0" not in err
    assert not list((tmp_path / "out").rglob("*.safetensors"))
