"""`fsvi-bench export`: records as Parquet, for pandas, polars and DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What a run was given with --out.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for records.parquet and traces.parquet. Default: DIR/export.")
    ] = None,
) -> int:
    """Write the records and traces of a folder's plans as Parquet tables (needs pyarrow, the extra named export)."""
    from fsvi_bench.cli.console import stderr, stdout
    from fsvi_bench.presenting.parquet import write_tables
    from fsvi_bench.running.store import read_archive

    archive = read_archive(folder)
    for path, rows in write_tables(archive, out or folder / "export"):
        stdout.print(f"{path}: {rows} rows", soft_wrap=True)
    if archive.stale:
        stderr.print(f"{archive.stale} records of other code, kernels, settings or tasks are left out")
    return 0
