"""What the tests of `running/` share: a run in a folder, and what of a record does not depend on when and where."""

from types import SimpleNamespace

from fsvi_bench.errors import TaskRefused
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.running import runner
from fsvi_bench.running.cell import Record
from fsvi_bench.running.executors import LocalExecutor
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store

TOY = Request(datasets=["toy"], splits="0-3", methods=["exact"])


def execute(root, request=TOY, workers=1, rerun="none", watcher=None, **resources):
    resources = {"executor": LocalExecutor(workers), **resources}
    told = run(make_plan(request), Store(root), Resources(**resources), Silent(), rerun, watcher or (lambda _: None))
    return SimpleNamespace(records=told[0], computed=told[1])


def changed(request: Request, **changes: object) -> Request:
    return Request(**(dict(request) | changes))


def comparable(record: Record):
    """A record without what may differ between two runs of one cell."""
    return record.model_dump(exclude={"seconds", "provenance"})


def posteriors(root):
    """Mean and covariance factor in every cell's folder, as bytes. (A file's own bytes say nothing: safetensors writes
    its metadata in any order.)"""
    found = {}
    for path in root.rglob("posterior.safetensors"):
        q = read_posterior(path)
        found[str(path.parent.relative_to(root))] = q.mean.numpy().tobytes(), q.covariance_tril().numpy().tobytes()
    return found


def refuse_split(monkeypatch, refused: int):
    """From here on the fit of one split fails its certificate."""
    original = runner.build_task

    def build(card, split, raw):
        if split == refused:
            raise TaskRefused("planted")
        return original(card, split, raw=raw)

    monkeypatch.setattr(runner, "build_task", build)
