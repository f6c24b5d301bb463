"""Files as they are written."""

import json

import pytest

from fsvi_bench.files import json_in_lines

DOCUMENT = {"a": [1, 2.5e-300, None], "b": {"c": {}, "d": [[], ["∞", "Infinity", {"e": True}]]}, "f": "x\n"}


@pytest.mark.parametrize("levels", range(6))
def test_json_in_lines_is_the_same_json(levels):
    assert json.loads(json_in_lines(json.dumps(DOCUMENT), levels)) == DOCUMENT


def test_json_in_lines_has_a_line_for_each_thing_within():
    assert json_in_lines(json.dumps(DOCUMENT), 2) == (
        '{\n "a": [\n  1,\n  2.5e-300,\n  null\n ],\n "b": {\n  "c": {},\n'
        '  "d": [[],["∞","Infinity",{"e":true}]]\n },\n "f": "x\\n"\n}\n'
    )
