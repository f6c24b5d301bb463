"""Step times: no clock is judged here, only what is reported."""

import pandas as pd

from fsvi_bench.papers.ksw2015.data import ImageSource, load_digits
from fsvi_bench.papers.ksw2015.measuring import TimingSettings, time_steps
from fsvi_bench.papers.ksw2015.variance import frames_of_times


def test_every_estimator_is_timed_against_local():
    images = ImageSource(name="digits", sha256=load_digits().sha256())
    settings = TimingSettings(width=8, minibatch=10, rounds=3, repeats=2)
    rounds = pd.DataFrame(time_steps(settings, images)["rounds"])
    assert list(rounds) == ["repeat", "no-dropout", "local", "per-point", "per-minibatch"]
    assert rounds["repeat"].tolist() == [0, 0, 0, 1, 1, 1]
    assert (rounds.drop(columns="repeat") > 0).all(axis=None)
    assert frames_of_times(rounds, {"local": 1.0})["repeats"]["local"].tolist() == [1, 1]
