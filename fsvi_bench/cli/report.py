"""`fsvi-bench report`."""

from __future__ import annotations

from json import loads
from typing import Any

from pandas import DataFrame

from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.commands import Report
from fsvi_bench.cli.console import show
from fsvi_bench.presenting.report.page import write_report
from fsvi_bench.presenting.summary import cells_of, summary_of
from fsvi_bench.running.store import Store


@no_garbage_collection()
def report(options: Report) -> None:
    path = write_report(options.folder, options.out or options.folder / "report")
    if options.as_json:
        show(True, _plain(summary_of(cells_of(Store(options.folder).records))), str)
    else:
        print(path)


def _plain(summary: DataFrame) -> Any:
    """The rows of a summary as dictionaries, with None for missing numbers."""
    summary = summary.assign(judged=summary["judged"].map(len))
    numbers = summary.astype(object).where(summary.notna(), None)
    hyperparameters = summary["settings"].map(loads)
    return numbers.assign(settings=hyperparameters).rename(columns={"settings": "hyperparameters"}).to_dict("records")
