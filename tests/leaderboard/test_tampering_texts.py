"""Tampered JSON and YAML, and words that are not plain, are refused in one sentence that names file and field."""

from __future__ import annotations

import json

import pytest
import yaml

from fsvi_bench.tasks.official import TaskSet
from tests.leaderboard.planted import (
    edit_claim,
    edit_manifest,
)
from tests.leaderboard.tampering import refused


@pytest.fixture
def tasks(planted_set) -> TaskSet:
    return planted_set


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"cells": [{"kl": NaN}]}', "cells.json: cells.0.kl: got nan"),
        ('{"cells": [{"kl": Infinity}]}', "cells.json: cells.0.kl: got inf"),
        ('{"cells": [{"kl": 1e999}]}', "cells.json: cells.0.kl: got inf"),
        ('{"cells": [{"kl": 1, "kl": 2}]}', "cells.json: cells.0: the key 'kl' stands twice"),
        ('{"cells": [{"split": ' + "9" * 6000 + "}]}", "cells.json: cells.0.split: an integer of more than 19 digits"),
        ('{"cells": ' + "[" * 50_000, "cells.json is not plain JSON: nested too deep"),
        ('{"cells": [[[[[[[[1]]]]]]]]}', "cells.json: cells.0.0.0.0.0.0: nested more than 6 deep"),
        ('{"cells": [', "cells.json is not plain JSON"),
        ("[]", "cells.json holds a list, expected a mapping"),
        ('{"format": "fsvi-cells/1", "cells": []}', "cells.json: cells: List should have at least 1"),
        ('{"format": "fsvi-cells/2", "cells": []}', "cells.json: format: got 'fsvi-cells/2'"),
        ('{"cells": "\\ud800"}', "cells.json: format is missing"),
    ],
)
def test_json_that_is_not_plain(text, words, folder, tasks):
    (folder / "cells.json").write_text(text)
    refused(folder, tasks, words)


def test_text_that_is_not_utf8(folder, tasks):
    (folder / "cells.json").write_bytes(b'{"a": "\xff"}')
    refused(folder, tasks, "cells.json is not plain JSON: byte 7 is not UTF-8")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x [1]\nb: [*x, *x]", "submission.yaml: a: aliases and anchors"),
        ("title: *undefined", "submission.yaml: title: aliases and anchors"),
        ("title: !!python/object/apply:os.system ['touch mark']", "submission.yaml: title: the tag"),
        ("title: !!python/name:os.system", "submission.yaml: title: the tag"),
        ("title: !x y", "submission.yaml: title: the tag '!x'"),
        ("!!map {title: x}", "submission.yaml: the document: the tag"),
        ("hyperparameters: {lr: !!float 1}", "submission.yaml: hyperparameters.lr: the tag"),
        ("title: x\ntitle: y", "submission.yaml: the document: the key 'title' stands twice"),
        ("budget: {steps: 1, steps: 2}", "submission.yaml: budget: the key 'steps' stands twice"),
        ("hyperparameters: {a: [[[[[[1]]]]]]}", "submission.yaml: hyperparameters.a.0.0.0.0.0: nested more than 6 deep"),
        ("a: " + "[" * 60_000, "submission.yaml: a.0.0.0.0.0.0: nested more than 6 deep"),
        ("- " * 30_000, "nested more than 6 deep"),
        ("? [1]\n: 2", "submission.yaml: the document: a key is not text"),
        ("? {? {a: 1} : 1} : 2", "submission.yaml: the document: a key is not text"),
        ("<<: {title: x}", "submission.yaml: format is missing"),
        ("budget: {seconds: .inf}", "submission.yaml: budget.seconds: got inf"),
        ("budget: {seconds: .nan}", "submission.yaml: budget.seconds: got nan"),
        ("budget: {seconds: 1e999}", "submission.yaml: budget.seconds: got inf"),
        ("budget: {steps: " + "9" * 6000 + "}", "submission.yaml: budget.steps: an integer of more than 19 digits"),
        ("title: x\n--- \ntitle: y", "submission.yaml is not plain YAML"),
        ("title: \x07", "submission.yaml is not plain YAML: character 7 may not stand"),
        ("title: [", "submission.yaml is not plain YAML"),
        ("just words", "submission.yaml holds 'just words', expected a mapping"),
        ("", "submission.yaml holds nothing, expected a mapping"),
    ],
)  # fmt: skip
def test_yaml_that_is_not_plain(text, words, folder, tasks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (folder / "submission.yaml").write_text(text)
    refused(folder, tasks, words)
    assert not (tmp_path / "mark").exists()


def test_yaml_bomb(folder, tasks):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    (folder / "submission.yaml").write_text("\n".join(lines))
    refused(folder, tasks, "submission.yaml: a0: aliases and anchors (& and *) are not taken")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"authors": ["A", "<b>B</b>"]}, "authors.1: got '<b>B</b>', expected one line"),
        ({"title": "<img src=x onerror=alert(1)>"}, "title: got '<img"),
        ({"method": 'x" onmouseover="y'}, "method: got 'x\" onmouseover"),
        ({"licence": "MIT\x1b[31m"}, "licence: got"),
        ({"licence": "Foo Licence"}, "licence: got 'Foo Licence', expected an SPDX expression"),
        ({"licence": "MIT OR"}, "licence: got 'MIT OR', expected an SPDX expression"),
        ({"hardware": "turned \u202e around"}, "hardware: got"),
        ({"notes": "<script>"}, "notes: got '<script>'"),
        ({"notes": "x" * 4001}, "notes: got 'xxx"),
        ({"link": "javascript:alert(1)"}, "link: got 'javascript:alert(1)', expected an https:// address"),
        ({"link": "https://a.b/'onclick=x"}, "link: got"),
        ({"hyperparameters": {"lr": "<b>"}}, "hyperparameters.lr: got '<b>', expected a number"),
        ({"hyperparameters": {"a b": 1}}, "hyperparameters.'a b': got 'a b', expected a Python name"),
        ({"hyperparameters": {"lr": [1]}}, "hyperparameters.lr: got a list"),
        ({"name": "../planted"}, "name: got '../planted'"),
        ({"source": {"file": "../x.py", "class": "X"}}, "source.file: got '../x.py', expected the plain name"),
        ({"source": {"file": "/etc/x.py", "class": "X"}}, "source.file: got '/etc/x.py'"),
        ({"source": {"file": "x.py", "class": "X"}}, "source.file: there is no 'x.py' beside it"),
        ({"budget": {"steps": 1, "seconds": 0}}, "budget.seconds: got 0, expected greater than 0"),
        ({"budget": {"steps": 1.5, "seconds": 1.0}}, "budget.steps: got 1.5"),
        ({"budget": {"steps": True, "seconds": 1.0}}, "budget.steps: got true"),
        ({"family": "half"}, "family: got 'half', expected 'full', 'ffg'"),
        ({"format": "fsvi-submission/2"}, "format: got 'fsvi-submission/2'"),
        ({"protocol": None}, "protocol is missing"),
        ({"authors": []}, "authors: List should have at least 1 item"),
        ({"<script>": 1}, "'<script>' is not a field of this format"),
    ],
)  # fmt: skip
def test_fields_of_the_manifest(changes, words, folder, tasks):
    edit_manifest(folder, **changes)
    refused(folder, tasks, "submission.yaml: " + words)


@pytest.mark.parametrize("style", ["block", "flow", "quoted", "plain"])
@pytest.mark.parametrize("name", ["link", "notes", "hyperparameters"])
def test_a_field_of_ten_megabytes(name, style, folder, tasks):
    path, long = folder / "submission.yaml", "x " * 5_000_000
    nested = "\n  lr:" if name == "hyperparameters" else ""
    if style == "flow":
        value = {"lr": long} if nested else long
        path.write_text(json.dumps({**yaml.safe_load(path.read_text()), name: value}))
    else:
        text = {"block": f"|\n    {long}", "quoted": f"'{long}'", "plain": long}[style]
        path.write_text(f"{path.read_text()}{name}:{nested} {text}\nlicence: MIT\n")
    refused(folder, tasks, f"submission.yaml: {name}: the text goes beyond the file's limit of 64 KiB")


def test_a_cells_file_of_ten_megabytes(folder, tasks):
    edit_claim(folder, reason="x" * 10_000_000)
    refused(folder, tasks, "cells.json is larger than the 80896 bytes")
