"""Training a classifier with noise: Adam, temporal averaging, the same from a seed.

As in Kingma, Salimans and Welling (2015), section 5: Adam with its default rates and momenta, temporal averaging
(Kingma and Ba 2015, section 7.2), the number of epochs chosen on a validation set. The paper gives no minibatch size
for training, and no size of the validation set: those here are declared choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel

from fsvi_bench.papers.ksw2015.data import Images
from fsvi_bench.papers.ksw2015.layers import Classifier, Estimator
from fsvi_bench.papers.parts import Plain
from fsvi_bench.papers.streams import stream


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

    Yields the network with averaged weights before the first epoch and after each: always the same module, which goes
    on changing. On one device the same seed gives the same weights.
    """
    x, y = images.x_train, images.y_train
    noise, order = (
        stream(x.device, "networks", "noise", settings.seed),
        stream("cpu", "networks", "order", settings.seed),
    )
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

    Dividing the moving average of t weights by 1 − decay^t gives the newest of them the share that is taken here.
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
    """One step down the objective, which is returned: mean cross entropy plus scaled KL."""
    objective = cross_entropy(network(x, noise, estimator), y) + kl_scale * network.kl()
    optimizer.zero_grad()
    objective.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    for layer in network.layers:
        layer.project()
    return objective.detach()


def split(images: Images, settings: TrainSettings) -> tuple[Images, tuple[Tensor, Tensor]]:
    """The images without a validation set drawn from those for training, and the validation set."""
    x, y = images.x_train, images.y_train
    order = torch.randperm(len(x), generator=stream("cpu", "networks", "validation", settings.seed)).to(x.device)
    out, kept = order.tensor_split([round(settings.validation_share * len(x))])
    return images._replace(x_train=x[kept], y_train=y[kept]), (x[out], y[out])


@torch.no_grad()
def error_rate(network: Classifier, x: Tensor, y: Tensor) -> float:
    """Share of images that are classified wrongly without noise."""
    return float((network(x).argmax(-1) != y).double().mean())
