"""`fsvi-bench report`."""

from __future__ import annotations

import math
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.options import AsJson

if TYPE_CHECKING:
    from pandas import DataFrame


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of `fsvi-bench run`.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where the report goes. Default: DIR/report.")] = None,
    json: AsJson = False,
) -> int:
    """Make one self-contained HTML page, and its figures as PNG and SVG, from the records of a folder.

    With --json, print its numbers: a row per data set, method, family, settings and score.
    """
    with no_garbage_collection():
        from fsvi_bench.cli.console import print_json, stdout
        from fsvi_bench.presenting.report.page import write_report
        from fsvi_bench.presenting.summary import cells_of, summary_of
        from fsvi_bench.running.store import read_archive

        path = write_report(folder, folder / "report" if out is None else out)
        if json:
            print_json(_plain(summary_of(cells_of(read_archive(folder).records))))
            return 0
    stdout.print(str(path), soft_wrap=True)
    return 0


def _plain(summary: DataFrame) -> Any:
    """Infinite numbers as the word that records have, null for those that are missing."""
    numbers = summary.astype(object).where(summary.notna(), None).replace(math.inf, "Infinity")
    hyperparameters = summary["settings"].map(loads)
    return numbers.assign(settings=hyperparameters).rename(columns={"settings": "hyperparameters"}).to_dict("records")
