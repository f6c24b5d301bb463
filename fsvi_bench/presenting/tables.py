"""Tables as plain data: specified over tidy frames, rendered for a terminal, for Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict
from rich import box
from rich.table import Table as Terminal

Frames = Mapping[str, pd.DataFrame]  #: by name; each row is one observation
# JSON has no infinities and writes them as words; read as such they would not be numbers any more.
_WORDS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
Cell = Annotated[
    str | int | float | None,
    BeforeValidator(lambda value: _WORDS.get(value, value) if isinstance(value, str) else value),
]


class Table(BaseModel):
    """Numbers and words; None stands for what does not apply."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def terminal(self) -> Terminal:
        """Numbers to four digits, to the right."""
        table = Terminal(box=box.SIMPLE_HEAD, title=self.title, title_justify="left", pad_edge=False)
        for place, heading in enumerate(self.columns):
            words = all(isinstance(row[place], str) for row in self.rows)
            table.add_column(heading, justify="left" if words else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*map(in_words, row))
        return table

    def markdown(self) -> str:
        """Columns of numbers to the right; a bar within words would end a cell."""
        numbers = [all(not isinstance(row[i], str) for row in self.rows) for i in range(len(self.columns))]
        lines = [self.columns, ["---:" if number else "---" for number in numbers]]
        lines += [[in_words(value) for value in row] for row in self.rows]
        return "\n".join("| " + " | ".join(word.replace("|", "\\|") for word in line) + " |" for line in lines)


class TableSpec(BaseModel):
    """Which rows and columns of a frame a table shows.

    Args:
        title: `{name}` stands for what the frame's `attrs` have by this name, or a column in its first row.
        where: column -> the value, or the values, that its rows have.
        columns: heading -> column; None: all of the frame's, as they are called.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str
    frame: str
    where: dict[str, Any] = {}
    columns: dict[str, str] | None = None

    def of(self, frames: Frames) -> Table:
        """Raises KeyError for a frame or a column that is not there."""
        frame = select(frames[self.frame], self.where)
        words: pd.DataFrame = frame.select_dtypes("string").astype(object)  # in which pandas has NaN for None
        frame = frame.assign(**words.where(words.notna(), None))
        columns = self.columns or {name: name for name in frame.columns}
        rows = [tuple(map(_plain, row)) for row in frame[list(columns.values())].itertuples(index=False, name=None)]
        return Table(title=worded(self.title, frame), columns=tuple(columns), rows=tuple(rows))


def select(frame: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """The rows that have a value, or one of several, in each of these columns."""
    for name, value in where.items():
        frame = frame[frame[name].isin(value if isinstance(value, list) else [value])]
    return frame


def worded(text: str, frame: pd.DataFrame) -> str:
    """Text in which `{name}` stands for what the frame's `attrs` have by this name, or for a column's first value.

    What names neither stays, such as TeX.
    """
    known = {**(frame.iloc[0].to_dict() if len(frame) else {}), **frame.attrs}

    def value(found: re.Match[str]) -> str:
        name, form = found.groups(default="")
        return format(known[name], form) if name in known else found[0]

    return re.sub(r"\{(\w+)(?::([^{}]*))?\}", value, text)


def in_words(value: Cell, digits: int = 4) -> str:
    """A number to so many digits, infinity as its sign, and a dash for what does not apply."""
    if value is None:
        return "–"
    return f"{value:.{digits}g}".replace("inf", "∞") if isinstance(value, float) else str(value)


def as_csv(tables: Sequence[Table]) -> str:
    """All tables one after the other, each under its title."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for place, table in enumerate(tables):
        if place:
            writer.writerow([])
        writer.writerow([f"# {table.title}"])
        writer.writerow(table.columns)
        writer.writerows(table.rows)
    return text.getvalue()


def _plain(value: Any) -> Cell:
    """Python's own kinds: a column of objects holds what was put there, others NumPy's scalars."""
    plain = value.item() if hasattr(value, "item") else value
    return None if plain is pd.NA else plain
