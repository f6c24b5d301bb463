"""What the tests of tampering share: where files lie, how one is put in place of another, what a refusal looks like."""

from __future__ import annotations

import hashlib

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.rescoring import rescore
from tests.leaderboard.planted import edit_claim, planted_posterior

FIRST = "posteriors/boston/split-00.safetensors"
SECOND = "posteriors/boston/split-01.safetensors"
THIRD = "posteriors/energy/split-00.safetensors"


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
    (folder / name).write_bytes(content)
    edit_claim(folder, place, posterior_sha256=hashlib.sha256(content).hexdigest())


def tensors_of(tasks, place=("boston", 0)):
    q = planted_posterior(tasks.problem(place))
    return {"mean": q.mean.clone(), "scale_tril": q.scale_tril.clone()}


def metadata(tasks, place=("boston", 0)):
    return {"format": "fsvi-posterior/1", "kind": "gaussian-full", "task_sha256": tasks.tasks[place].sha256}
