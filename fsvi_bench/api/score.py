"""`fsvi_bench.score`: all scores of a posterior, given as such or as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsvi_bench.api.arrays import numbers, posterior_of
from fsvi_bench.errors import InputError
from fsvi_bench.methods.problems import require_task
from fsvi_bench.networks.official import CertifiedNetwork
from fsvi_bench.networks.reference import Functions, functions_of
from fsvi_bench.networks.scores import score_functions
from fsvi_bench.networks.task import NetworkTask
from fsvi_bench.presenting.summary import flat, flat_of_network
from fsvi_bench.scoring.scores import not_a_number
from fsvi_bench.scoring.scores import score as score_posterior
from fsvi_bench.tasks.task import Task
from fsvi_bench.threads import one_thread


def score(q: Any, task: Task | CertifiedNetwork) -> dict[str, Any]:
    """The scores of `fsvi-bench score --json` as a flat dict. Infinity is a float; None means not applicable.

    Nested scores have a dot in their names: `kl_marginals.5`, `coverage.90`, `overconfidence.median`,
    `joint_predictive_kl_box.10`, and for draws the pair `intervals.kl_moment_matched`. `overconfidence.quantiles` are
    21 numbers.

    Args:
        q: a posterior from `fit` or of this package; a pair (mean [k], covariance [k, k]); any object with `mean` and
            `covariance`; draws of the weights [n, k], which are samples if n ≥ 10,000 and particles otherwise; or a
            dict of function values `f_test` [n, N_test] and `f_box` [n, 1000]. Arrays are from NumPy or torch, or
            lists, in float64. A singular covariance is allowed; its KL is infinite.
        task: from `load_task`, `make_task` or `Task.from_gpytorch`; or a network task from `load_network`. For the
            latter q is a dict of function values `f_train`, `f_test` and `f_box`, [S, 20] each, at `task.task.inputs`,
            and each score has a standard error and a floor, such as `w2_test.error` and `w2_test.floor`.

    Raises:
        InputError: q is none of these, does not fit the task, or contains NaN; one sentence says how to fix it.
    """
    if isinstance(task, CertifiedNetwork):
        with one_thread():
            found = score_functions(_functions(q), task.task, task.reference)
        return flat_of_network(found)
    if isinstance(task, NetworkTask):
        raise InputError(
            f"the task is {task.name} without its reference, expected what load_network returns; pass that rather than "
            "its .task"
        )
    problem = require_task(task)
    posterior = posterior_of(q, problem.k)
    with one_thread():
        scores = score_posterior(posterior, problem)
    if names := not_a_number(scores):
        raise InputError(f"these scores of the posterior are not numbers: {', '.join(names)}; rescale or refit it")
    return flat(scores)


def _functions(q: Any) -> Functions:
    if not isinstance(q, Mapping):
        kind = type(q).__name__
        raise InputError(
            f"the functions are of type {kind}, expected a dict of f_train, f_test and f_box, [S, 20] each"
        )
    return functions_of({str(name): numbers(str(name), values) for name, values in q.items()})
