"""Markdown pages: hand-written templates rendered with an experiment's frames and verdicts."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import StrictUndefined

from fsvi_bench.presenting.frames import TableSpec
from fsvi_bench.presenting.tables import templates

WIDTH = 118  #: of a wrapped paragraph


def render(template: Path, **values: Any) -> str:
    """Renders a page. In addition to Jinja's filters, `table` formats a frame and `fill` wraps a paragraph."""
    environment = templates(template.parent, undefined=StrictUndefined)
    environment.filters |= {"table": _table, "fill": _fill}
    return environment.get_template(template.name).render(values)


def _table(frame: pd.DataFrame) -> str:
    return TableSpec(title="", frame="").of({"": frame}).markdown() if len(frame) else ""


def _fill(text: str) -> str:
    """Wraps a paragraph again, since inserting numbers changes the lengths of its lines."""
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"
