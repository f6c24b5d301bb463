"""Tidy frames, and which of their rows and columns a table shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict

from fsvi_bench.presenting.tables import Cell, Table

Frames = Mapping[str, pd.DataFrame]  #: by name; each row is one observation


class TableSpec(BaseModel):
    """Which rows and columns of a frame a table shows.

    Args:
        title: `{name}` stands for what the frame's `attrs` have by this name, or a column in its first row.
        where: column -> the value, or the values, that its rows have.
        optional: whether there may be no such row in a frame that has others.
        columns: heading -> column; None: all of the frame's, as they are called.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str
    frame: str
    where: dict[str, Any] = {}
    optional: bool = False
    columns: dict[str, str] | None = None

    def of(self, frames: Frames) -> Table:
        """Raises KeyError for a frame or a column that is not there, and as `select` does."""
        frame = select(frames[self.frame], self.where, self.optional)
        frame = frame.astype(dict.fromkeys(frame.select_dtypes("string"), "string"))  # whose missing words are no NaN
        columns = self.columns or {name: name for name in frame.columns}
        rows = [tuple(map(_plain, row)) for row in frame[list(columns.values())].itertuples(index=False, name=None)]
        return Table(title=worded(self.title, frame), columns=tuple(columns), rows=tuple(rows))


def select(frame: pd.DataFrame, where: Mapping[str, Any], optional: bool = False) -> pd.DataFrame:
    """The rows that have a value, or one of several, in each of these columns.

    Raises:
        KeyError: no column is called so, or the frame has rows and none of them is like this, unless it is `optional`.
    """
    found = frame
    for name, value in where.items():
        found = found[found[name].isin(value if isinstance(value, list) else [value])]
    if found.empty and not frame.empty and not optional:
        raise KeyError(f"no row has {dict(where)}; columns: {', '.join(map(str, frame.columns))}")
    return found


def formula(frame: pd.DataFrame, text: str) -> Any:
    """A column; or what a formula of columns gives, such as `kl / floor - 1`; of lines `name = formula`, the frame with
    these columns.

    Raises:
        KeyError: the text is neither a column nor such a formula.
    """
    if text in frame:
        return frame[text]
    try:
        return frame.eval(text, engine="python")
    except (NameError, SyntaxError) as error:
        raise KeyError(text) from error


def worded(text: str, frame: pd.DataFrame) -> str:
    """Text in which `{name}` stands for what the frame's `attrs` have by this name, or for a column's first value.

    What names neither stays, such as TeX.
    """
    known = {**(frame.iloc[0].to_dict() if len(frame) else {}), **frame.attrs}

    def value(found: re.Match[str]) -> str:
        name, form = found.groups(default="")
        return format(known[name], form) if name in known else found[0]

    return re.sub(r"\{(\w*)(?::([^{}]*))?\}", value, text)


def _plain(value: Any) -> Cell:
    """Python's own kinds: a column of objects holds what was put there, others NumPy's scalars."""
    plain = value.item() if hasattr(value, "item") else value
    return None if plain is pd.NA else plain
