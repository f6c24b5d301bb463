"""Reproductions that are a protocol's cells, drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from pydantic import BaseModel

from fsvi_bench.files import write_atomically
from fsvi_bench.reporting.figures import write_figure
from fsvi_bench.reproductions.base import Outcome, Reproduction, Workshop
from fsvi_bench.running.cell import Record
from fsvi_bench.running.plan import Plan, Request, load_protocol, make_plan
from fsvi_bench.running.prepare import require_data
from fsvi_bench.running.runner import run
from fsvi_bench.running.store import Store

Draw = Callable[[Sequence[Record], Store, bool], tuple[Figure, BaseModel]]  #: of records, store, quick


class FromRecords(Reproduction):
    """A figure: the protocol of its name, what `--quick` puts in place of the protocol's, and its drawing."""

    def __init__(self, name: str, quick: Mapping[str, Any], draw: Draw) -> None:
        self.name, self.quick, self.draw = name, quick, draw

    @property
    def summary(self) -> str:
        return load_protocol(self.name).summary

    def check(self, quick: bool, data_dir: Path | None) -> None:
        require_data(self.plan(quick), data_dir)

    def make(self, workshop: Workshop) -> Outcome:
        """Nothing is drawn if no cell has a task, since there is nothing to draw."""
        store = Store(workshop.root)
        result = run(self.plan(workshop.quick), store, workshop.resources, workshop.progress)
        files = []
        if any(record.task_sha256 is not None for record in result.records):
            figure, numbers = self.draw(result.records, store, workshop.quick)
            stem = workshop.stem(self.name)
            path = stem.with_name(stem.name + ".json")
            write_atomically(path, (numbers.model_dump_json(indent=2) + "\n").encode())
            files = [*write_figure(figure, stem), path]
        return Outcome(
            name=self.name,
            quick=workshop.quick,
            files=files,
            computed=len(result.computed),
            reused=len(result.records) - len(result.computed) - len(result.refused),
            records=result.records,
        )

    def plan(self, quick: bool) -> Plan:
        """What is to be run."""
        return make_plan(Request(protocol=self.name, **(self.quick if quick else {})))
