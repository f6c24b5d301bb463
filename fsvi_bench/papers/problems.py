"""Problems of experiments, by data set and split."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fsvi_bench.strict import Plain
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


class Source(Plain):
    """A problem as an argument of a part. Where the raw data are does not matter."""

    dataset: str
    split: int
    sha256: str  #: of the task
    data_dir: Path | None = Field(default=None, exclude=True)

    @staticmethod
    def of(dataset: str, split: int, data_dir: Path | None) -> Source:
        """Raises InputError if the task is not available."""
        sha256 = load_problem(dataset, split, data_dir).sha256
        return Source(dataset=dataset, split=split, sha256=sha256, data_dir=data_dir)

    def load(self) -> Task:
        """The problem. Raises InputError if its raw data are not available."""
        return load_problem(self.dataset, self.split, self.data_dir)

    def __str__(self) -> str:
        return f"{self.dataset} split {self.split}"
