"""Tampered cells and posteriors are refused in one sentence that names file and field; honest ones hold."""

from __future__ import annotations

import json
import math
import pickle

import pytest
import torch

from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.rescoring import ABSOLUTE, RELATIVE, rescore
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.io import posterior_file, read_posterior
from fsvi_bench.posteriors.samples import MINIMUM_SAMPLES, SamplesPosterior
from fsvi_bench.scoring.scores import score
from fsvi_bench.tasks.official import TaskSet
from fsvi_bench.tensorfile import tensor_file
from tests.leaderboard.planted import (
    edit_claim,
    plant_submission,
    planted_manifest,
    planted_posterior,
    planted_posteriors,
    planted_tasks,
)
from tests.leaderboard.tampering import FIRST, SECOND, metadata, put, refused, tensors_of, verify


@pytest.fixture
def tasks(planted_set) -> TaskSet:
    return planted_set


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
    content["cells"][2] = content["cells"][0]
    (folder / "cells.json").write_text(json.dumps(content))
    refused(folder, tasks, "cells.json: cells.2: boston split 0 stands twice")
    content["cells"] *= 2
    (folder / "cells.json").write_text(json.dumps(content))
    refused(folder, tasks, "cells.json: cells: got 6 cells, expected at most 3")


def test_more_keys_than_any_field_is_for(folder, tasks):
    edit_claim(folder, **{f"x{number}": 0 for number in range(56)})
    refused(folder, tasks, "cells.json: cells.0.x0 is not a field")  # 64 keys are looked at
    edit_claim(folder, x=0)
    refused(folder, tasks, "cells.json: an object has 65 keys, expected at most 64")


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
    refused(folder, tasks, FIRST, "'scale_tril' holds", "expected positive numbers")


def test_an_upper_triangle_that_is_not_empty(folder, tasks):
    tensors = tensors_of(tasks)
    tensors["scale_tril"][0, 4] = 1e-9
    put(folder, FIRST, tensor_file(tensors, metadata(tasks)))
    refused(folder, tasks, FIRST, "its scale_tril has entries above the diagonal")


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
