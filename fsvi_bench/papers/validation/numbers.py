"""What the validation compares, split by split, and the published numbers that it is compared with."""

from __future__ import annotations

import csv
from functools import cache
from statistics import fmean

from fsvi_bench.errors import InputError
from fsvi_bench.papers.parts import Plain
from fsvi_bench.resources import resource_dir

Place = tuple[str, int]  #: (data set, split)


class Predictions(Plain):
    """NLPD (nats per test point) and RMSE in the target's original unit."""

    nlpd: float
    rmse: float


class SparseGP(Plain):
    """A fitted sparse GP and what Titsias's predictive makes of the test rows."""

    bound_per_point: float
    noise_variance: float
    nlpd: float
    rmse: float


class SplitNumbers(Plain):
    """One standard split: its official task, and what others report on the same rows."""

    dataset: str
    split: int
    task_sha256: str
    converged: bool  #: the official task's fit, before its iterations were used up
    exact: Predictions
    titsias: SparseGP  #: of the official task's own parameters
    missing_share: float  #: of the Titsias predictive variance, what the features lack; mean over test inputs
    nlpd_with_less_jitter: float | None  #: exact, a tenth of the jitter; None if k(Z,Z) cannot be factorised then
    dropout: Predictions | None
    gpflow: SparseGP | None


class Numbers(Plain):
    """All splits, and the data sets of the references that have no official tasks yet."""

    splits: tuple[SplitNumbers, ...]
    missing: tuple[str, ...]

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets, each once."""
        return list(dict.fromkeys(row.dataset for row in self.splits))

    def of(self, dataset: str) -> list[SplitNumbers]:
        """The splits of one data set."""
        return [row for row in self.splits if row.dataset == dataset]

    def shared_with_gpflow(self, dataset: str) -> list[tuple[SplitNumbers, SparseGP]]:
        """The splits of one data set that GPflow was run on, each with what GPflow found."""
        return [(row, row.gpflow) for row in self.of(dataset) if row.gpflow is not None]

    def mean_gap_to_gpflow(self, dataset: str, quantity: str) -> float:
        """Mean over the shared splits of ours less GPflow's, of a field of `SparseGP`."""
        shared = self.shared_with_gpflow(dataset)
        return fmean(getattr(row.titsias, quantity) - getattr(theirs, quantity) for row, theirs in shared)

    @property
    def datasets_of_gpflow(self) -> list[str]:
        """Names of the data sets that GPflow was run on."""
        return [name for name in self.datasets if self.shared_with_gpflow(name)]


@cache
def dropout_reference() -> dict[Place, Predictions]:
    """MC dropout's test log likelihoods and RMSEs, as Gal and Ghahramani (2016) published them with the splits."""
    return {
        (row["dataset"], int(row["split"])): Predictions(
            nlpd=-float(row["test_log_likelihood"]), rmse=float(row["test_rmse_mc"])
        )
        for row in _read("gal2016_mc_dropout.csv")
    }


@cache
def gpflow_reference() -> dict[Place, SparseGP]:
    """GPflow 2.11.2's SGPR from the paper's start, with 100 inducing points of its own drawing."""
    return {
        (row["dataset"], int(row["split"])): SparseGP(
            bound_per_point=float(row["elbo_per_point"]),
            noise_variance=float(row["noise_variance"]),
            nlpd=float(row["titsias_nlpd_original_units"]),
            rmse=float(row["rmse_original_units"]),
        )
        for row in _read("gpflow_sgpr.csv")
    }


def _read(name: str) -> list[dict[str, str]]:
    path = resource_dir("conf") / "reproductions" / "validation" / name
    try:
        return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; install the package again") from error
