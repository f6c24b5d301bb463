"""How long does it take to score a whole submission again? 160 full-covariance cells of k = 100, as the table has them.

    python benchmarks/leaderboard.py                # on two workers, and the parts of one cell on one core
    python benchmarks/leaderboard.py --workers 1

The tasks have the shapes of the eight UCI data sets (20 splits each) and inputs drawn from N(0, I), so that no raw data
are needed. What is timed: reading the submission's folder, and `rescore`, processes' start and imports included.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fsvi_bench.leaderboard.reading import read_submission
from fsvi_bench.leaderboard.rescoring import rescore
from fsvi_bench.leaderboard.strict import manifest_yaml
from fsvi_bench.leaderboard.submission import CELLS_FILE, MANIFEST_FILE, Claim, Claims, Manifest

from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.posteriors.io import posterior_file
from fsvi_bench.running.executors import use_one_thread
from fsvi_bench.scoring import scores as scoring
from fsvi_bench.seeds import derived_generator
from fsvi_bench.tasks.frozen import FrozenTask
from fsvi_bench.tasks.official import TaskSet
from fsvi_bench.tasks.task import FeatureMap, Task

SHAPES = {  # N, N_test, D
    "boston": (455, 51, 13),
    "concrete": (927, 103, 8),
    "energy": (691, 77, 8),
    "kin8nm": (7373, 819, 8),
    "naval": (10741, 1193, 16),
    "power": (8611, 957, 4),
    "wine": (1439, 160, 11),
    "yacht": (277, 31, 6),
}
K, SPLITS = 100, 20


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def make_task(dataset: str, split: int) -> FrozenTask:
    """A task of N(0, I) inputs; inducing points among them."""
    n, n_test, d = SHAPES[dataset]
    return FrozenTask(
        dataset=dataset,
        split=split,
        data_sha256=hashlib.sha256(dataset.encode()).hexdigest(),
        features="sgpr-rbf-ard",
        inducing_points=torch.from_numpy(derived_generator("benchmark", dataset, split).normal(size=(K, d))),
        lengthscales=torch.full((d,), float(d) ** 0.5, dtype=torch.float64),
        outputscale=scalar(1.0),
        noise_variance=scalar(0.05),
        jitter=scalar(1e-6),
        input_mean=torch.zeros(d, dtype=torch.float64),
        input_std=torch.ones(d, dtype=torch.float64),
        target_mean=scalar(0.0),
        target_std=scalar(1.0),
        train_index=torch.arange(n),
        test_index=torch.arange(n, n + n_test),
    )


def load(task: FrozenTask) -> Task:
    """Inputs and targets of a task; about what standardising a file's rows costs."""
    n, n_test, d = SHAPES[task.dataset]
    rows = derived_generator("rows", task.dataset).normal(size=(n + n_test, d + 1))
    X, y = torch.from_numpy(rows[:, :d]), torch.from_numpy(rows[:, d])
    return Task(task, FeatureMap.of(task), X[:n], y[:n], X[n:], y[n:])


def make_posterior(problem: Task) -> FullGaussian:
    """The exact posterior, moved and stretched."""
    truth, draws = problem.truth, derived_generator("posterior", problem.frozen.sha256)
    mean = truth.posterior.mean + 0.3 * truth.covariance_tril @ torch.from_numpy(draws.normal(size=K))
    return FullGaussian(mean, truth.covariance_tril @ torch.diag(torch.from_numpy(np.exp(0.3 * draws.normal(size=K)))))


def make_submission(root: Path, tasks: TaskSet) -> Path:
    """A valid submission on every task; problems are dropped again, so that nothing is at hand when it is verified."""
    folder, claims = root / "benchmark", []
    for (dataset, split), task in tasks.tasks.items():
        problem = tasks.load(task)
        q = make_posterior(problem)
        content, scores = posterior_file(q, task.sha256), scoring.score(q, problem)
        sha256 = hashlib.sha256(content).hexdigest()
        claims.append(
            Claim(dataset=dataset, split=split, task_sha256=task.sha256, status="ok", posterior_sha256=sha256,
                  kl=scores.kl, predictive_kl_box=scores.predictive_kl_box)
        )  # fmt: skip
        path = folder / claims[-1].file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    manifest = Manifest.model_validate(
        {"format": "fsvi-submission/1", "protocol": "leaderboard-v1", "name": "benchmark", "method": "benchmark",
         "title": "Benchmark", "authors": ["nobody"], "licence": "MIT", "family": "full",
         "budget": {"steps": 1, "seconds": 1.0}, "hardware": "this one"}
    )  # fmt: skip
    (folder / MANIFEST_FILE).write_bytes(manifest_yaml(manifest))
    (folder / CELLS_FILE).write_text(Claims(format="fsvi-cells/1", cells=claims).model_dump_json())
    return folder


def parts(tasks: TaskSet) -> dict[str, dict[str, float]]:
    """Milliseconds of each part of one cell, by data set (its split 0), on one core."""
    table: dict[str, dict[str, float]] = {}
    for dataset in SHAPES:
        task = tasks.tasks[dataset, 0]
        row = table[dataset] = {}

        def timed(name: str, call: Callable[[], Any], row: dict[str, float] = row) -> Any:
            started = time.perf_counter()
            result = call()
            row[name] = 1e3 * (time.perf_counter() - started)
            return result

        problem = timed("load", lambda task=task: tasks.load(task))
        q = FullGaussian(torch.zeros(K, dtype=torch.float64), torch.eye(K, dtype=torch.float64))
        timed("features", lambda problem=problem: (problem.Phi, problem.Phi_test, problem.Phi_box))
        timed("truth", lambda problem=problem: problem.truth)
        timed("score", lambda problem=problem, q=q: scoring.score(q, problem))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--splits", type=int, default=SPLITS)
    arguments = parser.parse_args()
    use_one_thread()
    places = [(dataset, split) for dataset in SHAPES for split in range(arguments.splits)]
    tasks = TaskSet({place: make_task(*place) for place in places}, load)
    table = parts(tasks)
    names = list(next(iter(table.values())))
    print(f"{'ms of one cell':<16}" + "".join(f"{name:>10}" for name in names))
    for dataset, row in table.items():
        print(f"{dataset:<16}" + "".join(f"{row[name]:>10.1f}" for name in names))
    mean = {name: sum(row[name] for row in table.values()) / len(table) for name in names}
    print(f"{'mean':<16}" + "".join(f"{mean[name]:>10.1f}" for name in names))
    with tempfile.TemporaryDirectory() as root:
        folder = make_submission(Path(root), tasks)
        started = time.perf_counter()
        submission = read_submission(folder, tasks)
        read = time.perf_counter()
        cells = rescore(submission, tasks, arguments.workers)
        done = time.perf_counter()
    print(
        f"{len(cells)} cells: read in {read - started:.2f} s, scored on {arguments.workers} workers in {done - read:.2f} s"
    )


if __name__ == "__main__":
    main()
