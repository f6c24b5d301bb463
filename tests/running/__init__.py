"""What the tests of `running/` share: a run in a folder, and what of a record does not depend on when and where."""

from fsvi_bench.errors import TaskRefused
from fsvi_bench.running import prepare
from fsvi_bench.running.cell import Record
from fsvi_bench.running.executors import LocalExecutor
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store

TOY = Request(datasets=["toy"], splits="0-3", methods=["exact"])


def execute(root, request=TOY, workers=1, rerun="none", watcher=None, **resources):
    resources = {"executor": LocalExecutor(workers), **resources}
    return run(make_plan(request), Store(root), Resources(**resources), Silent(), rerun, watcher or (lambda _: None))


def comparable(record: Record):
    """A record without what may differ between two runs of one cell."""
    return record.model_dump(exclude={"seconds", "provenance"})


def refuse_split(monkeypatch, refused: int):
    """From here on the fit of one split fails its certificate."""
    original = prepare.build_task

    def build(card, split, raw):
        if split == refused:
            raise TaskRefused("planted")
        return original(card, split, raw=raw)

    monkeypatch.setattr(prepare, "build_task", build)
