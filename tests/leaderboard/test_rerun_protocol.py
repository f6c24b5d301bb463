"""What a verifier believes of the messages that a process with submitted code sends, and what our worker sends."""

from __future__ import annotations

import os
import struct
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsvi_bench.leaderboard.rerun import worker
from fsvi_bench.leaderboard.rerun.child import Limits, RunFailed, _Heard, printable
from fsvi_bench.leaderboard.rerun.protocol import (
    MAX_WAYPOINTS,
    Final,
    Garbled,
    Job,
    Message,
    Reached,
    Reader,
    Ready,
    Started,
    read_job,
    write_job,
)
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.gaussian import FactorisedGaussian, FullGaussian
from fsvi_bench.posteriors.io import posterior_file, read_posterior
from tests.leaderboard.planted import planted_manifest
from tests.leaderboard.rerunning import method_that, problem

ZERO = torch.zeros(5, dtype=torch.float64)
Q = posterior_file(FullGaussian(ZERO, torch.diag(ZERO + 1)))
READY, STARTED = Ready(confined=True), Started(num_steps=10)
OK = Final(status="ok", reason=None, steps=10, work={"gradients": 10})


def frame(message: Message, file: bytes = b"") -> bytes:
    words = message.model_dump_json().encode()
    return struct.pack(">II", len(words), len(file)) + words + file


@pytest.fixture
def heard(tmp_path):
    return _Heard(planted_manifest(), 5, Limits(steps=10, seconds=9.0, memory=1), tmp_path)


def test_a_run_as_it_should_be(heard):
    heard.hear(frame(READY), 100.0)
    heard.hear(frame(STARTED), 101.0)
    for steps, now in ((0, 102.0), (1, 103.0), (10, 104.0)):
        heard.hear(frame(Reached(steps=steps, work=None), Q), now)
    heard.hear(frame(OK, Q), 104.5)
    outcome = heard.outcome()
    assert [(each.steps, each.seconds) for each in outcome.snapshots] == [(0, 2.0), (1, 3.0), (10, 4.5)]
    assert outcome.snapshots[-1].work == {"gradients": 10}
    assert (outcome.status, outcome.seconds, outcome.confined) == ("ok", 4.5, True)


def test_nothing_is_heard_after_the_end(heard):
    heard.hear(frame(READY) + frame(STARTED) + frame(OK, Q) + frame(READY) + frame(OK), 1.0)
    assert heard.outcome().status == "ok"


FORGED = {
    "noise": (
        b"not a message" * 9,
        f"it sent a message of {int.from_bytes(b'not ')} and {int.from_bytes(b'a me')} bytes, expected",
    ),
    "another object": (struct.pack(">II", 2, 0) + b"{}", "it sent a message that no worker of ours sends"),
    "nesting": (struct.pack(">II", 2**14, 0) + b"[" * 2**14, "it sent a message that no worker of ours sends"),
    "work of no number": (
        frame(OK, Q).replace(b'"gradients":10', b'"gradients":-1'),
        "it sent a message that no worker of ours sends",
    ),
    "ready again": (frame(READY), "it sent 'ready' twice"),
    "started again": (frame(STARTED), "it sent 'started' twice"),
    "a step too many": (frame(Reached(steps=11, work=None), Q), "it sent q after 11 steps, out of turn"),
    "the end a step too late": (frame(OK.model_copy(update={"steps": 11}), Q), "it sent q after 11 steps, out of turn"),
    "a step back": (
        frame(Reached(steps=3, work=None), Q) + frame(Reached(steps=3, work=None), Q),
        "it sent q after 3 steps, out of turn",
    ),
    "nothing": (frame(OK), "it sent a posterior that cannot be read: posterior.safetensors is not a safetensors file"),
    "a pickle": (frame(OK, b"\x80\x04K\x01."), "posterior.safetensors is not a safetensors file"),
    "half a file": (frame(OK, Q[:-8]), "posterior.safetensors is not a safetensors file"),
    "too large a file": (frame(OK, Q + bytes(10**4)), "bytes, expected at most 16384 and 4416"),
    "another k": (
        frame(OK, posterior_file(FullGaussian(ZERO[:4], torch.diag(ZERO[:4] + 1)))),
        "task has k=5 features, posterior has 4",
    ),
    "another family": (
        frame(OK, posterior_file(FactorisedGaussian(ZERO, ZERO + 1))),
        "it sent a posterior of kind gaussian-ffg, its family's is gaussian-full",
    ),
    "no scale": (frame(OK, posterior_file(FullGaussian(ZERO, torch.diag(ZERO)))), "holds 0, expected positive numbers"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_no_worker_sends_is_refused(heard, name):
    content, words = FORGED[name]
    heard.hear(frame(READY) + frame(STARTED), 1.0)
    with pytest.raises(RunFailed) as caught:
        heard.hear(content, 2.0)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
    assert heard.final is None


@pytest.mark.parametrize("first", [STARTED, Reached(steps=0, work=None), OK])
def test_nothing_comes_before_ready(heard, first):
    with pytest.raises(RunFailed, match=f"it sent '{first.event}' before 'ready'"):
        heard.hear(frame(first, Q if first is not STARTED else b""), 1.0)


def test_no_posterior_comes_before_the_steps_are_known(heard):
    with pytest.raises(RunFailed, match="it sent q after 0 steps, out of turn"):
        heard.hear(frame(READY) + frame(Reached(steps=0, work=None), Q), 1.0)


def test_more_steps_than_were_declared(heard):
    with pytest.raises(RunFailed, match="it wants 11 steps, its declared budget has 10"):
        heard.hear(frame(READY) + frame(Started(num_steps=11)), 1.0)


def test_more_posteriors_than_anybody_asked_for(tmp_path):
    heard = _Heard(planted_manifest(), 5, Limits(steps=1000, seconds=9.0, memory=1), tmp_path)
    heard.hear(frame(READY) + frame(Started(num_steps=1000)), 1.0)
    for steps in range(12):
        heard.hear(frame(Reached(steps=steps, work=None), Q), 2.0)
    for thirteenth in (Reached(steps=12, work=None), OK.model_copy(update={"steps": 12})):
        with pytest.raises(RunFailed, match="it sent more than the 12 posteriors that it was asked for"):
            heard.hear(frame(thirteenth, Q), 2.0)
    heard.hear(frame(OK.model_copy(update={"steps": 11}), Q), 2.0)  # of the step that was looked at last
    assert len(heard.outcome().snapshots) == MAX_WAYPOINTS == 12


@pytest.mark.parametrize("family", ["full", "ffg"])
def test_posteriors_on_the_way_stay_what_they_were(tmp_path, family):
    """Each file is read into tensors of its own: a later one changes nothing in an earlier one."""
    heard = _Heard(planted_manifest(family=family), 5, Limits(steps=10, seconds=9.0, memory=1), tmp_path)
    heard.hear(frame(READY) + frame(STARTED), 1.0)
    for steps in range(4):
        scale = ZERO + 1 + steps
        q = (
            FullGaussian(ZERO + steps, torch.diag(scale))
            if family == "full"
            else FactorisedGaussian(ZERO + steps, scale)
        )
        heard.hear(frame(Reached(steps=steps, work=None) if steps < 3 else OK, posterior_file(q)), 2.0)
    posteriors = [snapshot.posterior for snapshot in heard.outcome().snapshots]
    assert [float(q.mean[0]) for q in posteriors] == [0, 1, 2, 3]
    assert [float(q.covariance_tril()[0, 0]) for q in posteriors] == [1, 2, 3, 4]


def test_messages_are_put_together_from_pieces_of_any_size():
    sent = [
        (READY, b""),
        (STARTED, b""),
        (Reached(steps=0, work={"gradients": 2}), Q),
        (Final(status="diverged", reason="why", steps=3, work=None), b""),
    ]
    whole = b"".join(frame(*each) for each in sent)
    for size in (1, 7, len(whole)):
        reader = Reader(len(Q))
        pieces = (whole[start : start + size] for start in range(0, len(whole), size))
        assert [got for piece in pieces for got in reader.feed(piece)] == sent


@given(st.binary(max_size=200), st.integers(0, 100), st.integers(0, 255))
@settings(max_examples=500, deadline=None)
def test_no_bytes_upset_the_reader(noise, place, value):
    """Noise, and a good message with one byte changed: messages or `Garbled`, and no file beyond the bound."""
    changed = bytearray(frame(Reached(steps=1, work=None), b"abc"))
    changed[place % len(changed)] = value
    for content in (noise, bytes(changed), bytes(changed) + noise):
        try:
            for message, file in Reader(16).feed(content):
                assert isinstance(message, Ready | Started | Reached | Final)
                assert len(file) <= 16
        except Garbled:
            pass


def test_text_of_strangers_is_made_printable():
    assert printable("a\x1b[2J\nb\u202e\u2028'c'", 60) == "a [2J b ’c’"
    assert printable("x" * 100, 10) == "x" * 7 + "..."


# What our worker does, in this process (it does not confine it).


def job_folder(folder, source, **changes):
    words = {"source": "mine.py", "class_": "Mine", "family": "full", "hyperparameters": {}, "seed": 2**64 - 1}
    write_job(folder, Job(**{**words, "memory": 1, "cpu_seconds": 1, **changes}), source, problem())
    return folder


def test_the_child_gets_the_training_problem_to_the_last_bit_and_nothing_else(tmp_path):
    folder = job_folder(tmp_path, b"text")
    job, got = read_job(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["job.json", "mine.py", "problem.safetensors"]
    assert (job.seed, (folder / "mine.py").read_bytes()) == (2**64 - 1, b"text")
    expected = TrainingData.of([problem()])
    for field in fields(TrainingData):
        if field.name != "feature_map":
            assert torch.equal(getattr(got, field.name), getattr(expected, field.name))
            assert getattr(got, field.name).data_ptr() % 64 == 0  # as torch allocates: BLAS rounds by alignment
    assert got.feature_map.kernel == expected.feature_map.kernel
    assert got.feature_map.tensors.keys() == expected.feature_map.tensors.keys()
    for name, tensor in expected.feature_map.tensors.items():
        assert torch.equal(got.feature_map.tensors[name], tensor)
    test_row = problem().X_test[0].numpy().tobytes()
    assert test_row not in (folder / "problem.safetensors").read_bytes()
    assert problem().X[0].numpy().tobytes() in (folder / "problem.safetensors").read_bytes()


def test_a_grid_travels_without_a_root(tmp_path, toy):
    write_job(tmp_path, Job(source="a.py", class_="A", family="full", hyperparameters={}, seed=0, memory=1,
                            cpu_seconds=1), b"", toy)  # fmt: skip
    assert read_job(tmp_path)[1].feature_map.tril is None


def sent_by_worker(folder, source, **changes):
    """What `worker` sends of a method's text."""
    job, data = read_job(job_folder(folder, source, **changes))
    reading, writing = os.pipe()
    try:
        worker._train(folder, job, data, writing)
        os.close(writing)
        return list(Reader(10**4).feed(os.read(reading, 2**20)))
    finally:
        os.close(reading)


def test_a_posterior_that_is_none_is_told_by_the_worker(tmp_path):
    for name, mean, status, reason in (
        ("nan", "mean * float('nan')", "diverged", "the posterior holds NaN or infinity"),
        ("shape", "mean[:, :3]", "failed", "the posterior is not one over the weights: its mean has shape [3], exp"),
    ):
        (folder := tmp_path / name).mkdir()
        source = method_that("pass").replace(
            b"return FullGaussian(mean,", f"mean = {mean}; return FullGaussian(mean,".encode()
        )
        (started, _), (final, file) = sent_by_worker(folder, source)
        assert (started, file) == (Started(num_steps=1), b"")  # nothing on the way either
        assert (final.status, final.reason[: len(reason)]) == (status, reason)


def test_a_method_that_says_it_diverged_has(tmp_path):
    source = method_that("self.divergences = lambda: ['why']")
    *_, (final, _) = sent_by_worker(tmp_path, source)
    assert (final.status, final.reason) == ("diverged", "why")


@pytest.mark.parametrize("more", [b"", b"    deterministic = True\n"])
def test_the_worker_looks_on_the_way_and_at_the_end(tmp_path, more):
    """Whether seeds matter or not."""
    trains = b"""    automatic_optimization = False
    num_steps = 300
    def configure_optimizers(self): "It has none."
    def training_step(self, batch, batch_idx): self.note(torch.zeros(1))
    def posterior(self, problem=None):
        problem = self.problems
"""
    source = method_that("pass").replace(b"    def solve(self, problem):\n", more + trains)
    (started, _), *on_the_way, (final, file) = sent_by_worker(tmp_path, source)
    assert started.num_steps == 300
    assert [message.steps for message, _ in on_the_way] == worker.waypoint_steps(300)
    assert (final.status, final.steps) == ("ok", 300)
    (path := tmp_path / "q.safetensors").write_bytes(file)
    assert torch.equal(read_posterior(path).mean, ZERO)
