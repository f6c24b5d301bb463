"""Burt et al. (2020), propositions 3 to 9, illustrated numerically."""

from __future__ import annotations

from fsvi_bench.papers.burt2020.theory.data_processing import of_data_processing
from fsvi_bench.papers.burt2020.theory.networks import of_networks
from fsvi_bench.papers.burt2020.theory.settings import Settings
from fsvi_bench.papers.burt2020.theory.singular import of_singular
from fsvi_bench.papers.experiment import ExperimentContext, Frames


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """Computes everything in this process, since it takes seconds."""
    return {**of_data_processing(settings), **of_singular(settings), **of_networks(settings)}
