"""Network tasks in runs: cells, records, tables and reports."""

from __future__ import annotations

import io
import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from pytorch_lightning import Trainer
from rich.console import Console

import fsvi_bench
from fsvi_bench.errors import InputError
from fsvi_bench.files import sha256_of_json
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.laplace import Laplace
from fsvi_bench.methods.low_rank_vi import LowRankVI
from fsvi_bench.methods.mean_field_vi import MeanFieldVI
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.methods.points import FEWEST_ON_NETWORKS
from fsvi_bench.networks.reference import FEWEST, read_functions
from fsvi_bench.networks.scores import score_functions
from fsvi_bench.networks.task import network_name
from fsvi_bench.posteriors.base import unstack
from fsvi_bench.presenting.parquet import record_row
from fsvi_bench.presenting.summary import EXACT_DRAWS, cells_of, floors, result_table
from fsvi_bench.running import job
from fsvi_bench.running.network_job import NetworkProblem, network_data, score_network
from fsvi_bench.running.options import Request
from fsvi_bench.running.plan import load_protocol, make_plan, protocols
from fsvi_bench.running.provenance import TRAINS_AND_SCORES
from fsvi_bench.running.store import POSTERIOR_FILE, Store
from fsvi_bench.sources import reached
from fsvi_bench.tasks.official import read_official
from tests.conftest import shorten_scores

TOY = "toy:0:collapsed-2:simulated"
ROW = "toy-collapsed-2-simulated"


@pytest.fixture(autouse=True, scope="module")
def _short_scores() -> Iterator[None]:
    """In this process; scores' values are tested in `tests/networks`."""
    with pytest.MonkeyPatch.context() as patch:
        shorten_scores(patch)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of a linear task and a network together."""
    out = tmp_path_factory.mktemp("networks") / "out"
    run(out)
    return out


def run(out: Path, **changes: Any) -> pd.DataFrame:
    usual: dict[str, Any] = {"datasets": ["toy"], "splits": "0", "task_files": [TOY], "workers": 1, "wandb": "off"}
    usual |= {"methods": ["mean-field-vi", "ensemble"], "max_steps": 60, "out": out}
    return fsvi_bench.run(**usual | changes)


@pytest.fixture(scope="module")
def problem() -> NetworkProblem:
    network = fsvi_bench.load_network(TOY)
    return NetworkProblem(network, network.task.training())


def fitted(method: type[Method], problem: NetworkProblem, **options: Any) -> Method:
    found = method(network_data([problem]), seeds=3, **options)
    if found.trains:
        trainer = Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
        trainer.fit(found, datamodule=found.data())
    return found


def scores_of(method: Method, problem: NetworkProblem) -> dict[str, Any]:
    (q,) = unstack(method.posterior())
    return score_network(q, method.problems, problem.frozen)[0].scores


def test_a_record_has_the_scores_of_its_file(folder: Path) -> None:
    network = fsvi_bench.load_network(TOY)
    records = [record for record in Store(folder).records if record.dataset == ROW]
    assert [record.method for record in records] == ["mean-field-vi", "ensemble"]
    for record, count in zip(records, (1000, 5), strict=True):
        assert (record.status, record.split, record.scores) == ("ok", 0, None)
        f = read_functions(folder / record.folder / POSTERIOR_FILE, network.task)
        found = score_functions(f, network.task, network.reference)
        assert record.network_scores is not None
        assert record.network_scores.functions == len(f) == count
        own = {name: score for name, score in record.network_scores.scores.items() if name != "kl"}
        assert own == found.scores
        assert ("kl" in record.network_scores.scores) == (record.method == "mean-field-vi")


def test_the_search_for_a_mode_counts_as_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Laplace searches when it is made."""
    made = job.make_method

    def slowly(*arguments: Any) -> Method:
        time.sleep(0.5)
        return made(*arguments)

    monkeypatch.setattr(job, "make_method", slowly)
    run(tmp_path, datasets=[], splits=None, methods=["laplace"], max_steps=None)
    (record,) = Store(tmp_path).records
    assert record.seconds is not None
    assert record.seconds.train >= 0.5


def test_a_run_resumes_and_does_not_depend_on_workers(folder: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("record.json")}
    run(folder)
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("record.json")}
    again = run(tmp_path / "other", datasets=[], splits=None, workers=2)
    first = fsvi_bench.results(folder)
    mine, others = (
        frame.set_index("method")[["w2_train", "w2_test", "w2_box"]]  # short scores have these values, too
        for frame in (first[first["dataset"] == ROW], again)
    )
    assert mine.to_dict() == others.to_dict()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (MeanFieldVI, {"max_steps": 300, "lr": 0.03}),
        (MeanFieldVI, {"max_steps": 300, "lr": 0.03, "minibatch": "full", "collapsed": True}),
        (LowRankVI, {"max_steps": 200, "lr": 0.03}),
    ],
)
def test_kl_is_that_of_densities(problem: NetworkProblem, method: type[Method], options: dict[str, Any]) -> None:
    """log Z + E_q[log q(w) − log p(w) − log p(y | w)], from other draws and PyTorch's densities; 4 standard errors."""
    found = fitted(method, problem, **options)
    score = scores_of(found, problem)["kl"]
    (q,) = unstack(found.posterior())
    law = torch.distributions.MultivariateNormal(q.mean, scale_tril=q.covariance_tril())
    torch.manual_seed(5)
    w = law.sample((4000,))
    prior = torch.distributions.Normal(0.0, 1.0).log_prob(w).sum(-1)
    task = problem.frozen.task
    X, y = problem.training
    if options.get("collapsed"):
        fit = task.network.log_likelihood(w, X, y, task.noise_variance)
    else:
        fit = torch.distributions.Normal(task.network.values(w, X), task.noise_variance.sqrt()).log_prob(y).sum(-1)
    terms = law.log_prob(w) - prior - fit
    expected = problem.frozen.certificate.log_z.value + float(terms.mean())
    assert score.value > 0
    assert abs(score.value - expected) < 4 * math.hypot(score.error, float(terms.std()) / len(w) ** 0.5)


def test_a_networks_linear_model_has_no_density_over_its_weights(problem: NetworkProblem) -> None:
    assert "kl" not in scores_of(fitted(Laplace, problem), problem)


def test_splits_and_seeds_are_trained_side_by_side(problem: NetworkProblem) -> None:
    alone = fitted(MeanFieldVI, problem, max_steps=30)
    both = MeanFieldVI(network_data([problem, problem]), seeds=[8, 3], max_steps=30)
    assert isinstance(both.problems, NetworkData)
    trainer = Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(both, datamodule=both.data())
    assert torch.equal(both.posterior()[1].mean, alone.posterior()[0].mean)


def test_tables_show_networks_apart_with_what_exact_draws_score(folder: Path) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(result_table(Store(folder).records, 200))
    linear, _, networks = console.export_text().partition("One split each")
    assert "RMSE" in linear
    assert "energy" not in linear
    assert "energy" in networks
    rows = f"1,000 {EXACT_DRAWS}", f"5 {EXACT_DRAWS} (ensemble)", "mean-field-vi", "ensemble particles"
    places = [networks.index(row) for row in rows]
    assert places == sorted(places)


def test_floors_are_those_of_as_many_draws(folder: Path) -> None:
    records = [record for record in Store(folder).records if record.dataset == ROW]
    many, few = floors(cells_of(records), ROW, ["w2_test"])
    assert [(each.draws, each.remark) for each in (many, few)] == [(1000, ""), (5, " (ensemble)")]
    for found, record in ((many, records[0]), (few, records[1])):
        splits, floor = found.cells
        assert record.network_scores is not None
        assert (splits.value, floor.value) == (1, record.network_scores.scores["w2_test"].floor)
    assert few.cells[1].value > 3 * many.cells[1].value  # type: ignore[operator]


@pytest.mark.parametrize("linear", [True, False])
def test_a_report_has_networks_tables_and_commands(folder: Path, tmp_path: Path, cli: Any, linear: bool) -> None:
    source = folder
    if not linear:
        run(source := tmp_path / "networks", datasets=[], splits=None, methods=["ensemble"])
    status, _, err = cli("report", source, "--out", tmp_path / "report")
    assert (status, err) == (0, "")
    page = (tmp_path / "report" / "report.html").read_text()
    assert ("Over- and underconfidence" in page) == linear
    assert "5 exact draws" in page
    assert "Higher variance ranks are better." in page
    assert f"--task {TOY}" in page
    assert f"--dataset {ROW}" not in page
    assert ("--dataset toy" in page) == linear


def test_a_network_without_scores_has_no_floors_and_a_linear_task_neither(folder: Path) -> None:
    cells = cells_of(Store(folder).records)
    assert not floors(cells, "toy", ["w2_test"])
    assert not floors(cells.assign(functions=math.nan), ROW, ["w2_test"])
    assert not floors(cells[cells["dataset"] == "toy"].drop(columns="functions"), "toy", ["w2_test"])


@pytest.mark.usefixtures("no_figures")
def test_a_divergence_is_a_status_and_the_command_that_repeats_it_runs(tmp_path: Path, cli: Any) -> None:
    found = run(tmp_path / "out", datasets=[], splits=None, methods=["mean-field-vi"], options={"lr": 1e200})
    assert found["status"].tolist() == ["diverged"]
    assert cli("report", tmp_path / "out", "--out", tmp_path)[0] == 0
    page = (tmp_path / "report.html").read_text()
    assert f"fsvi-bench run --method mean-field-vi --family ffg --task {TOY} --set lr=1e+200 --max-steps 60" in page


WRONG = """
import torch
from fsvi_bench.methods.laplace import Laplace
from fsvi_bench.posteriors.gaussian import FullGaussian
class FullFactor(Laplace):
    "A square root of the covariance that is not triangular."
    def posterior(self):
        q = super().posterior()
        return FullGaussian(q.mean, q.scale_tril @ torch.ones_like(q.scale_tril))
class Mislabelled(Laplace):
    "A Gaussian that says it is a set of particles."
    families = ("particles",)
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("FullFactor", "this is not a posterior over the weights: .* above the diagonal"),
        ("Mislabelled", "the posterior is gaussian-full, expected particles for its family"),
    ],
)
def test_what_is_no_posterior_of_its_family_fails(tmp_path: Path, name: str, reason: str) -> None:
    (source := tmp_path / "wrong.py").write_text(WRONG)
    found = run(tmp_path / "out", datasets=[], splits=None, max_steps=None, methods=[f"{source}:{name}"])
    assert found["status"].tolist() == ["failed"]
    assert re.search(reason, found["reason"][0])


@pytest.mark.usefixtures("no_figures")
def test_commands_leave_out_the_defaults_of_networks_alone(folder: Path, tmp_path: Path, cli: Any) -> None:
    """0.3 is the default on linear tasks, 0.03 on networks."""
    run(tmp_path / "out", datasets=[], splits=None, methods=["mean-field-vi"], options={"lr": 0.3})
    assert cli("report", tmp_path / "out", "--out", tmp_path)[0] == 0
    assert "--set lr=0.3" in (tmp_path / "report.html").read_text()


def test_scores_are_exported(folder: Path) -> None:
    rows = [record_row(record) for record in Store(folder).records if record.dataset == ROW]
    for row in rows:
        assert math.isfinite(row["w2_test"])
        assert row["w2_test_floor"] > 0


def test_with_another_reference_a_cell_is_another() -> None:
    """Its scores are compared with the reference, so a record is not reused when the posterior is sampled again."""
    plan = make_plan(Request(datasets=["yacht"], splits="0", task_files=[TOY], methods=["ensemble"]))
    (network,), linear = plan.given, read_official("yacht", 0).task
    other = replace(network, certificate=network.certificate.model_copy(update={"reference_sha256": "0" * 64}))
    (exact, here), (same, there) = (list(plan.bind([linear, each], {}, "cpu").cells()) for each in (network, other))
    assert exact.key == same.key == sha256_of_json(exact.model_dump(mode="json", exclude={"reference_sha256"}))
    assert here.key != there.key


def test_a_family_that_no_method_has_on_the_task_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"none of the chosen methods \(bernoulli-dropout, mean-field-vi, rand-a, ssge\)"
    ):
        make_plan(Request(task_files=[TOY], families=["spike-slab"]))


def test_what_scores_a_network_is_in_the_hash_of_its_code() -> None:
    found = reached(TRAINS_AND_SCORES, ["fsvi_bench.running"])
    assert {"fsvi_bench.networks.scores", "fsvi_bench.networks.comparison", "fsvi_bench.networks.reference"} <= {*found}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("yacht-collapsed-10", "yacht:3:collapsed-10"),
        ("toy-collapsed-2-simulated", "toy:3:collapsed-2:simulated"),
        ("energy-logit-100", "energy:3:logit-100"),
        ("energy", None),
        ("my-data", None),
    ],
)
def test_rows_name_their_networks(row: str, name: str | None) -> None:
    assert network_name(row, 3) == name


def test_default_methods_that_need_a_linear_model_leave_networks_out() -> None:
    plan = make_plan(Request(datasets=["toy"], task_files=[TOY], splits="0"))
    rows = {(each.method, each.datasets, each.hyperparameters.get("minibatch")) for each in plan.variants}
    assert ("exact", ("toy",), None) in rows
    assert {row for row in rows if row[0] == "mean-field-vi"} == {
        ("mean-field-vi", ("toy",), "full"),
        ("mean-field-vi", (ROW,), 80),  # networks have defaults of their own
    }
    alone = make_plan(Request(task_files=[TOY]))
    assert {variant.method for variant in alone.variants} == {"bernoulli-dropout", "mean-field-vi", "rand-a", "ssge"}


def test_default_methods_that_need_hidden_units_leave_logistic_regressions_out() -> None:
    plan = make_plan(Request(task_files=[TOY, "energy:0:logit-100"]))
    on = {each.method: each.datasets for each in plan.variants}
    assert on == {
        "bernoulli-dropout": (ROW,),
        **dict.fromkeys(("mean-field-vi", "rand-a", "ssge"), (ROW, "energy-logit-100")),
    }


@pytest.mark.parametrize(
    ("task", "method", "said"),
    [
        (TOY, "exact", f"exact supports linear models only, but {ROW} is a network; "),
        (
            "energy:0:logit-100",
            "bernoulli-dropout",
            "bernoulli-dropout needs hidden units, but energy-logit-100 has none; ",
        ),
    ],
)
def test_a_method_that_does_not_take_a_network_is_refused_by_name(task: str, method: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^{said}run them separately, or choose from "):
        make_plan(Request(task_files=[task], methods=[method]))


@pytest.mark.parametrize(
    ("method", "setting", "said"),
    [
        ("rand-a", ("--measurement-points", "2000"), "choose a smaller M (--measurement-points)"),
        ("gfsvi", ("--set", "network_M=2000"), "choose a smaller network_M"),
        ("gfsvi", ("--set", "training=closed-form"), "set training=adam"),
        ("bernoulli-dropout", ("--set", "training=closed-form"), "set training=masks"),
        ("mean-field-vi", ("--set", "collapsed=true", "--set", "minibatch=3"), "set minibatch=full"),
        (
            "ensemble",
            ("--set", "particles=2"),
            "particles=2 is too few for a network, whose scores need 3; choose more",
        ),
    ],
)
def test_settings_that_do_not_fit_a_network_are_refused_before_anything_is_trained(
    cli: Any, tmp_path: Path, method: str, setting: tuple[str, str], said: str
) -> None:
    out = tmp_path / "out"
    status, text, error = cli("run", "--task", TOY, "--method", method, *setting, "--wandb", "off", "--out", out)
    assert (status, text) == (2, "")
    assert said in error
    assert len(error.splitlines()) == 1
    assert not list(out.rglob("*.json"))


def test_networks_take_as_many_particles_as_their_scores_need() -> None:
    assert FEWEST_ON_NETWORKS == FEWEST


@pytest.mark.parametrize("name", [name for name in protocols() if load_protocol(name).task_files])
def test_protocols_name_official_network_tasks(name: str) -> None:
    plan = make_plan(Request(protocol=name))
    given = [task.place for task in plan.given]
    assert given
    assert set(given) <= {task.place for task in plan.tasks}
