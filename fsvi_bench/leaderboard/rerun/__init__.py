"""Submitted code run again, where it can do no harm: on official cells, and on tasks that nobody could tune to."""

from fsvi_bench.leaderboard.rerun.comparison import RerunSettings, rerun

__all__ = ["RerunSettings", "rerun"]
