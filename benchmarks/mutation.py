"""Do the tests find wrong formulas? Small faults, one at a time in a copy of the tree, and which quick test fails first.

    FSVI_BENCH_DATA=... python benchmarks/mutation.py [--only TEXT] [--json FILE]

For each fault come, until one fails: the test file of its module, those of its package that import the module, all of
the package, those of the other packages with formulas, all quick tests. The working tree is never touched, and the copy is made at the start, so that it may change meanwhile.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("maths", "posteriors", "methods", "scoring", "tasks")  # where faults are planted

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
    / (self.S - 1) ** 0.5  =>  / (self.S - 1)
posteriors/dropout.py
    < self.retain_probabilities[..., None, :]  =>  > self.retain_probabilities[..., None, :]
tasks/certificate.py
    lost / (2 * task.noise_variance)  =>  lost / task.noise_variance
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


def faults() -> Iterator[Fault]:
    """Of the list above."""
    file = ""
    for line in FAULTS.strip().splitlines():
        if line.startswith(" "):
            yield Fault(file, *(part.replace("\\n", "\n") for part in line.strip().split("  =>  ")))
        else:
            file = line


def copy_tree(to: Path) -> None:
    """What git tracks or would track."""
    listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)


def rounds(tree: Path, fault: Fault) -> Iterator[list[str]]:
    """Arguments of pytest, the tests that are likeliest to fail first."""
    package, module = fault.file.removesuffix(".py").split("/")
    folder = tree / "tests" / package
    uses = re.compile(rf"{package}\.{module}\b|{package} import .*\b{module}\b")
    near = [str(path) for path in sorted(folder.glob("test_*.py")) if uses.search(path.read_text(encoding="utf-8"))]
    if own := [path for path in near if path.endswith(f"test_{module}.py")]:
        yield own
    if near:
        yield near
    yield [str(folder)]
    yield [str(tree / "tests" / each) for each in PACKAGES if each != package]
    yield ["tests"]


def first_failure(tree: Path, fault: Fault) -> str | None:
    """The test that finds a fault, None if none does."""
    for tests in rounds(tree, fault):
        if found := run_forked(tree, ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]):
            return found
    return None


def run_forked(tree: Path, arguments: list[str]) -> str | None:
    """pytest in a child, which finds the libraries imported; the first test that fails."""
    with tempfile.TemporaryFile() as output:
        if (child := os.fork()) == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os.chdir(tree)
            sys.path.insert(0, str(tree))
            os._exit(pytest.main(arguments))
        _, status = os.waitpid(child, 0)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if status == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return found[1] if found else text[-600:]


def write(path: Path, source: str, changes: Iterator[int]) -> None:
    """With a time of its own: a .pyc file is told by its source's size and second, which may not change otherwise."""
    path.write_text(source, encoding="utf-8")
    os.utime(path, (seconds := 1e9 + next(changes), seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose file or text contains this")
    parser.add_argument("--json", type=Path, help="where the results go as they come")
    options = parser.parse_args()
    results, changes = [], count()
    for library in (
        "torch",
        "pytorch_lightning",
        "gpytorch",
        "scipy.stats",
        "sklearn",
        "pandas",
        "hypothesis",
        "mpmath",
    ):
        importlib.import_module(library)
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(tree := Path(folder))
        for fault in (fault for fault in faults() if options.only in f"{fault.file} {fault.old}"):
            path, started = tree / "fsvi_bench" / fault.file, time.monotonic()
            source = path.read_text(encoding="utf-8")
            if source.count(fault.old) != 1:
                raise SystemExit(f"{fault.old!r} stands {source.count(fault.old)} times in {fault.file}, expected once")
            write(path, source.replace(fault.old, fault.new), changes)
            found, seconds = first_failure(tree, fault), time.monotonic() - started
            write(path, source, changes)
            results.append({**fault._asdict(), "found_by": found, "seconds": round(seconds, 1)})
            print(f"{seconds:6.1f} s  {fault.file}: {fault.new}  {found or 'SURVIVES'}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"{sum(result['found_by'] is not None for result in results)} of {len(results)} found")


if __name__ == "__main__":
    main()
