"""Forward and backward through one noisy layer, by estimator, against a plain linear layer. See benchmarks/README.md.

    python benchmarks/dropout_layers.py [--width 1200] [--minibatch 100] [--granularity layer|unit|weight]

Independent weight noise (type B), one thread, float32. Every round measures all of them, one after the other; the
ratios are medians over rounds. Gradients are taken of the weights, of log α and of the inputs, as inside a network.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import get_args

import torch
from torch import Tensor, nn

from fsvi_bench.papers.ksw2015.networks import ESTIMATORS, Granularity, NoiseSettings, NoisyLinear
from fsvi_bench.threads import use_one_thread

LOCAL_LIMIT, PER_POINT_LIMIT = 3.5, 10.0


def forward_and_backward(layer: Callable[[Tensor], Tensor], width: int, minibatch: int) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(minibatch, width, generator=generator).relu().requires_grad_()
    pull = torch.randn(minibatch, width, generator=generator)

    def call() -> None:
        layer(a).backward(pull)

    return call


def layers(width: int, minibatch: int, granularity: Granularity) -> dict[str, Callable[[], None]]:
    plain = nn.Linear(width, width)
    calls = {"plain": forward_and_backward(plain, width, minibatch)}
    for estimator in ESTIMATORS:
        noise = NoiseSettings(kind="variational-b", granularity=granularity)
        layer = NoisyLinear(width, width, noise, 0.5, torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(2)

        calls[estimator] = forward_and_backward(
            partial(layer, generator=generator, estimator=estimator), width, minibatch
        )
    return calls


def seconds(call: Callable[[], None], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--minibatch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--granularity", choices=get_args(Granularity), default="layer")
    options = parser.parse_args()
    use_one_thread()
    calls = layers(options.width, options.minibatch, options.granularity)
    for call in calls.values():
        call()
    rounds = [
        {name: seconds(call, 1 if name == "per-point" else 5) for name, call in calls.items()}
        for _ in range(options.rounds)
    ]
    print(f"width {options.width}, minibatch {options.minibatch}, α per {options.granularity}, {options.rounds} rounds")
    for name in calls:
        print(f"  {name:<14} {1e3 * statistics.median(r[name] for r in rounds):9.2f} ms")
    local = statistics.median(r["local"] / r["plain"] for r in rounds)
    per_point = statistics.median(r["per-point"] / r["local"] for r in rounds)
    print(
        f"local / plain = {local:.2f} (at most {LOCAL_LIMIT}); per-point / local = {per_point:.1f} (at least {PER_POINT_LIMIT})"
    )


if __name__ == "__main__":
    main()
