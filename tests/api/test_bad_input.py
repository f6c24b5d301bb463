"""What `fit`, the methods and `Scores` refuse: one plain sentence that says what to change."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from fsvi_bench import (
    BernoulliDropoutPosterior,
    FactorisedGaussian,
    FullGaussian,
    InputError,
    RandA,
    SamplesPosterior,
    Scores,
    fit,
    score,
)
from fsvi_bench.posteriors.base import Posterior

FIT = {
    "unknown method": (("rand-b",), {}, "unknown method 'rand-b': did you mean 'rand-a'? expected one of bernoulli-dropout, "),
    "no such file": (("none.py:Mine",), {}, "there is no file none.py; give path/file.py:Class"),
    "a file alone": (("none.py",), {}, "method none.py names a file but no class; give it as none.py:Class"),
    "a class of another kind": ((Posterior,), {}, "'Posterior' is not a subclass of fsvi_bench.methods.base.Method"),
    "a number": ((3,), {}, "'3' is not a subclass of fsvi_bench.methods.base.Method; derive it from that class"),
    "unknown option": (("rand-a",), {"lrr": 1}, "method rand-a, option 'lrr': there is no such option; did you mean 'lr'? its options: "),
    "no steps": (("rand-a",), {"max_steps": 0}, "method rand-a, option 'max_steps': got 0, expected 1 or more; its options: "),
    "more points than rows": (("rand-a",), {"M": 10_000}, "M=10000 needs 5000 distinct training inputs, but a split has only 398; choose a smaller M"),
    "another family": (("mean-field-vi",), {"family": "full"}, "method mean-field-vi has no family 'full'; its families: ffg"),
    "no family at all": (("rand-a",), {"family": 3}, "method rand-a has no family '3'; its families: full, ffg"),
    "a word for a seed": (("rand-a",), {"seed": "one"}, "seed is 'one', expected a whole number of 0 or more"),
    "a broken seed": (("rand-a",), {"seed": 1.0}, "seed is '1.0', expected a whole number of 0 or more"),
    "a negative seed": (("rand-a",), {"seed": -1}, "seed is '-1', expected a whole number of 0 or more"),
    "a truth value for a seed": (("rand-a",), {"seed": True}, "seed is 'True', expected a whole number"),
    "unknown device": (("rand-a",), {"device": "tpu"}, "the device is 'tpu', expected auto, cpu or cuda"),
    "an array for a device": (("rand-a",), {"device": np.array(["cpu", "cuda"])}, "the device is \"['cpu' 'cuda']\", expected auto, cpu or cuda"),
    "an array for a family": (("rand-a",), {"family": np.array(["full", "ffg"])}, "method rand-a has no family \"['full' 'ffg']\"; its families: full, ffg"),
    "steps beyond counting": (("rand-a",), {"max_steps": 2**63}, "method rand-a, option 'max_steps' is a number of 64 bits, expected fewer than 63"),
    "samples beyond counting": (("ssge",), {"S": 10**5000}, "method ssge, option 'S' is a number of 16610 bits, expected fewer than 63"),
}  # fmt: skip


def refusal(call, *arguments, **settings) -> str:
    with pytest.raises(InputError) as refused:
        call(*arguments, **settings)
    message = str(refused.value)
    assert "\n" not in message
    assert "Input should" not in message
    return message


@pytest.mark.parametrize("name", FIT)
def test_fit_refuses(diabetes, name):
    arguments, settings, message = FIT[name]
    assert message in refusal(fit, *arguments, diabetes, **settings)


def test_fit_refuses_a_bad_seed_of_a_deterministic_method(diabetes):
    assert "seed is 'x'" in refusal(fit, "exact", diabetes, seed="x")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("diabetes", "the task is the name 'diabetes', expected a Task; load it with load_task('diabetes')"),
        ("toy:0:collapsed-2", "expected a Task; load it with load_network('toy:0:collapsed-2')"),
        (None, "the task is of type NoneType, expected a Task; get one from load_task or make_task"),
        ([1], "the task is of type list, expected a Task"),
    ],
)
def test_anything_but_a_task_is_refused(task, message):
    assert message in refusal(fit, "exact", task)


def test_a_method_in_place_of_its_class_is_refused(diabetes):
    message = refusal(fit, RandA(diabetes), diabetes)
    assert message == "the method is an object of class RandA, expected the class or a name; give RandA itself"


METHOD = {
    "a name": (("diabetes",), {}, "the task is the name 'diabetes', expected a Task"),
    "other things": (([1, 2],), {}, "the task is of type int, expected a Task"),
    "another family": ((None, "bernoulli"), {}, "method RandA has no family 'bernoulli'; its families: full, ffg"),
    "unknown option": ((None, "ffg"), {"lrr": 1}, "method RandA, option 'lrr': there is no such option; did you mean 'lr'?"),
}  # fmt: skip


@pytest.mark.parametrize("name", METHOD)
def test_a_method_refuses(diabetes, name):
    (task, *others), settings, message = METHOD[name]
    assert message in refusal(RandA, diabetes if task is None else task, *others, **settings)


def test_a_single_seed_is_accepted(diabetes):
    assert RandA(diabetes, "ffg", 7).seeds == RandA(diabetes, "ffg", [7]).seeds == (7,)


def test_scores_refuses(diabetes):
    assert "the task is the name 'boston', expected a Task" in refusal(Scores, "boston")
    assert "every is '0', expected a whole number of 1 or more" in refusal(Scores, diabetes, every=0)


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.float64)


def unchecked(kind, *tensors):
    """Made as where shapes go unchecked, which is everywhere but in these tests."""
    q = object.__new__(kind)
    q.__dict__.update(zip((field.name for field in fields(kind)), tensors, strict=True))
    return q


EYE = np.eye(100)
MASKED = np.ma.masked_array(np.zeros(100), mask=[True] + [False] * 99)
SCORE = {
    "no dimension": ((np.float64(0), EYE), "the mean has shape [], expected [100]; give one mean per weight"),
    "three arrays": ((1.0, 2.0, 3.0), "the posterior is a tuple of length 3, expected a posterior of fit, a pair (mean [k], "),
    "a number": (1.0, "the posterior has shape [], expected a posterior of fit, a pair (mean [k], covariance [k, k])"),
    "a variance": ((np.zeros(100), 1.0), "the covariance has shape [], expected [100, 100]; give that of all 100 weights"),
    "masked": ((MASKED, EYE), "'mean' has masked entries, expected a number in each; fill them"),
    "q of numbers": (unchecked(FactorisedGaussian, zeros(), zeros()), "tensors of shapes mean [], scale [], expected mean [k], scale [k]; reshape them"),
    "q with a number": (unchecked(FullGaussian, zeros(100), zeros()), "mean [100], scale_tril [], expected mean [k], scale_tril [k, k]"),
    "one sample": (unchecked(SamplesPosterior, zeros(100)), "tensors of shapes samples [100], expected samples [S, k]; reshape them"),
    "a batch with a p each": (unchecked(BernoulliDropoutPosterior, zeros(2, 100), zeros(2)), "retain_probability [2], expected those of one problem; score q[0]"),
    "sparse": (unchecked(FullGaussian, zeros(100), torch.eye(100).to_sparse()), "the posterior's scale_tril has the layout sparse_coo, expected strided"),
    "without numbers": (unchecked(FactorisedGaussian, zeros(100).to("meta"), zeros(100)), "the posterior's mean is on the meta device, expected numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCORE)
def test_score_refuses(diabetes, name):
    q, message = SCORE[name]
    assert message in refusal(score, q, diabetes)


def test_more_draws_than_fit_in_memory_are_refused():
    q = FactorisedGaussian(zeros(100), torch.ones(100, dtype=torch.float64))
    for n in (10**10, 2**63):
        assert refusal(q.sample, n) == f"n is {n}, expected fewer than 1374389534 draws; draw them in parts"
