"""Checks of how a method behaves: its budget, and what it leaves behind in the process and on the disk."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fsvi_bench.conformance.problems import toy_batch
from fsvi_bench.conformance.subject import Subject
from fsvi_bench.conformance.verdict import Failed, NotApplicable
from fsvi_bench.methods.base import Method
from fsvi_bench.training.trainer import train


def budget(subject: Subject) -> str:
    """It does the steps that it was asked for: `num_steps` is `max_steps`, and each is done once, in order.

    Returns:
        What that says of a budget, and what it does not.
    """
    method = subject.make(toy_batch(2))
    declared = method.num_steps
    if not isinstance(declared, int) or declared < 0:
        raise Failed(f"num_steps is {declared!r}, expected a whole number of steps")
    wanted = getattr(subject.options, "max_steps", declared)
    formula = subject.deterministic and declared == 1  # in place of training
    if declared != wanted and not formula:
        raise Failed(f"num_steps is {declared} where max_steps is {wanted}; return self.options.max_steps")
    done = _counted(method)
    train(method, "cpu")
    if len(done) > declared or (len(done) < declared and not formula and not method.finished):
        raise Failed(
            f"training_step was called {len(done)} times, expected once for each of {declared} steps; leave the loop "
            "to the harness (epochs, loaders and Lightning's trainer are its own)"
        )
    return f"the steps are those declared ({declared}, each once); what is done within a step cannot be seen from here"


def _counted(method: Method) -> list[int]:
    """The numbers of the steps that `training_step` will be called for."""
    calls: list[int] = []
    step = method.training_step

    def training_step(batch: Any, batch_idx: int) -> Any:
        calls.append(batch_idx)
        return step(batch, batch_idx)

    method.training_step = training_step  # type: ignore[method-assign]
    return calls


def work(subject: Subject) -> None:
    """What it says it took is counted in whole numbers, and grows with the steps."""
    method, halfway = subject.make(toy_batch(2)), []
    half = max(1, method.num_steps // 2)
    train(method, "cpu", lambda steps, seconds: halfway.append((steps, _copied(method))), [half])
    counts = _copied(method)
    if not any(counts):
        raise NotApplicable("work() counts nothing")
    for count in counts:
        for name, value in count.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise Failed(f"work() has {value!r} for '{name}', expected a whole number, 0 or more")
    if not halfway or halfway[0][0] >= method.num_steps:
        return
    for before, after in zip(halfway[0][1], counts, strict=True):
        if any(after.get(name, 0) < value for name, value in before.items()):
            raise Failed(f"work() fell from {before} to {after}; count everything since the first step")
        if after and None in method.stopped_after() and after == before:
            raise Failed(f"work() is {after} halfway and at the end; count what was done so far, not what is planned")


def _copied(method: Method) -> list[dict[str, int]]:
    return [dict(count or {}) for count in method.work()]


def global_random_state(subject: Subject) -> None:
    """No global random generator was used or seeded, in a hundred steps."""
    before = random_state()
    train(subject.for_long.make(toy_batch(2)), "cpu")
    for name, state in random_state().items():
        if state != before[name]:
            raise Failed(
                f"training drew from or seeded the global generator of {name}; make one of your own for each problem, "
                "such as fsvi_bench.seeds.derived_generator(self.seeds[problem], 'noise')"
            )


def process_settings(subject: Subject) -> None:
    """Settings that every method shares are what they were."""
    before = settings_of_process()
    train(subject.make(toy_batch(2)), "cpu")
    for name, value in settings_of_process().items():
        if value != before[name]:
            raise Failed(f"training left the process with another {name}; set it back, or pass dtype=, device= instead")


def no_files(subject: Subject) -> None:
    """Nothing was written into the working directory."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        train(subject.make(toy_batch(2)), "cpu")
        left = sorted(Path(folder).rglob("*"))
    if left:
        raise Failed(f"training wrote '{left[0].name}' into the working directory; a method writes no files")


def random_state() -> dict[str, bytes]:
    """The state of every global generator on the CPU."""
    numpy_state = [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "NumPy": repr(numpy_state).encode(),
        "Python's random": repr(random.getstate()).encode(),
    }


def settings_of_process() -> dict[str, Any]:
    """What a method may not leave otherwise."""
    return {
        "default dtype": torch.get_default_dtype(),
        "number of threads": torch.get_num_threads(),
        "grad mode": torch.is_grad_enabled(),
        "choice of deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "list of warnings filters": list(warnings.filters),
        "environment": dict(os.environ),
    }


@contextlib.contextmanager
def kept_state() -> Iterator[None]:
    """Puts back whatever a method changed, so that one check's finding is not the next one's."""
    settings, torch_state, numpy_state = settings_of_process(), torch.get_rng_state(), np.random.get_state()
    python_state, folder = random.getstate(), Path.cwd()
    try:
        yield
    finally:
        _put_back(settings)
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        os.chdir(folder)


def _put_back(settings: Mapping[str, Any]) -> None:
    torch.set_default_dtype(settings["default dtype"])
    if torch.get_num_threads() != settings["number of threads"]:
        torch.set_num_threads(settings["number of threads"])
    torch.set_grad_enabled(settings["grad mode"])
    torch.use_deterministic_algorithms(settings["choice of deterministic algorithms"])
    warnings.filters[:] = settings["list of warnings filters"]  # type: ignore[index]
    if dict(os.environ) != settings["environment"]:
        os.environ.clear()
        os.environ.update(settings["environment"])
