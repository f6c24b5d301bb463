"""Training of classifiers side by side against one after the other: time per step, and agreement. See benchmarks/README.md.

    python benchmarks/side_by_side.py [--device cpu|cuda] [--widths 150 1200] [--repeats 5] [--steps 50] [--agree]

The networks are those of figure 1a of Kingma et al. (2015) on MNIST: five variants with noise on inputs and two with
noise on weights, `--repeats` of each. On a CPU, one thread. Both ways are timed in one run, in alternating rounds; the
ratios are medians over rounds. `--agree` compares the losses after an epoch, and on a GPU steps with and without a graph.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch

from fsvi_bench.papers.ksw2015.data import Images, load_images
from fsvi_bench.papers.ksw2015.fig1 import VARIANTS
from fsvi_bench.papers.ksw2015.networks import (
    Classifier,
    NoiseSettings,
    TrainSettings,
    adam,
    cross_entropies,
    step,
    train,
)
from fsvi_bench.papers.side_by_side import MovingAverage, Replayed, streams
from fsvi_bench.threads import use_one_thread

ROUNDS, MINIBATCH = 5, 100


class Stack:
    """Networks in training, each with its own noise."""

    def __init__(self, images: Images, variants: Sequence[str], width: int, seeds: Sequence[int], graph: bool = True):
        x, y = images.x_train, images.y_train
        noise = streams(x.device, "networks", "noise", seeds=seeds)
        kinds = [NoiseSettings(kind=VARIANTS[variant][0]) for variant in variants]
        self.network, self.x = Classifier(images, kinds, width, seeds), x
        scale = torch.full((len(seeds),), 1 / len(x), device=x.device)
        optimizer, average = adam(self.network, 1e-3), MovingAverage(self.network, 0.999)

        def one(rows: torch.Tensor) -> None:
            step(self.network, optimizer, x[rows], y[rows], noise, scale)
            average.update()

        self.step = Replayed(one, noise, x.device) if graph else one
        self.order = torch.Generator().manual_seed(0)

    def run(self, steps: int) -> float:
        """Milliseconds per step."""
        rows = torch.randint(len(self.x), (steps, len(self.network.seeds), MINIBATCH), generator=self.order)
        rows = rows.to(self.x.device)
        started = time.perf_counter()
        for each in rows:
            self.step(each)
        if self.x.is_cuda:
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - started) / steps


def compare(images: Images, variants: Sequence[str], width: int, repeats: int, steps: int) -> None:
    of_all = [variant for variant in variants for _ in range(repeats)]
    together = Stack(images, of_all, width, list(range(repeats)) * len(variants))
    alone = [Stack(images, [variant], width, [0]) for variant in variants]  # every repeat takes the same time
    for stack in (together, *alone):
        stack.run(5)
    rounds = [(together.run(steps), repeats * sum(one.run(steps) for one in alone)) for _ in range(ROUNDS)]
    beside, after = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(after / beside for beside, after in rounds)
    print(
        f"  width {width:>4}, {len(of_all):>2} networks ({', '.join(variants)}): {beside:.2f} ms a step side by side, "
        f"{after:.2f} ms one after the other, ratio {ratio:.2f}",
        flush=True,
    )


def agree(images: Images, width: int, dtype: torch.dtype) -> None:
    """The largest relative difference between the losses of networks side by side and alone, after an epoch.

    In float64 it shows whether both compute the same; in float32 rounding grows from step to step.
    """
    torch.set_default_dtype(dtype)
    images = images._replace(x_train=images.x_train.to(dtype), x_test=images.x_test.to(dtype))
    settings, differences = TrainSettings(epochs=1), []
    for variants in by_type():
        noise = [NoiseSettings(kind=VARIANTS[variant][0]) for variant in variants]
        *_, stack = train(Classifier(images, noise, width, range(len(noise))), images, settings)
        for place, of_one in enumerate(noise):
            *_, one = train(Classifier(images, [of_one], width, [place]), images, settings)
            with torch.no_grad():
                beside, alone = (cross_entropies(each(images.x_test), images.y_test).mean(1) for each in (stack, one))
            differences.append(float((beside[place] / alone[0] - 1).abs()))
    torch.set_default_dtype(torch.float32)
    print(
        f"  width {width:>4}, {dtype}: losses after an epoch differ by at most {max(differences):.1e}, relative",
        flush=True,
    )


def replay(images: Images) -> None:
    """Whether steps replayed as a CUDA graph give the bits of the same steps without one."""
    for variants in by_type():
        stacks = [Stack(images, variants, 64, range(len(variants)), graph) for graph in (True, False)]
        for stack in stacks:
            stack.run(25)
        ours, theirs = (torch.cat([p.flatten() for p in stack.network.parameters()]) for stack in stacks)
        print(f"  with and without a graph, 25 steps: {'the same bits' if torch.equal(ours, theirs) else 'DIFFERENT'}")


def by_type() -> list[list[str]]:
    """Variants with noise on inputs or without any, and variants with noise on weights."""
    on_weights = [variant for variant, (kind, _) in VARIANTS.items() if kind.endswith("-b")]
    return [[variant for variant in VARIANTS if variant not in on_weights], on_weights]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--widths", type=int, nargs="+", default=[150, 1200])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--agree", action="store_true")
    options = parser.parse_args()
    use_one_thread()
    images = load_images("mnist").to(options.device)
    print(torch.cuda.get_device_name() if options.device == "cuda" else "one core")
    for width in options.widths:
        for variants in by_type():
            compare(images, variants, width, options.repeats, options.steps)
        if options.agree:
            agree(images, width, torch.float32)
            agree(images, width, torch.float64)
    if options.agree and options.device == "cuda":
        replay(images)


if __name__ == "__main__":
    main()
