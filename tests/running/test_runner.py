"""A run computes what is missing, keeps what is finished, and turns failures into records."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from threadpoolctl import threadpool_limits

from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import method_names
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.running.cell import Record
from fsvi_bench.running.executors import use_one_thread
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store
from fsvi_bench.scoring.objective import WeightSpaceKL
from fsvi_bench.scoring.scores import score
from fsvi_bench.tasks.build import build_task, load_cached
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.problem import load_problem
from fsvi_bench.training.trace import read_trace, trace_steps

TOY = Request(datasets=["toy"], splits="0-3", methods=["exact"])

FAILING = """
from __future__ import annotations
import torch
from fsvi_bench.methods.base import Method, MethodOptions
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
class Options(MethodOptions):
    mean: float | str = 0.0
    scale: float | str = 1.0
    dtype: str = "float64"
    k: int = 20
class Base(Method):
    automatic_optimization = False
    num_steps = 1
    Options = Options
    def configure_optimizers(self): return None
    def training_step(self, batch, batch_idx): return None
    def posterior(self):
        mean = torch.zeros(len(self.problems.y), self.options.k, dtype=getattr(torch, self.options.dtype))
        scale = torch.ones_like(mean)
        if len(mean) > 1:
            mean[1, 0], scale[1, 0] = float(self.options.mean), float(self.options.scale)
        return FactorisedGaussian(mean, scale)
class Raises(Base):
    "Fails while it trains."
    def training_step(self, batch, batch_idx): raise FloatingPointError("planted [/x]")
class Plants(Base):
    "Puts one number into its second problem's posterior."
class Interrupts(Base):
    "As if Ctrl-C came in a step."
    def training_step(self, batch, batch_idx): raise KeyboardInterrupt
"""


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
    automatic_optimization = False
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.mean = torch.zeros_like(self.problems.Phi[:, 0])
        self.streams = [torch.Generator().manual_seed(seed) for seed in self.seeds]
    @property
    def num_steps(self): return self.options.max_steps
    def training_step(self, batch, batch_idx):
        for place, stream in enumerate(self.streams):
            Phi, y = self.problems.Phi[place].clone(), self.problems.y[place].clone()
            noise = torch.randn(20, generator=stream, dtype=torch.float64)
            self.mean[place] += self.options.lr * (Phi.mT @ (y - Phi @ self.mean[place].clone()) + noise)
    def posterior(self):
        return FullGaussian(self.mean.clone(), torch.eye(20, dtype=torch.float64).repeat(len(self.mean), 1, 1))
"""

#: A budget that trains quickly.
RANDA = Request(
    datasets=["toy"], splits="0-2", methods=["rand-a"], families=["full"], measurement_points=[10], max_steps=25
)


def execute(root, request=TOY, **resources):
    return run(make_plan(request), Store(root), Resources(**resources), Silent())


@pytest.fixture
def failing(tmp_path):
    path = tmp_path / "failing.py"
    path.write_text(FAILING)
    return path


def comparable(record: Record):
    """A record without what may differ between two runs of one cell."""
    return record.model_dump(exclude={"seconds", "provenance"})


def test_records_say_all_that_the_format_asks(tmp_path):
    result = execute(tmp_path)
    assert len(result.records) == len(result.computed) == 8
    record = result.records[0]
    assert (record.dataset, record.split, record.method, record.family, record.seed) == ("toy", 0, "exact", "full", 0)
    assert record.status == "ok"
    assert record.reason is None
    assert record.seconds.batch_size == 4
    assert record.seconds.train == pytest.approx(record.seconds.batch_train / 4)
    expected = {
        "fsvi_bench",
        "git",
        "torch",
        "lightning",
        "gpytorch",
        "python",
        "platform",
        "device",
        "threads",
        "seeds",
        "started",
    }
    assert set(record.provenance) >= expected
    assert record.provenance["device"] == "cpu"
    assert record.provenance["threads"] == 1


def test_what_lies_on_disk_is_what_was_returned(tmp_path):
    result = execute(tmp_path)
    paths = sorted(tmp_path.rglob("record.json"))
    assert len(paths) == 8
    found = {record.cell: record for record in (Record.model_validate_json(path.read_bytes()) for path in paths)}
    assert found == {record.cell: record for record in result.records}
    for path in paths:
        record = found[json.loads(path.read_text())["cell"]]
        problem = load_problem(load_cached(load_card("toy"), record.split).task)
        q = read_posterior(path.parent / "posterior.safetensors", problem.task.k)
        # Both families of EXACT sit at the optimum of the weight-space objective.
        objective = WeightSpaceKL().scores(q, problem)
        assert objective.objective_gap == pytest.approx(0, abs=1e-10)
        assert score(q, problem).model_copy(update=objective._asdict()) == record.scores


def test_running_again_computes_nothing_and_returns_the_same(tmp_path):
    first = execute(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    second = execute(tmp_path)
    assert second.computed == []
    assert second.records == first.records
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_only_what_is_missing_is_computed(tmp_path):
    first = execute(tmp_path, replace(TOY, splits="0-1", families=["ffg"]))
    second = execute(tmp_path)
    assert len(second.computed) == 6
    kept = [record for record in second.records if record not in second.computed]
    assert kept == first.records


def test_a_lost_record_is_computed_again_alike(tmp_path):
    first = execute(tmp_path)
    lost = sorted(tmp_path.rglob("record.json"))[3]
    lost.unlink()
    second = execute(tmp_path)
    assert len(second.computed) == 1
    assert list(map(comparable, second.records)) == list(map(comparable, first.records))


def test_a_cell_is_the_same_in_any_company_and_any_folder(tmp_path):
    together = {record.cell: comparable(record) for record in execute(tmp_path / "all").records}
    for split in range(4):
        for record in execute(tmp_path / f"one{split}", replace(TOY, splits=str(split))).records:
            assert together[record.cell] == comparable(record)


def test_workers_do_not_change_tasks_or_scores(tmp_path, monkeypatch):
    records = []
    for workers in (1, 2):
        monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / f"cache{workers}"))
        records.append(list(map(comparable, execute(tmp_path / f"out{workers}", workers=workers).records)))
    assert records[0] == records[1]


def test_a_method_that_raises_fails_its_cells_and_no_other(tmp_path, failing):
    request = Request(datasets=["toy"], splits="0-3", methods=[f"{failing}:Raises", "exact"], families=["ffg"])
    result = execute(tmp_path / "out", request)
    assert [record.status for record in result.records] == ["failed"] * 4 + ["ok"] * 4
    assert result.records[0].reason == "FloatingPointError: planted [/x]"
    assert result.records[0].scores is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mean": "nan"}, "holds NaN or infinity"),
        ({"mean": "inf"}, "holds NaN or infinity"),
        ({"scale": "nan"}, "holds NaN or infinity"),
        ({"scale": "inf"}, "holds NaN or infinity"),
        ({"scale": 0.0}, "a standard deviation of the posterior is 0"),
        ({"scale": -1.0}, "a standard deviation of the posterior is -1"),
        ({"scale": 1e300}, "the posterior's numbers reach"),
        ({"mean": 1e200}, "the posterior's numbers reach"),
    ],
)
def test_a_number_that_is_none_diverges_its_problem_alone(tmp_path, failing, options, reason):
    request = Request(datasets=["toy"], splits="0-3", methods=[f"{failing}:Plants"], families=["ffg"], options=options)
    result = execute(tmp_path / "out", request)
    assert [record.status for record in result.records] == ["ok", "diverged", "ok", "ok"]
    assert reason in result.records[1].reason
    assert result.records[1].scores is None
    folders = {path.parent.name[:8] for path in (tmp_path / "out").rglob("posterior.safetensors")}
    assert folders == {"split-00", "split-02", "split-03"}
    assert execute(tmp_path / "out", request).records == result.records


@pytest.mark.parametrize(
    ("options", "reason"), [({"dtype": "float32"}, "type float32, expected float64"), ({"k": 19}, "shape [19]")]
)
def test_what_is_not_a_gaussian_over_the_weights_fails(tmp_path, failing, options, reason):
    request = Request(datasets=["toy"], splits="0-1", methods=[f"{failing}:Plants", "exact"], families=["ffg"])
    request.options.update(options)
    result = execute(tmp_path / "out", request)
    assert [record.status for record in result.records] == ["failed"] * 2 + ["ok"] * 2
    assert reason in result.records[0].reason


def test_an_infinite_score_is_a_result(tmp_path, failing):
    """A scale of 1e-160: KL(q‖P_D) is finite, the reverse is not; the record and its posterior can be read again."""
    request = Request(
        datasets=["toy"], splits="0-1", methods=[f"{failing}:Plants"], families=["ffg"], options={"scale": 1e-160}
    )
    result = execute(tmp_path / "out", request)
    assert [record.status for record in result.records] == ["ok", "ok"]
    assert result.records[1].scores.reverse_kl == math.inf
    assert 300 < result.records[1].scores.kl < math.inf
    assert execute(tmp_path / "out", request).records == result.records
    assert len(list((tmp_path / "out").rglob("posterior.safetensors"))) == 2


def test_an_interrupt_in_training_stays_an_interrupt(tmp_path, failing):
    """Lightning would turn it into an exit with status 1."""
    request = Request(datasets=["toy"], splits="0", methods=[f"{failing}:Interrupts"], families=["ffg"])
    with pytest.raises(KeyboardInterrupt):
        execute(tmp_path / "out", request)
    assert list((tmp_path / "out").rglob("record.json")) == []


def test_a_fit_uses_one_thread_wherever_it_runs(monkeypatch):
    """Two threads round otherwise, and what is rounded otherwise is another task."""
    from threadpoolctl import threadpool_info

    from fsvi_bench.running import prepare

    seen = []

    def spy(card, split, data_dir):
        seen.extend(pool["num_threads"] for pool in threadpool_info())
        return build_task(card, split, data_dir)

    torch.set_num_threads(2)
    threadpool_limits(2)
    try:
        monkeypatch.setattr(prepare, "build_into_cache", spy)
        prepare._fit(("toy", 0, None))
    finally:
        use_one_thread()
    assert len(seen) >= 2
    assert set(seen) == {1}


def test_a_changed_method_file_is_another_cell(tmp_path, failing):
    request = Request(datasets=["toy"], splits="0", methods=[f"{failing}:Raises"], families=["ffg"])
    (first,) = execute(tmp_path / "out", request).records
    failing.write_text(FAILING.replace("planted", "sown"))
    (second,) = execute(tmp_path / "out", request).records
    assert first.cell != second.cell
    assert second.reason == "FloatingPointError: sown [/x]"


def test_a_record_that_is_not_one_is_never_overwritten(tmp_path):
    execute(tmp_path)
    path = sorted(tmp_path.rglob("record.json"))[0]
    path.write_text("{}")
    with pytest.raises(InputError, match="is not a valid record"):
        execute(tmp_path)
    assert path.read_text() == "{}"


def test_a_refused_task_fails_its_cells_and_the_others_go_on(tmp_path, monkeypatch):
    from fsvi_bench.errors import TaskRefused
    from fsvi_bench.running import prepare

    original = prepare.build_into_cache

    def refuse(card, split, data_dir):
        if split == 2:
            raise TaskRefused("planted")
        return original(card, split, data_dir)

    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prepare, "build_into_cache", refuse)
    result = execute(tmp_path / "out")
    failed = [record for record in result.records if record.status == "failed"]
    assert [(record.split, record.family) for record in failed] == [(2, "full"), (2, "ffg")]
    assert all("planted" in record.reason and record.task_sha256 is None for record in failed)
    assert sum(record.status == "ok" for record in result.records) == 6


def test_a_folder_that_cannot_be_written_is_refused_first(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match="is not writable"):
        Store(blocked / "out")


# --- Methods that train -----------------------------------------------------------------------------------------------


def posteriors(root):
    """Mean and covariance factor in every cell's folder, as bytes. (A file's own bytes say nothing: safetensors writes
    its metadata in any order.)"""
    found = {}
    for path in root.rglob("posterior.safetensors"):
        q = read_posterior(path)
        found[str(path.parent.relative_to(root))] = q.mean.numpy().tobytes(), q.covariance_tril().numpy().tobytes()
    return found


def traces(root):
    """Every cell's trace without its seconds."""
    points = {str(path.parent.relative_to(root)): read_trace(path).points for path in root.rglob("trace.csv")}
    return {cell: [(point.steps, point.kl, point.nlpd) for point in trace] for cell, trace in points.items()}


@pytest.mark.slow
def test_workers_do_not_change_what_is_trained(tmp_path):
    """Three cells of each method and family on one worker and on two. A method from a file is among them: it and its
    options reach the other process, though neither can be imported there by name."""
    path = tmp_path / "walker.py"
    path.write_text(TRAINING)
    request = replace(RANDA, methods=[*method_names(), f"{path}:Walker"], families=[])
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


def test_the_same_command_in_another_folder_gives_the_same(tmp_path):
    request = replace(
        RANDA, methods=["rand-a", "mean-field-vi"], families=["ffg"], seeds="0-1", options={"minibatch": 7}
    )
    one, two = (execute(tmp_path / name, request) for name in ("one", "two"))
    assert len(one.records) == len(two.computed) == 12
    assert list(map(comparable, one.records)) == list(map(comparable, two.records))
    assert posteriors(tmp_path / "one") == posteriors(tmp_path / "two")
    assert traces(tmp_path / "one") == traces(tmp_path / "two")
    assert len(posteriors(tmp_path / "one")) == len(traces(tmp_path / "one")) == 12
    kls = {record.scores.kl for record in one.records}
    assert len(kls) == 12  # every split, seed and method has its own


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
    request = replace(RANDA, methods=["rand-a", "exact"], splits="0-1", options={"averaging": 0.0})
    result = execute(tmp_path, request)
    store, found = Store(tmp_path), 0
    for folder in sorted(path.parent for path in tmp_path.rglob("record.json")):
        record = Record.model_validate_json((folder / "record.json").read_bytes())
        assert (folder / "trace.csv").is_file() == (record.method == "rand-a")
        trace = store.load_trace(str(folder.relative_to(tmp_path)))
        if record.method == "exact":
            assert trace is None
            continue
        found += 1
        problem = load_problem(load_cached(load_card("toy"), record.split).task)
        prior = FullGaussian(torch.zeros(20, dtype=torch.float64), torch.eye(20, dtype=torch.float64))
        assert (folder / "trace.csv").read_text().splitlines()[0] == "steps,seconds,kl,nlpd"
        assert [point.steps for point in trace.points] == trace_steps(25)
        assert trace.points[0].seconds == 0
        assert trace.points[0].kl == pytest.approx(score(prior, problem).kl, rel=1e-12)
        assert (trace.points[-1].steps, trace.points[-1].kl) == (25, record.scores.kl)
        assert trace.points[-1].nlpd == record.scores.nlpd
        seconds = [point.seconds for point in trace.points]
        assert seconds == sorted(seconds)
        assert 0 < seconds[-1] <= record.seconds.train
    assert found == 2
    assert len(result.records) == 4


def test_a_run_in_which_everything_diverged_ends_early(tmp_path):
    """A learning rate of 1e300: the second step's loss is no number."""
    request = replace(RANDA, max_steps=3000, options={"lr": 1e300})
    records = execute(tmp_path, request).records
    assert [record.status for record in records] == ["diverged"] * 3
    for record in records:
        assert record.reason == "the loss was not finite at step 1"
        assert record.scores is None
    for path in tmp_path.rglob("trace.csv"):
        points = read_trace(path).points
        assert points[0].steps == 0
        assert math.isfinite(points[0].kl)
        assert points[-1].steps < 100
        assert not math.isfinite(points[-1].kl)
    assert len(list(tmp_path.rglob("trace.csv"))) == 3
    assert list(tmp_path.rglob("posterior.safetensors")) == []
    assert execute(tmp_path, request).computed == []


def test_a_setting_that_no_split_allows_is_the_users_to_mend(tmp_path):
    with pytest.raises(InputError, match="M=82 asks for 41 distinct training inputs, but a split has 40"):
        execute(tmp_path, replace(RANDA, measurement_points=[82]))
    assert list(tmp_path.rglob("record.json")) == []
