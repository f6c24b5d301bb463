"""Steps of the batched engine against a plain loop, and natural gradients against Adam. See benchmarks/README.md.

    python benchmarks/train_step.py [rand-a] [ssge] [parts] [shares] [ngd] [memory] [gpu]

Everything that is compared is measured in one run, in alternating rounds: two processes of one thread each, started
together, ten problems apiece. The problems are the boston reference task with twenty seeds.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from fsvi_bench.maths.batching import matvec
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import load_method
from fsvi_bench.tasks.frozen import read_task
from fsvi_bench.tasks.task import Task, bind_task
from fsvi_bench.threads import use_one_thread
from fsvi_bench.training.trainer import train

TASK = Path(__file__).parents[1] / "tests" / "reference_data" / "tasks" / "boston-00.safetensors"
M, S, PROBLEMS, PROCESSES, ROUNDS = 80, 100, 20, 2, 5
SETTINGS = {"minibatch": "full", "M": M}


# --- The yardstick: one problem after the other, autograd, Adam. Not to be slowed down. -------------------------------


class PlainProblem:
    """One problem as a researcher would write it down: parameters, a loss, `backward()`, Adam."""

    def __init__(self, problem: Task, seed: int) -> None:
        self.problem, self.generator = problem, torch.Generator().manual_seed(seed)
        k = problem.frozen.k
        noise_variance = problem.frozen.noise_variance
        self.gram, self.moment = (
            problem.Phi.T @ problem.Phi / noise_variance,
            problem.Phi.T @ problem.y / noise_variance,
        )
        self.low, self.high = problem.bounding_box
        self.mean = torch.zeros(k, dtype=torch.float64, requires_grad=True)
        self.lower = torch.zeros(k, k, dtype=torch.float64, requires_grad=True)
        self.log_diagonal = torch.zeros(k, dtype=torch.float64, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.mean, self.lower, self.log_diagonal], lr=0.01, fused=True)

    def features_at_A(self) -> Tensor:
        N, D = self.problem.X.shape
        rows = torch.randperm(N, generator=self.generator)[: M // 2]
        unit = torch.rand(M - M // 2, D, generator=self.generator, dtype=torch.float64)
        box = self.problem.feature_map(self.low + (self.high - self.low) * unit)
        return torch.cat([self.problem.Phi[rows], box])

    def factor(self) -> Tensor:
        return self.lower.tril(-1) + torch.diag(self.log_diagonal.exp())

    def negative_log_likelihood(self, factor: Tensor) -> Tensor:
        quadratic = self.mean @ (0.5 * self.gram @ self.mean - self.moment)
        return quadratic + 0.5 * (factor * (self.gram @ factor)).sum()

    def rand_a_loss(self) -> Tensor:
        Phi_A, factor = self.features_at_A(), self.factor()
        prior_tril = torch.linalg.cholesky(Phi_A @ Phi_A.T)
        pushed = torch.linalg.solve_triangular(
            prior_tril, torch.cat([Phi_A @ factor, (Phi_A @ self.mean)[:, None]], dim=1), upper=False
        )
        values, mean = pushed[:, :-1], pushed[:, -1]
        tril = torch.linalg.cholesky(values @ values.T)
        kl = 0.5 * (values.square().sum() - M + mean @ mean) - tril.diagonal().log().sum()
        return self.negative_log_likelihood(factor) + kl

    def ssge_loss(self) -> Tensor:
        """A surrogate whose gradient is SSGE's: mean over samples of (score_q − score_p)ᵀ f, the scores held constant."""
        Phi_A, factor = self.features_at_A(), self.factor()
        noise = torch.randn(S, len(self.mean), generator=self.generator, dtype=torch.float64)
        f = (self.mean + noise @ factor.T) @ Phi_A.T
        with torch.no_grad():
            x = f.detach()
            squared = torch.cdist(x, x).square()
            above = torch.triu_indices(S, S, 1)
            h = squared[above[0], above[1]].sqrt().median()
            K = torch.exp(-0.5 * squared / h**2)
            eigenvalues, U = torch.linalg.eigh(K)
            eigenvalues, U = eigenvalues.flip(0), U.flip(1)
            J = 1 + int((eigenvalues.cumsum(0) < 0.99 * eigenvalues.sum()).sum())
            U, eigenvalues = U[:, :J], eigenvalues[:J]
            score_q = U @ ((U.T @ (K @ x - K.sum(1, keepdim=True) * x)) / eigenvalues[:, None]) / h**2
            score_p = -torch.cholesky_solve(x.T, torch.linalg.cholesky(Phi_A @ Phi_A.T)).T
        return self.negative_log_likelihood(factor) + ((score_q - score_p) * f).sum() / S

    def step(self, loss: Callable[[], Tensor]) -> None:
        self.optimizer.zero_grad()
        loss().backward()
        self.optimizer.step()


def plain(method: str, seeds: list[int], steps: int) -> float:
    problem = bind_task(read_task(TASK))
    problems = [PlainProblem(problem, seed) for seed in seeds]
    losses = [p.rand_a_loss if method == "rand-a" else p.ssge_loss for p in problems]
    for p, loss in zip(problems, losses, strict=True):
        p.step(loss)
    started = time.perf_counter()
    for p, loss in zip(problems, losses, strict=True):
        for _ in range(steps):
            p.step(loss)
    return time.perf_counter() - started


# --- The engine ------------------------------------------------------------------------------------------------------


def engine(method: str, seeds: list[int], steps: int) -> float:
    """Through Lightning, as `fsvi-bench run` does it; a short run first, so that nothing is counted twice."""
    data = TrainingData.of([bind_task(read_task(TASK))] * len(seeds))
    entry = load_method(method)
    for count in (8, steps):
        options = entry.options({**SETTINGS, "max_steps": count})
        seconds = train(entry.cls(data, "full", seeds, options), "cpu")
    return seconds


def throughput(pool: ProcessPoolExecutor, run: Callable[..., float], method: str, steps: int) -> float:
    """Problem-steps per second of all processes together, by the slowest of them."""
    share = PROBLEMS // PROCESSES
    seeds = [list(range(p * share, (p + 1) * share)) for p in range(PROCESSES)]
    seconds = max(pool.map(run, [method] * PROCESSES, seeds, [steps] * PROCESSES))
    return steps * PROBLEMS / seconds


def compare(method: str, engine_steps: int, plain_steps: int) -> None:
    with ProcessPoolExecutor(PROCESSES, get_context("spawn"), initializer=use_one_thread) as pool:
        rounds = []
        for _ in range(ROUNDS):
            ours = throughput(pool, engine, method, engine_steps)
            theirs = throughput(pool, plain, method, plain_steps)
            rounds.append((ours, theirs, ours / theirs))
            print(
                f"  {method}: engine {ours:7.0f}/s, plain loop {theirs:7.0f}/s, ratio {ours / theirs:.2f}", flush=True
            )
    ours, theirs, ratio = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(
        f"{method} full, M={M}, k=100, B={PROBLEMS}: engine {ours:.0f}, plain {theirs:.0f} problem-steps/s, ratio {ratio:.2f}"
    )


# --- What a step is made of ------------------------------------------------------------------------------------------


def microseconds(call: Callable[[], object], problems: int, repeats: int = 20) -> float:
    call()
    rounds = []
    for _ in range(9):
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        rounds.append((time.perf_counter() - started) / repeats)
    return 1e6 * statistics.median(rounds) / problems


def matrix_operations(B: int) -> dict[str, Callable[[], object]]:
    """Every matrix product, factorisation and triangular solve of one `rand-a` full step (M=80, k=100), alone."""
    g = torch.Generator().manual_seed(0)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(B, *shape, generator=g, dtype=torch.float64) / 10

    k, n = 100, 100 - M
    eye = torch.eye(n, dtype=torch.float64)
    L = matrix(k, k).tril(-1) + torch.eye(k, dtype=torch.float64)
    G, Phi_A, N_rows, factor_of_Z = matrix(k, k), matrix(M, k), matrix(n, k), L[0].clone()
    LU, pivots, _ = torch.linalg.lu_factor_ex(Phi_A.mT)
    P = torch.lu_unpack(LU, pivots, unpack_data=False)[0]
    gram = N_rows @ N_rows.mT + eye
    tril, X, small, mean, target = torch.linalg.cholesky(gram), matrix(k, n), matrix(n, k), matrix(k, 8), matrix(k, k)
    box = [torch.randn(k, 8 * (M - M // 2), generator=g, dtype=torch.float64) for _ in range(B)]
    solve = torch.linalg.solve_triangular

    def likelihood() -> None:
        target[..., :48].baddbmm_(G, L[..., :48])
        target[..., 48:, 48:].baddbmm_(G[..., 48:, 48:], L[..., 48:, 48:])

    return {
        "features at box points, solve 100×40 (1/8 of one for 8 steps)": lambda: [
            solve(factor_of_Z, b, upper=False) for b in box
        ],
        "LU of Φ_Aᵀ 100×80": lambda: torch.linalg.lu_factor_ex(Phi_A.mT),
        "null space, solve 80×20": lambda: solve(LU[:, :M], LU[:, M:], upper=False, left=False, unitriangular=True),
        "its permutation, 20×100×100": lambda: small @ P.mT,
        "its Gram matrix, 20×100×20": lambda: small @ small.mT,
        "Cholesky 20 (twice)": lambda: (torch.linalg.cholesky_ex(gram), torch.linalg.cholesky_ex(gram)),
        "orthonormalise, solve 20×100": lambda: solve(tril, small, upper=False),
        "NᵀL, 20×100×100": lambda: N_rows @ L,
        "N(NᵀL), 100×20×100": lambda: target.baddbmm_(N_rows.mT, small, alpha=-1),
        "X = L⁻¹N, solve 100×20": lambda: solve(L, N_rows.mT, upper=False),
        "XᵀX, 20×100×20": lambda: X.mT @ X,
        "inverse from Cholesky 20, times Xᵀ": lambda: torch.cholesky_inverse(tril) @ X.mT,
        "L⁻ᵀX, solve 100×20": lambda: solve(L.mT, X, upper=True),
        "times the former, 100×20×100": lambda: target.baddbmm_(X, small),
        "N Nᵀμ": lambda: N_rows.mT @ (N_rows @ mean),
        "ΦᵀΦL/σ², lower half": likelihood,
        "ΦᵀΦμ/σ²": lambda: G @ mean,
    }


def parts(B: int = PROBLEMS // PROCESSES) -> None:
    use_one_thread()
    total = 0.0
    for name, call in matrix_operations(B).items():
        spent = microseconds(call, B) / (8 if "1/8" in name else 1)
        total += spent
        print(f"  {name:<62} {spent:6.1f} µs")
    step = 1e6 * engine("rand-a", list(range(B)), 640) / 640 / B
    print(
        f"one step of one problem, B={B}, one process: {step:.0f} µs; its matrix operations alone {total:.0f} µs: {total / step:.0%}"
    )
    K = torch.eye(S, dtype=torch.float64) + torch.randn(B, S, S, dtype=torch.float64).mul_(0.01)
    K = K @ K.mT
    floor = microseconds(lambda: torch.linalg.eigh(K), B, 3)
    ssge = 1e6 * engine("ssge", list(range(B)), 160) / 160 / B
    print(
        f"ssge: one step of one problem {ssge:.0f} µs, its eigendecomposition alone {floor:.0f} µs: {floor / ssge:.0%}"
    )


def shares(B: int = PROBLEMS // PROCESSES, steps: int = 640) -> None:
    """What of a RANDA step is Lightning's and what autograd's: the Trainer, a loop of one's own, and gradients by hand."""
    use_one_thread()
    task, entry = bind_task(read_task(TASK)), load_method("rand-a")
    method = entry.cls([task] * B, "full", range(B), entry.options({**SETTINGS, "max_steps": steps}))
    optimizer, batches = method.configure_optimizers(), method.data().batches(method.problems)

    def loop() -> None:
        batch = next(batches)
        optimizer.zero_grad()
        method.loss(method.q(), batch).sum().backward()
        optimizer.step()

    @torch.no_grad()
    def by_hand() -> None:
        rows, A, _ = next(batches)
        q = method.q()
        _, of_mean, of_tril = A.full(*q)
        of_tril += rows.gram @ q.root
        of_tril *= method.q.mask
        of_tril.diagonal(dim1=-2, dim2=-1).mul_(q.root.diagonal(dim1=-2, dim2=-1))
        method.q.lower.grad = of_tril
        method.q.mean.grad[:, : task.k] = of_mean - matvec(rows.Phi.mT, rows.y - matvec(rows.Phi, q.mean))
        optimizer.step()

    loop()
    through = 1e6 * statistics.median(engine("rand-a", list(range(B)), steps) for _ in range(ROUNDS)) / steps / B
    alone, hand = (statistics.median(average(call, steps) for _ in range(ROUNDS)) / B for call in (loop, by_hand))
    print(
        f"rand-a, B={B}, one process, µs a problem-step: Trainer {through:.0f}, loop {alone:.0f}, by hand {hand:.0f}; "
        f"Lightning {1 - alone / through:.0%}, autograd {(alone - hand) / through:.0%}"
    )


def average(call: Callable[[], object], steps: int) -> float:
    """Microseconds of one call, on average."""
    started = time.perf_counter()
    for _ in range(steps):
        call()
    return 1e6 * (time.perf_counter() - started) / steps


# --- Natural gradients against Adam ----------------------------------------------------------------------------------


def ngd() -> None:
    """Seconds until the objective on the held-out sets is within 0.1 nat of the best value known, on one core."""
    from fsvi_bench.posteriors.base import unstack
    from fsvi_bench.scoring.scores import trace_scores

    use_one_thread()
    problem = bind_task(read_task(TASK))
    data = TrainingData.of([problem])

    def watch(method: str, changes: dict[str, object], at: list[int]) -> list[tuple[int, float, float, float]]:
        entry = load_method(method)
        run = entry.cls(data, "full", [0], entry.options({**changes, "M": M}))
        seen: list[tuple[int, float, float, float]] = []

        def look(steps: int, seconds: float) -> None:
            (q,) = unstack(run.posterior())
            seen.append((steps, seconds, run.objective(0, problem), trace_scores(q, problem).kl))

        train(run, "cpu", look, at)
        return seen

    best = min(value for *_, value, _ in watch("rand-a-ngd", {"max_steps": 3000}, [3000]))
    steps = sorted({*range(5, 100, 5), *range(100, 500, 20)})
    for name, changes, at in (
        ("rand-a-ngd, plain iterates", {"max_steps": 500, "averaging": 0.0}, steps),
        ("rand-a-ngd, averaged from step 25 on", {"max_steps": 500, "averaging": 0.95}, steps),
        ("rand-a, minibatch=M (the paper's)", {"minibatch": "M"}, list(range(500, 15001, 500))),
        ("rand-a, minibatch=full", {"minibatch": "full"}, list(range(500, 15001, 500))),
        (
            "rand-a, minibatch=full, cosine rate",
            {"minibatch": "full", "lr_schedule": "cosine"},
            list(range(500, 15001, 500)),
        ),
    ):
        seen = watch(name.partition(",")[0], changes, at)
        near = next((point for point in seen if point[2] <= best + 0.1), seen[-1])
        said = "within 0.1 nat" if near[2] <= best + 0.1 else "never within 0.1 nat; at the end"
        print(
            f"  {name:<40} {said}: step {near[0]}, {near[1]:.3f} s, objective +{near[2] - best:.2f}, KL {near[3]:.2f}",
            flush=True,
        )


# --- Memory, GPU -----------------------------------------------------------------------------------------------------


def memory() -> None:
    """Peak memory of 20 problems of naval's size (10,741 × 100), a few steps with minibatch and full batch."""
    use_one_thread()
    boston = bind_task(read_task(TASK))
    data = TrainingData.of([boston] * PROBLEMS)
    rows = torch.arange(10741) % data.X.shape[1]
    noise = 1e-6 * torch.randn(
        len(rows), data.X.shape[2], dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    X = data.X[:, rows] + noise
    large = TrainingData(
        X, data.y[:, rows], data.Phi[:, rows], data.noise_variance, data.low, data.high, data.feature_map
    )
    for method, changes in (
        ("rand-a", {"minibatch": "M"}),
        ("rand-a", {"minibatch": "full"}),
        ("ssge", {}),
        ("fixed-a", {}),
    ):
        entry = load_method(method)
        train(entry.cls(large, "full", range(PROBLEMS), entry.options({**changes, "max_steps": 32})), "cpu")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"  {method} {changes}: peak memory so far {peak:.2f} GiB", flush=True)


def gpu() -> None:
    """Problem-steps per second of each method, of 400 problems and of a data set's 20 splits (RANDA: the paper's 15,000)."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing measured")
        return
    problem = bind_task(read_task(TASK))
    print(torch.cuda.get_device_name())
    for method in ("rand-a", "ssge", "fixed-a", "rand-a-ngd"):
        for B, steps in ((400, 640), (20, 15000)) if method == "rand-a" else ((400, 64), (20, 200)):
            entry = load_method(method)
            changes: dict[str, object] = {"max_steps": steps}
            if method == "fixed-a":
                changes["optimizer"] = "adam"
            data = TrainingData.of([problem] * B)
            train(entry.cls(data, "full", range(B), entry.options({**changes, "max_steps": 8})), "cuda")
            seconds = train(entry.cls(data, "full", range(B), entry.options(changes)), "cuda")
            print(
                f"  {method}: B={B}, {steps} steps: {seconds:.1f} s, {B * steps / seconds:.0f} problem-steps/s",
                flush=True,
            )


def agreement() -> None:
    """The largest difference between a GPU's numbers and the CPU's, means relative to their largest."""
    if not torch.cuda.is_available():
        print("no GPU here: nothing compared")
        return
    data = TrainingData.of([bind_task(read_task(TASK))] * 2)
    for method, family in product(("rand-a", "ssge", "fixed-a", "rand-a-ngd"), ("full", "ffg")):
        entry = load_method(method)
        for steps in (1, 2, 10, 100):
            options = entry.options({"max_steps": steps, **({"optimizer": "adam"} if method == "fixed-a" else {})})
            found = []
            for device in ("cpu", "cuda"):
                trained = entry.cls(data, family, range(2), options)
                train(trained, device)
                found.append(trained.posterior().cpu())
            here, there = found
            mean = float((here.mean - there.mean).abs().max() / here.mean.abs().max())
            factor = float((here.covariance_tril() - there.covariance_tril()).abs().max())
            print(f"  {method} {family}, {steps} steps: means {mean:.1e}, factors {factor:.1e}", flush=True)


SECTIONS: dict[str, Callable[[], None]] = {
    "rand-a": lambda: compare("rand-a", 640, 200),
    "ssge": lambda: compare("ssge", 160, 80),
    "parts": parts,
    "shares": shares,
    "ngd": ngd,
    "memory": memory,
    "gpu": gpu,
    "agreement": agreement,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="default: all")
    chosen = parser.parse_args().sections or list(SECTIONS)
    for section in chosen:
        print(f"== {section}", flush=True)
        SECTIONS[section]()
    sys.exit(0)
