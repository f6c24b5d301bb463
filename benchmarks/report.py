"""How long a report of many records takes, and how large its page is.

    python benchmarks/report.py [FOLDER] [--datasets 8] [--splits 20] [--seeds 3] [--points M,M,...]

Writes synthetic records and traces of every method through the project's own store, then times
`fsvi-bench report` on them in a process of its own.
"""

from __future__ import annotations

import argparse
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fsvi_bench.running.cell import Cell, Record, Seconds
from fsvi_bench.running.store import Store
from fsvi_bench.scoring.scores import MARGINAL_COUNTS, Overconfidence, Scores
from fsvi_bench.training.trace import Trace, TracePoint, trace_steps

DATASETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht", "diabetes")
GAUSSIAN = ("exact", "fixed-a", "rand-a", "rand-a-ngd", "ssge")
FFG_ALONE = ("mean-field-vi", "gaussian-dropout", "variational-dropout", "sparse-variational-dropout")
VARIANTS = (
    *((method, family) for method in GAUSSIAN for family in ("full", "ffg")),
    *((method, "ffg") for method in FFG_ALONE),
    ("bernoulli-dropout", "bernoulli"),
    ("concrete-dropout", "bernoulli"),
    ("spike-and-slab", "spike-slab"),
)
WITH_POINTS = ("fixed-a", "rand-a", "rand-a-ngd", "ssge")
STEPS = 15_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--datasets", type=int, default=8)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--points", default="80")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="report-"))
    points = [int(text) for text in arguments.points.split(",")]
    count = write_records(folder, arguments.datasets, arguments.splits, arguments.seeds, points)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "fsvi_bench", "report", str(folder)], check=True)
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    size = (folder / "report" / "report.html").stat().st_size
    print(
        f"{count} records: {seconds:.1f} s ({used.ru_utime + used.ru_stime:.1f} s of one core), imports included; page {size / 1e6:.2f} MB"
    )


def write_records(folder: Path, datasets: int, splits: int, seeds: int, points: list[int]) -> int:
    """Every method on every data set; the exact posterior has one seed. Returns the number of records."""
    store, count = Store(folder), 0
    for dataset in DATASETS[:datasets]:
        for place, (method, family) in enumerate(VARIANTS):
            for M in points if method in WITH_POINTS else points[:1]:
                for split in range(splits):
                    for seed in range(1 if method == "exact" else seeds):
                        rng = np.random.default_rng([len(dataset), place, M, split, seed])
                        save(store, dataset, method, family, split, seed, M, place, rng)
                        count += 1
    return count


def save(store, dataset, method, family, split, seed, M, place, rng) -> None:
    settings = {"M": M, "max_steps": STEPS} if method in WITH_POINTS else {}
    cell = Cell(
        task_sha256=f"{split:064x}", dataset=dataset, split=split, method=method, family=family,
        hyperparameters=settings, seed=seed, code_sha256=f"{place:064x}",
    )  # fmt: skip
    failed = method == "ssge" and rng.random() < 0.03
    diverged = method == "fixed-a" and family == "full" and rng.random() < 0.08
    status = "failed" if failed else "diverged" if diverged else "ok"
    reason = (
        f"RuntimeError: CUDA out of memory: tried {rng.integers(9)} GiB"
        if failed
        else f"not positive definite after {rng.integers(9999)} steps"
        if diverged
        else None
    )
    record = Record(
        cell=cell.key, **cell.model_dump(), status=status, reason=reason,
        scores=scores(dataset, method, family, M, place, split, rng) if status == "ok" else None,
        seconds=Seconds(train=1.5 * (1 + place), batch_train=30.0 * (1 + place), batch_size=20, score=0.2),
        provenance={"fsvi_bench": "0.1.0", "git": "0" * 40, "torch": "2.13.0", "hardware": "AMD EPYC", "device": "cpu", "threads": 1, "seeds": [seed], "started": "2026-11-21T10:00:00+00:00"},
    )  # fmt: skip
    traced = status == "ok" and method not in ("exact", "bernoulli-dropout", "spike-and-slab")
    store.save(record, None, trace(record, rng) if traced else None)


def scores(dataset, method, family, M, place, split, rng) -> Scores:
    hardness = 1 + len(dataset) / 4 + 0.2 * math.sin(split)
    exact = method == "exact"
    kl = (
        0.0
        if exact and family == "full"
        else 8
        * hardness
        * (1 if exact else (1 + place) * (80 / M) ** 0.4)
        * math.exp(0.0 if exact else 0.25 * rng.standard_normal())
    )
    singular = family in ("bernoulli", "spike-slab")
    nlpd = 2 + 0.3 * len(dataset) + 0.1 * math.sin(3 * split) + 0.002 * kl
    width = 0.0 if exact and family == "full" else 0.3 + 0.15 * place
    spectrum = np.exp(width * np.linspace(-2, 2, 21) - 0.1 * place * (not exact))
    truth = {
        "50": 0.5 + 0.04 * math.sin(split),
        "90": 0.9 + 0.02 * math.sin(split),
        "95": 0.95 + 0.01 * math.sin(split),
    }
    lost = 0 if exact else 0.01 * place * rng.random()
    return Scores(
        singular=singular, kl=math.inf if singular else kl, kl_mean_term=0.4 * kl, kl_cov_term=math.inf if singular else 0.6 * kl,
        reverse_kl=math.inf if singular else 1.4 * kl, qkl=None, kl_moment_matched=kl, w2=None if singular else 0.1 * kl, w2_moments=0.1 * kl,
        predictive_kl_test=3e-4 * kl, predictive_kl_box=1e-3 * kl, kl_marginals={str(n): 0.01 * kl for n in MARGINAL_COUNTS},
        overconfidence=Overconfidence(smallest=spectrum[0], median=spectrum[10], largest=spectrum[-1], quantiles=tuple(spectrum.tolist())),
        coverage={level: share - lost for level, share in truth.items()}, coverage_exact=truth,
        nlpd=nlpd, nlpd_imprecision=None, nlpd_moment_matched=nlpd, nlpd_exact=2.0, nlpd_gap=nlpd - 2, rmse=3 + 0.001 * kl,
        log_evidence=-300.0, elbo=-300.0 - kl, elbo_gap=kl,
    )  # fmt: skip


def trace(record: Record, rng) -> Trace:
    end, singular = record.scores.kl_moment_matched, record.scores.singular
    points = []
    for step in trace_steps(STEPS):
        value = end + 800 * math.exp(-step / 40) * (1 + 0.1 * rng.random())
        nlpd = None if singular and step < STEPS else record.scores.nlpd + 1e-3 * (value - end)
        seconds = record.seconds.train * step / STEPS
        points.append(
            TracePoint(step, seconds, math.inf if singular else value, nlpd, value, record.scores.nlpd, value)
        )
    return Trace(points)


if __name__ == "__main__":
    main()
