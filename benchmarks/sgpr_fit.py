"""Milliseconds per evaluation of SGPR's collapsed bound and gradient: ours, GPyTorch's own path, GPflow's.

    python benchmarks/sgpr_fit.py [--gpflow-python OTHER_ENV/bin/python] [--rounds 15] [--json]

All run pinned to one core and one thread, in alternating rounds within one run, at the paper's starting parameters on
the real data ($FSVI_BENCH_DATA, or synthetic inputs of the same shapes with --synthetic). GPflow wants TensorFlow and
lives in an environment of its own: its worker is this file again, run by that environment's Python.
"""

from __future__ import annotations

import os

for _name in (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
):
    os.environ[_name] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

K, JITTER, NOISE = 100, 1e-6, 1e-4
SHAPES = {"boston": (455, 13), "kin8nm": (7373, 8)}
TARGETS = {"gpflow": {"boston": 0.6, "kin8nm": 0.5}, "gpytorch": {"boston": 0.35, "kin8nm": 0.35}}


def milliseconds(call: Callable[[], object], seconds: float = 0.4) -> float:
    """Mean over as many calls as fit into `seconds` (three at least)."""
    started, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - started < seconds:
        call()
        count += 1
    return (time.perf_counter() - started) / count * 1e3


def gpflow_worker(path: str) -> None:
    """Loads the data, then times one round per line on stdin. Runs in GPflow's environment: imports nothing of ours."""
    import gpflow
    import tensorflow as tf

    data = np.load(path)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(data["X"].shape[1]))
    model = gpflow.models.SGPR((data["X"], data["y"][:, None]), kernel, data["Z"], noise_variance=NOISE)
    variables = model.trainable_variables

    @tf.function
    def evaluate():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = model.training_loss()
        return loss, tape.gradient(loss, variables)

    loss = float(evaluate()[0])
    print(f"{gpflow.__version__} {loss!r}", flush=True)
    for _ in sys.stdin:
        print(milliseconds(evaluate), flush=True)


class GPflow:
    """The worker process of another environment."""

    def __init__(self, python: str, path: Path) -> None:
        command = [python, __file__, "--worker", str(path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.version, loss = self._read().split()
        self.bound = -float(loss)

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("the GPflow worker ended without an answer; does that Python have gpflow?")
        return line

    def round(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        self._process.communicate()


def gpytorch_path(X: np.ndarray, y: np.ndarray, Z: np.ndarray) -> tuple[Callable[[], object], float]:
    """GPyTorch's InducingPointKernel at its default settings: (one evaluation, the total bound)."""
    import gpytorch
    import torch
    from gpytorch.constraints import GreaterThan

    class Model(gpytorch.models.ExactGP):
        def __init__(self, inputs, targets, likelihood):
            super().__init__(inputs, targets, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=inputs.shape[1]))
            self.covar_module = gpytorch.kernels.InducingPointKernel(base, torch.from_numpy(Z.copy()), likelihood)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=GreaterThan(1e-6))
    inputs, targets = torch.from_numpy(X), torch.from_numpy(y)
    model = Model(inputs, targets, likelihood).double().train()
    kernel = model.covar_module.base_kernel
    kernel.base_kernel.lengthscale = torch.tensor(1.0, dtype=torch.float64)
    kernel.outputscale = torch.tensor(1.0, dtype=torch.float64)
    likelihood.noise = torch.tensor(NOISE, dtype=torch.float64)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def evaluate() -> torch.Tensor:
        model.zero_grad()
        loss = -marginal(model(inputs), targets)
        loss.backward()
        return loss

    return evaluate, -evaluate().item() * len(y)


def our_paths(X: np.ndarray, y: np.ndarray, Z: np.ndarray) -> tuple[dict[str, Callable[[], object]], float]:
    """What SciPy calls (GPyTorch's transforms included), the LAPACK bound alone, and `mll(model).backward()`."""
    from fsvi_bench.maths.sgpr_lapack import LapackCollapsedBound
    from fsvi_bench.tasks.card import FitSettings
    from fsvi_bench.tasks.fit import CollapsedBound, SparseGP, minus_bound
    from fsvi_bench.threads import use_one_thread

    use_one_thread()
    model = SparseGP(X, y, Z, FitSettings(k=len(Z), jitter=JITTER, initial_noise_variance=NOISE))
    bound, bare, ones = (
        CollapsedBound(model.likelihood, model, JITTER),
        LapackCollapsedBound(X, y, len(Z), JITTER),
        np.ones(X.shape[1]),
    )
    start = bound.vector.numpy().copy()
    paths = {
        "ours": lambda: minus_bound(start, bound),
        "ours, bound alone": lambda: bare(Z, ones, 1.0, NOISE),
        "ours, backward()": lambda: bound(model).backward(),
    }
    return paths, -minus_bound(start, bound)[0]


def data_of(name: str, synthetic: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standardised training rows of split 0 and inducing points drawn from them."""
    rng = np.random.default_rng(0)
    if synthetic:
        N, D = SHAPES[name]
        X = rng.standard_normal((N, D))
        y = np.sin(X).sum(1) / np.sqrt(D) + 0.3 * rng.standard_normal(N)
    else:
        from fsvi_bench.tasks.build import split_indices, standardisation
        from fsvi_bench.tasks.card import load_card
        from fsvi_bench.tasks.raw import load_raw

        card = load_card(name)
        raw = load_raw(card, 0)
        train, _ = split_indices(card, 0, raw)
        (x_mean, x_std), (y_mean, y_std) = standardisation(raw.X[train]), standardisation(raw.y[train])
        X, y = (raw.X[train] - x_mean) / x_std, (raw.y[train] - y_mean) / y_std
    distinct = np.unique(X, axis=0)
    return X, y, distinct[rng.choice(len(distinct), K, replace=False)]


def measure(name: str, arguments: argparse.Namespace) -> dict[str, object]:
    """Medians over alternating rounds, and medians of the per-round ratios to ours."""
    X, y, Z = data_of(name, arguments.synthetic)
    paths, bound = our_paths(X, y, Z)
    paths["gpytorch"], their_bound = gpytorch_path(X, y, Z)
    bounds = {"ours": bound, "gpytorch": their_bound}
    gpflow = None
    if arguments.gpflow_python:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "data.npz"
            np.savez(path, X=X, y=y, Z=Z)
            gpflow = GPflow(arguments.gpflow_python, path)
        paths["gpflow"], bounds["gpflow"] = gpflow.round, gpflow.bound
    rounds: dict[str, list[float]] = {path: [] for path in paths}
    for _ in range(arguments.rounds):
        for path, call in paths.items():
            rounds[path].append(gpflow.round() if gpflow and path == "gpflow" else milliseconds(call))
    if gpflow:
        gpflow.close()
    ratios = {
        path: statistics.median(a / b for a, b in zip(rounds["ours"], rounds[path], strict=True)) for path in rounds
    }
    medians = {path: statistics.median(values) for path, values in rounds.items()}
    return {"N": len(y), "D": X.shape[1], "k": len(Z), "bounds": bounds, "milliseconds": medians, "ours_over": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpflow-python", help="Python of an environment that has gpflow")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--synthetic", action="store_true", help="inputs of the same shapes in place of the real data")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if arguments.worker:
        gpflow_worker(arguments.worker)
        return
    results = {name: measure(name, arguments) for name in SHAPES}
    if arguments.json:
        print(json.dumps({"platform": platform.platform(), "results": results}, indent=2))
        return
    for name, result in results.items():
        print(f"{name}: N = {result['N']}, D = {result['D']}, k = {result['k']}")
        for path, value in result["milliseconds"].items():
            target = TARGETS.get(path, {}).get(name)
            aim = (
                ""
                if target is None
                else f" (target {target}: {'met' if result['ours_over'][path] <= target else 'MISSED'})"
            )
            print(f"  {path:<18} {value:8.3f} ms   ours / this = {result['ours_over'][path]:.3f}{aim}")
        print("  total bound at this point: " + ", ".join(f"{p} {b:.6f}" for p, b in result["bounds"].items()))


if __name__ == "__main__":
    main()
