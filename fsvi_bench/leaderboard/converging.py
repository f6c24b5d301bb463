"""How far a posterior of a built-in method is from the optimum of its objective, computed by the verifier.

The method is made again outside the sandbox, with the entry's settings, the task and the seed, and q is put into its
objective. The code of an entry has no part in this, so the gap of a method from a source file is unknown.
"""

from __future__ import annotations

import math

from fsvi_bench.leaderboard.entry import BuiltIn, Entry
from fsvi_bench.maths.functional_kl import Gaussian
from fsvi_bench.methods.bernoulli_dropout import dropout_terms
from fsvi_bench.methods.gaussian_dropout import GaussianDropout
from fsvi_bench.methods.registry import load_installed
from fsvi_bench.posteriors.base import Posterior
from fsvi_bench.posteriors.dropout import BernoulliDropoutPosterior
from fsvi_bench.posteriors.trainable import Multiplicative
from fsvi_bench.tasks.task import Task


def objective_gap(entry: Entry, q: Posterior, task: Task, seed: int) -> float | None:
    """The objective at q minus its lowest known value, nats; None if the method or its optimum is unknown."""
    manifest = entry.manifest
    if not isinstance(manifest.method, BuiltIn):
        return None
    found = load_installed(manifest.method.name)
    method = found.cls([task], manifest.family, [seed], found.options(manifest.settings))
    (optimum,) = method.optima([task])
    if optimum is None or math.isnan(optimum.value):
        return None
    terms = _terms(q.map(lambda tensor: tensor[None]), isinstance(method, GaussianDropout))
    gap = method.objective(0, task, q=terms) - optimum.value
    return gap if gap > -math.inf else None  # NaN is not greater


def _terms(q: Posterior, multiplicative: bool) -> object:
    """A batch of posteriors as an argument for a loss."""
    if isinstance(q, BernoulliDropoutPosterior):
        return dropout_terms(q)
    mean, root = q.tensors().values()
    return Multiplicative(mean, root, 2 * (root / mean).abs().log()) if multiplicative else Gaussian(mean, root)
