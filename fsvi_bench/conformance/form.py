"""Checks of what a method says and returns: options, posteriors, one entry for each problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fsvi_bench.conformance.problems import toy_batch
from fsvi_bench.conformance.subject import Subject
from fsvi_bench.conformance.verdict import Failed, NotApplicable
from fsvi_bench.errors import InputError
from fsvi_bench.methods.base import Method
from fsvi_bench.posteriors.base import KIND_OF, Family, Posterior, defect, divergence, unstack
from fsvi_bench.training.trainer import train

_STRANGER = "no_method_has_this_option"
_B = 3


def trains(subject: Subject) -> None:
    """It is set up on three problems and trained to the end, and its posterior can be asked for."""
    data = toy_batch(_B)
    for place in range(_B):
        subject.entry.cls.check(subject.options, data.only(place))
    method = subject.make(data)
    train(method, "cpu")
    method.posterior()


def options_are_checked(subject: Subject) -> None:
    """Unknown options and NaN are refused, and options survive being written to a record and read back."""
    options = subject.options
    if _accepts(subject, {_STRANGER: 1}):
        raise Failed(
            f"Options took an unknown option, '{_STRANGER}'; a misspelt --set would be ignored: derive Options from "
            'MethodOptions and leave extra="forbid" as it is'
        )
    for name, value in options:
        if isinstance(value, float) and _accepts(subject, {name: float("nan")}):
            raise Failed(f"option '{name}' took NaN; leave allow_inf_nan=False of MethodOptions as it is")
    if subject.entry.options(options.model_dump(mode="json")) != options:
        raise Failed("Options written as JSON and read back are others; use numbers, words and booleans as options")


def _accepts(subject: Subject, change: dict[str, Any]) -> bool:
    try:
        subject.entry.options({**subject.options.model_dump(), **change})
    except InputError:
        return False
    return True


def posterior_before_training(subject: Subject) -> None:
    """Before the first step there is a posterior of the right kind: where traces begin."""
    method, seen = subject.make(toy_batch(_B)), []
    if not method.trains:
        raise NotApplicable("it takes one step: there is no way to the posterior")

    def look(steps: int, seconds: float) -> None:
        seen.append(method.posterior())

    train(method, "cpu", look, [0])
    if not seen:
        raise Failed("training ended before its first step; do as many steps as num_steps says")
    require_posterior(seen[0], subject.family, _B, 20, [None] * _B, "before the first step")


def posterior_after_training(subject: Subject) -> None:
    """After training it is one, too."""
    method = subject.make(toy_batch(_B))
    train(method, "cpu")
    require_posterior(method.posterior(), subject.family, _B, 20, method.divergences(), "after training")


def require_posterior(q: Posterior, family: Family, B: int, k: int, diverged: Sequence[str | None], when: str) -> None:
    """A posterior of the family's kind: float64, [B,k], finite, scales positive, factors lower triangular.

    Raises:
        Failed: it is not; what has diverged by its own account may hold any number.
    """
    if not isinstance(q, Posterior) or q.kind != KIND_OF[family]:
        got = q.kind if isinstance(q, Posterior) else type(q).__name__
        raise Failed(f"{when} posterior() is {got}, expected {KIND_OF[family]} for --family {family}")
    for name, tensor in q.tensors().items():
        if not tensor.shape or tensor.shape[0] != B:
            raise Failed(f"{when} {name} has shape {list(tensor.shape)} for {B} problems; put an axis of B in front")
    for place, one in enumerate(unstack(q)):
        if (reason := defect(one, k)) is not None:
            raise Failed(f"{when} the posterior is not one over k = {k} weights: {reason}")
        if (reason := divergence(one)) is not None and diverged[place] is None:
            raise Failed(f"{when} {reason}; mend it, or name the reason in divergences() where training may come to it")
        if diverged[place] is None:
            _require_moments(one, k, when)


def _require_moments(one: Posterior, k: int, when: str) -> None:
    """What scores are computed from; of our own posteriors the parameters vouch for it."""
    tril = one.covariance_tril()
    if tuple(tril.shape) != (k, k) or tril.dtype != torch.float64 or not bool(tril.isfinite().all()):
        raise Failed(f"{when} covariance_tril() is {tril.dtype} {list(tril.shape)}, expected finite float64 [{k}, {k}]")
    if bool(tril.triu(1).any()) or bool((tril.diagonal() < 0).any()):
        raise Failed(f"{when} covariance_tril() is not lower triangular with a diagonal of 0 or more")


def one_entry_per_problem(subject: Subject) -> None:
    """Everything that is told problem by problem has B entries, and what must be a number or a word is one."""
    method = subject.make(toy_batch(_B))
    train(method, "cpu")
    for name in ("divergences", "work", "details", "stopped_after"):
        entries = getattr(method, name)()
        if len(entries) != _B:
            raise Failed(f"{name}() has {len(entries)} entries for {_B} problems; return one for each, None if unknown")
    _require_numbers(method)
    if any(reason is not None and not (isinstance(reason, str) and reason) for reason in method.divergences()):
        raise Failed("divergences() names no reason; return a sentence where training came to nothing, else None")


def _require_numbers(method: Method) -> None:
    for details in method.details():
        for name, value in (details or {}).items():
            if not isinstance(value, int | float):
                raise Failed(f"details() has {type(value).__name__} for '{name}', expected a number")
