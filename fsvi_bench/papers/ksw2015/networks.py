"""The dropout variants of Kingma, Salimans and Welling (2015), called KSW here: layers, classifier and training.

A layer maps a [M,K] to b [M,L] by weights θ [K,L], as in KSW's B = Aθ, and a bias without noise. Unlike the rest of the
package these modules compute in PyTorch's default precision, float32, as is usual for networks.

| kind | noise | estimator `local` | `per-point` | `per-minibatch` |
|---|---|---|---|---|
| `none` | | | | |
| `bernoulli` | ξ = d/(1 − p) on a, d ~ Bernoulli(1 − p) | a mask per point | the same | one mask for all |
| `gaussian-a`, `variational-a` | ξ ~ N(1, α) on a: w_i = s_i θ_i | s per point | the same | one s for all |
| `gaussian-b`, `variational-b` | w_ij ~ N(θ_ij, α θ_ij²) | noise on b | a matrix per point | one matrix |

For noise on the inputs, a weight sample per data point is a noise vector per data point, since a diag(s) θ = (a ∘ s) θ
(KSW, section 3.2). The kinds `gaussian-*` keep α = p/(1 − p) fixed; `variational-*` learn log α per layer, per unit (an
input of the layer, which dropout would drop), or per weight (independent noise only), with α ≤ 1.

Training is as in section 5: Adam with its default rates and momenta, temporal averaging (Kingma and Ba 2015, section
7.2), and the number of epochs chosen on a validation set. The paper does not state the minibatch size or the size of
the validation set; the values here are our choices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, cast

import torch
from jaxtyping import Float
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from fsvi_bench.maths.log_uniform import ksw_cubic_kl
from fsvi_bench.papers.ksw2015.data import Images
from fsvi_bench.papers.parts import Plain
from fsvi_bench.papers.streams import stream

Kind = Literal["none", "bernoulli", "gaussian-a", "gaussian-b", "variational-a", "variational-b"]
Granularity = Literal["layer", "unit", "weight"]
#: How noise is drawn. This affects gradients but not the distribution of a single output. "no-noise" draws none.
Estimator = Literal["local", "per-point", "per-minibatch", "no-noise"]
ESTIMATORS: tuple[Estimator, ...] = ("local", "per-point", "per-minibatch")

DROP_RATES = (0.2, 0.5, 0.5, 0.5)  #: for the inputs and the units of each hidden layer
CHUNK = 2**24  # number of entries of per-point noise in memory at a time


class NoiseSettings(Plain):
    """The noise of a layer."""

    kind: Kind
    granularity: Granularity = "layer"

    @model_validator(mode="after")
    def _inputs_have_no_weights(self) -> NoiseSettings:
        if self.kind == "variational-a" and self.granularity == "weight":
            raise ValueError(
                "got an α per weight for variational-a, expected one per layer or unit, since its noise is on the"
                " inputs; choose granularity layer or unit, or kind variational-b"
            )
        return self

    @property
    def is_variational(self) -> bool:
        return self.kind.startswith("variational")

    @property
    def is_on_weights(self) -> bool:
        """Independent noise on the weights (type B), as opposed to noise on the inputs."""
        return self.kind.endswith("-b")


class NoisyLinear(nn.Module):
    """One layer. With a generator it draws noise; without one it uses the mean weights.

    `drop_rate` p in (0, 1) gives α = p/(1 − p), which is the initial value if α is learnt (then p ≤ 1/2).
    """

    log_alpha: Tensor  #: [1,1], [K,1] or [K,L]

    def __init__(
        self, inputs: int, outputs: int, noise: NoiseSettings, drop_rate: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.noise, self.drop_rate = noise, drop_rate
        self.theta = nn.Parameter(math.sqrt(2 / inputs) * torch.randn(inputs, outputs, generator=generator))  # He's
        self.bias = nn.Parameter(torch.zeros(outputs))
        start = math.log(drop_rate / (1 - drop_rate)) if noise.kind != "none" else -math.inf
        if noise.is_variational:
            shape = {"layer": (1, 1), "unit": (inputs, 1), "weight": (inputs, outputs)}[noise.granularity]
            self.log_alpha = nn.Parameter(torch.full(shape, start))
        else:
            self.register_buffer("log_alpha", torch.full((1, 1), start))

    def forward(
        self, a: Float[Tensor, "M K"], generator: torch.Generator | None = None, estimator: Estimator = "local"
    ) -> Float[Tensor, "M L"]:
        if generator is None or self.noise.kind == "none" or estimator == "no-noise":
            return torch.addmm(self.bias, a, self.theta)
        if not self.noise.is_on_weights:
            rows = a[:1] if estimator == "per-minibatch" else a
            return torch.addmm(self.bias, a * self._input_noise(rows, generator), self.theta)
        scale = (0.5 * self.log_alpha).exp() * self.theta  # the weights' standard deviations, up to signs
        if estimator == "per-minibatch":
            return torch.addmm(self.bias, a, self.theta + scale * normal_like(scale, generator))
        noise = self._local_noise(a, generator) if estimator == "local" else per_point_noise(a, scale, generator)
        return torch.addmm(self.bias, a, self.theta) + noise

    def _local_noise(self, a: Tensor, generator: torch.Generator) -> Float[Tensor, "M L"]:
        """√δ ζ, which the local reparameterisation adds to the mean γ of b (KSW, eq. 6 and 10)."""
        alpha, square = self.log_alpha.exp(), self.theta.square()
        # Per layer or unit, α scales the inputs: M×K products instead of K×L ones.
        per_weight = alpha.shape == square.shape
        delta = a.square() @ (alpha * square) if per_weight else (alpha.mT * a.square()) @ square
        # If all inputs are 0, δ is 0 and the square root has an infinite derivative: ∞ · 0 is NaN. The smallest normal
        # number keeps it finite, hence the product 0, and does not change any other δ.
        return (delta + torch.finfo(delta.dtype).tiny).sqrt() * normal_like(delta, generator)

    def _input_noise(self, rows: Tensor, generator: torch.Generator) -> Float[Tensor, "rows K"]:
        if self.noise.kind == "bernoulli":
            keep = 1 - self.drop_rate
            uniform = torch.rand(rows.shape, generator=generator, dtype=rows.dtype, device=rows.device)
            return (uniform < keep).to(rows.dtype) / keep
        return 1 + (0.5 * self.log_alpha).exp().mT * normal_like(rows, generator)

    def kl(self) -> Tensor:
        """KSW's cubic approximation of the KL to the log-uniform prior, in nats (section 3.3).

        The sum is over all weights (type B) or all input scales s_i (type A). It is 0 if α is fixed, since the KL does
        not depend on θ.
        """
        if not self.noise.is_variational:
            return self.theta.new_zeros(())
        terms = self.theta.numel() if self.noise.is_on_weights else len(self.theta)
        return ksw_cubic_kl(self.log_alpha.exp()).sum() * (terms / self.log_alpha.numel())

    @torch.no_grad()
    def project(self) -> None:
        """Restores α ≤ 1 after each step of an optimiser (KSW, section 3.4).

        A clamp in the forward pass would have no gradient beyond the bound, so α could not decrease again.
        """
        if self.noise.is_variational:
            self.log_alpha.clamp_(max=0.0)

    @torch.no_grad()
    def mean_drop_rate(self) -> float:
        """Mean of α/(1 + α), the dropout rate with the same relative variance as α."""
        return float(self.log_alpha.sigmoid().mean())


class Classifier(nn.Module):
    """KSW's ReLU network with three hidden layers of the same width: logits from images.

    It draws noise only if it is given a generator. A layer's noise is before or within its linear map, so the first
    layer has the inputs' dropout and the last layer that of the last hidden layer.
    """

    def __init__(self, images: Images, noise: NoiseSettings, width: int, seed: int) -> None:
        super().__init__()
        sizes = [images.x_train.shape[1], width, width, width, int(images.y_train.max()) + 1]
        start = stream("cpu", "networks", "start", seed)  # on the CPU, so that all devices have the same initial values
        layers = [NoisyLinear(K, L, noise, p, start) for (K, L), p in zip(pairwise(sizes), DROP_RATES, strict=True)]
        self.layers: list[NoisyLinear] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.to(images.x_train.device)

    def forward(
        self, x: Float[Tensor, "M D"], generator: torch.Generator | None = None, estimator: Estimator = "local"
    ) -> Float[Tensor, "M classes"]:
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(x, generator, estimator).relu()
        return cast(Tensor, last(x, generator, estimator))

    def kl(self) -> Tensor:
        """Sum of the layers' KL divergences, in nats."""
        return torch.stack([layer.kl() for layer in self.layers]).sum()


def per_point_noise(
    a: Float[Tensor, "M K"], scale: Float[Tensor, "K L"], generator: torch.Generator
) -> Float[Tensor, "M L"]:
    """Σ_i a_mi s_ij ε_mij with a separate ε for every data point m.

    ε has M·K·L entries, too many for memory at KSW's sizes. It is drawn in chunks of points, and drawn again from the
    generator's saved state in the backward pass.
    """
    state, noises = generator.get_state(), []
    for points in a.split(max(1, CHUNK // scale.numel())):  # type: ignore[no-untyped-call]
        noise, state = checkpoint(_noise_of, points, scale, state, use_reentrant=False, preserve_rng_state=False)
        noises.append(noise)
    generator.set_state(state)
    return torch.cat(noises)


def _noise_of(points: Tensor, scale: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """A chunk's noise, and the generator's state after it."""
    generator = torch.Generator(points.device)
    generator.set_state(state)
    epsilon = torch.randn((len(points), *scale.shape), generator=generator, dtype=points.dtype, device=points.device)
    return torch.bmm(points[:, None], epsilon * scale)[:, 0], generator.get_state()


def normal_like(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)


# --- Training ---------------------------------------------------------------------------------------------------------


class TrainSettings(Plain):
    """`kl_scale` multiplies the KL (KSW's A2 has 1/3); `averaging` is the decay of the weights' moving average."""

    epochs: NonNegativeInt = 100
    minibatch: PositiveInt = 100
    lr: PositiveFloat = 1e-3
    kl_scale: NonNegativeFloat = 1.0
    averaging: float = Field(default=0.999, ge=0, lt=1)
    validation_share: float = Field(default=0.1, ge=0, lt=1)
    seed: int = 0


def train(network: Classifier, images: Images, settings: TrainSettings) -> Iterator[Classifier]:
    """Minimises mean cross entropy + kl_scale · KL / N over the training images.

    Yields the network with averaged weights before the first epoch and after each epoch. It is always the same module,
    which is updated in place. On the same device the same seed gives the same weights.
    """
    x, y = images.x_train, images.y_train
    noise = stream(x.device, "networks", "noise", settings.seed)
    order = stream("cpu", "networks", "order", settings.seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr)
    averaged = averaged_copy(network, settings.averaging)
    yield cast(Classifier, averaged.module)
    for _ in range(settings.epochs):
        shuffled = torch.randperm(len(x), generator=order).to(x.device)
        for rows in shuffled.split(settings.minibatch):  # type: ignore[no-untyped-call]
            step(network, optimizer, x[rows], y[rows], noise, settings.kl_scale / len(x))
            averaged.update_parameters(network)
        yield cast(Classifier, averaged.module)


def averaged_copy(network: torch.nn.Module, decay: float) -> AveragedModel:
    """Exponential moving average of a network's weights, corrected for its start at zero (Kingma and Ba 2015).

    Dividing the moving average of t weights by 1 − decay^t gives the latest one the weight used here.
    """

    def average(before: Tensor, new: Tensor, seen: Tensor | int) -> Tensor:
        return before.lerp(new, (1 - decay) / (1 - decay ** (int(seen) + 1)))

    return AveragedModel(network, avg_fn=average)


def step(
    network: Classifier,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    noise: torch.Generator,
    kl_scale: float,
    estimator: Estimator = "local",
) -> Tensor:
    """One optimisation step; returns the objective, mean cross entropy plus scaled KL."""
    objective = cross_entropy(network(x, noise, estimator), y) + kl_scale * network.kl()
    optimizer.zero_grad()
    objective.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    for layer in network.layers:
        layer.project()
    return objective.detach()


def split(images: Images, settings: TrainSettings) -> tuple[Images, tuple[Tensor, Tensor]]:
    """The images without a validation set drawn from the training images, and the validation set."""
    x, y = images.x_train, images.y_train
    order = torch.randperm(len(x), generator=stream("cpu", "networks", "validation", settings.seed)).to(x.device)
    out, kept = order.tensor_split([round(settings.validation_share * len(x))])
    return images._replace(x_train=x[kept], y_train=y[kept]), (x[out], y[out])


@torch.no_grad()
def error_rate(network: Classifier, x: Tensor, y: Tensor) -> float:
    """The proportion of images that are misclassified without noise."""
    return float((network(x).argmax(-1) != y).double().mean())
