"""Published figures that can be made again: which protocol to run, how to draw its records, what to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict

from fsvi_bench.errors import unknown_name
from fsvi_bench.files import write_atomically
from fsvi_bench.reporting.burt2020 import draw_figure_1, draw_figure_2
from fsvi_bench.reporting.figures import write_figure
from fsvi_bench.running.cell import Record
from fsvi_bench.running.plan import Request, load_protocol
from fsvi_bench.running.store import Store

Draw = Callable[[Sequence[Record], Store, bool], tuple[Figure, BaseModel]]  #: of records, store, quick


class Outcome(BaseModel):
    """What was written, and the records behind it."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    name: str
    quick: bool
    files: list[Path]
    records: list[Record]


@dataclass(frozen=True)
class Reproduction:
    """A figure: the protocol of its name, what `--quick` puts in place of the protocol's, and its drawing."""

    name: str
    quick: Mapping[str, Any]
    draw: Draw

    @property
    def summary(self) -> str:
        """One line, the protocol's."""
        return load_protocol(self.name).summary

    def request(self, quick: bool) -> Request:
        """What is to be run."""
        return Request(protocol=self.name, **(self.quick if quick else {}))

    def write(self, records: Sequence[Record], store: Store, quick: bool) -> list[Path]:
        """Draws the records into the store's folder, with their numbers; a quick run's files have names of their own.

        Nothing is written if no cell has a task, since there is nothing to draw.

        Raises:
            InputError: a posterior is missing from the store, or the folder cannot be written.
        """
        if all(record.task_sha256 is None for record in records):
            return []
        name = f"{self.name}-quick" if quick else self.name
        figure, numbers = self.draw(records, store, quick)
        path = store.root / f"{name}.json"
        write_atomically(path, (numbers.model_dump_json(indent=2) + "\n").encode())
        return [*write_figure(figure, store.root / name), path]


REPRODUCTIONS = {
    reproduction.name: reproduction
    for reproduction in (
        Reproduction("burt2020-fig1", {"max_steps": 500}, draw_figure_1),
        Reproduction("burt2020-fig2", {"max_steps": 1000, "splits": "0-1"}, draw_figure_2),
    )
}


def find_reproduction(name: str) -> Reproduction:
    """A reproduction by name.

    Raises:
        InputError: there is none of that name.
    """
    if name not in REPRODUCTIONS:
        raise unknown_name("reproduction", name, REPRODUCTIONS)
    return REPRODUCTIONS[name]
