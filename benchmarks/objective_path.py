"""What RANDA's objective says of a split's posteriors: natural gradients, averaged, with three means for their covariance.

    python benchmarks/objective_path.py --dataset boston --split 2

The objective (nats, on the held-out measurement sets, without its constants) and KL(q ‖ P_D) after so many steps, with the
mean that solves for the objective's stationary point on the sets seen so far, with the natural gradients' own, and with
the exact posterior's. Full covariances, M = 80, no jitter.
"""

from __future__ import annotations

import argparse

import torch
from fsvi_bench.scoring.objective import ExpectedFunctionalKL, _Projectors
from fsvi_bench.variational.likelihood import FullBatch
from fsvi_bench.variational.measurement import MeasurementDesign
from fsvi_bench.variational.natural import NaturalDescent, StepSize

from fsvi_bench.maths.gaussian import gaussian_kl_to_precision
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.gaussian import FullGaussian
from fsvi_bench.running.executors import use_one_thread
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.official import read_official
from fsvi_bench.tasks.task import bind_task

STEPS, AVERAGING = (250, 500, 1000, 2000, 3000), 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="boston")
    parser.add_argument("--split", type=int, default=2)
    chosen = parser.parse_args()
    use_one_thread()
    problem = bind_task(read_official(chosen.dataset, chosen.split).task)
    objective, exact = ExpectedFunctionalKL(MeasurementDesign(80), 1.0), problem.truth.posterior
    data = TrainingData.of([problem])
    likelihood, k = FullBatch(data), data.k
    sets = _Projectors(data, objective.design, derive_seed(problem.frozen.sha256, "objective optimum"))
    descent = NaturalDescent("full", likelihood, sets.__next__, StepSize(), STEPS[-1], 1.0, AVERAGING)
    done = 0
    for steps in STEPS:
        descent.run(range(done, steps))
        done = steps
        averaged = descent.posterior(k)[0]
        hessian = (likelihood.precision + sets.mean)[0, :k, :k].clone()
        solved = torch.linalg.pinv(hessian, hermitian=True) @ likelihood.moment[0, :k].clone()
        for name, mean in (("solved for", solved), ("its own", averaged.mean), ("exact", exact.mean)):
            q = FullGaussian(mean, averaged.covariance_tril())
            kl = float(gaussian_kl_to_precision(q.mean, q.covariance_tril(), *exact).total)
            value = objective.value(q, problem)
            print(f"{chosen.dataset} split {chosen.split}, {steps:,} steps, mean {name}: {value:.4f}, KL {kl:,.4g}")


if __name__ == "__main__":
    main()
