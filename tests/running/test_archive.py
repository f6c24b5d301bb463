"""What a folder tells of itself: plans, status, records; and what makes which cells anew."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import fsvi_bench
from fsvi_bench import files, sources
from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import load_method
from fsvi_bench.running import job, provenance
from fsvi_bench.running.plan import Request
from fsvi_bench.running.store import Store
from fsvi_bench.tasks.build import load_cached
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.certificate import certify, save
from fsvi_bench.tasks.task import bind_task
from tests.running.cells import TOY, changed, execute, refuse_split

CHECKOUT = Path(fsvi_bench.__file__).parent


def counted(root):
    """How many cells became what."""
    total = Counter()
    store = Store(root)
    for (*_, status), number in store.count(store.wanted).items():
        total[status] += number
    return total


def records_of(root):
    return Store(root).records


def test_a_folder_says_what_was_asked_and_what_became_of_it(tmp_path):
    """Without a plan, the records stand for themselves."""
    records = execute(tmp_path).records
    archive = Store(tmp_path)
    assert {r.cell: r for r in archive.records} == {r.cell: r for r in records}
    assert (archive.planned, archive.missing, archive.stale) == (8, 0, 0)
    next(tmp_path.rglob("record.json")).unlink()
    archive = Store(tmp_path)
    assert (len(archive.records), archive.planned, archive.missing) == (7, 8, 1)
    assert {(cell.dataset, cell.method, cell.family) for cell in archive.wanted} == {
        ("toy", "exact", "full"),
        ("toy", "exact", "ffg"),
    }
    assert counted(tmp_path) == {"ok": 7, "missing": 1}
    shutil.rmtree(tmp_path / "plans")
    archive = Store(tmp_path)
    assert (len(archive.records), archive.planned, archive.missing, archive.plans) == (7, 7, 0, [])
    assert counted(tmp_path) == {"ok": 7}


def test_plans_add_up_and_the_same_command_is_the_same_plan(tmp_path):
    found = [execute(tmp_path, changed(TOY, splits=splits)) for splits in ("0-1", "1-2", "0-1")]
    assert [(len(each.records), len(each.computed)) for each in found] == [(4, 4), (4, 2), (4, 0)]
    assert {record.split for record in found[1].computed} == {2}
    assert found[2].records == found[0].records
    assert [record for record in found[1].records if record.split == 1] == [r for r in found[0].records if r.split == 1]
    archive = Store(tmp_path)
    assert (len(archive.plans), len(archive.records), archive.planned) == (2, 6, 6)


def test_records_of_earlier_code_are_not_counted(tmp_path, monkeypatch):
    execute(tmp_path)
    monkeypatch.setattr(provenance, "meaning_sha256", lambda *_, **__: "another")
    execute(tmp_path, changed(TOY, splits="0-3"))
    archive = Store(tmp_path)
    assert (len(archive.records), archive.planned, archive.stale) == (8, 8, 8)
    assert len({record.code_sha256 for record in archive.records}) == 1


def test_refused_tasks_are_part_of_the_account_until_they_are_certified(tmp_path, monkeypatch):
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    with monkeypatch.context() as planted:
        refuse_split(planted, 1)
        execute(tmp_path / "out")
    archive = Store(tmp_path / "out")
    refused = [(r.split, r.family, r.status, r.reason) for r in archive.records if r.task_sha256 is None]
    assert refused == [(1, family, "failed", "planted") for family in ("full", "ffg")]
    assert counted(tmp_path / "out") == {"ok": 6, "failed": 2}
    execute(
        tmp_path / "out", changed(TOY, splits="1", methods=["mean-field-vi"], max_steps=1)
    )  # for others it is certified
    assert counted(tmp_path / "out") == {"ok": 7, "missing": 2}
    execute(tmp_path / "out")
    assert counted(tmp_path / "out") == {"ok": 9}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", r"is not a valid record \(cell is missing\); move it elsewhere"),
        ("no JSON", r"is not a valid record \(.*expected ident at line 1 column 2\); move it elsewhere"),
        (
            '{"cell": "a',
            r"is not a valid record \(.*EOF while parsing a string at line 1 column 11\); move it elsewhere",
        ),
        ("[1, 2]", "is not a valid record"),
    ],
)
def test_what_is_no_record_is_named_and_never_overwritten(tmp_path, content, words):
    execute(tmp_path)
    path = records_in(tmp_path)[0]
    path.write_text(content)
    for read in (records_of, counted, execute):
        with pytest.raises(InputError, match=words):
            read(tmp_path)
    assert path.read_text() == content


def records_in(folder):
    return sorted(folder.rglob("record.json"))


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(("field", "value"), [("method", "rand-a"), ("seed", 3), ("task_sha256", "0" * 64)])
def test_a_record_that_says_other_things_than_its_key_is_named(tmp_path, field, value):
    """Whoever edits one cannot pass it off as another cell's."""
    execute(tmp_path)
    edit(records_in(tmp_path)[0], **{field: value})
    with pytest.raises(InputError, match="record of another cell"):
        records_of(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dataset", "../.."), ("method", "a/b"), ("method", "a" * 300), ("cell", "../x"),
        ("scores", {"nlpd": "NaN"}), ("scores", {"coverage": {"50": 0.5}}), ("scores", {"overconfidence": {"quantiles": [1]}}),
    ],
)  # fmt: skip
def test_names_and_numbers_that_cannot_be_are_refused(tmp_path, field, value):
    execute(tmp_path)
    shutil.rmtree(tmp_path / "plans")
    path = records_in(tmp_path)[0]
    if field == "scores":
        scores = json.loads(path.read_text())["scores"]
        quantiles = {"overconfidence": {**scores["overconfidence"], **value.get("overconfidence", {})}}
        value = scores | value | quantiles
    edit(path, **{field: value})
    with pytest.raises(InputError, match="is not a valid record"):
        records_of(tmp_path)


def test_a_full_disk_does_not_cost_the_record_that_was_to_be_computed_again(tmp_path, monkeypatch):
    """All that is new is written before anything old goes."""

    def contents():
        return {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file() and path.name != ".lock"}

    execute(tmp_path)
    before, original, written = contents(), files._write_and_sync, []

    def full(path, content):
        written.extend([path] if "cells" in path.parts else [])
        if "cells" in path.parts and len(written) % 2 == 0:
            raise OSError(28, "No space left on device")
        original(path, content)

    monkeypatch.setattr(files, "_write_and_sync", full)
    with pytest.raises(InputError, match="No space left on device"):
        execute(tmp_path, rerun="all")
    assert contents() == before


def test_a_folder_with_a_started_run_is_distinguished_from_an_empty_one(tmp_path):
    (tmp_path / ".running").touch()
    for read in (records_of, counted):
        with pytest.raises(InputError, match=r"the run in .* it is fitting tasks, or was"):
            read(tmp_path)


def test_a_plan_that_is_none_is_named(tmp_path):
    execute(tmp_path)
    (tmp_path / "plans" / "x.json").write_text('{"format": "fsvi-')
    with pytest.raises(InputError, match=r"x.json is not a plan \(.*EOF while parsing a string.*\); move it elsewhere"):
        records_of(tmp_path)


FLAKY = """
import torch
from fsvi_bench.methods.base import Method
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
class Flaky(Method):
    "Fails, or diverges, as long as a file says so."
    families = ("ffg",)
    deterministic = True  # so that both problems are in one batch
    def solve(self, problem):
        if (__import__("pathlib").Path(__file__).parent / "fail").exists(): raise FloatingPointError("planted")
        mean = torch.zeros_like(problem.Phi[:, 0])
        return FactorisedGaussian(mean, torch.ones_like(mean))
    def divergences(self):
        bad = (__import__("pathlib").Path(__file__).parent / "diverge").exists()
        return ["planted" if bad and place == 0 else None for place in range(len(self.problems))]
"""


def test_failed_and_diverged_cells_stay_until_asked_for(tmp_path):
    """And `all` computes everything again; each time the folder holds one run's files, the traceback among them."""
    method, out = tmp_path / "flaky.py", tmp_path / "out"
    method.write_text(FLAKY)
    request = Request(datasets=["toy"], splits="0-1", methods=[f"{method}:Flaky"])

    def statuses(rerun="none"):
        result = execute(out, request, rerun=rerun)
        return [record.status for record in result.records], len(result.computed)

    (tmp_path / "fail").touch()
    assert statuses() == (["failed", "failed"], 2)
    tracebacks = [path.read_text() for path in out.rglob("traceback.txt")]
    assert len(tracebacks) == 2
    assert all("planted" in text and "in solve" in text for text in tracebacks)
    (tmp_path / "fail").unlink()
    (tmp_path / "diverge").touch()
    assert statuses() == statuses("diverged") == (["failed", "failed"], 0)
    assert statuses("failed") == (["diverged", "ok"], 2)
    assert list(out.rglob("traceback.txt")) == []
    (tmp_path / "diverge").unlink()
    assert statuses("diverged") == (["ok", "ok"], 1)
    assert statuses("all") == (["ok", "ok"], 2)
    assert counted(out) == {"ok": 2}


def test_other_settings_and_other_tasks_are_other_cells_and_only_they(tmp_path):
    """A new learning rate concerns the methods that have one; a task with another jitter concerns its split."""
    request = Request(datasets=["toy"], splits="0-1", methods=["exact", "mean-field-vi"], families=["ffg"], max_steps=5)
    first = {record.cell for record in execute(tmp_path / "out", request).records}
    faster = execute(tmp_path / "out", changed(request, options={"lr": 0.02}))
    assert {record.method for record in faster.computed} == {"mean-field-vi"}
    assert len(faster.computed) == 2
    built = load_cached(load_card("toy"), 1)
    other = replace(built.task, noise_variance=built.task.noise_variance * 1.01)
    path = tmp_path / "other.safetensors"
    save(built._replace(task=other, certificate=certify(bind_task(other))), path)
    mixed = execute(tmp_path / "out", changed(request, splits="0", task_files=[path]))
    assert {record.split for record in mixed.computed} == {1}
    assert len(mixed.computed) == 2
    assert {record.cell for record in mixed.computed}.isdisjoint(first)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The sources in a folder where they may be changed, and the methods that are then others than they were."""
    root = tmp_path / "fsvi_bench"
    shutil.copytree(CHECKOUT, root, ignore=shutil.ignore_patterns("__pycache__", "_bundled"))
    monkeypatch.setattr(sources, "_PACKAGE", root)

    def forget():
        for function in (sources.meaning_sha256, sources._module, sources._path):
            function.cache_clear()

    def hashes():
        forget()
        names = ("exact", "mean-field-vi")
        return {name: provenance.decisive_sha256(load_method(name).code_sha256) for name in names}

    before = hashes()
    yield root, lambda: {name for name, value in hashes().items() if value != before[name]}
    forget()


STATEMENT = ("", "\nCHANGED = True\n")
IDLE = ["methods/rand_a", "cli/run", "presenting/tables", "leaderboard/ranking", "running/provenance", "running/store",
        "papers/burt2020/theory/f_divergence"]  # fmt: skip


@pytest.mark.slow
def test_a_changed_source_concerns_what_rests_on_it_and_nothing_else(copied):
    root, others = copied
    idle = dict.fromkeys(IDLE, STATEMENT)
    words = ("Gaussian divergences and densities, in nats", "Other words  # changed")
    cases = [
        (idle | {"maths/gaussian": words}, set()),
        ({"methods/mean_field_vi": STATEMENT}, {"mean-field-vi"}),
        ({"methods/exact": STATEMENT}, {"exact"}),
        ({"training/trainer": STATEMENT}, {"exact", "mean-field-vi"}),
        ({"maths/gaussian": ("+ logdet_p - logdet_q", "+ logdet_p + logdet_q")}, {"exact", "mean-field-vi"}),
        ({"maths/tilted_inversion": STATEMENT}, {"exact", "mean-field-vi"}),  # which only modules of maths import
    ]
    for changes, concerned in cases:
        texts = {root / f"{name}.py": (root / f"{name}.py").read_text() for name in changes}
        for (path, text), (before, after) in zip(texts.items(), changes.values(), strict=True):
            assert before in text, (path, before)
            path.write_text(text.replace(before, after, 1) if before else text + after)
        assert others() == concerned, changes
        for path, text in texts.items():
            path.write_text(text)


def test_sources_that_change_while_a_run_is_under_way_stop_it(tmp_path, monkeypatch):
    """A worker that imports another version would give its results the name of the first."""
    monkeypatch.setattr(job, "decisive_sha256", lambda of_method: "f" * 64)
    with pytest.raises(InputError, match="were changed during the run"):
        execute(tmp_path)
    assert list(tmp_path.rglob("record.json")) == []


def test_the_store_may_be_used_again_once_a_run_is_over(tmp_path):
    store = Store(tmp_path)
    with store.locked(), pytest.raises(InputError, match="another run is using"), Store(tmp_path).locked():
        pass
    with store.locked():
        assert (tmp_path / ".running").is_file()
    assert not (tmp_path / ".running").exists()
    assert len(execute(tmp_path).computed) == 8


@pytest.mark.parametrize(("there", "kept", "left"), [
    (False, [], None), (True, [], {".lock"}), (False, ["something"], {".lock", "something"}),
])  # fmt: skip
def test_a_refused_run_leaves_no_new_folder_and_takes_none_that_was_there(tmp_path, there, kept, left):
    folder = tmp_path / "out"
    if there:
        folder.mkdir()

    def refused():
        with Store(folder).locked():
            for name in kept:
                (folder / name).write_text("")
            raise InputError("too many points")

    with pytest.raises(InputError, match="too many"):
        refused()
    assert ({path.name for path in folder.iterdir()} if folder.exists() else None) == left
    assert len(execute(folder).computed) == 8


def test_a_row_is_reported_as_soon_as_its_last_cell_is_stored(tmp_path, monkeypatch):
    """All of its records, those without a task included; rows that were done before come first."""
    monkeypatch.setenv("FSVI_BENCH_CACHE", str(tmp_path / "cache"))
    refuse_split(monkeypatch, 1)
    out, told = tmp_path / "out", []
    execute(out, changed(TOY, splits="0", families=["ffg"]))

    def watch(records):
        assert all(r.task_sha256 is None or list(out.rglob(f"*{r.cell[:12]}/record.json")) for r in records)
        told.append([(record.family, record.split, record.status) for record in records])

    request = changed(TOY, splits="0-1", methods=["exact", "mean-field-vi"], max_steps=3)
    execute(out, request, watcher=watch)
    assert sorted(told) == [
        [("ffg", 0, "ok"), ("ffg", 1, "failed")],
        [("ffg", 0, "ok"), ("ffg", 1, "failed")],
        [("full", 0, "ok"), ("full", 1, "failed")],
    ]
    assert told[0][0][0] == "ffg"
    assert len(told) == len(execute(out, request).records) / 2
