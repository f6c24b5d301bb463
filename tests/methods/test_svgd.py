"""SVGD's direction against eq. 8 of Liu and Wang (2016) as loops, with the kernel's gradient by autograd."""

import math

import torch

from fsvi_bench.methods.svgd import stein_direction
from tests.maths.draws import close, normal
from tests.methods.synthetic import synthetic
from tests.methods.table import first_batch, method_on


def naive_direction(w, score):
    n = len(w)
    distances = sorted(float((w[i] - w[j]).norm()) for i in range(n) for j in range(i))
    middle = distances[(len(distances) - 1) // 2], distances[len(distances) // 2]
    h = (sum(middle) / 2) ** 2 / math.log(n)
    rows = []
    for i in range(n):
        total = torch.zeros_like(w[0])
        for j in range(n):
            moving = w[j].clone().requires_grad_()
            k = torch.exp(-(moving - w[i]).square().sum() / h)
            total += k.detach() * score[j] + torch.autograd.grad(k, moving)[0]
        rows.append(total / n)
    return torch.stack(rows)


def test_the_direction_is_eq_8():
    w, score = normal(0, 2, 7, 3), normal(1, 2, 7, 3)
    expected = torch.stack([naive_direction(*each) for each in zip(w, score, strict=True)])
    close(stein_direction(w, score), expected, rtol=1e-11, atol=1e-12)


def test_a_step_descends_along_it():
    data = synthetic(1, N=31)
    method = method_on("svgd", data, "particles", {"minibatch": "full", "particles": 5})
    method.is_logged = lambda step: False
    method.training_step(first_batch(method), 0).backward()
    w = method.q.w.detach()[0, :5]
    residual = data.y[0] - w @ data.Phi[0].T
    score = residual @ data.Phi[0] / data.noise_variance[0] - w
    close(-method.q.w.grad[0, :5], naive_direction(w, score), rtol=1e-9, atol=1e-9)
