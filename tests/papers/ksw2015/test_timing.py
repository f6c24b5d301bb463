"""Step times: no clock is judged here, only what is reported."""

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.papers.ksw2015.data import load_digits
from fsvi_bench.papers.ksw2015.network import NetworkSettings
from fsvi_bench.papers.ksw2015.timing import StepTimeSettings, step_times


def test_every_estimator_is_timed_against_local():
    times = step_times(load_digits(), StepTimeSettings(NetworkSettings(width=8), minibatch=10, rounds=3))
    assert list(times.seconds) == ["no-dropout", "local", "per-point", "per-minibatch"]
    assert all(seconds > 0 for seconds in times.seconds.values())
    assert times.ratio_to_local["local"] == 1


def test_ratios_need_local():
    settings = StepTimeSettings(NetworkSettings(width=8), minibatch=10, rounds=1, estimators=("per-minibatch",))
    assert step_times(load_digits(), settings).ratio_to_local == {}


def test_no_rounds_are_refused():
    with pytest.raises(InputError, match="0 rounds"):
        StepTimeSettings(rounds=0)
    assert StepTimeSettings().network.width == 1200
