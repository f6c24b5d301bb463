"""`fsvi-bench export`: records as Parquet tables, for pandas, polars and DuckDB."""

from __future__ import annotations

from fsvi_bench.cli.commands import Export
from fsvi_bench.cli.console import stderr
from fsvi_bench.presenting.parquet import write_tables
from fsvi_bench.running.store import Store


def export(options: Export) -> None:
    archive = Store(options.folder)
    for path, rows in write_tables(archive, options.out or options.folder / "export"):
        print(f"{path}: {rows} rows")
    if archive.stale:
        stderr.print(f"{archive.stale} stale records are left out: they belong to other code, kernels or tasks")
