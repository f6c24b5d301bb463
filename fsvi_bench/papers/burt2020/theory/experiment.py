"""Burt et al. (2020), propositions 3 to 9, made visible."""

from __future__ import annotations

from fsvi_bench.papers.burt2020.theory.data_processing import of_data_processing
from fsvi_bench.papers.burt2020.theory.networks import of_networks
from fsvi_bench.papers.burt2020.theory.settings import Settings
from fsvi_bench.papers.burt2020.theory.singular import of_singular
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """All in this process: it is a matter of seconds."""
    parts = [part(settings) for part in (of_data_processing, of_singular, of_networks)]
    return Findings(
        frames={name: frame for part in parts for name, frame in part.frames.items()},
        statistics={name: found for part in parts for name, found in part.statistics.items()},
    )


BURT2020_THEORY = Experiment("burt2020-theory", Settings, investigate)
