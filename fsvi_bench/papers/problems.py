"""Problems of experiments, by data set and split."""

from __future__ import annotations

from pathlib import Path

from fsvi_bench.tasks.build import build_task
from fsvi_bench.tasks.card import load_card
from fsvi_bench.tasks.official import find_task
from fsvi_bench.tasks.task import Task, bind_task


def load_problem(dataset: str, split: int, data_dir: Path | None) -> Task:
    """The task of a split bound to its data, built if there is none.

    Raises:
        InputError: the data set or split does not exist, or its data cannot be loaded.
        TaskRefused: the certificate exceeds the limits of this version.
    """
    certified = find_task(dataset, split) or build_task(load_card(dataset), split, data_dir)
    return bind_task(certified.task, data_dir)
