"""Where text goes: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from rich.console import Console

if TYPE_CHECKING:
    from fsvi_bench.running.cell import Record

#: A pipe or file has no width to respect, and a table cut to 80 columns there would lose its numbers. Markup is off:
#: names, paths and reasons come from outside, and their brackets are theirs.
stdout = Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else 240)
stderr = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)


def show(as_json: bool, document: Any, printed: Callable[[], Any]) -> None:
    """On stdout: one JSON document, models in it as they are in files (infinity as a word), or what people read."""
    if as_json:
        plain = json.loads(to_json(document, inf_nan_mode="strings"))
        sys.stdout.write(json.dumps(plain, indent=2, allow_nan=False) + "\n")
    else:
        stdout.print(printed())


def print_failures(records: Sequence[Record]) -> int:
    """One line on stderr per cell that failed or diverged, whatever its reason's own lines; the exit status."""
    bad = [record for record in records if record.status != "ok"]
    for record in bad:
        name = f"{record.dataset} split {record.split} {record.method} {record.family} seed {record.seed}"
        stderr.print(f"{name}: {record.status}: {' '.join(str(record.reason).split())}", style="red")
    return 1 if bad else 0
