"""How far apart the same training ends on two processors, and whether portable kernels bring it to the same digits.

    python benchmarks/other_processors.py TASK... [--steps 2000]

Trains each method on each task file as a cell of seed 0 would be, once per arithmetic: that of this processor, and those
of others, as far as libraries can be told to take their kernels (ATen's, MKL's and OpenBLAS's own switches). Prints, per
method, family and task, the KL, or for singular q the predictive KL in the box, and the
largest relative difference from this processor's own.

Printed for split 0 of yacht (k = 100), `--steps 300`, on two shared cores of an AMD EPYC with AVX-512, torch 2.13.0 (CPU):

| method | family | own | AVX2 | SSE4.2 | compatible | largest relative difference |
|---|---|---|---|---|---|---|
| rand-a | full | 91540.85161200477 | 91540.85161200477 | 91540.85161200476 | 91540.85161200476 | 1.1e-16 |
| rand-a | ffg | 341850.492602992 | 341850.492602992 | 341850.492602992 | 341850.492602992 | 0 |
| rand-a-ngd | full | 12.936232070650629 | 12.936232070650629 | 12.936232070650629 | 12.93623207066857 | 1.4e-12 |
| rand-a-ngd | ffg | 12726.475085503207 | 12726.475085503207 | 12726.475085503207 | 12726.475085502434 | 6.1e-14 |
| mean-field-vi | full | 955072.0154559227 | 955072.0154559227 | 955072.0154559227 | 955072.0154559227 | 0 |
| mean-field-vi | ffg | 833677.6721809418 | 833677.6721809418 | 833677.6721809418 | 833677.6721809419 | 2.2e-16 |
| gaussian-dropout | ffg | 127114.37812915545 | 127114.37812915545 | 127114.37812915546 | 127114.37812915539 | 4.4e-16 |
| fixed-a, L-BFGS | full | 762.4630511249901 | 762.4630511249901 | 777.2452359316694 | 779.9866881827405 | 2.3e-2 |
| fixed-a, L-BFGS | ffg | 553.5826733087173 | 553.5826733087173 | 535.0055069454045 | 579.2802584954301 | 4.6e-2 |

(ssge and concrete-dropout were not among them: they take longer than the eight minutes that there were.) Streams of
random numbers are the same everywhere. A line search takes another path after the first comparison that rounding decides,
and FIXEDA's objective has no optimum to end in. In 300 steps Adam amplifies nothing; in 15,000 it does, with full
covariances. RANDA full, concrete split 11, seed 0, the whole protocol:

| processor | kernels | KL |
|---|---|---|
| AMD EPYC (AVX-512) | own | 29.3982 |
| Intel Xeon (AVX-512) | own | 28.6905 |
| Intel Xeon (AVX-512) | MKL_CBWR=AVX2 | 28.1759 |
| Intel Xeon (AVX-512) | MKL_CBWR=COMPATIBLE | 28.7772 |

Of the entries of an earlier leaderboard, those with factorised or singular posteriors but for FIXEDA came out again on
the Intel Xeon, where their files were made on the AMD EPYC, to 4.6e-10 or better in the score that they were ranked by,
RANDA by natural gradients with full covariances to 3.5e-8 (five official cells of each, of which those of boston, concrete,
energy, wine and yacht had been made on the EPYC).

The column "compatible" is the same on the Intel Xeon in every digit that was printed there again (the same 300 steps of
rand-a, rand-a-ngd, gaussian-dropout, and fixed-a by L-BFGS, which amplifies most). So this is the arithmetic of the
protocol `official` and of `verify` (`fsvi_bench.arithmetic`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from fsvi_bench.arithmetic import PORTABLE

#: Kernels of machines without AVX-512, of other makers, and of old ones.
ARITHMETICS = {
    "own": {},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OPENBLAS_CORETYPE": "Haswell"},
    "SSE4.2": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "OPENBLAS_CORETYPE": "Nehalem"},
    "compatible": {**PORTABLE, "OPENBLAS_CORETYPE": "Zen"},
}
METHODS = {
    "rand-a": ("full", "ffg"),
    "fixed-a": ("full", "ffg"),
    "rand-a-ngd": ("full", "ffg"),
    "ssge": ("full", "ffg"),
    "mean-field-vi": ("full", "ffg"),
    "gaussian-dropout": ("ffg",),
    "concrete-dropout": ("bernoulli",),
}


def scores(tasks: list[str], steps: int, methods: list[str]) -> None:
    """Prints a line of JSON per method, family and task, in this process's arithmetic."""
    from fsvi_bench.methods.registry import load_method
    from fsvi_bench.scoring.scores import score
    from fsvi_bench.seeds import derive_seed
    from fsvi_bench.tasks.official import read_named
    from fsvi_bench.tasks.task import bind_task
    from fsvi_bench.threads import use_one_thread
    from fsvi_bench.training.trainer import train

    use_one_thread()
    for path in tasks:
        problem = bind_task(read_named(path)[0])
        for name in methods:
            for family in METHODS[name]:
                entry = load_method(name)
                options = entry.options({"max_steps": min(steps, entry.options({}).max_steps)})
                seed = derive_seed(problem.frozen.sha256, name, family, 0)
                method = entry.cls(problem, family, [seed], options)
                train(method, "cpu")
                if (why := method.divergences()[0]) is not None:
                    print(json.dumps([problem.frozen.dataset, name, family, why]), flush=True)
                    continue
                result = score(method.posterior()[0], problem)
                value = result.predictive_kl_box if result.singular else result.kl
                print(json.dumps([problem.frozen.dataset, name, family, value]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="+")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--method", action="append", choices=list(METHODS))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    methods = given.method or list(METHODS)
    if given.here:
        return scores(given.task, given.steps, methods)
    found: dict[tuple[str, ...], dict[str, object]] = {}
    chosen = [word for name in methods for word in ("--method", name)]
    command = [sys.executable, __file__, *given.task, "--steps", str(given.steps), *chosen, "--here"]
    for arithmetic, switches in ARITHMETICS.items():
        lines = subprocess.run(command, env={**os.environ, **switches}, check=True, capture_output=True, text=True)
        for line in lines.stdout.splitlines():
            *key, value = json.loads(line)
            found.setdefault(tuple(key), {})[arithmetic] = value
    print(f"| data set | method | family | {' | '.join(ARITHMETICS)} | largest relative difference |")
    for key, values in found.items():
        own, *others = [values[arithmetic] for arithmetic in ARITHMETICS]
        numbers = all(isinstance(value, float) for value in (own, *others))
        largest = f"{max(abs(other / own - 1) for other in others):.1e}" if numbers else "-"
        print("|", " | ".join([*key, *map(str, (own, *others)), largest]), "|")
    return None


if __name__ == "__main__":
    main()
