"""What RANDA's objective says of a split's posteriors: natural gradients, averaged, with three means for their covariance.

    python benchmarks/objective_path.py --dataset boston --split 2

The objective (nats, on the held-out measurement sets) and KL(q ‖ P_D) after so many steps, with the
mean that solves for the objective's stationary point on the sets seen so far, with the natural gradients' own, and with
the exact posterior's. Full covariances, M = 80, no jitter.
"""

from __future__ import annotations

import argparse

import torch

from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.methods.data import CHUNK, Batch, MeasurementStream, Rows, Streams
from fsvi_bench.methods.natural import NaturalGaussian, NaturalGradient, natural_step
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.rand_a import RandA
from fsvi_bench.posteriors.trainable import Average
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.official import read_official
from fsvi_bench.tasks.task import bind_task
from fsvi_bench.threads import use_one_thread

STEPS, AVERAGING = (250, 500, 1000, 2000, 3000), 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="boston")
    parser.add_argument("--split", type=int, default=2)
    chosen = parser.parse_args()
    use_one_thread()
    problem = bind_task(read_official(chosen.dataset, chosen.split).task)
    method, exact, data = RandA(problem, "full"), problem.truth.posterior, TrainingData.of(problem)
    rows, k, seed = Rows.whole(data), data.k, derive_seed(problem.frozen.sha256, "objective optimum")
    stream = MeasurementStream(data, method.options.design, Streams((seed,)))
    sets = (A for start in range(0, STEPS[-1], CHUNK) for A, _ in stream.sets(range(start, start + CHUNK)))
    q = NaturalGaussian("full", 1, k)
    optimizer, average = NaturalGradient(q.parameters(), lr=0.5, decay=0.6), Average(q)
    projector, identity = torch.zeros_like(rows.gram), torch.eye(rows.gram.shape[-1], dtype=torch.float64)[None]
    for step in range(1, STEPS[-1] + 1):
        A = next(sets)
        natural_step(q, optimizer, Batch(rows, A), 1.0)
        projector += (A.project_rows(identity) - projector) / step
        if step > (1 - AVERAGING) * STEPS[-1]:
            average.update(q)
        if step not in STEPS:
            continue
        now = (average.module if average.count else q).posterior()[0]
        solved = torch.linalg.pinv((rows.gram + projector)[0, :k, :k].clone(), hermitian=True) @ rows.moment[0, :k]
        for name, mean in (("solved for", solved), ("its own", now.mean), ("exact", exact.mean)):
            kl = float(gaussian_kl_to_precision(mean, now.covariance_tril(), *exact).total)
            value = method.objective(0, problem, q=Gaussian(mean[None], now.root[None]))
            print(f"{chosen.dataset} split {chosen.split}, {step:,} steps, mean {name}: {value:.4f}, KL {kl:,.4g}")


if __name__ == "__main__":
    main()
