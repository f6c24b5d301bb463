"""What the titles of figures 1 to 4 say of settings."""

from __future__ import annotations

import pytest

from fsvi_bench.papers.burt2020.cells import budget, frame_of
from fsvi_bench.papers.places import places
from fsvi_bench.running.plan import Request, make_plan
from tests.presenting.studies import record


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("burt2020-fig1", "M = 10, up to 5,000 steps"),
        ("burt2020-fig2", "|A| = minibatch = M = 80 (FIXEDA: all rows), up to 15,000 steps"),
        (
            "burt2020",
            "|A| = minibatch = M = 80 or 20 or 40 or 160 (FIXEDA; RANDA, natural gradients: all rows), "
            "up to 15,000 steps (RANDA, natural gradients: 500)",
        ),
    ],
)
def test_titles_say_what_m_is_and_who_takes_other_steps(protocol, words):
    assert budget(frame_of([], list(places(make_plan(Request(protocol=protocol))))), quick=False) == words


def test_without_settings_nothing_is_said_of_them():
    exact = record("exact", 0, 0.0)
    assert budget(frame_of([exact]), quick=False) == budget(frame_of([exact]), quick=True) == ""
    assert budget(frame_of([exact, record("rand-a", 0, 1.0, M=20)]), quick=True).startswith("M = 20 (quick look")
