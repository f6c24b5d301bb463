"""The claims of Burt et al. (2020) about their methods, each with a statistic and a threshold fixed before the run.

    python benchmarks/burt2020_claims.py --out DIR [--workers N] [--splits 0-4] [--max-steps N]

Runs what is missing in DIR at the paper's settings (appendix F.2), then prints one line per claim and writes
`claims.json` there. Differences are paired by split; intervals are 95% t-intervals over splits (which overlap, so they
are narrower than fresh data sets would make them).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from fsvi_bench.maths.blr import expected_log_likelihood, predictive_variance
from fsvi_bench.posteriors.gaussian import GaussianPosterior
from fsvi_bench.reporting.cell_files import load_posterior
from fsvi_bench.running.cell import Record
from fsvi_bench.running.executors import LocalExecutor, available_cores, use_one_thread
from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store
from fsvi_bench.seeds import derived_generator
from fsvi_bench.tasks.official import find_task
from fsvi_bench.tasks.problem import Problem, load_problem

DATASETS, JITTERS, FAMILIES = ("boston", "concrete"), (0.0, 1e-6), ("full", "ffg")
APPROXIMATE = ("fixed-a", "rand-a", "ssge")
FRESH_POINTS = 1000


@dataclass(frozen=True)
class Scored:
    """One cell with what the claims look at beyond its record."""

    record: Record
    log_likelihood_excess: float  #: E_q[log p(y|w)] on the training set minus the exact posterior's, nats
    log_variance_ratio: float  #: mean over fresh box points of log(var_q f / var_exact f)


@dataclass(frozen=True)
class Verdict:
    """One claim on one data set at one jitter. It holds if the whole interval is on the claimed side of 0."""

    claim: str
    dataset: str
    kl_jitter: float
    mean: float
    low: float
    high: float
    holds: bool


def interval(differences: list[float]) -> tuple[float, float, float]:
    mean = float(np.mean(differences))
    half = float(stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences))
    return mean, mean - half, mean + half


def fresh_features(problem: Problem) -> torch.Tensor:
    low, high = problem.bounding_box
    unit = derived_generator("burt2020 claims", problem.task.sha256, "fresh box points").random(
        (FRESH_POINTS, len(low))
    )
    return problem.feature_map(low + (high - low) * torch.from_numpy(unit))


def examine(record: Record, q: GaussianPosterior, problem: Problem) -> Scored:
    truth, noise_variance = problem.truth, problem.task.noise_variance
    no_noise, Phi = torch.zeros((), dtype=torch.float64), fresh_features(problem)

    def likelihood(mean: torch.Tensor, tril: torch.Tensor) -> float:
        return float(expected_log_likelihood(problem.Phi, problem.y, noise_variance, mean, tril))

    excess = likelihood(q.mean, q.covariance_tril()) - likelihood(truth.posterior.mean, truth.covariance_tril)
    ours = predictive_variance(Phi, q.covariance_tril(), no_noise)
    exact = predictive_variance(Phi, truth.covariance_tril, no_noise)
    return Scored(record, excess, float((ours / exact).log().mean()))


def execute(out: Path, workers: int, splits: str, max_steps: int | None) -> list[Scored]:
    store, scored = Store(out), []
    for jitter in JITTERS:
        methods = ("exact", *APPROXIMATE) if jitter == 0 else APPROXIMATE
        request = Request(
            datasets=DATASETS, methods=methods, splits=splits, max_steps=max_steps, options={"kl_jitter": jitter}
        )
        for record in run(make_plan(request), store, Resources(executor=LocalExecutor(workers)), Silent()).records:
            if record.status != "ok":
                print(f"{record.dataset} split {record.split} {record.method} {record.family}: {record.reason}")
                continue
            found = find_task(record.dataset, record.split)
            assert found is not None
            problem = load_problem(found.task)
            scored.append(examine(record, load_posterior(record, store.root, problem.task), problem))
    return scored


def verdicts(scored: list[Scored]) -> list[Verdict]:
    found = []

    def by_split(
        dataset: str, jitter: float, method: str, family: str, value: Callable[[Scored], float]
    ) -> dict[int, float]:
        return {
            s.record.split: value(s)
            for s in scored
            if (s.record.dataset, s.record.method, s.record.family) == (dataset, method, family)
            and s.record.hyperparameters.get("kl_jitter", jitter) == jitter
        }

    def judge(claim: str, dataset: str, jitter: float, differences: list[float], sign: int) -> None:
        mean, low, high = interval(differences)
        found.append(Verdict(claim, dataset, jitter, mean, low, high, low > 0 if sign > 0 else high < 0))

    def log_score(name: str) -> Callable[[Scored], float]:
        return lambda s: math.log(getattr(s.record.scores, name))

    for dataset in DATASETS:
        for jitter in JITTERS:
            randa, ssge = (by_split(dataset, jitter, m, "full", log_score("kl")) for m in ("rand-a", "ssge"))
            ratios = [ssge[split] - randa[split] for split in randa.keys() & ssge.keys()]
            judge("log KL(SSGE) - log KL(RANDA), full, > 0", dataset, jitter, ratios, +1)
            for family in FAMILIES:
                randa, fixed = (
                    by_split(dataset, jitter, m, family, log_score("kl_mean_term")) for m in ("rand-a", "fixed-a")
                )
                ratios = [fixed[split] - randa[split] for split in randa.keys() & fixed.keys()]
                judge(f"log mean term(FIXEDA) - log mean term(RANDA), {family}, > 0", dataset, jitter, ratios, +1)
            for method in ("exact", *APPROXIMATE):
                for family in FAMILIES:
                    excess = by_split(dataset, jitter, method, family, lambda s: s.log_likelihood_excess)
                    ratio = by_split(dataset, jitter, method, family, lambda s: s.log_variance_ratio)
                    label = f"{method} {family}" + (", control" if method == "exact" else "")
                    judge(
                        f"training log likelihood above exact's, {label}, > 0", dataset, jitter, [*excess.values()], +1
                    )
                    judge(f"mean log(var/var exact) in the box, {label}, < 0", dataset, jitter, [*ratio.values()], -1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--splits", default="0-4")
    parser.add_argument("--max-steps", type=int, default=None)
    arguments = parser.parse_args()
    use_one_thread()
    scored = execute(arguments.out, arguments.workers, arguments.splits, arguments.max_steps)
    results = verdicts(scored)
    for v in results:
        print(
            f"{v.dataset:<9} jitter {v.kl_jitter:<6g} {v.claim:<72} {v.mean:+9.3f} [{v.low:+9.3f}, {v.high:+9.3f}] "
            f"{'holds' if v.holds else 'does not hold'}"
        )
    cells = [
        {
            **{name: getattr(s.record, name) for name in ("dataset", "split", "method", "family")},
            "kl_jitter": s.record.hyperparameters.get("kl_jitter"),
            **{name: getattr(s.record.scores, name) for name in ("kl", "kl_mean_term", "nlpd")},
            "log_likelihood_excess": s.log_likelihood_excess,
            "log_variance_ratio": s.log_variance_ratio,
        }
        for s in scored
    ]
    document = {"verdicts": [asdict(v) for v in results], "cells": cells}
    (arguments.out / "claims.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
