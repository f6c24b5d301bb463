"""Cells for the tests of W&B: trained ones in a store, and some that came to nothing."""

from __future__ import annotations

import math
from pathlib import Path

from fsvi_bench.running.plan import Request, make_plan
from fsvi_bench.running.progress import Silent
from fsvi_bench.running.runner import Resources, run
from fsvi_bench.running.store import Store
from fsvi_bench.training.trace import Trace, TracePoint

METHODS = ["exact", "mean-field-vi", "bernoulli-dropout"]


def trained(root: Path):
    """(records, store): 12 steps on two splits of the toy with two seeds, one run each for EXACT, mean-field VI and
    Bernoulli dropout with sampled masks, whose KL is infinite."""
    store = Store(root)
    request = Request(
        datasets=["toy"], splits="0-1", seeds="0-1", methods=METHODS, families=["ffg", "bernoulli"],
        max_steps=12, options={"minibatch": "full", "training": "masks"},
    )  # fmt: skip
    return run(make_plan(request), store, Resources(), Silent()).records, store


def of(records, method):
    return [record for record in records if record.method == method]


def failed(record, status="failed", reason="it was not to be"):
    """The same cell with another seed, and nothing finished."""
    nothing = {"status": status, "reason": reason, "scores": None, "seconds": None, "work": None, "details": None}
    return record.model_copy(update={**nothing, "seed": record.seed + 7, "cell": f"{status}-{record.cell}"})


def point(steps, kl=1.0, nlpd=2.0, seconds=0.0, loss=3.0):
    return TracePoint(steps, seconds, kl, nlpd, kl, nlpd, loss)


def diverging():
    """A trace that ends in NaN and infinity."""
    return Trace([point(0), point(1, math.inf), point(12, math.nan, math.nan, 0.5, math.nan)])
