"""f-SVGD's direction against Wang et al. (2019) as loops over particles, with every derivative by autograd."""

import math

import pytest
import torch

from fsvi_bench.methods.data import MeasurementDesign
from tests.maths.draws import close
from tests.methods.synthetic import synthetic
from tests.methods.table import f64, first_batch, method_on


def naive_direction(w, Phi_X, log_likelihood):
    """Jᵀv_i with v_i = (1/n) Σ_j [k(f_j, f_i) ∇log p(f_j, y) + ∇_{f_j} k(f_j, f_i)], J = ∂f(X)/∂w.

    Args:
        log_likelihood: of function values at X.
    """
    n, f = len(w), [Phi_X @ each for each in w]
    distances = sorted(float((f[i] - f[j]).norm()) for i in range(n) for j in range(i))
    h = ((distances[(len(distances) - 1) // 2] + distances[len(distances) // 2]) / 2) ** 2 / math.log(n)
    prior_precision = torch.linalg.pinv(Phi_X @ Phi_X.T, rtol=1e-10, hermitian=True)
    rows = []
    for i in range(n):
        v = torch.zeros_like(f[i])
        for j in range(n):
            moving = f[j].clone().requires_grad_()
            log_joint = log_likelihood(moving) - 0.5 * moving @ prior_precision @ moving
            (score,) = torch.autograd.grad(log_joint, moving)
            k = torch.exp(-(moving - f[i]).square().sum() / h)
            v += k.detach() * score + torch.autograd.grad(k, moving)[0]
        point = w[i].clone().requires_grad_()
        rows.append(torch.autograd.grad((Phi_X @ point) @ (v / n), point)[0])
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("M", "minibatch"),
    [(2, 3), (3, 3), (10, 7), (2, "full"), (1, 1)],
    ids=["5 of 8 directions", "6 of 8", "17 inputs", "all rows", "2 of 8"],
)
def test_a_step_descends_along_the_direction_in_function_space(M, minibatch):
    """To 1e-10 of the largest entry; X has fewer and more inputs than there are weights."""
    data, n = synthetic(2, N=31), 5
    method = method_on("f-svgd", data, "particles", {"M": M, "minibatch": minibatch, "particles": n})
    method.is_logged = lambda step: False
    batch = first_batch(method)
    method.training_step(batch, 0).backward()
    for b in range(2):
        Phi, y, variance = data.Phi[b], data.y[b], data.noise_variance[b]
        if minibatch == "full":
            rows = torch.arange(31)
        else:
            seen = batch.rows.Phi[b, :minibatch] * (minibatch / 31 * variance).sqrt()
            distances = torch.cdist(seen, Phi)
            assert distances.amin(1).max() < 1e-7
            rows = distances.argmin(1)

        def log_likelihood(f, y=y[rows], variance=variance):
            """Scaled from the minibatch, whose inputs come first, to all rows."""
            return -0.5 * 31 / len(y) * (y - f[: len(y)]).square().sum() / variance

        Phi_X = torch.cat([Phi[rows], batch.Phi_A[b, :M]])
        expected = naive_direction(method.q.w.detach()[b, :n], Phi_X, log_likelihood)
        close(-method.q.w.grad[b, :n], expected, rtol=0, atol=1e-10 * float(expected.abs().max()))


def test_the_measurement_set_is_uniform_in_the_box_by_default():
    assert method_on("f-svgd", synthetic(1), "particles").options.design == MeasurementDesign(
        80, "box", features_only=True
    )


def test_what_no_set_sees_stays_where_it_began():
    """A direction of weight space in which all features are 0."""
    data = synthetic(1, N=31)
    data.Phi[..., 3] = 0
    method = method_on("f-svgd", data, "particles", {"M": 2, "minibatch": 3, "draw_A": "data", "particles": 4})
    method.is_logged = lambda step: False
    method.training_step(first_batch(method), 0).backward()
    gradient = method.q.w.grad[0, :4]
    close(gradient[:, 3], torch.zeros(4, dtype=f64), atol=1e-9 * float(gradient.abs().max()))
    assert gradient[:, :3].abs().min() > 0
