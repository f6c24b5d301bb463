"""Regression networks with Gal's dropout posterior, its KL, and training data (Gal 2016, chapter 6).

q(w_k) = p δ_0 + (1 − p) δ_{m_k} for each row w_k of a weight matrix: all weights of one input of a layer are dropped
together, with drop probability p. Networks store θ = (1 − p) m and multiply by z/(1 − p), so a layer's mean does not
depend on p; then (1 − p)‖m‖² = ‖θ‖²/(1 − p). Biases are never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from fsvi_bench.maths.bernoulli_dropout import bernoulli_entropy
from fsvi_bench.papers.streams import stream
from fsvi_bench.seeds import derived_generator
from fsvi_bench.strict import Plain

# --- One-dimensional regression problems with a known function, for sections 6.4 and 6.7 ------------------------------


class RegressionData(NamedTuple):
    """Training and test data in float32."""

    x: Float[Tensor, "N D"]
    y: Float[Tensor, " N"]
    x_test: Float[Tensor, "N_test D"]
    y_test: Float[Tensor, " N_test"]


class Problem(NamedTuple):
    """y = f(x) + N(0, noise²)."""

    name: str
    draw_inputs: Callable[[np.random.Generator, int], np.ndarray]
    f: Callable[[np.ndarray], np.ndarray]
    noise: float  #: standard deviation

    def draw(self, N: int, N_test: int = 1000, seed: int = 0, device: str = "cpu") -> RegressionData:
        """Training and test points, from separate random streams."""
        tensors = []
        for role, n in (("train", N), ("test", N_test)):
            rng = derived_generator("networks", self.name, role, seed)
            x = self.draw_inputs(rng, n)
            y = self.f(x) + self.noise * rng.standard_normal(n)
            tensors += [torch.as_tensor(each, dtype=torch.float32, device=device) for each in (x[:, None], y)]
        return RegressionData(*tensors)


#: Replaces Snelson and Ghahramani's data, whose licence does not allow redistribution. The data are similar: one input
#: on [0, 6], here shifted to [−3, 3], a smooth function with a few oscillations between about ±1, and Gaussian noise,
#: here with a precision of 12.8, between the model precisions 10 and 20 of section 6.4.
WAVES = Problem(
    "waves", lambda rng, n: rng.uniform(-3, 3, n), lambda x: 0.8 * np.sin(1.5 * x) + 0.5 * np.sin(3.1 * x + 0.5), 0.28
)
#: For section 6.7. The text does not give the distribution of x: standard normal is our choice.
LINE = Problem("line", lambda rng, n: rng.standard_normal(n), lambda x: 2 * x + 8, 1.0)


# --- Networks ---------------------------------------------------------------------------------------------------------


class NetworkSettings(Plain):
    """Settings of both experiments. Gal gives the sizes; steps, learning rate, minibatch and draws are our choices."""

    width: PositiveInt
    hidden_layers: PositiveInt
    length_scale: PositiveFloat
    steps: NonNegativeInt
    minibatch: PositiveInt
    lr: PositiveFloat
    draws: int = Field(ge=2)
    seed: int


def concrete_keep(
    log_odds: Float[Tensor, "*B"], uniform: Float[Tensor, "*B"], temperature: float
) -> Float[Tensor, "*B"]:
    """1 − z̃ of section 6.7, the relaxed indicator of keeping an input, given the log odds of dropping it.

    z̃ = sigmoid((log p − log(1 − p) + log u − log(1 − u))/t). As t → 0 it becomes Bernoulli: z̃ > ½ iff u > 1 − p.
    """
    return torch.sigmoid(-(log_odds + uniform.logit()) / temperature)


class DropoutNetwork(nn.Module):
    """ReLU layers of any widths; `sizes` runs from the inputs to the outputs, with one drop rate per weight matrix.

    Rates are below 1 and stored as log odds; fixed rates may be 0.
    """

    log_odds: Tensor

    def __init__(
        self,
        sizes: Sequence[int],
        drop_rates: Sequence[float],
        learn_rates: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        # He initialisation for the second moment of θ z/(1 − p), which is θ²/(1 − p).
        self.thetas = nn.ParameterList(
            math.sqrt(2 * (1 - p) / K) * torch.randn(K, L, generator=generator)
            for K, L, p in zip(sizes[:-1], sizes[1:], drop_rates, strict=True)
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(L)) for L in sizes[1:])
        log_odds = torch.tensor(drop_rates, dtype=torch.float64).logit()
        self.log_odds = nn.Parameter(log_odds.float(), requires_grad=learn_rates)

    def forward(
        self,
        x: Float[Tensor, "M D"],
        generator: torch.Generator,
        temperature: float | None = None,
        one_function: bool = False,
    ) -> Float[Tensor, "M outputs"]:
        """Draws a mask for every row, or one mask for all, in which case the rows are values of one function.

        With a temperature, masks are drawn from the Concrete distribution, so probabilities can be learnt.
        """
        for i, (theta, bias, log_odds) in enumerate(zip(self.thetas, self.biases, self.log_odds, strict=True)):
            x = x.relu() if i else x
            rows = x[:1] if one_function else x
            uniform = torch.rand(rows.shape, generator=generator, dtype=x.dtype, device=x.device)
            retain = 1 - log_odds.sigmoid()
            if temperature is None:
                kept = uniform < retain
            else:
                kept = concrete_keep(log_odds.expand_as(uniform), uniform, temperature)
            x = torch.addmm(bias, x * (kept / retain), theta)
        return x

    def kl(self, length_scale: float) -> tuple[Tensor, Tensor]:
        """KL(q ‖ p) to N(0, l⁻²I) in nats without its constant (Gal 2016, eq. 6.6), as (weights, entropy): their
        difference is the KL, over all weight rows and biases, the latter as point masses.
        """
        p = self.log_odds.sigmoid()
        squares = torch.stack([theta.square().sum() for theta in self.thetas])
        biases = torch.stack([bias.square().sum() for bias in self.biases]).sum()
        weights = 0.5 * length_scale**2 * ((squares / (1 - p)).sum() + biases)
        return weights, (p.new_tensor([len(theta) for theta in self.thetas]) * bernoulli_entropy(p)).sum()

    @torch.no_grad()
    def functions(
        self, x: Float[Tensor, "N D"], draws: int, generator: torch.Generator
    ) -> Float[Tensor, "T N outputs"]:
        """Values of `draws` functions drawn from q at all rows of x."""
        return torch.stack([self(x, generator, one_function=True) for _ in range(draws)])


def fit(
    data: RegressionData,
    settings: NetworkSettings,
    purpose: tuple[str, int],
    outputs: int,
    drop_rates: Sequence[float],
    loss: Callable[[Tensor, Tensor], Tensor],
    temperature: float | None = None,
    lr_of_rates: float = 0.0,
) -> tuple[DropoutNetwork, list[float]]:
    """A network that minimises loss(outputs, y) + KL/N by Adam, with minibatches if N is larger than their size.

    Args:
        purpose: names the random streams.
        drop_rates: by weight matrix; learnt if `temperature` is given.
        loss: the mean over points of −log p(y | outputs).

    Returns:
        The network, and the objective at every hundredth step.
    """
    device = data.x.device
    sizes = [data.x.shape[1], *[settings.width] * settings.hidden_layers, outputs]
    network = DropoutNetwork(sizes, drop_rates, temperature is not None, stream("cpu", *purpose, "start")).to(device)
    noise, rows = stream(device, *purpose, "noise"), stream("cpu", *purpose, "rows")
    rates: dict[str, Any] = {"params": [network.log_odds], "lr": lr_of_rates}
    optimizer = torch.optim.Adam([{"params": [*network.thetas, *network.biases]}, rates], lr=settings.lr)
    N, trace = len(data.x), []
    for step in range(settings.steps):
        drawn = torch.randint(N, (settings.minibatch,), generator=rows) if settings.minibatch < N else torch.arange(N)
        batch = drawn.to(device)
        weights, entropy = network.kl(settings.length_scale)
        objective = loss(network(data.x[batch], noise, temperature), data.y[batch]) + (weights - entropy) / N
        optimizer.zero_grad()
        objective.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 100 == 0:
            trace.append(float(objective.detach()))
    return network, trace


def mean_log_density(log_densities: Float[Tensor, "T N"]) -> float:
    """Mean over points of the log of the mean density over draws."""
    return float((log_densities.double().logsumexp(0) - math.log(len(log_densities))).mean())
