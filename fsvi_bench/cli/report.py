"""`fsvi-bench report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsvi_bench.cli.collector import no_garbage_collection


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder of `fsvi-bench run`.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where the report goes. Default: DIR/report.")] = None,
) -> int:
    """Make one self-contained HTML page, and its figures as PNG and SVG, from the records of a folder."""
    with no_garbage_collection():
        from fsvi_bench.cli.console import stdout
        from fsvi_bench.presenting.report.page import write_report

        path = write_report(folder, folder / "report" if out is None else out)
    stdout.print(str(path), soft_wrap=True)
    return 0
