"""Tidy data frames, and tables of their rows and columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fsvi_bench.presenting.tables import Cell, Table
from fsvi_bench.strict import Plain

Frames = Mapping[str, pd.DataFrame]  #: by name; each row is one observation


class TableSpec(Plain):
    """The rows and columns of a frame that a table shows.

    Args:
        title: `{name}` is replaced by this item of the frame's `attrs`, or by this column in its first row.
        where: column -> value, or list of values, of the rows to show.
        columns: heading -> column; None: all columns, with their names as headings.
    """

    title: str
    frame: str
    where: dict[str, Any] = {}
    columns: dict[str, str] | None = None

    def of(self, frames: Frames) -> Table:
        """The table; raises KeyError if a frame or column does not exist, or as `select`."""
        frame = select(frames[self.frame], self.where)
        frame = frame.astype(dict.fromkeys(frame.select_dtypes("string"), "string"))  # this type has NA instead of NaN
        columns = self.columns or {name: name for name in frame.columns}
        rows = [tuple(map(_plain, row)) for row in frame[list(columns.values())].itertuples(index=False, name=None)]
        return Table(title=worded(self.title, frame), columns=tuple(columns), rows=tuple(rows))


def select(frame: pd.DataFrame, where: Mapping[str, Any], optional: bool = False) -> pd.DataFrame:
    """The rows that have the given value, or one of the given values, in each of these columns.

    Raises:
        KeyError: a column does not exist, or the frame has rows but none match, unless this is `optional`.
    """
    found = frame
    for name, value in where.items():
        found = found[found[name].isin(value if isinstance(value, list) else [value])]
    if found.empty and not frame.empty and not optional:
        raise KeyError(f"no row has {dict(where)}; columns: {', '.join(map(str, frame.columns))}")
    return found


def formula(frame: pd.DataFrame, text: str) -> Any:
    """A column, or the value of a formula of columns, such as `kl / floor - 1`; for lines `name = formula`, the frame
    with these columns added.

    Raises:
        KeyError: the text is neither a column nor a valid formula.
    """
    if text in frame:
        return frame[text]
    try:
        return frame.eval(text, engine="python")
    except (NameError, SyntaxError) as error:
        raise KeyError(text) from error


def worded(text: str, frame: pd.DataFrame) -> str:
    """Replaces `{name}` in a text by this item of the frame's `attrs`, or by the first value of this column.

    Other braces are kept, such as those of TeX.
    """
    known = {**(frame.iloc[0].to_dict() if len(frame) else {}), **frame.attrs}

    def value(found: re.Match[str]) -> str:
        name, form = found.groups(default="")
        return format(known[name], form) if name in known else found[0]

    return re.sub(r"\{(\w*)(?::([^{}]*))?\}", value, text)


def _plain(value: Any) -> Cell:
    """A value as a plain Python object: columns other than those of objects hold NumPy scalars."""
    plain = value.item() if hasattr(value, "item") else value
    return None if plain is pd.NA else plain
