"""A training step never waits for a GPU: it runs on the meta device, whose tensors have shapes and no values."""

import pytest
import torch

from fsvi_bench.conformance.subject import toy_problems
from fsvi_bench.maths import functional_kl
from fsvi_bench.methods.callbacks import Averaging
from fsvi_bench.methods.data import MeasurementDesign
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.methods.registry import default_names
from tests.methods.table import TABLE, label, method_on

META = torch.device("meta")
BY_LINE_SEARCH = "fixed-a"  #: with L-BFGS, which decides on the host
BY_CONJUGATE_GRADIENTS = {"score_estimator": "kef"}  #: which end by their residual, on the host
ADDED_TO_VARIANCES = {"kl_jitter", "injected_noise"}  #: with which no set's rank is looked at
CASES = [
    pytest.param(row, settings, deficient, id=f"{label(row)}-{label(settings)}-{deficient}")
    for row in TABLE
    if row.trains
    for settings in row.variants[: None if row.method in default_names() else 1]
    if (row.method != BY_LINE_SEARCH or "optimizer" in settings)
    and not BY_CONJUGATE_GRADIENTS.items() <= settings.items()
    for deficient in ([False, True] if "M" in settings and not ADDED_TO_VARIANCES & settings.keys() else [False])
]


class Logging:
    """All that a step asks of a Trainer: a logger that looks at every step."""

    log_every_n_steps = 1
    loggers = (None,)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.numpy(),
        lambda x: bool(x.any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.equal(x, x),
    ],
)
def test_the_meta_device_refuses_whatever_waits(wait):
    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        wait(torch.zeros(1, device=META))


@pytest.mark.parametrize(("row", "settings", "deficient"), CASES)
def test_a_step_needs_no_value(row, settings, deficient, monkeypatch):
    """Two steps, logged ones and an averaged one, on sets of full rank and on sets of which some lack it."""
    problems = TrainingData.of(toy_problems(2))
    method = method_on(row.method, problems, row.family, {**settings, "max_steps": 2})
    method.trainer = trainer = Logging()
    monkeypatch.setattr(method, "log", lambda *_, **__: None)
    # Before the first step, what is asked of the host once a run; between steps, which sets lack full rank.
    rows = None if method.options.design is None else method.options.design.distinct_inputs(problems)
    monkeypatch.setattr(MeasurementDesign, "distinct_inputs", lambda *_: rows)
    monkeypatch.setattr(functional_kl, "_looked_at", lambda flags: [not deficient, *[True] * (len(flags) - 1)])
    adam = torch.optim.Adam  # whose fused kernel, which has no meta form, waits for nothing
    monkeypatch.setattr(torch.optim, "Adam", lambda parameters, lr, fused: adam(parameters, lr))
    method.to(META)
    optimizer = method.configure_optimizers()
    optimizer = optimizer["optimizer"] if isinstance(optimizer, dict) else optimizer
    monkeypatch.setattr(method, "optimizers", lambda: optimizer)
    batches = method.data().batches(problems.to(META))
    for _ in range(2):
        method.optimizer_zero_grad(0, 0, optimizer)
        loss = method.training_step(next(batches), 0)
        if loss is not None:
            loss.backward()
            optimizer.step()
        if hasattr(method.q, "collect"):
            method.q.collect()
        if method.average is not None:
            Averaging().on_train_batch_end(trainer, method)
    assert method.steps_done == 2
    assert all(parameter.device == META for parameter in method.parameters())
