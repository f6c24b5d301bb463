"""Do the tests find wrong formulas? Small faults, one at a time in a copy of the tree, and which quick test fails first.

    FSVI_BENCH_DATA=... python benchmarks/mutation.py --workers 2 [--only TEXT] [--log FILE]

For each fault run, until one fails, the quick tests of its module; of its package; of the other packages with formulas,
first where they import the module; all others: each of these in a process of its own. A test that fails without the fault,
too, has not found it, nor has one that does not end. The working tree is never touched: the copies
are made at the start. What the log has of the same commit is not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGES = ("maths", "posteriors", "methods", "scoring", "tasks")  # where faults are planted
LIMIT = 900  #: seconds of one process
NOTHING_COLLECTED = 5  #: pytest's exit status
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": "."}

#: Under each file: what stands there, exactly once, and what is put in its place.
FAULTS = r"""
maths/linalg.py
    diagonal(upper) < 0  =>  diagonal(upper) > 0
maths/gaussian.py
    logdet_p - logdet_q)  =>  logdet_q - logdet_p)
    trace = (precision_tril_p.mT @ tril_q)  =>  trace = (precision_tril_p @ tril_q)
    0.5 * (trace - mean_q.shape[-1] + logdet)  =>  0.5 * (trace - mean_q.shape[-1] - logdet)
    torch.linalg.svd(factor_p.mT @ factor_q)  =>  torch.linalg.svd(factor_q.mT @ factor_p)
    ratio = variance_q / variance_p  =>  ratio = variance_p / variance_q
maths/blr.py
    dim=-1) / noise_variance.sqrt()[..., None, None]  =>  dim=-1) / noise_variance[..., None, None]
    return precision_tril.square().sum(-1).rsqrt()  =>  return precision_tril.square().sum(-2).rsqrt()
    N * noise_variance.log()\n  =>  noise_variance.log()\n
    per_batch * (N / n)  =>  per_batch * (n / N)
    + target_std.log()  =>  - target_std.log()
maths/projection.py
    tril_of_gram(factor_p.mT @ basis)  =>  tril_of_gram(factor_p @ basis)
maths/features.py
    5 / 3 * r.square()  =>  5 / 2 * r.square()
maths/functional_kl.py
    moved = noise @ self.root.mT if  =>  moved = noise @ self.root if
    T -= torch.cholesky_solve(T, C)  =>  T += torch.cholesky_solve(T, C)
    square_norm(tril) - square_norm(unseen)  =>  square_norm(tril) + square_norm(unseen)
    whitened.mT @ whitened + self.projector  =>  whitened.mT @ whitened - self.projector
    fill_diagonal(jitter**0.5 * inverse, M)  =>  fill_diagonal(jitter * inverse, M)
maths/ssge.py
    squared.new_full(squared.shape[:-2], bandwidth)  =>  squared.new_full(squared.shape[:-2], bandwidth**2)
    middle = [(pairs.shape[-1] - 1) // 2,  =>  middle = [pairs.shape[-1] // 2 - 1,
    J = 1 + (partial  =>  J = (partial
maths/bernoulli_dropout.py
    (retain_probability * (1 - retain_probability)).sqrt()  =>  (1 - retain_probability).sqrt()
    + decay) / p) / p  =>  + decay) / p)
    return -atom_entropy(m, retain_probability)  =>  return atom_entropy(m, retain_probability)
maths/bernoulli_optimum.py
    ratio.square().sum(-1) / (2 * self.noise_variance  =>  ratio.square().sum(-1) / (self.noise_variance
    offset = -0.5 * (squares / noise +  =>  offset = -0.5 * (squares / noise -
maths/spike_slab.py
    0.5 * (m.shape[-1] * gain - distance)  =>  0.5 * (gain - distance)
    spike_weight * mean.square()  =>  mean.square()
maths/log_uniform.py
    KSW_C1 + alpha * (KSW_C2  =>  KSW_C1 - alpha * (KSW_C2
    return log_uniform_kl(0.5 / alpha)  =>  return log_uniform_kl(1 / alpha)
maths/mixtures.py
    (0.5 - sums[:, 0])  =>  (0.5 + sums[:, 0])
maths/mixture_enumeration.py
    at.log_odds + at.log_off  =>  at.log_odds - at.log_off
maths/sgpr_lapack.py
    - fit + trace_AAt) / variance  =>  - fit - trace_AAt) / variance
    spread / lengthscales**3  =>  spread / lengthscales**2
scoring/predictive.py
    .abs() / (2 * self.variance).sqrt()  =>  .abs() / self.variance.sqrt()
    .sqrt() * problem.frozen.target_std  =>  .sqrt() / problem.frozen.target_std
    task.target_std.log() - mixture.log_density  =>  -mixture.log_density
    z, step = nodes(step, 0.5 * step)  =>  z, step = nodes(step, step)
scoring/scores.py
    likelihood - gaussian_kl_standard_normal  =>  likelihood + gaussian_kl_standard_normal
    svdvals(precision_tril.mT @ tril)  =>  svdvals(precision_tril @ tril)
    row_space(Phi[:count])  =>  row_space(Phi[-count:])
scoring/samples.py
    ((G - 1) / G * (parts  =>  (1 / G * (parts
methods/data.py
    .sum(-2) * q.root.square())  =>  .sum(-2) * q.root)
    save_for_backward(-matvec(  =>  save_for_backward(matvec(
    {"mixed": self.M // 2  =>  {"mixed": (self.M + 1) // 2
    scale = (data.N / n / data.noise_variance)  =>  scale = (n / data.N / data.noise_variance)
    (data.high - data.low)[:, None] * unit  =>  (data.high + data.low)[:, None] * unit
methods/natural.py
    .mul_(-kl_weight).sub_(rows.gram)  =>  .mul_(-kl_weight).add_(rows.gram)
methods/ssge.py
    return batch.A.project_rows(w) + score  =>  return batch.A.project_rows(w) - score
methods/functional.py
    self.problems.N / self.rows_per_step  =>  self.rows_per_step / self.problems.N
methods/sparse_variational_dropout.py
    u = 0.5 * (q.mean / q.root) ** 2  =>  u = (q.mean / q.root) ** 2
methods/noisy.py
    decay = 0.5 * l**2  =>  decay = 0.5 * l
posteriors/trainable.py
    (0.5 * log_alpha).exp() * theta  =>  log_alpha.exp() * theta
    gradient.diagonal(dim1=-2, dim2=-1).mul_(diagonal)  =>  gradient.diagonal(dim1=-2, dim2=-1)
posteriors/samples.py
    / self.divisor**0.5  =>  / self.divisor
posteriors/dropout.py
    < self.retain_probabilities[..., None, :]  =>  > self.retain_probabilities[..., None, :]
tasks/certificate.py
    missing_trace / (2 * task.noise_variance)  =>  missing_trace / task.noise_variance
tasks/build.py
    values.std(0))  =>  values.std(0, ddof=1))
tasks/splits.py
    n_train = round(train_fraction * n)  =>  n_train = int(train_fraction * n)
tasks/from_gpytorch.py
    outputscale = outputscale * getattr(  =>  outputscale = outputscale / getattr(
"""


class Fault(NamedTuple):
    file: str
    old: str
    new: str


class Outcome(NamedTuple):
    """How pytest ended: the first test that failed, None if none did, or what else went wrong."""

    test: str | None
    trouble: str = ""


def faults() -> Iterator[Fault]:
    """Of the list above."""
    file = ""
    for line in FAULTS.strip().splitlines():
        if line.startswith(" "):
            yield Fault(file, *(part.replace("\\n", "\n") for part in line.strip().split("  =>  ")))
        else:
            file = line


def require_places(listed: Iterable[Fault]) -> None:
    """Every fault can be planted, in one place only."""
    for file, old, _ in listed:
        if (count := (ROOT / "fsvi_bench" / file).read_text(encoding="utf-8").count(old)) != 1:
            raise SystemExit(f"{old!r} stands {count} times in {file}, expected once; mend the list in {__file__}")


def copy_tree(to: Path) -> Path:
    """What git tracks or would track."""
    listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    return to


def rounds(tree: Path, fault: Fault) -> Iterator[list[str]]:
    """Test files in the order in which they are likeliest to fail; each round is a process, if those before passed."""
    package, module = fault.file.removesuffix(".py").split("/")
    uses = re.compile(rf"{package}\.{module}\b|{package} import .*\b{module}\b")
    likely = {path: bool(uses.search(path.read_text(encoding="utf-8"))) for path in (tree / "tests").rglob("test_*.py")}

    def unlikely(path: Path) -> tuple[bool, ...]:
        return path.stem != f"test_{module}", path.parent.name != package, not likely[path]

    groups: dict[int, list[Path]] = {}
    for path in sorted(likely, key=lambda path: (*unlikely(path), path)):
        other_file, other_package, silent = unlikely(path)
        of_formulas = path.parent.name in PACKAGES
        near = not other_package and not other_file
        place = 0 if near else 1 if not other_package else 2 if of_formulas and not silent else 3 if of_formulas else 4
        groups.setdefault(place, []).append(path)
    for place in sorted(groups):
        yield [str(path.relative_to(tree)) for path in groups[place]]


def run_tests(tree: Path, tests: list[str]) -> Outcome:
    """Quick tests until one fails."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not slow and not cluster",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    try:
        done = subprocess.run(command, cwd=tree, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return Outcome(None, f"no end within {LIMIT} s")
    if done.returncode in (0, NOTHING_COLLECTED):
        return Outcome(None)
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return Outcome(found[1]) if found else Outcome(None, (done.stdout + done.stderr)[-600:])


def try_fault(tree: Path, fault: Fault) -> Outcome:
    """The first test that fails with the fault, and passes without it."""
    path = tree / "fsvi_bench" / fault.file
    source = path.read_text(encoding="utf-8")
    try:
        write(path, source.replace(fault.old, fault.new))
        outcome = next((end for tests in rounds(tree, fault) if (end := run_tests(tree, tests)) != Outcome(None)), None)
    finally:
        write(path, source)
    if outcome is None or outcome.test is None:
        return outcome or Outcome(None)
    without = run_tests(tree, [outcome.test])
    return outcome if without == Outcome(None) else Outcome(None, f"fails without the fault, too: {outcome.test}")


def write(path: Path, source: str) -> None:
    """Without what was compiled before: a .pyc file is told by its source's size and second only."""
    path.write_text(source, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose file or text contains this")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument("--log", type=Path, default=ROOT / "build" / "mutation.jsonl", help="one line of JSON a fault")
    options = parser.parse_args()
    listed = [fault for fault in faults() if options.only in f"{fault.file} {fault.old}"]
    require_places(listed)
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True).strip()
    options.log.parent.mkdir(parents=True, exist_ok=True)
    lines = options.log.read_text(encoding="utf-8").splitlines() if options.log.exists() else []
    known = [] if commit.endswith("-dirty") else [line for line in map(json.loads, lines) if line["commit"] == commit]
    done = {Fault(*line["fault"]): line for line in known}
    trees: Queue[Path] = Queue()

    def look(fault: Fault) -> dict[str, object]:
        tree, started = trees.get(), time.monotonic()
        try:
            test, trouble = try_fault(tree, fault)
        finally:
            trees.put(tree)
        seconds = round(time.monotonic() - started, 1)
        return {"commit": commit, "fault": fault, "found_by": test, "trouble": trouble, "seconds": seconds}

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        for worker in range(options.workers):
            trees.put(copy_tree(Path(folder) / str(worker)))
        running = [pool.submit(look, fault) for fault in listed if fault not in done]
        for future in as_completed(running):
            line = future.result()
            done[line["fault"]] = line
            with options.log.open("a", encoding="utf-8") as log:
                print(json.dumps(line), file=log)
            found = line["found_by"] or f"SURVIVES {line['trouble']}"
            print(f"{line['seconds']:6.1f} s  {line['fault'].file}: {line['fault'].new}  {found}", flush=True)
    missed = [fault for fault in listed if done[fault]["found_by"] is None]
    print(f"{len(listed) - len(missed)} of {len(listed)} found", *(f"missed: {each}" for each in missed), sep="\n")


if __name__ == "__main__":
    main()
