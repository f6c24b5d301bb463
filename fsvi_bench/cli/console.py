"""Where text goes: results to stdout, everything else to stderr; bars for people, plain lines for logs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from rich.console import Console

if TYPE_CHECKING:
    from fsvi_bench.running.cell import Record

#: A pipe or file has no width to respect, and a table cut to 80 columns there would lose its numbers. Markup is off:
#: names, paths and reasons come from outside, and their brackets are theirs.
stdout = Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else 240)
stderr = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_json(document: Any) -> None:
    """One JSON document on stdout; models are written as they are in files (infinity as a word)."""
    sys.stdout.write(json.dumps(_plain(document), indent=2, allow_nan=False) + "\n")


def print_failures(records: Sequence[Record]) -> None:
    """One line per cell that failed or diverged, on stderr, whatever its reason's own lines."""
    for record in records:
        if record.status != "ok":
            name = f"{record.dataset} split {record.split} {record.method} {record.family} seed {record.seed}"
            stderr.print(f"{name}: {record.status}: {' '.join(str(record.reason).split())}", style="red")


def _plain(document: Any) -> Any:
    if isinstance(document, BaseModel):
        return json.loads(document.model_dump_json())
    return [_plain(item) for item in document] if isinstance(document, list) else document
