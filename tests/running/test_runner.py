"""A run computes what is missing, keeps what is finished, and turns failures into records."""

from __future__ import annotations

import math

import pytest
import torch
from threadpoolctl import threadpool_limits

from fsvi_bench.errors import InputError
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.running import job
from fsvi_bench.running.cell import Record
from fsvi_bench.running.plan import Request
from fsvi_bench.running.store import Store
from fsvi_bench.scoring.scores import score
from fsvi_bench.tasks.build import build_task, load_cached
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.raw import load_raw
from fsvi_bench.tasks.task import bind_task
from fsvi_bench.threads import use_one_thread
from tests.running.cells import TOY, changed, comparable, execute
from tests.scoring.objectives import WEIGHT_SPACE

FAILING = """
from __future__ import annotations
import os
import signal
import sys
import torch
from pytorch_lightning.utilities.exceptions import SIGTERMException
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
    def training_step(self, batch, batch_idx): self.note(torch.zeros(len(self.problems)))
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
class Miscounts(Base):
    "Says of its work what no record takes."
    def work(self): return [{"gradients": "many"}] * len(self.problems)
class Forgets(Base):
    "Says of one problem only why it diverged."
    def divergences(self): return [None]
class Colours(Base):
    "Says in red why it diverged."
    def divergences(self): return ["\\x1b[31mred"] * len(self.problems)
class Dies(Base):
    "As if the system had killed it for its memory, but for the batches of one problem."
    def training_step(self, batch, batch_idx):
        if len(self.problems) > 1: os.kill(os.getpid(), signal.SIGKILL)
class Interrupts(Base):
    "As if Ctrl-C came in a step."
    def training_step(self, batch, batch_idx): raise KeyboardInterrupt
class Terminates(Base):
    "As if Lightning had been asked to end the process during a step."
    def training_step(self, batch, batch_idx): raise SIGTERMException
class Exits(Base):
    "Ends the process while it trains."
    def training_step(self, batch, batch_idx): sys.exit(0)
class Formula(Method):
    Options = Options
    deterministic = True
class ExitsAtOnce(Formula):
    "Ends the process in its closed form."
    def solve(self, problem): sys.exit("planted")
class Misspells(Formula):
    "Asks for an attribute that does not exist."
    def solve(self, problem): return problem.phi
class NamesAFile(Formula):
    "Whose name is not valid Unicode."
    def solve(self, problem): raise ValueError("cannot read caf\\udce9.csv, \\x1b[31mred")
class ReturnsNothing(Formula):
    "Forgets to return its posterior."
    def solve(self, problem): pass
class ChecksBadly(Formula):
    "Its check has a bug."
    @classmethod
    def check(cls, options, problem): raise ValueError("planted")
    def solve(self, problem): pass
class ExitsInItsCheck(Formula):
    "Its check ends the process."
    @classmethod
    def check(cls, options, problem): sys.exit(0)
    def solve(self, problem): pass
class DecidesBadly(Formula):
    "It asks for an option that it does not have."
    @classmethod
    def is_deterministic(cls, options): return options.nothing
    def solve(self, problem): pass
"""


@pytest.fixture
def failing(tmp_path):
    path = tmp_path / "failing.py"
    path.write_text(FAILING)
    return path


def test_a_record_says_all_that_the_format_asks_and_its_scores_are_of_the_posterior_beside_it(tmp_path):
    result = execute(tmp_path)
    assert len(result.records) == len(result.computed) == 8
    found = {path: Record.model_validate_json(path.read_bytes()) for path in tmp_path.rglob("record.json")}
    assert {record.cell: record for record in found.values()} == {record.cell: record for record in result.records}
    words = "fsvi_bench git torch lightning gpytorch python platform device threads arithmetic seeds started"
    for path, record in found.items():
        assert (record.dataset, record.method, record.seed, record.status) == ("toy", "exact", 0, "ok")
        assert record.reason is None
        assert record.seconds.batch_size == 4
        assert record.seconds.train == pytest.approx(record.seconds.batch_train / 4)
        assert set(record.provenance) >= set(words.split())
        assert (record.provenance["device"], record.provenance["threads"]) == ("cpu", 1)
        problem = bind_task(load_cached(load_card("toy"), record.split).task)
        q = read_posterior(path.parent / "posterior.safetensors", problem.frozen.k)
        # Both families of EXACT sit at the optimum of the weight-space objective.
        objective = WEIGHT_SPACE.scores(q, problem)
        assert objective.objective_gap == pytest.approx(0, abs=1e-10)
        assert score(q, problem).model_copy(update=objective._asdict()) == record.scores


def test_what_does_not_train_is_recorded_on_the_processor_where_it_ran(tmp_path):
    records = execute(tmp_path, changed(TOY, splits="0"), device="cuda").records
    assert [(each.provenance["device"], each.status) for each in records] == [("cpu", "ok")] * 2


def test_running_again_computes_nothing_and_returns_the_same(tmp_path):
    first = execute(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    second = execute(tmp_path)
    assert second.computed == []
    assert second.records == first.records
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_cell_is_the_same_in_any_company_and_any_folder(tmp_path):
    together = {record.cell: comparable(record) for record in execute(tmp_path / "all").records}
    for split in range(4):
        for record in execute(tmp_path / f"one{split}", changed(TOY, splits=str(split))).records:
            assert together[record.cell] == comparable(record)


def test_workers_do_not_change_tasks_or_scores(tmp_path, monkeypatch):
    records = []
    for workers in (1, 2):
        monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / f"cache{workers}"))
        records.append(list(map(comparable, execute(tmp_path / f"out{workers}", workers=workers).records)))
    assert records[0] == records[1]


def of(failing, name, *others, splits="0-3", **options):
    """A request for a method of the file, and others, all factorised."""
    names = [f"{failing}:{name}", *others]
    return Request(datasets=["toy"], splits=splits, methods=names, families=["ffg"], options=options)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Raises", "FloatingPointError: planted [/x]"), ("Miscounts", "unable to parse string as an integer"),
     ("Forgets", "the method returned"), ("Exits", "SystemExit: 0"), ("ExitsAtOnce", "SystemExit: planted"),
     ("Misspells", "AttributeError: 'TrainingData' object has no attribute 'phi'"),
     ("ReturnsNothing", "solve returned NoneType, expected a posterior")],
)  # fmt: skip
def test_a_method_that_raises_or_says_something_wrong_fails_its_cells_and_no_other(tmp_path, failing, name, reason):
    records = execute(tmp_path / "out", of(failing, name, "exact")).records
    assert [record.status for record in records] == ["failed"] * 4 + ["ok"] * 4
    assert reason in records[0].reason
    assert records[0].scores is None


def test_an_exit_of_a_worker_fails_its_cells_and_no_other(tmp_path, failing):
    records = execute(tmp_path / "out", of(failing, "Exits", "exact"), workers=2).records
    assert [record.status for record in records] == ["failed"] * 4 + ["ok"] * 4
    assert "SystemExit: 0" in records[0].reason


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "ChecksBadly",
            r"method ChecksBadly: check\(\) raised ValueError: planted \(.*failing.py, line \d+: def check.*\); fix the",
        ),
        (
            "ExitsInItsCheck",
            r"method ExitsInItsCheck: check\(\) raised SystemExit: 0 \(.*failing.py, line \d+.*\); fix the",
        ),
        (
            "DecidesBadly",
            r"method DecidesBadly: is_deterministic\(\) raised AttributeError: .*'nothing' \(.*, line \d+.*\); fix the",
        ),
    ],
)
def test_errors_in_what_a_method_says_of_its_settings_are_one_sentence(tmp_path, failing, name, message):
    with pytest.raises(InputError, match=message):
        execute(tmp_path / "out", of(failing, name))


def test_the_traceback_of_a_misspelled_attribute_names_its_line(tmp_path, failing):
    execute(tmp_path / "out", of(failing, "Misspells", splits="0"))
    (traceback,) = (tmp_path / "out").rglob("traceback.txt")
    assert "return problem.phi" in traceback.read_text()


def test_a_reason_with_characters_that_no_terminal_should_see_is_recorded(tmp_path, failing):
    (record,) = execute(tmp_path / "out", of(failing, "NamesAFile", splits="0")).records
    assert record.reason.startswith(r"ValueError: cannot read caf\udce9.csv, \x1b[31mred (")
    assert "caf\\udce9.csv" in next((tmp_path / "out").rglob("traceback.txt")).read_text()
    (record,) = execute(tmp_path / "colours", of(failing, "Colours", splits="0")).records
    assert (record.status, record.reason) == ("diverged", r"\x1b[31mred")


def test_cells_whose_scores_take_seconds_are_saved_one_by_one(tmp_path, monkeypatch):
    """When a cell is saved, none after it has been scored. The scores are those of another q, which take no time."""
    scored, saved = [], []
    quick = FactorisedGaussian(torch.zeros(20).double(), torch.ones(20).double())
    monkeypatch.setattr(job, "score", lambda q, task: scored.append(task) or score(quick, task))
    monkeypatch.setattr(Store, "save", lambda *_: saved.append(len(scored)))
    execute(tmp_path / "out", changed(TOY, methods=["bernoulli-dropout"]))
    assert saved == [1, 2, 3, 4]


def test_a_process_that_is_killed_fails_its_cells_and_no_other(tmp_path, failing):
    """Three problems over two workers: a batch of two, which dies, and a batch of one."""
    records = execute(tmp_path / "out", of(failing, "Dies", "exact", splits="0-2"), workers=2).records
    assert [record.status for record in records] == ["failed", "ok", "failed", "ok", "ok", "ok"]
    assert "died" in records[0].reason
    assert "out of memory" in records[0].reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mean": "nan"}, "contains NaN or infinity"),
        ({"mean": "inf"}, "contains NaN or infinity"),
        ({"scale": "nan"}, "contains NaN or infinity"),
        ({"scale": "inf"}, "contains NaN or infinity"),
        ({"scale": 0.0}, "'scale' contains 0, expected positive numbers"),
        ({"scale": -1.0}, "'scale' contains -1, expected positive numbers"),
        ({"scale": 1e300}, "the posterior's numbers reach"),
        ({"mean": 1e200}, "the posterior's numbers reach"),
    ],
)
def test_a_number_that_is_not_finite_diverges_its_problem_only(tmp_path, failing, options, reason):
    request = of(failing, "Plants", **options)
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
    request = of(failing, "Plants", "exact", splits="0-1")
    request.options.update(options)
    result = execute(tmp_path / "out", request)
    assert [record.status for record in result.records] == ["failed"] * 2 + ["ok"] * 2
    assert reason in result.records[0].reason


def test_an_infinite_score_is_a_result(tmp_path, failing):
    """A scale of 1e-160: KL(q‖P_D) is finite, the reverse is not; the record and its posterior can be read again."""
    request = of(failing, "Plants", splits="0-1", scale=1e-160)
    result = execute(tmp_path / "out", request)
    assert [record.status for record in result.records] == ["ok", "ok"]
    assert result.records[1].scores.reverse_kl == math.inf
    assert 300 < result.records[1].scores.kl < math.inf
    assert execute(tmp_path / "out", request).records == result.records
    assert len(list((tmp_path / "out").rglob("posterior.safetensors"))) == 2


@pytest.mark.parametrize("name", ["Interrupts", "Terminates"])
def test_an_interrupt_in_training_stays_an_interrupt(tmp_path, failing, name):
    """Lightning would turn it into an exit."""
    with pytest.raises(KeyboardInterrupt):
        execute(tmp_path / "out", of(failing, name, splits="0"))
    assert list((tmp_path / "out").rglob("record.json")) == []


def test_a_fit_uses_one_thread_wherever_it_runs(monkeypatch):
    """Two threads round otherwise, and what is rounded otherwise is another task."""
    from threadpoolctl import threadpool_info

    from fsvi_bench.running import runner

    seen = []

    def spy(card, split, raw):
        seen.extend(pool["num_threads"] for pool in threadpool_info())
        return build_task(card, split, raw=raw)

    torch.set_num_threads(2)
    threadpool_limits(2)
    try:
        monkeypatch.setattr(runner, "build_task", spy)
        runner._fit((("toy", 0), load_raw(load_card("toy"), 0)))
    finally:
        use_one_thread()
    assert len(seen) >= 2
    assert set(seen) == {1}


def test_a_changed_method_file_is_another_cell(tmp_path, failing):
    request = of(failing, "Raises", splits="0")
    (first,) = execute(tmp_path / "out", request).records
    failing.write_text(FAILING.replace("planted", "sown"))
    (second,) = execute(tmp_path / "out", request).records
    assert first.cell != second.cell
    assert second.reason.startswith(f"FloatingPointError: sown [/x] ({failing.name}, line ")


@pytest.mark.slow
def test_a_mixture_that_diverges_does_not_affect_the_others(tmp_path):
    """A learning rate at which Concrete dropout's probabilities end at 0, and a length-scale that underflows."""
    methods = ["concrete-dropout", "spike-and-slab"]
    request = Request(datasets=["toy"], splits="0-1", methods=methods, max_steps=60, options={"lr": 1000})
    records = execute(tmp_path / "lr", request).records
    assert [record.status for record in records] == ["diverged"] * 2 + ["ok"] * 2
    request = Request(datasets=["toy"], splits="0-1", methods=["spike-and-slab", "exact"], options={"l": 1e-200})
    records = execute(tmp_path / "l", request).records
    assert [record.status for record in records] == ["failed"] * 2 + ["ok"] * 4
    assert all("\n" not in record.reason for record in records if record.reason)
