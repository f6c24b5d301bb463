"""Output to the terminal: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from rich.console import Console

from fsvi_bench.files import is_file

if TYPE_CHECKING:
    from fsvi_bench.running.cell import Record

#: A pipe or file has no width, and a table cut to 80 columns would lose numbers. Markup is off, because names, paths
#: and reasons are user input and may contain brackets.
stdout = Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else 240)
stderr = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)


def show(as_json: bool, document: Any, printed: Callable[[], Any]) -> None:
    """Prints on stdout: one JSON document, with infinity as a string as in files, or the text from `printed`."""
    if as_json:
        plain = json.loads(to_json(document, inf_nan_mode="strings"))
        sys.stdout.write(json.dumps(plain, indent=2, allow_nan=False) + "\n")
    else:
        stdout.print(printed(), crop=False)


def print_failures(records: Sequence[Record], root: Path) -> int:
    """Prints on stderr which cells failed or diverged, and returns the exit status.

    Of a method's cells that did so for the same reason, it prints the first and the number of others. The line names
    the file with the traceback, if the method's own code raised an exception.

    Args:
        root: output folder of the records.
    """
    from fsvi_bench.running.store import TRACEBACK_FILE

    alike: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.status != "ok":
            alike[record.method, record.status, str(record.reason)].append(record)
    for record, *others in alike.values():
        name = f"{record.dataset} split {record.split} {record.method} {record.family} seed {record.seed}"
        traceback = root / record.folder / TRACEBACK_FILE
        where = f" (traceback: {traceback})" if is_file(traceback) else ""
        stderr.print(f"{name}: {record.status}: {' '.join(str(record.reason).split())}{where}", style="red")
        if others:
            cells = f"{len(others)} more cell{'s' if len(others) > 1 else ''} of {record.method}"
            stderr.print(f"and {cells} {record.status} for the same reason", style="red")
    return 1 if alike else 0
