"""The dropout variants of Kingma, Salimans and Welling (2015), called KSW here: layers, classifier and training.

A layer maps a [M,K] to b [M,L] by weights θ [K,L], as in KSW's B = Aθ, and a bias without noise. All tensors have a
leading axis over B networks of one width, which are trained side by side and may have different noise. Unlike the rest
of the package these modules compute in PyTorch's default precision, float32, as is usual for networks.

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
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from fsvi_bench.maths.log_uniform import ksw_cubic_kl
from fsvi_bench.papers.ksw2015.data import Images
from fsvi_bench.papers.side_by_side import MovingAverage, Replayed, Streams, normal, streams, uniform
from fsvi_bench.strict import Plain

Kind = Literal["none", "bernoulli", "gaussian-a", "gaussian-b", "variational-a", "variational-b"]
Granularity = Literal["layer", "unit", "weight"]
#: How noise is drawn. This affects gradients but not the distribution of a single output. "no-noise" draws none.
Estimator = Literal["local", "per-point", "per-minibatch", "no-noise"]
ESTIMATORS: tuple[Estimator, ...] = ("local", "per-point", "per-minibatch")

DROP_RATES = (0.2, 0.5, 0.5, 0.5)  #: for the inputs and the units of each hidden layer
LEAST_LOG_ALPHA = -80.0  #: exp of which is a normal number in float32; training that converges stays far above
#: Device -> number of entries of per-point noise in memory at a time. Larger ones take up to twice as long on a CPU.
CHUNK = {"cpu": 2**22, "cuda": 2**24}


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
    """One layer of B networks side by side. With generators it draws noise; without them it uses the mean weights.

    `drop_rate` p in (0, 1) gives α = p/(1 − p), the initial value where α is learnt; if any is learnt, p ≤ 1/2.

    Args:
        noise: of each network, all of them on the weights (type B) or none of them, and all with the same granularity.
        generators: for each network's initial weights.
    """

    log_alpha: Tensor  #: [B,1,1], [B,K,1] or [B,K,L]; learnt in variational networks alone
    kl_terms: Tensor  #: [B,1,1]: weights (type B) or input scales (type A) per learnt α; 0 for a fixed one

    def __init__(
        self, inputs: int, outputs: int, noise: Sequence[NoiseSettings], drop_rate: float, generators: Streams
    ) -> None:
        super().__init__()
        self.noise, self.drop_rate = tuple(noise), drop_rate
        start = [torch.randn(inputs, outputs, generator=each) for each in generators]
        self.theta = nn.Parameter(math.sqrt(2 / inputs) * torch.stack(start))  # He's
        self.bias = nn.Parameter(torch.zeros(len(start), 1, outputs))
        self.is_on_weights, granularity = noise[0].is_on_weights, noise[0].granularity
        if {(each.is_on_weights, each.granularity) for each in noise} != {(self.is_on_weights, granularity)}:
            kinds = ", ".join(f"{each.kind} per {each.granularity}" for each in dict.fromkeys(noise))
            raise ValueError(
                f"got networks with noise {kinds} in one stack, expected noise on inputs or on weights, and one"
                " granularity; make a stack for each"
            )
        shape = {"layer": (1, 1), "unit": (inputs, 1), "weight": (inputs, outputs)}[granularity]
        log_alpha = torch.full((len(start), *shape), math.log(drop_rate / (1 - drop_rate)))
        if any(each.is_variational for each in noise):
            self.log_alpha = nn.Parameter(log_alpha)
        else:
            self.register_buffer("log_alpha", log_alpha)
        noises = inputs * outputs if self.is_on_weights else inputs
        terms = [noises / log_alpha[0].numel() if each.is_variational else 0.0 for each in noise]
        self.register_buffer("kl_terms", torch.tensor(terms)[:, None, None])

    def forward(
        self, a: Float[Tensor, "B M K"], generators: Streams | None = None, estimator: Estimator = "local"
    ) -> Float[Tensor, "B M L"]:
        if generators is None or estimator == "no-noise" or {each.kind for each in self.noise} == {"none"}:
            return torch.baddbmm(self.bias, a, self.theta)
        if not self.is_on_weights:
            rows = a[:, :1] if estimator == "per-minibatch" else a
            return torch.baddbmm(self.bias, a * self._input_noise(rows, generators), self.theta)
        if estimator == "local":
            return torch.baddbmm(self.bias, a, self.theta) + self._local_noise(a, generators)
        scale = (0.5 * self._log_alpha()).exp() * self.theta  # the weights' standard deviations, up to signs
        if estimator == "per-minibatch":
            return torch.baddbmm(self.bias, a, self.theta + scale * normal(generators, scale))
        return torch.baddbmm(self.bias, a, self.theta) + per_point_noise(a, scale, generators)

    def _log_alpha(self) -> Tensor:
        """log α, through which gradients flow to those that are learnt."""
        return torch.where(self.kl_terms > 0, self.log_alpha, self.log_alpha.detach())

    def _local_noise(self, a: Float[Tensor, "B M K"], generators: Streams) -> Float[Tensor, "B M L"]:
        """√δ ζ, which the local reparameterisation adds to the mean γ of b (KSW, eq. 6 and 10)."""
        alpha, square = self._log_alpha().exp(), self.theta.square()
        # Per layer or unit, α scales the inputs: M×K products instead of K×L ones.
        per_weight = alpha.shape == square.shape
        delta = a.square() @ (alpha * square) if per_weight else (alpha.mT * a.square()) @ square
        # If all inputs are 0, δ is 0 and the square root has an infinite derivative: ∞ · 0 is NaN. The smallest normal
        # number keeps it finite, hence the product 0, and does not change any other δ.
        return (delta + torch.finfo(delta.dtype).tiny).sqrt() * normal(generators, delta)

    def _input_noise(self, rows: Float[Tensor, "B rows K"], generators: Streams) -> Float[Tensor, "B rows K"]:
        log_alpha, keep = self._log_alpha(), 1 - self.drop_rate

        def factor(run: slice, noise: NoiseSettings) -> Tensor:
            if noise.kind == "none":
                return torch.ones_like(rows[run])
            if noise.kind == "bernoulli":
                return (uniform(generators[run], rows[run]) < keep).to(rows.dtype) / keep
            return 1 + (0.5 * log_alpha[run]).exp().mT * normal(generators[run], rows[run])

        parts, start = [], 0
        for noise, run in groupby(self.noise):
            stop = start + len(list(run))
            parts.append(factor(slice(start, stop), noise))
            start = stop
        return torch.cat(parts)

    @torch.no_grad()
    def project(self) -> None:
        """Restores α ≤ 1 after each step of an optimiser (KSW, section 3.4), and α > 0 where training diverges.

        A clamp in the forward pass would have no gradient beyond the bound, so α could not decrease again.
        """
        if any(each.is_variational for each in self.noise):
            self.log_alpha.clamp_(LEAST_LOG_ALPHA, 0.0)

    @torch.no_grad()
    def mean_drop_rates(self) -> list[float]:
        """Each network's mean of α/(1 + α), the dropout rate with the same relative variance as α; 0 without noise."""
        rates = self.log_alpha.sigmoid().mean((1, 2)).tolist()
        return [0.0 if noise.kind == "none" else rate for rate, noise in zip(rates, self.noise, strict=True)]


def kl(layers: Iterable[NoisyLinear]) -> Float[Tensor, " B"]:
    """KSW's cubic approximation of the KL of each network's layers to the log-uniform prior, in nats (section 3.3).

    The sum is over all weights (type B) or all input scales s_i (type A). It is 0 if α is fixed, since the KL does not
    depend on θ.
    """
    pairs = [(layer.log_alpha.flatten(1), layer.kl_terms.expand_as(layer.log_alpha).flatten(1)) for layer in layers]
    log_alpha, terms = (torch.cat(each, 1) for each in zip(*pairs, strict=True))
    learnt = torch.where(terms > 0, log_alpha, 0.0)  # a fixed α may exceed 1, where the approximation does not hold
    return (terms * ksw_cubic_kl(learnt.exp())).sum(1)


class Classifier(nn.Module):
    """KSW's ReLU networks with three hidden layers of the same width, B of them side by side: logits from images.

    They draw noise only if they are given generators. A layer's noise is before or within its linear map, so the first
    layer has the inputs' dropout and the last layer that of the last hidden layer.

    Args:
        noise: of each network; see `NoisyLinear`.
        seeds: of each network, for its initial weights and its training.
    """

    def __init__(self, images: Images, noise: Sequence[NoiseSettings], width: int, seeds: Sequence[int]) -> None:
        super().__init__()
        sizes = [images.x_train.shape[1], width, width, width, int(images.y_train.max()) + 1]
        start = streams("cpu", "networks", "start", seeds=seeds)  # so that all devices have the same initial values
        layers = [NoisyLinear(K, L, noise, p, start) for (K, L), p in zip(pairwise(sizes), DROP_RATES, strict=True)]
        self.layers: list[NoisyLinear] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.seeds = tuple(seeds)
        self.to(images.x_train.device)

    def forward(
        self,
        x: Float[Tensor, "M D"] | Float[Tensor, "B M D"],
        generators: Streams | None = None,
        estimator: Estimator = "local",
        hidden: Estimator | None = None,
    ) -> Float[Tensor, "B M classes"]:
        """Logits; `hidden` is the estimator below the top layer, by default the same one."""
        *below, top = self.layers
        x = x.expand(len(self.seeds), -1, -1)
        for layer in below:
            x = layer(x, generators, hidden or estimator).relu()
        return cast(Tensor, top(x, generators, estimator))

    def kl(self) -> Float[Tensor, " B"]:
        """KL divergence of each network, in nats."""
        return kl(self.layers)


def per_point_noise(
    a: Float[Tensor, "B M K"], scale: Float[Tensor, "B K L"], generators: Streams
) -> Float[Tensor, "B M L"]:
    """Σ_i a_mi s_ij ε_mij with a separate ε for every data point m of every network.

    ε has M·K·L entries for each network, too many for memory at KSW's sizes. It is drawn in chunks of points, and drawn
    again from the generator's saved state in the backward pass.
    """
    return torch.stack([_per_point_noise(*each) for each in zip(a, scale, generators, strict=True)])


def _per_point_noise(
    a: Float[Tensor, "M K"], scale: Float[Tensor, "K L"], generator: torch.Generator
) -> Float[Tensor, "M L"]:
    state, noises = generator.get_state(), []
    for points in a.split(max(1, CHUNK[a.device.type] // scale.numel())):  # type: ignore[no-untyped-call]
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


# --- Training ---------------------------------------------------------------------------------------------------------


class TrainSettings(Plain):
    """`averaging` is the decay of the weights' moving average."""

    epochs: NonNegativeInt = 100
    minibatch: PositiveInt = 100
    lr: PositiveFloat = 1e-3
    averaging: float = Field(default=0.999, ge=0, lt=1)
    validation_share: float = Field(default=0.1, ge=0, lt=1)
    seed: int = 0


def train(
    network: Classifier, images: Images, settings: TrainSettings, kl_scale: Sequence[float] | None = None
) -> Iterator[Classifier]:
    """Minimises mean cross entropy + kl_scale · KL / N of each network, over its N training images.

    Yields the networks with averaged weights before the first epoch and after each epoch. It is always the same module,
    which is updated in place. On the same device the same stack gives the same weights.

    Args:
        kl_scale: of each network; 1 by default. KSW's A2 has 1/3.
    """
    x, y = images.x_train, images.y_train
    noise = streams(x.device, "networks", "noise", seeds=network.seeds)
    orders = streams("cpu", "networks", "order", seeds=network.seeds)
    _, kept = split(len(x), settings.validation_share, network.seeds)
    scale = torch.tensor(kl_scale or [1.0] * len(noise), device=x.device) / kept.shape[1]
    optimizer = adam(network, settings.lr)
    averaged = MovingAverage(network, settings.averaging)

    def step_and_average(rows: Tensor) -> None:
        step(network, optimizer, x[rows], y[rows], noise, scale)
        averaged.update()

    one = Replayed(step_and_average, noise, x.device)
    yield averaged.module
    for _ in range(settings.epochs):
        shuffled = [rows[torch.randperm(len(rows), generator=order)] for rows, order in zip(kept, orders, strict=True)]
        for rows in torch.stack(shuffled).to(x.device).split(settings.minibatch, 1):  # type: ignore[no-untyped-call]
            one(rows)
        yield averaged.module


def adam(network: nn.Module, lr: float) -> torch.optim.Adam:
    """Adam as one kernel per step, which may be captured in a CUDA graph."""
    on_gpu = next(network.parameters()).is_cuda
    return torch.optim.Adam(network.parameters(), lr=lr, fused=True, capturable=on_gpu)


def step(
    network: Classifier,
    optimizer: torch.optim.Optimizer,
    x: Float[Tensor, "*B M D"],
    y: Int[Tensor, "*B M"],
    noise: Streams,
    kl_scale: Float[Tensor, " B"],
    estimator: Estimator = "local",
) -> Float[Tensor, " B"]:
    """One optimisation step; returns each network's objective, mean cross entropy plus scaled KL."""
    objective = cross_entropies(network(x, noise, estimator), y).mean(1) + kl_scale * network.kl()
    optimizer.zero_grad()
    objective.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    for layer in network.layers:
        layer.project()
    return objective.detach()


def cross_entropies(logits: Float[Tensor, "B M classes"], y: Int[Tensor, "*B M"]) -> Float[Tensor, "B M"]:
    """−log p(y | x) of each image, in nats."""
    classes = y.expand(logits.shape[:-1]).flatten()
    return cross_entropy(logits.flatten(0, 1), classes, reduction="none").view(logits.shape[:-1])


def split(N: int, validation_share: float, seeds: Sequence[int]) -> tuple[Int[Tensor, "B out"], Int[Tensor, "B kept"]]:
    """Rows of a validation set drawn from N training images, and the remaining rows, for each network."""
    order = [torch.randperm(N, generator=each) for each in streams("cpu", "networks", "validation", seeds=seeds)]
    out, kept = torch.stack(order).tensor_split([round(validation_share * N)], dim=1)
    return out, kept


@torch.no_grad()
def errors(network: Classifier, x: Float[Tensor, "*B M D"], y: Int[Tensor, "*B M"]) -> Float[Tensor, " B"]:
    """Each network's proportion of images that are misclassified without noise."""
    return (network(x).argmax(-1) != y).double().mean(-1)
