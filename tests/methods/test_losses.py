"""What a trace shows as a method's loss is what the method descends: its gradient is the method's own."""

import pytest
import torch

from fsvi_bench.methods.problems import TrainingData
from tests.methods.table import SEES_ALL, first_batch, label, method_on, toys

#: Steps whose gradient is no estimate: all rows, closed forms, an A that is fixed or sees every weight.
FULL = {"minibatch": "full"}
EXACT = {**FULL, "estimator": "exact"}
WHOLE = {**FULL, "M": SEES_ALL, "draw_A": "data"}
CASES = [
    *[("fixed-a", family, {**FULL, "optimizer": "adam", **s}) for family in ("full", "ffg") for s in (
        {"M": 10}, {"M": 15, "kl_weight": 2.0}, {"M": 13, "kl_jitter": 1e-3}, {"M": SEES_ALL})],
    *[("rand-a", family, {**WHOLE, **s}) for family in ("full", "ffg") for s in ({}, {"kl_weight": 0.5})],
    ("bernoulli-dropout", "bernoulli", {**EXACT, "training": "masks", "retain_probability": 0.7, "l": 1.5}),
    ("gaussian-dropout", "ffg", EXACT),
    *[("sparse-variational-dropout", "ffg", {**EXACT, **s}) for s in ({}, {"kl": "sigmoid"}, {"prior": "task"})],
    *[("variational-dropout", "ffg", {**EXACT, **s}) for s in (
        {}, {"kl": "cubic", "kl_scale": 1 / 3}, {"kl": "lower-bound", "alphas": "layer"},
        {"free_alpha": True, "alpha": 2.0}, {"prior": "task", "kl_scale": 0.5})],
]  # fmt: skip


@pytest.mark.parametrize(("name", "family", "settings"), CASES, ids=label)
def test_the_gradient_of_the_loss_is_the_methods(name, family, settings):
    """By central differences in three random directions, at a random q. The loss is of order 1e5 and its digits 1e-11,
    so that differences over 2e-5 have 1e-6 to 1e-5 of absolute error beside slopes of 1e2 and more."""
    problem, k = toys()[0], toys()[0].frozen.k
    method = method_on(name, TrainingData.of([problem]), family, settings)
    q, g = method.q, torch.Generator().manual_seed(0)

    def direction():
        """Dummy weights, what is above a factor's diagonal, and an α or p that is held are no parameters."""
        drawn = [torch.randn(p.shape, generator=g, dtype=torch.float64) * p.requires_grad for p in q.parameters()]
        for each in drawn:
            each[..., k:] = 0
        return [each.tril() if each.ndim == 3 else each for each in drawn]

    def move(by, size):
        for parameter, step in zip(q.parameters(), by, strict=True):
            parameter.data += size * step

    move(direction(), 0.2)
    assert method.training
    method.loss(q(), first_batch(method)).sum().backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in q.parameters()]
    for _ in range(3):
        way = direction()
        slope = sum(float((gradient * step).sum()) for gradient, step in zip(gradients, way, strict=True))
        values = []
        for size in (1e-5, -2e-5):
            move(way, size)
            values.append(method.objective(0, problem))
        move(way, 1e-5)
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(slope, rel=1e-6, abs=1e-4)
