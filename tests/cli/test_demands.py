"""Pydantic's and Typer's complaints as one plain sentence: got, expected."""

from __future__ import annotations

import re
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
        (Annotated[float, Field(le=-0.5)], 0, "expected -0.5 at most"),
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


def test_what_is_not_a_demand_stays_as_it_is():
    for said in ("unknown data set 'should be': known: yacht", "unknown method 'exact or expected y'"):
        assert plain_demands(said) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("run", "--method", "ssge", "--set", "S=1"),
            "method ssge, option 'S': got 1, expected 2 or more; its options: ",
        ),
        (
            ("run", "--method", "rand-a", "--set", "minibatch=1.5"),
            "method rand-a, option 'minibatch': got 1.5, expected a whole number or 'full' or 'M'; its options: ",
        ),
        (("run", "--max-steps", "x"), "--max-steps is 'x', expected a whole number (see "),
        (("run", "--max-steps=many"), "--max-steps is 'many', expected a whole number (see "),
        (
            ("run", "--measurement-points", "8", "--measurement-points", "x"),
            "--measurement-points, expected a whole number (see ",
        ),
        (("leaderboard", "serve", "--port", "99999"), "--port is '99999', expected 65535 at most (see "),
    ],
)
def test_the_command_line_says_what_it_got_and_what_it_expected(cli, arguments, said):
    status, out, err = cli(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"fsvi-bench: {said}")
    assert re.search("Input|valid|parse", err) is None
