"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Folder that holds UCI_Datasets/...; else $FSVI_BENCH_DATA, the cache, a download."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Processes of one thread each; default: one per core (with ray: all there is room for).",
    ),
]
