"""Reproductions that are a protocol's cells, drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from matplotlib.figure import Figure
from pydantic import ConfigDict, RootModel

from fsvi_bench.errors import InputError
from fsvi_bench.files import write_atomically
from fsvi_bench.papers.base import Outcome, Reproduction, Workshop
from fsvi_bench.papers.places import Found, Place, find_records, holds_records
from fsvi_bench.presenting.figures import write_figure
from fsvi_bench.running.cell import Record
from fsvi_bench.running.plan import Plan, Request, load_protocol, make_plan
from fsvi_bench.running.prepare import require_data
from fsvi_bench.running.runner import run
from fsvi_bench.running.store import Store


class Draw(Protocol):
    """Draws what there is of a plan's records, and says what is missing."""

    def __call__(
        self, records: Sequence[Record], store: Store, quick: bool, missing: Sequence[Place] = ()
    ) -> tuple[Figure, dict[str, Any]]: ...


class _Numbers(RootModel[dict[str, Any]]):
    """A figure's JSON file."""

    model_config = ConfigDict(ser_json_inf_nan="strings")


class FromRecords(Reproduction):
    """A figure: the protocol of its name, what `--quick` puts in place of the protocol's, and its drawing.

    Args:
        protocol: another protocol, of which the figure shows a part.
        part: what of it, as fields of a `Request`.
        summary: one line, in place of the protocol's.
    """

    shows_unfinished = True

    def __init__(
        self,
        name: str,
        quick: Mapping[str, Any],
        draw: Draw,
        protocol: str | None = None,
        part: Mapping[str, Any] | None = None,
        summary: str | None = None,
        takes_days: bool = False,
    ) -> None:
        self.name, self.quick, self.draw, self.takes_days = name, quick, draw, takes_days
        self._protocol, self._part, self._summary = protocol or name, dict(part or {}), summary

    @property
    def summary(self) -> str:
        return self._summary or load_protocol(self._protocol).summary

    def check(self, quick: bool, data_dir: Path | None) -> None:
        require_data(self.plan(quick), data_dir)

    def make(self, workshop: Workshop) -> Outcome:
        """Nothing is drawn if no cell has a task, since there is nothing to draw.

        Raises:
            InputError: nothing is to be computed, and the folder holds no record of the plan.
        """
        store, plan = Store(workshop.root), self.plan(workshop.quick)
        records, missing, computed, reused = run_or_find(plan, store, workshop, self.name)
        files = []
        if any(record.task_sha256 is not None for record in records):
            figure, numbers = self.draw(records, store, workshop.quick, missing)
            stem = workshop.stem(self.name)
            path = stem.with_name(stem.name + ".json")
            write_atomically(path, (_Numbers(numbers).model_dump_json(indent=2) + "\n").encode())
            files = [*write_figure(figure, stem), path]
        return Outcome(
            name=self.name,
            quick=workshop.quick,
            files=files,
            computed=computed,
            reused=reused,
            records=records,
            missing=len(missing),
        )

    def plan(self, quick: bool) -> Plan:
        """What is to be run."""
        return make_plan(Request(protocol=self._protocol, **{**self._part, **(self.quick if quick else {})}))


def run_or_find(plan: Plan, store: Store, workshop: Workshop, name: str) -> tuple[list[Record], list[Place], int, int]:
    """A plan's records and missing cells, and how many were computed and found.

    Raises:
        InputError: nothing is to be computed, and the folder holds no record of the plan.
    """
    if workshop.compute:
        result = run(plan, store, workshop.resources, workshop.progress)
        return (
            result.records,
            [],
            len(result.computed),
            len(result.records) - len(result.computed) - len(result.refused),
        )
    records, missing = find_records(plan, store.root) if holds_records(store.root) else Found([], [])
    if not records:
        raise InputError(
            f"{store.root} holds no record of {name}; name the folder of the study's runs with --out, or let --compute "
            "compute it"
        )
    return records, missing, 0, len(records)
