"""Does the ELBO tell which dropout probability predicts best? (Gal 2016, section 6.4.)

Networks of four hidden layers of 1,024 ReLU units, drop probability p and model precision τ fixed, trained to maximise
ELBO = Σ E_q log N(y_n; f(x_n), τ⁻¹) − KL(q ‖ p), with the KL of `dropout_network`. The KL's constant depends on neither
p nor the weights; it is left out of `elbo` and reported beside it. The first layer's weights are kept unless asked
otherwise: dropping the only input with probability p leaves a constant function that often.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.errors import InputError
from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.papers.gal2016.dropout_network import DropoutNetwork, discrete_constant
from fsvi_bench.papers.gal2016.regression_data import RegressionData, waves
from fsvi_bench.papers.streams import stream
from fsvi_bench.seeds import derive_seed


@dataclass(frozen=True)
class McDropoutSettings:
    """One network. Gal gives sizes, p and τ; length-scale, steps, rate and minibatch are declared choices.

    `interval` is the spacing of the weights' grid in eq. 6.6, float32's near 1.
    """

    drop_rate: float = 0.1
    precision: float = 50.0
    width: int = 1024
    hidden_layers: int = 4
    drop_inputs: bool = False
    length_scale: float = 1e-2
    interval: float = 2.0**-23
    steps: int = 20_000
    minibatch: int = 128
    lr: float = 1e-3
    draws: int = 1000
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("precision", "length_scale", "interval", "lr"):
            if not getattr(self, name) > 0:
                raise InputError(f"got {name} {getattr(self, name)}, expected a positive number")
        if min(self.width, self.hidden_layers, self.minibatch, self.draws) < 1 or self.steps < 0:
            raise InputError(
                f"got width {self.width}, {self.hidden_layers} hidden layers, minibatches of {self.minibatch},"
                f" {self.draws} draws and {self.steps} steps, expected at least 1 of each and no negative steps"
            )


@dataclass(frozen=True)
class McDropoutResult:
    """Nats; everything `per point` is divided by the number of training or test points."""

    drop_rate: float
    precision: float
    seed: int
    elbo: float  # per training point, without the KL's constant
    expected_log_likelihood: float  # per training point
    kl_weights: float  # ½ l² (1 − p)‖m‖² over all rows
    kl_entropy: float  # Σ rows · H(p), which the KL takes off
    discrete_constant: float  # what eq. 6.6 would add to the KL
    test_log_likelihood: float  # per test point, log-mean-exp over draws
    test_log_likelihood_error: float  # standard error over test points
    test_rmse: float  # of the mean over draws
    seconds: float = field(compare=False)


def mc_dropout(data: RegressionData, settings: McDropoutSettings) -> McDropoutResult:
    """Trains one network and measures it; the same seed gives the same numbers on one device."""
    data, started = data.to(settings.device), time.perf_counter()
    network = _build(data, settings)
    _train(network, data, settings)
    noise = stream(settings.device, "mc dropout", settings.seed, "draws")
    with torch.no_grad():
        kl_weights, kl_entropy = map(float, network.kl(settings.length_scale))
        fit = function_draws(network, data.x, settings.draws, noise)
        likelihood = float(log_likelihood(fit, data.y, settings.precision).mean())
        predictions = function_draws(network, data.x_test, settings.draws, noise)
    scores = log_mean_exp(log_likelihood(predictions, data.y_test, settings.precision))
    return McDropoutResult(
        settings.drop_rate,
        settings.precision,
        settings.seed,
        likelihood - (kl_weights - kl_entropy) / len(data.x),
        likelihood,
        kl_weights,
        kl_entropy,
        discrete_constant(network.weights, settings.length_scale, settings.interval),
        float(scores.mean()),
        float(scores.std() / math.sqrt(len(scores))),
        float((predictions.mean(0) - data.y_test).square().mean().sqrt()),
        time.perf_counter() - started,
    )


def _build(data: RegressionData, settings: McDropoutSettings) -> DropoutNetwork:
    sizes = [data.x.shape[1], *[settings.width] * settings.hidden_layers, 1]
    rates = [settings.drop_rate] * (len(sizes) - 1)
    if not settings.drop_inputs:
        rates[0] = 0.0
    start = stream("cpu", "mc dropout", settings.seed, "start")
    return DropoutNetwork(sizes, rates, False, start, data.x.dtype).to(settings.device)


def _train(network: DropoutNetwork, data: RegressionData, settings: McDropoutSettings) -> None:
    noise = stream(settings.device, "mc dropout", settings.seed, "noise")
    rows = stream("cpu", "mc dropout", settings.seed, "rows")
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr)
    for _ in range(settings.steps):
        batch = torch.randint(len(data.x), (settings.minibatch,), generator=rows).to(settings.device)
        f = network(data.x[batch], noise)[:, 0]
        loss = negative_elbo(f, data.y[batch], network, len(data.x), settings)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def negative_elbo(
    f: Float[Tensor, " M"], y: Float[Tensor, " M"], network: DropoutNetwork, N: int, settings: McDropoutSettings
) -> Tensor:
    """−ELBO/N estimated from a minibatch, without the KL's constant."""
    return network.kl(settings.length_scale).total / N - log_likelihood(f, y, settings.precision).mean()


def function_draws(
    network: DropoutNetwork, x: Float[Tensor, "N D"], draws: int, generator: torch.Generator
) -> Float[Tensor, "T N"]:
    """First output of `draws` functions drawn from q, at all rows of x."""
    return torch.stack([network(x, generator, one_function=True)[:, 0] for _ in range(draws)])


def log_likelihood(f: Float[Tensor, "*T N"], y: Float[Tensor, " N"], precision: float) -> Float[Tensor, "*T N"]:
    """log N(y; f, 1/τ), elementwise."""
    return 0.5 * (math.log(precision) - LOG_2PI - precision * (y - f).square())


def log_mean_exp(log_values: Float[Tensor, "T N"]) -> Float[Tensor, " N"]:
    return log_values.double().logsumexp(0) - math.log(len(log_values))


# --- The grid of section 6.4 ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ElboGridSettings:
    """Every p with every τ, `repeats` times with other seeds, on the same data."""

    drop_rates: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)
    precisions: tuple[float, ...] = (10.0, 20.0, 50.0)
    repeats: int = 3
    N: int = 5000
    N_test: int = 1000
    network: McDropoutSettings = field(default_factory=McDropoutSettings)

    @classmethod
    def quick(cls) -> ElboGridSettings:
        """Minutes on two cores."""
        network = McDropoutSettings(width=128, steps=2000, draws=200)
        return cls(drop_rates=(0.0, 0.1, 0.5, 0.9), precisions=(10.0, 50.0), repeats=1, N=1000, network=network)

    def points(self) -> tuple[McDropoutSettings, ...]:
        """The settings of every network; each may be run alone and in any order."""
        return tuple(
            replace(self.network, drop_rate=p, precision=precision, seed=derive_seed(self.network.seed, r) % 2**31)
            for precision in self.precisions
            for p in self.drop_rates
            for r in range(self.repeats)
        )


def elbo_grid(settings: ElboGridSettings) -> tuple[McDropoutResult, ...]:
    data = waves(settings.N, settings.N_test, settings.network.seed)
    return tuple(mc_dropout(data, point) for point in settings.points())
