"""Settings written as words of a command line are read as the same settings."""

from __future__ import annotations

import pytest

from fsvi_bench.running.options import parse_setting, setting, setting_words


@pytest.mark.parametrize(
    "value",
    [
        0.01,
        1e-6,
        3,
        True,
        None,
        "lbfgs",
        "no",
        "1",
        "",
        "a: b",
        "[x",
        "1e5",
        [1, "b"],
        {"a": None},
        [1e-6],
        {"a": 1e-6},
        1e16,
        [1e16],
        "😀: x",
        "12:30",
        "2024-01-01",
        "1_000",
        "true",
    ],
)
def test_a_setting_is_read_as_it_was_written(value):
    assert parse_setting(setting("name", value)) == ("name", value)


def test_words_that_yaml_1_1_takes_for_something_else_are_text():
    for text in ("no", "on", "12:30", "2024-01-01", "1_000", "0x1f"):
        assert parse_setting(f"a={text}") == ("a", text)


def test_words_stand_plainly_and_what_has_a_flag_of_its_own_takes_it():
    given = {"optimizer": "lbfgs", "M": 80, "max_steps": 7, "lr": 0.01, "x": None}
    flags = ["--set", "optimizer=lbfgs", "--measurement-points", "80", "--max-steps", "7", "--set", "lr=0.01"]
    assert setting_words(given) == [*flags, "--set", "x=null"]
