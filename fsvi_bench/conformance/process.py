"""What a method leaves as it was in its process: how it is read, and put back."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

Access = Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]]  #: name -> (get, set)


def _set_torch_state(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _set_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


GENERATORS: Access = {
    "torch": (lambda: torch.get_rng_state().numpy().tobytes(), _set_torch_state),
    "NumPy": (lambda: pickle.dumps(np.random.get_state()), lambda state: np.random.set_state(pickle.loads(state))),
    "Python's random": (random.getstate, random.setstate),
}
SETTINGS: Access = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "choice of deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "list of warnings filters": (lambda: list(warnings.filters), _set_filters),
    "environment": (lambda: dict(os.environ), _set_environment),
}


def random_state() -> dict[str, Any]:
    """The state of every global generator on the CPU."""
    return {name: get() for name, (get, _) in GENERATORS.items()}


def settings_of_process() -> dict[str, Any]:
    """Settings that every method shares."""
    return {name: get() for name, (get, _) in SETTINGS.items()}


@contextlib.contextmanager
def kept_state() -> Iterator[None]:
    """Puts back whatever a method changed, so that one check's finding is not the next one's."""
    before = random_state() | settings_of_process()
    with contextlib.chdir("."):
        try:
            yield
        finally:
            for name, (get, put_back) in {**GENERATORS, **SETTINGS}.items():
                if get() != before[name]:
                    put_back(before[name])
