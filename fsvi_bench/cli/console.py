"""Where text goes: results to stdout, everything else to stderr; bars for people, plain lines for logs."""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import BaseModel
from rich.console import Console

#: A pipe or file has no width to respect, and a table cut to 80 columns there would lose its numbers. Markup is off:
#: names, paths and reasons come from outside, and their brackets are theirs.
stdout = Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else 240)
stderr = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_json(document: Any) -> None:
    """One JSON document on stdout; models are written as they are in files (infinity as a word)."""
    sys.stdout.write(json.dumps(_plain(document), indent=2, allow_nan=False) + "\n")


def _plain(document: Any) -> Any:
    if isinstance(document, BaseModel):
        return json.loads(document.model_dump_json())
    return [_plain(item) for item in document] if isinstance(document, list) else document
