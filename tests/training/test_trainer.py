"""Lightning as a mere loop: which steps are called, when somebody may look, and what the clock counts."""

import logging
import math
import warnings
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_lightning.utilities.warnings import PossibleUserWarning

from fsvi_bench.errors import InputError
from fsvi_bench.methods.base import Method
from fsvi_bench.methods.weight_space import WeightSpaceMethod
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.training import trainer
from fsvi_bench.training.trace import POINTS_PER_DECADE, Trace, TracePoint, Tracer, read_trace, trace_steps
from fsvi_bench.training.trainer import train


class Counting(Method):
    """Notes its calls and lets a clock run: one second a step."""

    automatic_optimization = False
    num_steps = 20

    def __init__(self, tasks, clock, last=math.inf):
        super().__init__(tasks, "ffg")
        self.clock, self.calls, self.last = clock, [], last

    def configure_optimizers(self):
        """It has none."""

    def training_step(self, batch, batch_idx):
        self.calls.append(batch_idx)
        self.clock.now += 1
        self.note(torch.zeros(len(self.problems)))

    @property
    def finished(self):
        return len(self.calls) >= self.last

    def posterior(self):
        mean = torch.zeros_like(self.problems.Phi[:, 0])
        return FactorisedGaussian(mean, torch.ones_like(mean))


@pytest.fixture
def clock(monkeypatch):
    """Stands still but for what a test puts on it."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_the_clock_stops_during_observation(toy, clock):
    method, seen = Counting([toy], clock), []

    def observe(steps, seconds):
        seen.append((steps, seconds))
        clock.now += 100

    assert train(method, "cpu", observe, [0, 1, 7, 20]) == 20
    assert seen == [(0, 0), (1, 1), (7, 7), (20, 20)]
    assert method.calls == list(range(20))


def test_nobody_need_look_and_before_the_first_step_only_who_asks(toy, clock):
    method, seen = Counting([toy], clock), []
    assert train(method, "cpu") == 20
    assert method.calls == list(range(20))
    train(Counting([toy], clock), "cpu", lambda steps, seconds: seen.append(steps), [5, 20])
    assert seen == [5, 20]


@pytest.mark.parametrize(("last", "expected"), [(6, [0, 3, 6]), (7, [0, 3, 7]), (20, [0, 3, 20])])
def test_a_finished_method_ends_early_and_is_observed_where_it_ended(toy, clock, last, expected):
    method, seen = Counting([toy], clock, last), []
    assert train(method, "cpu", lambda steps, seconds: seen.append(steps), [0, 3, 20]) == expected[-1]
    assert seen == expected
    assert method.calls == list(range(expected[-1]))


class ByLightning(Method):
    """Least squares on the mean, with the optimiser left to Lightning."""

    num_steps = 30

    def loss(self, q, batch=None):
        data = self.problems
        return ((data.Phi @ q.mean[:, : data.k, None])[..., 0] - data.y).square().sum(-1)

    def configure_optimizers(self):
        return torch.optim.Adam([self.q.mean], lr=0.05)


def test_lightning_drives_the_optimiser_and_does_as_many_steps(toy):
    seen = []
    method, by_hand = ByLightning([toy], "ffg"), ByLightning([toy], "ffg")
    train(method, "cpu", lambda steps, _: seen.append(method.posterior().mean.abs().sum()), [0, 1, 30])
    optimizer = by_hand.configure_optimizers()
    for _ in range(30):
        optimizer.zero_grad()
        by_hand.loss(by_hand.q()).sum().backward()
        optimizer.step()
    assert torch.equal(method.q.mean, by_hand.q.mean)
    assert seen[0] == 0 < seen[1] < seen[2]


# --- Traces -----------------------------------------------------------------------------------------------------------


def test_trace_steps_are_evenly_spaced_on_a_logarithmic_scale():
    """round(10^(i/8)) written out, and the two ends."""
    assert trace_steps(1) == [0, 1]
    assert trace_steps(2) == [0, 1, 2]
    assert trace_steps(100) == [0, 1, 2, 3, 4, 6, 7, 10, 13, 18, 24, 32, 42, 56, 75, 100]


@given(total=st.integers(1, 10**6))
def test_trace_steps_begin_before_the_first_and_end_at_the_last(total):
    steps = trace_steps(total)
    assert steps[0] == 0
    assert steps[-1] == total
    assert all(type(step) is int for step in steps)
    assert all(one < two for one, two in pairwise(steps))
    assert len(steps) <= 2 + POINTS_PER_DECADE * math.ceil(math.log10(total) + 1)
    # No gap is wider than one part of a decade, rounding apart.
    assert all(two <= one * 10 ** (1 / POINTS_PER_DECADE) + 1 for one, two in pairwise(steps[1:]))


def test_a_trace_keeps_every_digit(tmp_path):
    trace = Trace(
        [TracePoint(0, 0.0, 1 / 3, -math.pi, 0.1, 1e-300), TracePoint(7, 1e-9, math.inf, None, 2.5e300, 1.0, -1 / 7)]
    )
    path = tmp_path / "trace.csv"
    path.write_text(trace.to_csv())
    assert path.read_text().splitlines()[0] == "steps,seconds,kl,nlpd,kl_moment_matched,nlpd_moment_matched,loss"
    assert read_trace(path) == trace
    path.write_text(Trace([TracePoint(3, 0.0, math.nan, math.nan, 0.0, 0.0)]).to_csv())
    assert math.isnan(read_trace(path).points[0].kl)


@pytest.mark.parametrize(
    "text",
    [
        "steps,seconds,kl\n0,0,1\n",
        "steps,seconds,kl,nlpd\n0,0,x,1\n",
        "steps,seconds,kl,nlpd\n0\n",
        "steps,seconds,kl,nlpd,kl_moment_matched,nlpd_moment_matched\n0,0,1,1,1,1\n",
        Trace([TracePoint(3, 0.0, 1.0, 1.0, 0.0, 0.0, 5.0)]).to_csv().removesuffix(",5.0\n"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"is not a trace \(.*\), expected numbers in the columns steps,seconds,kl"):
        read_trace(path)


class Watched(Counting, WeightSpaceMethod):
    """Minimises something, which cannot be computed on its last problems: not prepared, or not at any q."""

    def held_out(self, place, task, sets):
        if place == 1:
            raise RuntimeError("no")
        return [None] if place == 2 else super().held_out(place, task, sets)


def test_a_trace_follows_the_methods_own_objective(toy, clock):
    """At the prior, which Counting never leaves, −E log N(y; Φw, σ²I) is by hand."""
    method, without = Watched([toy] * 3, clock), Counting([toy], clock)
    tracer, of_none = Tracer(method, [toy] * 3), Tracer(without, [toy])
    train(method, "cpu", tracer, [0, 5, 20])
    train(without, "cpu", of_none, [0, 5, 20])
    first, *broken = [[point.loss for point in trace.points] for trace in tracer.traces]
    variance = float(toy.frozen.noise_variance)
    square = float(toy.y.square().sum() + toy.Phi.square().sum())
    by_hand = 0.5 * (len(toy.y) * math.log(2 * math.pi * variance) + square / variance)
    assert first == pytest.approx([by_hand] * 3, rel=1e-12)
    assert [point.loss for point in of_none.traces[0].points] == [None] * 3
    # Its other scores stand.
    assert [[math.isnan(loss) for loss in trace] for trace in broken] == [[True] * 3] * 2
    assert all(math.isfinite(point.kl) for trace in (*tracer.traces, *of_none.traces) for point in trace.points)


def test_a_posterior_that_has_diverged_has_no_loss(toy, clock):
    class Diverged(Counting, WeightSpaceMethod):
        def posterior(self):
            q = super().posterior()
            q.mean[1] = math.nan
            return q

    method = Diverged([toy] * 2, clock)
    tracer = Tracer(method, [toy] * 2)
    train(method, "cpu", tracer, [20])
    (healthy,), (diverged,) = (trace.points for trace in tracer.traces)
    assert math.isfinite(healthy.loss)
    assert math.isnan(diverged.loss)
    assert math.isnan(diverged.kl)


def test_a_traces_seconds_are_the_batchs_over_its_size(toy, clock):
    method = Counting([toy] * 4, clock)
    tracer = Tracer(method, [toy] * 4)
    train(method, "cpu", tracer, [0, 20])
    assert [[point.seconds for point in trace.points] for trace in tracer.traces] == [[0, 5]] * 4
    assert [[point.steps for point in trace.points] for trace in tracer.traces] == [[0, 20]] * 4


# --- What it leaves behind --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [logging.NOTSET, logging.DEBUG, logging.ERROR])
def test_lightnings_logger_keeps_the_level_that_the_user_gave_it(toy, clock, monkeypatch, level):
    logger, seen = logging.getLogger("pytorch_lightning"), []
    monkeypatch.setattr(logger, "level", level)
    train(Counting([toy], clock), "cpu", lambda *_: seen.append(logger.level), [5])
    assert logger.level == level
    assert seen == [max(level, logging.WARNING)]
    monkeypatch.setattr(Counting, "note", None)
    with pytest.raises(TypeError):
        train(Counting([toy], clock), "cpu")
    assert logger.level == level


def test_a_job_of_slurm_is_trained_in_one_process_from_the_start(toy, clock, tmp_path, monkeypatch):
    """Lightning would refuse the tasks, and resume from the file that it writes before Slurm requeues a job."""
    for name, value in {"NTASKS": "4", "JOB_NAME": "batch", "JOB_ID": "1", "PROCID": "2", "LOCALID": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.chdir(tmp_path)
    Path("hpc_ckpt_1.ckpt").write_bytes(b"no checkpoint")
    method = Counting([toy], clock)
    assert train(method, "cpu") == 20
    assert method.calls == list(range(20))


def test_advice_about_gpus_is_dropped_and_other_warnings_are_not(toy, clock):
    def warn(*_):
        for words in ("GPU available but not used. You can set it by", "something else"):
            warnings.warn(words, PossibleUserWarning, stacklevel=1)

    before = list(warnings.filters)
    with pytest.warns(PossibleUserWarning) as said:
        train(Counting([toy], clock), "cpu", warn, [5])
    assert [str(each.message) for each in said if each.category is PossibleUserWarning][-1:] == ["something else"]
    assert not any("GPU available" in str(each.message) for each in said)
    assert warnings.filters == before
