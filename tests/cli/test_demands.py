"""Pydantic's complaints in plain words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from fsvi_bench.errors import plain_demands

Number = Annotated[float, Field(allow_inf_nan=False)]


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Annotated[int, Field(ge=2)], 1, "expected 2 or more"),
        (Annotated[float, Field(gt=0)], -1.5, "expected more than 0"),
        (Annotated[float, Field(le=-0.5)], 0, "expected at most -0.5"),
        (Annotated[float, Field(lt=0.5)], 1, "expected less than 0.5"),
        (int, "x", "expected a whole number"),
        (int, 1.5, "expected a whole number"),
        (int, [], "expected a whole number"),
        (float, "x", "expected a number"),
        (Number, float("nan"), "expected a finite number"),
        (bool, "x", "expected true or false"),
        (str, 1, "expected text"),
        (dict[str, Any], 1, "expected a mapping"),
        (list[int], 1, "expected a list"),
        (Literal["full", "M"], 1, "expected 'full' or 'M'"),
    ],
)
def test_each_of_pydantics_demands_has_plain_words(kind, value, said):
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(kind).validate_python(value)
    assert plain_demands(raised.value.errors()[0]["msg"]) == said
