"""Many small networks of one architecture, trained side by side: every parameter has a leading axis over networks.

Each network has random streams of its own. Rounding alone depends on its neighbours; it grows during training, so only
the same stack repeats a result exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fsvi_bench.papers.streams import stream

Streams = Sequence[torch.Generator]  #: one per network

Item = TypeVar("Item")
Module = TypeVar("Module", bound=nn.Module)

WARM_UP = 3  #: steps before capture, in which libraries choose kernels and the optimiser allocates its state


def side_by_side(items: Iterable[Item], device: str) -> list[list[Item]]:
    """Items in groups whose networks are trained side by side.

    On a GPU all of them are one group, since few small networks do not keep it busy. On a CPU every item is a group:
    side by side, large networks leave the cache and take longer (`benchmarks/README.md`).
    """
    return [list(items)] if device == "cuda" else [[each] for each in items]


def streams(device: str | torch.device, *parts: str | int, seeds: Sequence[int]) -> list[torch.Generator]:
    """A generator for each network's seed, for the purpose that `parts` name."""
    return [stream(device, *parts, seed) for seed in seeds]


def normal(generators: Streams, like: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Standard normal numbers, drawn network by network."""
    return _filled(Tensor.normal_, generators, like)


def uniform(generators: Streams, like: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Uniform numbers in [0, 1), drawn network by network."""
    return _filled(Tensor.uniform_, generators, like)


def _filled(fill: Callable[..., Tensor], generators: Streams, like: Tensor) -> Tensor:
    drawn = torch.empty_like(like, memory_format=torch.contiguous_format, requires_grad=False)
    for each, generator in zip(drawn, generators, strict=True):
        fill(each, generator=generator)
    return drawn


@contextmanager
def without_denormals() -> Iterator[None]:
    """Numbers below 1e-38 count as 0 on a CPU.

    Gradients and weights shrink to such numbers: those of images that are classified with confidence, or where the KL
    outweighs few data. They made a step take up to three times as long.
    """
    before = float(torch.tensor(1e-39) * 1.5) == 0  # PyTorch has no function that tells
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


class MovingAverage(Generic[Module]):
    """Exponential moving average of a module's parameters, corrected for its start at zero (Kingma and Ba 2015, section
    7.2): dividing the moving average of t values by 1 − decay^t gives the latest one the weight used here."""

    def __init__(self, module: Module, decay: float) -> None:
        self.module = copy.deepcopy(module)
        self._pairs = list(zip(self.module.parameters(), module.parameters(), strict=True))
        self._remembered = torch.ones((), dtype=torch.float64, device=next(module.parameters()).device)  # decay^t
        self._decay = decay

    @torch.no_grad()
    def update(self) -> None:
        """Takes the parameters' values after one more step."""
        self._remembered.mul_(self._decay)
        weight = ((1 - self._decay) / (1 - self._remembered)).to(self._pairs[0][0].dtype)
        for average, latest in self._pairs:
            average.lerp_(latest, weight)


class Replayed:
    """A step over minibatches of row indices; a GPU replays it as one CUDA graph, since launching its kernels one by
    one takes longer than computing them.

    `step` reads and writes the same tensors in every call and must not wait for the GPU. A minibatch of another size
    is computed without the graph.
    """

    def __init__(self, step: Callable[[Tensor], None], generators: Streams, device: torch.device) -> None:
        self.step, self.generators, self.device = step, generators, device
        self.calls, self.rows, self.graph = 0, torch.empty(0), torch.cuda.CUDAGraph() if device.type == "cuda" else None

    def __call__(self, rows: Tensor) -> None:
        self.rows = self.rows if self.calls else rows.clone()  # its shape is the graph's
        if self.graph is None or rows.shape != self.rows.shape:
            self.step(rows)
        elif self.calls < WARM_UP:
            aside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            # PyTorch asks for a warm-up on another stream before capture.
            aside.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(aside):
                self.step(rows)
            torch.cuda.current_stream(self.device).wait_stream(aside)
            self.calls += 1
        else:
            self.rows.copy_(rows)
            if self.calls == WARM_UP:
                for generator in self.generators:
                    self.graph.register_generator_state(generator)
                with torch.cuda.graph(self.graph):
                    self.step(self.rows)
                self.calls += 1
            self.graph.replay()
