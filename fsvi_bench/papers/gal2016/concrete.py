"""Learnt dropout probabilities and learnt noise: what a network knows and what it cannot know (Gal 2016, section 6.7).

y = 2x + 8 + N(0, 1). Three hidden layers of 1,024 ReLU units give the mean and the log precision of y at x; the drop
probability of every layer is learnt through Concrete masks of temperature 0.1. Minimised per training point:
mean [½ τ(x)(y − f(x))² − ½ log τ(x)] + KL/N, the KL with its entropy term −K H(p) for each layer of K inputs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.gaussian import normal_log_density
from fsvi_bench.papers.gal2016.dropout_network import DropoutNetwork, Relaxation, check_temperature
from fsvi_bench.papers.gal2016.mc_dropout import log_mean_exp
from fsvi_bench.papers.gal2016.regression_data import RegressionData, line
from fsvi_bench.papers.streams import stream
from fsvi_bench.seeds import derive_seed


@dataclass(frozen=True)
class ConcreteSettings:
    """One network. Gal gives sizes and temperature; length-scale, start, steps, rates, minibatch are declared choices.

    `hard_masks`: functions are drawn from the Bernoulli posterior with the learnt p, else with the relaxed masks.
    """

    width: int = 1024
    hidden_layers: int = 3
    temperature: float = 0.1
    start_rate: float = 0.1
    length_scale: float = 1.0
    steps: int = 20_000
    minibatch: int = 128
    lr: float = 1e-3
    lr_of_rates: float = 1e-2
    draws: int = 1000
    hard_masks: bool = True
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        for name in ("length_scale", "lr", "lr_of_rates"):
            if not getattr(self, name) > 0:
                raise InputError(f"got {name} {getattr(self, name)}, expected a positive number")
        if min(self.width, self.hidden_layers, self.minibatch) < 1 or self.draws < 2 or self.steps < 0:
            raise InputError(
                f"got width {self.width}, {self.hidden_layers} hidden layers, minibatches of {self.minibatch},"
                f" {self.draws} draws and {self.steps} steps, expected at least 1 of each, 2 draws, 0 steps"
            )


@dataclass(frozen=True)
class ConcreteResult:
    """Standard deviations are roots of variances averaged over the test inputs, so that their squares add up."""

    N: int
    seed: int
    epistemic: float  # of f over functions
    aleatoric: float  # τ^−½, over functions too
    drop_rates: tuple[float, ...]  # by layer, from the inputs up
    test_log_likelihood: float  # per test point, log-mean-exp over draws
    test_rmse: float
    objective: tuple[float, ...]  # at every hundredth step
    seconds: float = field(compare=False)

    @property
    def predictive(self) -> float:
        return (self.epistemic**2 + self.aleatoric**2) ** 0.5


def concrete_dropout(data: RegressionData, settings: ConcreteSettings) -> ConcreteResult:
    """Trains one network and measures it; the same seed gives the same numbers on one device."""
    data, started = data.to(settings.device), time.perf_counter()
    network = _build(data, settings)
    objective = _train(network, data, settings)
    noise = stream(settings.device, "concrete dropout", settings.seed, "draws")
    relaxation = None if settings.hard_masks else Relaxation(settings.temperature)
    with torch.no_grad():
        outputs = torch.stack([network(data.x_test, noise, relaxation, True) for _ in range(settings.draws)]).double()
    f, variance, y = outputs[..., 0], (-outputs[..., 1]).exp(), data.y_test.double()
    return ConcreteResult(
        len(data.x),
        settings.seed,
        float(f.var(0).mean().sqrt()),
        float(variance.mean().sqrt()),
        tuple(network.drop_rates.tolist()),
        float(log_mean_exp(normal_log_density(y.expand_as(f), f, variance)).mean()),
        float((f.mean(0) - y).square().mean().sqrt()),
        objective,
        time.perf_counter() - started,
    )


def heteroscedastic_loss(outputs: Float[Tensor, "M 2"], y: Float[Tensor, " M"]) -> Tensor:
    """Mean of ½ τ (y − f)² − ½ log τ with outputs (f, log τ): −log N(y; f, 1/τ) without ½ log 2π."""
    f, log_precision = outputs.unbind(-1)
    return 0.5 * (log_precision.exp() * (y - f).square() - log_precision).mean()


def _build(data: RegressionData, settings: ConcreteSettings) -> DropoutNetwork:
    sizes = [data.x.shape[1], *[settings.width] * settings.hidden_layers, 2]
    start = stream("cpu", "concrete dropout", settings.seed, "start")
    rates = [settings.start_rate] * (len(sizes) - 1)
    return DropoutNetwork(sizes, rates, True, start, data.x.dtype).to(settings.device)


def _train(network: DropoutNetwork, data: RegressionData, settings: ConcreteSettings) -> tuple[float, ...]:
    noise = stream(settings.device, "concrete dropout", settings.seed, "noise")
    rows = stream("cpu", "concrete dropout", settings.seed, "rows")
    weights = [*network.thetas, *network.biases]
    groups: list[dict[str, Any]] = [{"params": weights}, {"params": [network.log_odds], "lr": settings.lr_of_rates}]
    optimizer, relaxation, trace = torch.optim.Adam(groups, lr=settings.lr), Relaxation(settings.temperature), []
    N, everything = len(data.x), torch.arange(len(data.x))
    for step in range(settings.steps):
        drawn = settings.minibatch < N
        batch = torch.randint(N, (settings.minibatch,), generator=rows) if drawn else everything
        batch = batch.to(settings.device)
        kl = network.kl(settings.length_scale).total
        loss = heteroscedastic_loss(network(data.x[batch], noise, relaxation), data.y[batch]) + kl / N
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 100 == 0:
            trace.append(float(loss.detach()))
    return tuple(trace)


# --- Over the number of data ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UncertaintySettings:
    """`repeats` data sets and networks at every N."""

    sizes: tuple[int, ...] = (10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
    repeats: int = 3
    N_test: int = 1000
    network: ConcreteSettings = field(default_factory=ConcreteSettings)

    @classmethod
    def quick(cls) -> UncertaintySettings:
        """Minutes on two cores."""
        return cls(sizes=(10, 100, 1000), repeats=1, network=ConcreteSettings(width=128, steps=3000, draws=200))

    def points(self) -> tuple[tuple[int, ConcreteSettings], ...]:
        """(N, settings) of every network; each may be run alone and in any order."""
        return tuple(
            (N, replace(self.network, seed=derive_seed(self.network.seed, r) % 2**31))
            for N in self.sizes
            for r in range(self.repeats)
        )


def uncertainty_over_size(settings: UncertaintySettings) -> tuple[ConcreteResult, ...]:
    return tuple(concrete_dropout(line(N, settings.N_test, point.seed), point) for N, point in settings.points())
