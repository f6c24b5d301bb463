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
    """Write all records and traces of a folder as two Parquet tables (needs the extra `fsvi-bench[export]`)."""
    from fsvi_bench.cli.console import stdout
    from fsvi_bench.reporting.parquet import write_tables
    from fsvi_bench.running.archive import read_archive

    for path, rows in write_tables(read_archive(folder), out or folder / "export"):
        stdout.print(f"{path}: {rows} rows", soft_wrap=True)
    return 0
