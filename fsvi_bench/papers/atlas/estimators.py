"""Estimators of a score at equal samples: SSGE, Stein, kernel exponential family and ν-method.

The samples are of the exact posterior's function values at M measurement points, whose score is known. Estimates are
compared with it after whitening, as in `papers.burt2020.shrinkage`: slope 1 and error 0 for the true score, slope 0
and error 1 for an estimate of 0. Options are the methods' defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from fsvi_bench.maths.ssge import spectral_stein_score
from fsvi_bench.methods.data import Streams
from fsvi_bench.methods.ssge import REGULARISED, Ssge
from fsvi_bench.papers.burt2020.shrinkage import Marginal, measurement_features, regress
from fsvi_bench.seeds import derive_seed
from fsvi_bench.tasks.task import Task

Estimator = Callable[[Float[Tensor, "S r"]], Float[Tensor, "S r"]]


def _spectral(samples: Float[Tensor, "S r"]) -> Float[Tensor, "S r"]:
    return spectral_stein_score(samples, share=Ssge.Options().eigen_share)


def _regularised(name: str) -> Estimator:
    score, regularisation = REGULARISED[name]
    return lambda samples: score(samples[None], regularisation, None)[0]


ESTIMATORS: Mapping[str, Estimator] = {"ssge": _spectral, **{name: _regularised(name) for name in REGULARISED}}


def compare_estimators(problem: Task, M: int, counts: Sequence[int], seeds: int) -> pd.DataFrame:
    """Slope and error by estimator, seed (measurement set and samples) and number of samples, the first of the same."""
    rows = []
    for seed in range(seeds):
        marginal = Marginal.of(measurement_features(problem, M, seed) @ problem.truth.covariance_tril)
        streams = Streams((derive_seed("atlas", problem.sha256, f"scores {seed}"),))
        z = streams.normal("function samples", counts[-1], problem.k)[0] @ marginal.W
        for S in counts:
            for name, estimate in ESTIMATORS.items():
                found, _ = regress(estimate(z[:S] * marginal.s) * marginal.s, z[:S], marginal.s)
                own = {"estimator": name, "S": S, "seed": seed, "rank": len(marginal.s)}
                rows.append(own | {"slope": found["whitened"], "error": found["error"]})
    return pd.DataFrame(rows).assign(dataset=problem.dataset)
