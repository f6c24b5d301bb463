"""Cells of methods that train: the same in any company and folder, with traces, and failures that stay their own."""

from __future__ import annotations

import math

import pytest
import torch

from fsvi_bench.methods.registry import default_names
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.running.cell import Record
from fsvi_bench.running.plan import Request
from fsvi_bench.running.store import load_traces
from fsvi_bench.scoring.scores import score
from fsvi_bench.tasks.build import load_cached
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.task import bind_task
from fsvi_bench.training.trace import read_trace, trace_steps
from tests.running.cells import changed, comparable, execute, posteriors

TRAINING = """
from __future__ import annotations
import torch
from pydantic import PositiveFloat
from fsvi_bench.methods.base import Method, MethodOptions
from fsvi_bench.posteriors.gaussian import FullGaussian
class Settings(MethodOptions):
    "Named apart from the class it belongs to, so that only its place in the file finds it."
    max_steps: int = 10
    lr: PositiveFloat = 0.001
class Walker(Method):
    "Gradient steps of the mean, each with noise from its problem's own stream."
    Options = Settings
    families = ("full",)
    automatic_optimization = False
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.mean = torch.zeros_like(self.problems.Phi[:, 0])
        self.own = [torch.Generator().manual_seed(seed) for seed in self.seeds]
    def configure_optimizers(self): "Steps are its own."
    def training_step(self, batch, batch_idx):
        for place, stream in enumerate(self.own):
            Phi, y = self.problems.Phi[place].clone(), self.problems.y[place].clone()
            noise = torch.randn(20, generator=stream, dtype=torch.float64)
            self.mean[place] += self.options.lr * (Phi.mT @ (y - Phi @ self.mean[place].clone()) + noise)
        self.note(self.mean.sum(-1))
    def posterior(self):
        return FullGaussian(self.mean.clone(), torch.eye(20, dtype=torch.float64).repeat(len(self.mean), 1, 1))
"""

#: A budget that trains quickly.
RANDA = Request(
    datasets=["toy"], splits="0-2", methods=["rand-a"], families=["full"], measurement_points=[10], max_steps=25
)


def traces(root):
    """Every cell's trace without its seconds."""
    points = {str(path.parent.relative_to(root)): read_trace(path).points for path in root.rglob("trace.csv")}
    return {
        cell: [(point.steps, point.kl, point.nlpd, point.loss) for point in trace] for cell, trace in points.items()
    }


@pytest.mark.slow
def test_workers_do_not_change_what_is_trained(tmp_path):
    """Three cells of each method and family on one worker and on two, without those whose scores are integrals over
    mixtures, which take long. A method from a file is among them: it and its options reach the other process, though
    neither can be imported there by name."""
    path = tmp_path / "walker.py"
    path.write_text(TRAINING)
    methods = sorted(set(default_names()) - {"bernoulli-dropout", "concrete-dropout", "spike-and-slab"})
    request = changed(RANDA, methods=[*methods, f"{path}:Walker"], families=[])
    one, two = (execute(tmp_path / str(workers), request, workers=workers) for workers in (1, 2))
    assert {record.status for record in one.records} == {"ok"}
    assert len({(record.method, record.family) for record in one.records}) * 3 == len(one.records)
    assert posteriors(tmp_path / "1") == posteriors(tmp_path / "2")
    assert traces(tmp_path / "1") == traces(tmp_path / "2")
    assert len(posteriors(tmp_path / "1")) == len(one.records)
    assert len(traces(tmp_path / "1")) == sum(record.method != "exact" for record in one.records)
    assert {record.seconds.batch_size for record in one.records} == {3}
    assert {record.seconds.batch_size for record in two.records if record.method != "exact"} == {1, 2}
    for first, second in zip(one.records, two.records, strict=True):
        assert comparable(first) == comparable(second)


def test_what_draws_nothing_and_trains_is_one_cell_with_a_trace_and_shared_out(tmp_path):
    path = tmp_path / "walker.py"
    walker = TRAINING.replace("automatic_optimization = False", "automatic_optimization, deterministic = False, True")
    path.write_text(walker.replace(" + noise)", ")"))
    request = changed(RANDA, methods=[f"{path}:Walker"], measurement_points=[], max_steps=10, seeds="0-1")
    records = execute(tmp_path / "out", request, workers=2).records
    assert [(record.split, record.seed, record.status) for record in records] == [(s, 0, "ok") for s in range(3)]
    assert {record.provenance["method_file"] for record in records} == {"walker.py"}
    assert sorted(record.seconds.batch_size for record in records) == [1, 2, 2]
    found = traces(tmp_path / "out")
    assert [[point[0] for point in points] for points in found.values()] == [trace_steps(10)] * 3


def test_the_same_command_in_another_folder_gives_the_same(tmp_path):
    methods = ["rand-a", "mean-field-vi"]
    request = changed(RANDA, methods=methods, families=["ffg"], seeds="0-1", options={"minibatch": 7})
    one, two = (execute(tmp_path / name, request) for name in ("one", "two"))
    assert len(one.records) == len(two.computed) == 12
    assert list(map(comparable, one.records)) == list(map(comparable, two.records))
    for read in (posteriors, traces):
        assert len(read(tmp_path / "one")) == 12
        assert read(tmp_path / "one") == read(tmp_path / "two")
    assert len({record.scores.kl for record in one.records}) == 12  # every split, seed and method has its own


def test_a_lost_cell_of_a_batch_is_trained_again_alike(tmp_path):
    """Alone now, where it had company."""
    first = execute(tmp_path, RANDA)
    before = posteriors(tmp_path)
    sorted(tmp_path.rglob("record.json"))[1].unlink()
    second = execute(tmp_path, RANDA)
    assert len(second.computed) == 1
    assert second.computed[0].seconds.batch_size == 1
    assert list(map(comparable, second.records)) == list(map(comparable, first.records))
    assert posteriors(tmp_path) == before


def test_every_trained_cell_has_a_trace_from_the_prior_to_its_record(tmp_path):
    request = changed(
        RANDA, methods=["rand-a", "exact"], splits="0-1", options={"averaging": 0.0, "initial_scale": 1.0}
    )
    prior = FullGaussian(torch.zeros(20, dtype=torch.float64), torch.eye(20, dtype=torch.float64))
    found = {record.cell: record for record in execute(tmp_path, request).records}
    records = [Record.model_validate_json(path.read_bytes()) for path in tmp_path.rglob("record.json")]
    assert {record.cell: record for record in records} == found
    points = load_traces(records, tmp_path)
    assert {found[cell].method for cell in points} == {"rand-a"}
    assert len(points) == 2
    for cell, trace in points.items():
        record, (first, *_, last) = found[cell], trace.points
        problem = bind_task(load_cached(load_card("toy"), record.split).task)
        assert [point.steps for point in trace.points] == trace_steps(25)
        assert (first.seconds, first.kl) == (0, pytest.approx(score(prior, problem).kl, rel=1e-12))
        assert (last.steps, last.kl, last.nlpd) == (25, record.scores.kl, record.scores.nlpd)
        seconds = [point.seconds for point in trace.points]
        assert seconds == sorted(seconds)
        assert 0 < seconds[-1] <= record.seconds.train


def test_a_run_in_which_everything_diverged_ends_early(tmp_path):
    """A learning rate of 1e300: the second step's loss is no number. The work until then is kept."""
    request = changed(RANDA, max_steps=3000, options={"lr": 1e300})
    records = execute(tmp_path, request).records
    assert {(r.status, r.reason, r.scores) for r in records} == {
        ("diverged", "the loss was not finite at step 1", None)
    }
    assert [(r.work["gradients"], r.seconds.batch_size) for r in records] == [(2, 3)] * 3
    found = [read_trace(path).points for path in tmp_path.rglob("trace.csv")]
    assert len(found) == 3
    for points in found:
        assert points[0].steps == 0
        assert math.isfinite(points[0].kl)
        assert points[-1].steps < 100
        assert not math.isfinite(points[-1].kl)
    assert list(tmp_path.rglob("posterior.safetensors")) == []
    assert execute(tmp_path, request).computed == []


@pytest.mark.slow
def test_a_trace_ends_where_its_problem_stopped_whatever_the_others_do(tmp_path):
    """L-BFGS at sets that see every weight: three problems converge after different numbers of steps."""
    request = changed(RANDA, methods=["fixed-a"], families=["ffg"], measurement_points=[40], max_steps=3000)
    together = execute(tmp_path / "together", request).records
    for split in range(3):
        execute(tmp_path / "alone", changed(request, splits=str(split)))
    assert traces(tmp_path / "together") == traces(tmp_path / "alone")
    assert posteriors(tmp_path / "together") == posteriors(tmp_path / "alone")
    ends = {cell: points[-1] for cell, points in traces(tmp_path / "together").items()}
    assert len({steps for steps, *_ in ends.values()}) == 3
    assert max(steps for steps, *_ in ends.values()) < 3000
    assert {kl for _, kl, *_ in ends.values()} == {record.scores.kl for record in together}
