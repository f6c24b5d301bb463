"""Options that several commands share."""

from __future__ import annotations

import os
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


def wandb_mode(wanted: str) -> str:
    """`auto` is what $WANDB_MODE says, else online where a key is set up (environment or netrc), else offline.

    Raises:
        InputError: the mode is unknown.
    """
    from requests.utils import get_netrc_auth

    from fsvi_bench.errors import InputError

    if wanted not in ("auto", "online", "offline", "off"):
        raise InputError(f"--wandb is '{wanted}', expected auto, online, offline or off")
    told = {"online": "online", "offline": "offline", "disabled": "off"}.get(os.environ.get("WANDB_MODE", ""))
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    usual = "online" if os.environ.get("WANDB_API_KEY") or get_netrc_auth(server) else "offline"
    return wanted if wanted != "auto" else told or usual
