"""Lightning as a mere loop: which steps are called, when somebody may look, and what the clock counts."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from fsvi_bench.scoring.objective import Objective, WeightSpaceKL
from hypothesis import given
from hypothesis import strategies as st

from fsvi_bench.errors import InputError
from fsvi_bench.methods.base import Method, MethodOptions
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.gaussian import FactorisedGaussian
from fsvi_bench.training import trainer
from fsvi_bench.training.trace import POINTS_PER_DECADE, Trace, TracePoint, Tracer, read_trace, trace_steps
from fsvi_bench.training.trainer import StepRanges, train


@given(
    total=st.integers(1, 400),
    steps_per_call=st.integers(1, 100),
    stops=st.lists(st.integers(-5, 450), max_size=12),
)
def test_ranges_cover_every_step_once_and_end_wherever_somebody_wants_to_look(total, steps_per_call, stops):
    ranges = StepRanges(total, steps_per_call, stops)
    steps = [step for part in ranges for step in part]
    assert steps == list(range(total))
    assert len(ranges) == len(list(ranges))
    assert all(1 <= len(part) <= steps_per_call for part in ranges)
    ends = {part.stop for part in ranges}
    assert {stop for stop in stops if 0 < stop <= total} <= ends


def test_ranges_are_no_shorter_than_they_must_be():
    assert list(StepRanges(10, 4)) == [range(0, 4), range(4, 8), range(8, 10)]
    assert list(StepRanges(10, 100, (0, 3, 10, 11))) == [range(0, 3), range(3, 10)]


class Counting(Method):
    """Notes its calls and lets a clock run: one second a step."""

    automatic_optimization = False
    num_steps = 20
    steps_per_call = 6

    def __init__(self, problems, clock, last=math.inf):
        super().__init__(problems, "ffg", MethodOptions(), [0] * len(problems))
        self.clock, self.calls, self.last = clock, [], last

    def training_step(self, batch, batch_idx):
        self.calls.append(batch)
        self.clock.now += len(batch)

    @property
    def finished(self):
        return bool(self.calls) and self.calls[-1].stop >= self.last

    def posterior(self):
        mean = torch.zeros_like(self.problems.Phi[:, 0])
        return FactorisedGaussian(mean, torch.ones_like(mean))


@pytest.fixture
def clock(monkeypatch):
    """Stands still but for what a test puts on it."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_the_clock_stands_still_while_somebody_looks(toy, clock):
    method, seen = Counting(TrainingData.of([toy]), clock), []

    def observe(steps, seconds):
        seen.append((steps, seconds))
        clock.now += 100

    assert train(method, "cpu", observe, [0, 1, 7, 20]) == 20
    assert seen == [(0, 0), (1, 1), (7, 7), (20, 20)]
    assert [(part.start, part.stop) for part in method.calls] == [(0, 1), (1, 6), (6, 7), (7, 12), (12, 18), (18, 20)]


def test_nobody_need_look(toy, clock):
    method = Counting(TrainingData.of([toy]), clock)
    assert train(method, "cpu") == 20
    assert [(part.start, part.stop) for part in method.calls] == [(0, 6), (6, 12), (12, 18), (18, 20)]


def test_before_the_first_step_is_looked_only_when_asked_for(toy, clock):
    method, seen = Counting(TrainingData.of([toy]), clock), []
    train(method, "cpu", lambda steps, seconds: seen.append(steps), [5, 20])
    assert seen == [5, 20]


@pytest.mark.parametrize(("last", "expected"), [(6, [0, 3, 6]), (7, [0, 3, 12]), (20, [0, 3, 20])])
def test_a_finished_method_ends_early_and_is_looked_at_where_it_ended(toy, clock, last, expected):
    method, seen = Counting(TrainingData.of([toy]), clock, last), []
    assert train(method, "cpu", lambda steps, seconds: seen.append(steps), [0, 3, 20]) == expected[-1]
    assert seen == expected
    assert method.calls[-1].stop == expected[-1]


class ByLightning(Method):
    """Least squares on the mean, with the optimiser left to Lightning."""

    num_steps = 30

    def __init__(self, problems):
        super().__init__(problems, "ffg", MethodOptions(), [0] * len(problems))
        self.w = torch.nn.Parameter(torch.zeros_like(problems.Phi[:, 0]))

    def loss(self):
        return ((self.problems.Phi @ self.w[..., None])[..., 0] - self.problems.y).square().sum()

    def training_step(self, batch, batch_idx):
        assert len(batch) == 1
        return self.loss()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)

    def posterior(self):
        return FactorisedGaussian(self.w.detach().clone(), torch.ones_like(self.w.detach()))


def test_lightning_may_drive_the_optimiser_and_does_as_many_steps(toy):
    data, seen = TrainingData.of([toy]), []
    method, by_hand = ByLightning(data), ByLightning(data)
    train(method, "cpu", lambda steps, _: seen.append(method.posterior().mean.abs().sum()), [0, 1, 30])
    optimizer = by_hand.configure_optimizers()
    for _ in range(30):
        optimizer.zero_grad()
        by_hand.loss().backward()
        optimizer.step()
    assert torch.equal(method.w, by_hand.w)
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
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError, match="is not a trace"):
        read_trace(path)


class Watched(Counting):
    """Minimises something at each of its problems, if told what."""

    def __init__(self, problems, clock, objectives):
        super().__init__(problems, clock)
        self.minimised, self.asked = objectives, 0

    def objectives(self):
        self.asked += 1
        return self.minimised


class Broken(Objective):
    """Cannot be computed: not at all, or at no q."""

    def __init__(self, when):
        self.when = when

    def loss(self, problem):
        if self.when == "prepared":
            raise RuntimeError("no")
        return lambda q: 1 / 0


def test_a_trace_follows_the_methods_own_objective(toy, clock):
    """At the prior, which Counting never leaves, −E log N(y; Φw, σ²I) is by hand; asked for it is once."""
    method = Watched(TrainingData.of([toy] * 4), clock, [WeightSpaceKL(), None, Broken("prepared"), Broken("asked")])
    tracer = Tracer(method, [toy] * 4)
    train(method, "cpu", tracer, [0, 5, 20])
    first, second, *broken = [[point.loss for point in trace.points] for trace in tracer.traces]
    variance = float(toy.frozen.noise_variance)
    square = float(toy.y.square().sum() + toy.Phi.square().sum())
    by_hand = 0.5 * (len(toy.y) * math.log(2 * math.pi * variance) + square / variance)
    assert first == pytest.approx([by_hand] * 3, rel=1e-12)
    assert second == [None] * 3
    # Its other scores stand.
    assert all(math.isnan(loss) for trace in broken for loss in trace)
    assert all(math.isfinite(point.kl) for trace in tracer.traces for point in trace.points)
    assert method.asked == 1


def test_a_posterior_that_has_diverged_has_no_loss(toy, clock):
    class Diverged(Watched):
        def posterior(self):
            q = super().posterior()
            q.mean[1] = math.nan
            return q

    method = Diverged(TrainingData.of([toy] * 2), clock, [WeightSpaceKL()] * 2)
    tracer = Tracer(method, [toy] * 2)
    train(method, "cpu", tracer, [20])
    (healthy,), (diverged,) = (trace.points for trace in tracer.traces)
    assert math.isfinite(healthy.loss)
    assert math.isnan(diverged.loss)
    assert math.isnan(diverged.kl)


def test_a_traces_seconds_are_the_batchs_over_its_size(toy, clock):
    data = TrainingData.of([toy] * 4)
    method = Counting(data, clock)
    tracer = Tracer(method, [toy] * 4)
    train(method, "cpu", tracer, [0, 20])
    assert [[point.seconds for point in trace.points] for trace in tracer.traces] == [[0, 5]] * 4
    assert [[point.steps for point in trace.points] for trace in tracer.traces] == [[0, 20]] * 4
