"""Step times: no clock is judged here, only what is reported."""

from fsvi_bench.papers.ksw2015.data import ImageSource, load_digits
from fsvi_bench.papers.ksw2015.timing import Timing, TimingSettings, time_steps
from fsvi_bench.papers.ksw2015.variance import rounds_of, time_ratios


def test_every_estimator_is_timed_against_local():
    images, settings = ImageSource(name="digits", sha256=load_digits().sha256()), {"width": 8, "minibatch": 10}
    timing = TimingSettings(**settings, rounds=3, repeats=2)
    rounds = rounds_of(time_steps(Timing(settings=timing, images=images, hidden_layers=3, device="cpu")))
    assert list(rounds) == ["repeat", "no-dropout", "local", "per-point", "per-minibatch"]
    assert rounds["repeat"].tolist() == [0, 0, 0, 1, 1, 1]
    assert (rounds.drop(columns="repeat") > 0).all(axis=None)
    assert time_ratios(rounds)["local"].tolist() == [1, 1]
