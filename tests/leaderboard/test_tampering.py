"""Every way to tamper with a submission that we know of is refused in one sentence that names file and field."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.reading import posterior_bytes, read_submission, submission_sha256
from fsvi_bench.leaderboard.rescoring import ABSOLUTE, RELATIVE, rescore
from fsvi_bench.leaderboard.submission import Claims
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.io import posterior_file, read_posterior
from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES, SamplesPosterior
from fsvi_bench.scoring.scores import score
from fsvi_bench.tasks.official import TaskSet
from fsvi_bench.tensorfile import tensor_file
from tests.leaderboard.planted import (
    edit_claim,
    edit_manifest,
    plant_submission,
    planted_manifest,
    planted_posterior,
    planted_posteriors,
    planted_tasks,
)

FIRST = "posteriors/boston/split-00.safetensors"
SECOND = "posteriors/boston/split-01.safetensors"
THIRD = "posteriors/energy/split-00.safetensors"


@pytest.fixture(scope="module")
def tasks() -> TaskSet:
    return planted_tasks()


@pytest.fixture(scope="module")
def template(tasks, tmp_path_factory) -> Path:
    return plant_submission(tmp_path_factory.mktemp("template"), tasks)


@pytest.fixture
def folder(template, tmp_path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "planted"))


def verify(folder, tasks):
    return rescore(read_submission(folder, tasks), tasks)


def refused(folder, tasks, *words):
    """One sentence, which holds these words and nothing that could steer a terminal or a page."""
    with pytest.raises(InputError) as caught:
        verify(folder, tasks)
    sentence = str(caught.value)
    assert sentence.isprintable(), sentence
    assert len(sentence) < 800 + len(str(folder)) * 3
    assert "Traceback" not in sentence
    for word in words:
        assert word in sentence, sentence
    return sentence


def put(folder, name, content, place=0):
    """A posterior's file, with its hash where the cell claims it."""
    import hashlib

    (folder / name).write_bytes(content)
    edit_claim(folder, place, posterior_sha256=hashlib.sha256(content).hexdigest())


def tensors_of(tasks, place=("boston", 0)):
    q = planted_posterior(tasks.problem(place))
    return {"mean": q.mean.clone(), "scale_tril": q.scale_tril.clone()}


def metadata(tasks, place=("boston", 0)):
    return {"format": "fsvi-posterior/1", "kind": "gaussian-full", "task_sha256": tasks.tasks[place].sha256}


# ------------------------------------------------------------------------------------------------ what is accepted


@pytest.mark.parametrize("family", ["full", "ffg", "bernoulli", "spike-slab"])
def test_an_honest_submission_holds_and_has_the_scores_of_its_files(family, tmp_path):
    tasks = planted_tasks({"boston": 1})
    folder = plant_submission(tmp_path, tasks, planted_manifest(family=family))
    (cell,) = verify(folder, tasks)
    problem = tasks.problem(("boston", 0))
    assert cell.scores == score(read_posterior(folder / FIRST), problem)
    assert (cell.dataset, cell.split, cell.status) == ("boston", 0, "ok")


def test_two_workers_find_the_same_scores(folder, tasks):
    submission = read_submission(folder, tasks)
    assert rescore(submission, tasks, workers=2) == rescore(submission, tasks)


def test_cells_without_a_posterior_say_why_and_have_no_scores(tasks, tmp_path):
    posteriors = planted_posteriors(tasks)
    del posteriors["boston", 1]
    folder = plant_submission(tmp_path, tasks, posteriors=posteriors, reasons={("boston", 1): "NaN at step 7"})
    cells = verify(folder, tasks)
    assert [cell.status for cell in cells] == ["ok", "diverged", "ok"]
    assert (cells[1].scores, cells[1].reason) == (None, "NaN at step 7")


def test_data_sets_may_be_left_out_as_a_whole(tasks, tmp_path):
    folder = plant_submission(tmp_path, planted_tasks({"energy": 1}))
    assert [cell.dataset for cell in verify(folder, tasks)] == ["energy"]


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("name", ["kl", "predictive_kl_box"])
def test_a_claim_may_be_off_by_rounding_and_by_no_more(sign, name, folder, tasks):
    scored = json.loads((folder / "cells.json").read_text())["cells"][0][name]
    tolerance = ABSOLUTE + RELATIVE * scored
    edit_claim(folder, **{name: scored + sign * 0.99 * tolerance})
    verify(folder, tasks)
    wrong = scored + sign * 1.01 * tolerance
    edit_claim(folder, **{name: wrong})
    refused(folder, tasks, f"cells.json: cells.0.{name}: boston split 0", repr(wrong), repr(scored))


def test_infinity_is_claimed_as_a_word_and_agrees_with_itself_alone(tmp_path):
    tasks = planted_tasks({"boston": 1})
    folder = plant_submission(tmp_path, tasks, planted_manifest(family="spike-slab"))
    assert '"kl": "Infinity"' in (folder / "cells.json").read_text()
    (cell,) = verify(folder, tasks)
    assert cell.scores.kl == math.inf
    edit_claim(folder, kl=1e300)
    refused(folder, tasks, "cells.0.kl", "claims 1e+300, but its posterior scores inf")


def test_an_infinite_claim_of_a_finite_score_is_refused(folder, tasks):
    edit_claim(folder, kl="Infinity")
    refused(folder, tasks, "cells.json: cells.0.kl", "claims inf")
    edit_claim(folder, kl=0.6008, predictive_kl_box=None)
    refused(folder, tasks, "cells.json: cells.0.kl")


def test_a_score_may_not_be_kept_secret(folder, tasks):
    edit_claim(folder, predictive_kl_box=None)
    refused(folder, tasks, "cells.json: cells.0.predictive_kl_box", "claims null")


# ------------------------------------------------------------------------------------------------ cells and tasks


def test_wrong_task_hash(folder, tasks):
    edit_claim(folder, task_sha256="0" * 64)
    refused(folder, tasks, "cells.json: cells.0.task_sha256: got 000000000000", tasks.tasks["boston", 0].sha256[:12])


def test_swapped_splits_in_the_cells(folder, tasks):
    edit_claim(folder, 0, split=1)
    edit_claim(folder, 1, split=0)
    refused(folder, tasks, "cells.json: cells.0.task_sha256")


def test_swapped_files_with_their_hashes(folder, tasks):
    one, two = (folder / FIRST).read_bytes(), (folder / SECOND).read_bytes()
    put(folder, FIRST, two, 0)
    put(folder, SECOND, one, 1)
    refused(folder, tasks, FIRST, "posterior of task", tasks.tasks["boston", 1].sha256[:12])


def test_swapped_files_with_the_hashes_left(folder, tasks):
    one, two = (folder / FIRST).read_bytes(), (folder / SECOND).read_bytes()
    (folder / FIRST).write_bytes(two)
    (folder / SECOND).write_bytes(one)
    refused(folder, tasks, "cells.json: cells.0.posterior_sha256", FIRST)


def test_a_file_that_does_not_say_its_task(folder, tasks):
    put(folder, FIRST, posterior_file(planted_posterior(tasks.problem(("boston", 0)))))
    refused(folder, tasks, FIRST, "metadata 'task_sha256' is missing")


def test_duplicate_cell(folder, tasks):
    content = json.loads((folder / "cells.json").read_text())
    content["cells"].append(content["cells"][0])
    (folder / "cells.json").write_text(json.dumps(content))
    refused(folder, tasks, "cells.json: cells.3: boston split 0 stands twice")


def test_missing_cell(folder, tasks):
    content = json.loads((folder / "cells.json").read_text())
    del content["cells"][1]
    (folder / "cells.json").write_text(json.dumps(content))
    (folder / SECOND).unlink()
    refused(folder, tasks, "cells.json: cells: boston split 1 is missing")


def test_cells_out_of_order(folder, tasks):
    content = json.loads((folder / "cells.json").read_text())
    content["cells"].reverse()
    (folder / "cells.json").write_text(json.dumps(content))
    refused(folder, tasks, "cells.json: cells.0: got energy split 0, expected boston split 0")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": "atlantis"}, "cells.0.dataset: atlantis has no official tasks"),
        ({"dataset": "../boston"}, "cells.0.dataset: got '../boston', expected lower-case letters"),
        ({"split": 7}, "cells.0.split: boston has no official split 7"),
        ({"split": -1}, "cells.0.split: got -1"),
        ({"split": True}, "cells.0.split: got true"),
        ({"kl": "0.5"}, "cells.0.kl: got '0.5'"),
        ({"kl": None}, "cells.0: a cell that is ok has posterior_sha256 and kl"),
        ({"status": "fine"}, "cells.0.status: got 'fine'"),
        ({"status": "diverged"}, "cells.0: a cell that is not ok"),
        ({"reason": "<script>alert(1)</script>"}, "cells.0.reason: got '<script>"),
        ({"rank": 1}, "cells.0.rank is not a field"),
    ],
)
def test_fields_of_a_cell(changes, words, folder, tasks):
    edit_claim(folder, **changes)
    refused(folder, tasks, "cells.json", words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"cells": [{"kl": NaN}]}', "cells.json: cells.0.kl: got nan"),
        ('{"cells": [{"kl": Infinity}]}', "cells.json: cells.0.kl: got inf"),
        ('{"cells": [{"kl": 1e999}]}', "cells.json: cells.0.kl: got inf"),
        ('{"cells": [{"kl": 1, "kl": 2}]}', "cells.json: cells.0: the key 'kl' stands twice"),
        ('{"cells": [{"split": ' + "9" * 6000 + "}]}", "cells.json: cells.0.split: an integer of more than 19 digits"),
        ('{"cells": ' + "[" * 100_000, "cells.json is not plain JSON: nested too deep"),
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


# ------------------------------------------------------------------------------------------------ posterior files


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["mean", "scale_tril"])
def test_numbers_that_are_not_finite(name, value, folder, tasks):
    from safetensors.torch import save

    tensors = tensors_of(tasks)
    tensors[name].view(-1)[0] = value
    put(folder, FIRST, save(tensors, metadata(tasks)))
    refused(folder, tasks, FIRST, f"'{name}' holds NaN or infinity")


@pytest.mark.parametrize("value", [0.0, -0.1, -0.0])
def test_a_diagonal_that_is_not_positive(value, folder, tasks):
    tensors = tensors_of(tasks)
    tensors["scale_tril"][2, 2] = value
    put(folder, FIRST, tensor_file(tensors, metadata(tasks)))
    refused(folder, tasks, FIRST, "'diagonal of scale_tril' holds", "expected positive numbers")


def test_an_upper_triangle_that_is_not_empty(folder, tasks):
    tensors = tensors_of(tasks)
    tensors["scale_tril"][0, 4] = 1e-9
    put(folder, FIRST, tensor_file(tensors, metadata(tasks)))
    refused(folder, tasks, FIRST, "'scale_tril' has entries above the diagonal")


def test_numbers_that_overflow(folder, tasks):
    tensors = tensors_of(tasks)
    tensors["mean"][0] = 1e200
    put(folder, FIRST, tensor_file(tensors, metadata(tasks)))
    refused(folder, tasks, FIRST, "the posterior's numbers reach")


@pytest.mark.parametrize("k", [4, 6])
def test_wrong_k(k, folder, tasks):
    q = FullGaussian(torch.zeros(k, dtype=torch.float64), torch.eye(k, dtype=torch.float64))
    put(folder, FIRST, posterior_file(q, tasks.tasks["boston", 0].sha256))
    refused(folder, tasks, FIRST, f"task has k=5 features, posterior has {k}")


def test_wrong_kind(folder, tasks):
    q = FactorisedGaussian(torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64))
    put(folder, FIRST, posterior_file(q, tasks.tasks["boston", 0].sha256))
    refused(folder, tasks, FIRST, "kind: got 'gaussian-ffg', expected 'gaussian-full'")


def test_samples_are_not_taken(folder, tasks):
    """As many as scoring asks for are more than the file may hold."""
    for count, words in ((100, "the posterior has 100 samples"), (MINIMUM_SAMPLES, "is larger than the")):
        draws = torch.randn(count, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        put(folder, FIRST, posterior_file(SamplesPosterior(draws), tasks.tasks["boston", 0].sha256))
        refused(folder, tasks, FIRST, words)


def test_single_precision(folder, tasks):
    tensors = {name: tensor.float() for name, tensor in tensors_of(tasks).items()}
    put(folder, FIRST, tensor_file(tensors, metadata(tasks)))
    refused(folder, tasks, FIRST, "type float32, expected float64")


def test_tensors_and_words_that_do_not_belong(folder, tasks):
    put(folder, FIRST, tensor_file({**tensors_of(tasks), "<b>": torch.zeros(1)}, metadata(tasks)))
    refused(folder, tasks, FIRST, "unknown tensor '<b>'")
    put(folder, FIRST, tensor_file(tensors_of(tasks), {**metadata(tasks), "note\x1b[2J": "x"}))
    refused(folder, tasks, FIRST, r"unknown metadata 'note\x1b[2J'")


class Marker:
    """Unpickled, it leaves a mark."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_a_pickle_in_place_of_safetensors(folder, tasks, tmp_path):
    mark = tmp_path / "mark"
    for payload in (pickle.dumps(Marker(mark)), b"PK\x03\x04" + pickle.dumps(Marker(mark))):
        put(folder, FIRST, payload)
        refused(folder, tasks, FIRST, "is not a safetensors file")
    torch.save(Marker(mark), folder / FIRST)
    put(folder, FIRST, (folder / FIRST).read_bytes())
    refused(folder, tasks, FIRST, "is not a safetensors file")
    assert not mark.exists()


# ------------------------------------------------------------------------------------------------ the folder


@pytest.mark.parametrize(
    "name",
    ["notes.txt", ".hidden", "posteriors/.gitkeep", "posteriors/boston/split-02.safetensors",
     "posteriors/boston/split-0.safetensors", "posteriors/boston/split-٠٠.safetensors", "posteriors/atlantis/split-00.safetensors",
     "posteriors/extra.safetensors", "posteriors/boston/deeper/split-00.safetensors", "method.py", "cells.JSON"],
)  # fmt: skip
def test_extra_file(name, folder, tasks):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"")
    refused(folder, tasks, "remove")


def test_extra_folders(folder, tasks):
    (folder / "posteriors" / "boston" / "empty").mkdir()
    refused(folder, tasks, "remove")
    (folder / "posteriors" / "boston" / "empty").rmdir()
    (folder / THIRD).unlink()
    refused(folder, tasks, "energy is an empty folder")


def test_many_extra_files_are_not_listed(folder, tasks):
    for number in range(2000):
        (folder / "posteriors" / "boston" / f"x{number}").touch()
    refused(folder, tasks, "posteriors/boston")


@pytest.mark.parametrize("name", ["submission.yaml", "cells.json", FIRST])
def test_missing_file(name, folder, tasks):
    (folder / name).unlink()
    refused(folder, tasks, name)


@pytest.mark.parametrize("name", ["submission.yaml", "cells.json", FIRST, "posteriors/boston", "posteriors"])
def test_symbolic_link(name, folder, tasks, tmp_path):
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    refused(folder, tasks, name, "is a symbolic link, expected a")


def test_the_folder_as_a_symbolic_link(folder, tasks, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "planted").symlink_to(folder)
    refused(tmp_path / "other" / "planted", tasks, "planted is a symbolic link")


@pytest.mark.parametrize("name", ["cells.json", FIRST])
def test_pipes_and_sockets_are_not_opened(name, folder, tasks, tmp_path, monkeypatch):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(folder, tasks, name, "is a device, pipe or socket")
    (folder / name).unlink()
    monkeypatch.chdir((folder / name).parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(Path(name).name)
        refused(folder, tasks, name, "is a device, pipe or socket")


def test_no_folder(tasks, tmp_path):
    refused(tmp_path / "nowhere", tasks, "cannot read", "No such file")
    (tmp_path / "file").touch()
    refused(tmp_path / "file", tasks, "is a file, expected a submission's folder")
    refused(tmp_path / ("x" * 300), tasks, "too long")


def test_the_folder_has_the_submissions_name(folder, tasks, monkeypatch):
    edit_manifest(folder, name="other")
    refused(folder, tasks, "submission.yaml: name: got 'other', expected the folder's name, 'planted'")
    edit_manifest(folder, name="planted")
    monkeypatch.chdir(folder)
    read_submission(Path(), tasks)  # as `verify .` would


def test_the_hash_is_over_every_file(folder, tasks):
    before = read_submission(folder, tasks).sha256
    assert before == read_submission(folder, tasks).sha256
    names = ["submission.yaml", "cells.json", FIRST, SECOND, THIRD]
    assert before == submission_sha256({name: (folder / name).read_bytes() for name in names})
    edit_manifest(folder, notes="another word")
    assert read_submission(folder, tasks).sha256 != before


def test_claims_round_trip(folder):
    text = (folder / "cells.json").read_text()
    assert Claims.model_validate_json(text).model_dump_json(indent=1) + "\n" == text


def test_the_largest_honest_file_fits_its_limit():
    for k in (1, 100, 2000):
        q = {"mean": torch.zeros(k, dtype=torch.float64), "scale_tril": torch.eye(k, dtype=torch.float64)}
        words = {"format": "fsvi-posterior/1", "kind": "gaussian-full", "task_sha256": "0" * 64}
        assert len(tensor_file(q, words)) <= posterior_bytes("full", k) < len(tensor_file(q, words)) + 20_000


# ------------------------------------------------------------------------------------------------ submission.yaml


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
    refused(folder, tasks, "cells.json is larger than the 4194304 bytes")


# ------------------------------------------------------------------------------------------------ the source


def sourced(root, tasks, mark):
    text = f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Evil:\n    pass\n"
    manifest = planted_manifest(source={"file": "evil.py", "class": "Evil"})
    return plant_submission(root, tasks, manifest, source=text.encode())


def test_a_source_is_read_and_never_run(tasks, tmp_path):
    mark = tmp_path / "mark"
    folder = sourced(tmp_path, tasks, mark)
    submission = read_submission(folder, tasks)
    rescore(submission, tasks)
    rescore(submission, tasks, workers=2)
    assert submission.source == (folder / "evil.py").read_bytes()
    assert not mark.exists()
    exec(compile(submission.source, "evil.py", "exec"), {})  # it would have left its mark
    assert mark.exists()


def test_sources_that_are_not(tasks, tmp_path):
    folder = sourced(tmp_path, tasks, tmp_path / "mark")
    source = folder / "evil.py"
    source.write_bytes(b"\xff")
    refused(folder, tasks, "evil.py is not UTF-8")
    source.write_bytes(b"#" * (2**20 + 1))
    refused(folder, tasks, "evil.py is larger than the 1048576 bytes")
    source.rename(folder / "other.py")
    refused(folder, tasks, "'other.py'", "source.file")
    (folder / "other.py").unlink()
    source.symlink_to("/etc/passwd")
    refused(folder, tasks, "evil.py is a symbolic link")


# ------------------------------------------------------------------------------------------------ memory

MEASURED = """
import resource, sys
from pathlib import Path
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.reading import read_submission
from tests.leaderboard.planted import planted_tasks
tasks = planted_tasks()
read_submission(Path(sys.argv[1]), tasks)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
refusals = 0
for folder in sys.argv[2:]:
    try:
        read_submission(Path(folder), tasks)
    except InputError as error:
        refusals += 1
print(refusals, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_nothing_that_is_refused_takes_memory(template, tmp_path, tasks):
    """A gigabyte in any of the files, a bomb, ten megabytes in a field: all in 64 MiB more than an honest one takes.

    Four mebibytes of JSON are at most that many small objects, of about ten times their text.
    """
    folders = []

    def another():
        folders.append(Path(shutil.copytree(template, tmp_path / str(len(folders)) / "planted")))
        return folders[-1]

    for name in ("submission.yaml", "cells.json", FIRST):
        with (another() / name).open("r+b") as stream:
            stream.truncate(2**30)
    (another() / "submission.yaml").write_text("a: &a [x]\n" + "\n".join(f"b{i}: [*a, *a]" for i in range(1000)))
    with (another() / "submission.yaml").open("a") as stream:
        stream.write("notes: " + "x" * 10_000_000)
    (another() / "cells.json").write_text('{"cells": [' + ",".join(["0"] * (2**21 - 100)) + "]}")
    (another() / "submission.yaml").write_text("[" * 2**16)
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, template, *folders], capture_output=True, text=True, check=True
    )
    refusals, kibibytes = map(int, ran.stdout.split())
    assert refusals == len(folders)
    assert kibibytes < 64 * 1024
