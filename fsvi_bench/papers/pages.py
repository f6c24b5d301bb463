"""Pages of Markdown: a person's template, filled with an experiment's frames and verdicts."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import StrictUndefined

from fsvi_bench.presenting.frames import TableSpec
from fsvi_bench.presenting.tables import templates

WIDTH = 118  #: of a paragraph that is filled


def render(template: Path, **values: Any) -> str:
    """The page. Two filters beside Jinja's own: a frame as a `table`, and `fill` for a paragraph."""
    environment = templates(template.parent, undefined=StrictUndefined)
    environment.filters |= {"table": _table, "fill": _fill}
    return environment.get_template(template.name).render(values)


def _table(frame: pd.DataFrame) -> str:
    return TableSpec(title="", frame="").of({"": frame}).markdown() if len(frame) else ""


def _fill(text: str) -> str:
    """Lines filled anew: numbers have other lengths than their places in the template."""
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"
