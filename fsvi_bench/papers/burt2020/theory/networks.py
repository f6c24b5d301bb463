"""Propositions 7 and 9: ReLU networks of different width, told apart by their number of linear pieces.

An event that has probability p under the wide law and 0 under the narrow one shows p of the total variation, and of
every other f-divergence at least that of Bernoulli(p) and Bernoulli(0). KL(wide, narrow) is infinite for every p > 0:
that takes finitely many inputs. KL(narrow, wide) is at least −log(1 − p), and infinite in the limit.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import torch

from fsvi_bench.papers.burt2020.theory.f_divergence import generators
from fsvi_bench.papers.burt2020.theory.relu_pieces import (
    Network,
    exact_network,
    linear_pieces,
    pieces_seen,
    values_as_integers,
)
from fsvi_bench.papers.burt2020.theory.settings import Settings
from fsvi_bench.papers.claims import Statistic, Values
from fsvi_bench.papers.experiment import Findings

PRUNED = 6  #: width whose outgoing weights may be 0
BOUNDS = ["value", "low", "high"]
PLAIN, WHOLE, BARE, ZEROS = "as they are", "the same, without zeros", "no hidden biases", "weights may be 0"


def draw_network(
    width: int, generator: torch.Generator, *, biases: bool = True, zero_probability: float = 0
) -> Network:
    """All parameters N(0, 1), hidden biases or none; each outgoing weight is 0 with that probability."""
    w, b, v = torch.randn(3, width, generator=generator, dtype=torch.float64)
    kept = torch.rand(width, generator=generator, dtype=torch.float64) >= zero_probability
    c = float(torch.randn((), generator=generator, dtype=torch.float64))
    return exact_network(w, b if biases else torch.zeros_like(b), v * kept, c)


def places(level: int) -> list[Fraction]:
    """The 2^level − 1 quantiles of a Cauchy law, which −b/w follows; those of a level contain those of the last."""
    number = 2**level
    return [Fraction(math.tan(math.pi * (i / number - 0.5))) for i in range(1, number)]


def count_pieces(settings: Settings) -> pd.DataFrame:
    """Linear pieces of each network drawn, by its law and width."""

    def count(law: str, width: int, generator: torch.Generator, **changes: Any) -> list[tuple[str, int, int]]:
        drawn = (draw_network(width, generator, **changes) for _ in range(settings.networks))
        return [(law, width, linear_pieces(network)) for network in drawn]

    rows = []
    for width in settings.widths:
        generator = settings.generator("pieces", width)
        rows += count(PLAIN, width, generator) + count(BARE, width, generator, biases=False)
    generator = settings.generator("pruned")
    rows += count(WHOLE, PRUNED, generator)
    rows += count(ZEROS, PRUNED, generator, zero_probability=settings.zero_probability)
    return pd.DataFrame(rows, columns=["law", "width", "pieces"])


def see(settings: Settings, narrow: int, wide: int) -> pd.DataFrame:
    """Of the wider networks, the share that show more pieces than the narrow ones can have, by their values at 3, 7,
    15, … points: a lower bound on the total variation between the two laws of values at the points.

    `refuted` is how many of the narrow ones do so at the finest points: the theorem says 0.
    """
    levels, generator = range(2, settings.finest + 1), settings.generator("seen", narrow, wide)
    A, found = places(settings.finest), []
    for _ in range(settings.seen_networks):
        X, values = values_as_integers(draw_network(wide, generator), A)
        steps = [2 ** (settings.finest - level) for level in levels]
        found.append([pieces_seen(X[step - 1 :: step], values[step - 1 :: step]) > narrow + 1 for step in steps])
    narrow_ones = (values_as_integers(draw_network(narrow, generator), A) for _ in range(settings.seen_networks))
    refuted = sum(pieces_seen(X, values) > narrow + 1 for X, values in narrow_ones)
    by_level = zip(levels, np.transpose(found), strict=True)
    shares = [(2**level - 1, *Statistic.of_proportion(of_level)) for level, of_level in by_level]
    return pd.DataFrame(shares, columns=["points", *BOUNDS]).assign(
        pair=f"{narrow} and {wide}", narrow=narrow, wide=wide, refuted=refuted
    )


def shown_by_events(seen: pd.DataFrame) -> pd.DataFrame:
    """Lower bounds on f-divergences at the finest points. They rise with p, so that p's interval gives theirs.

    NaN where narrow networks show the event, which then proves nothing. Both ways, as f-divergences are not symmetric.
    """
    finest = seen[seen["points"] == seen["points"].max()].set_index("pair")
    shares = finest[BOUNDS].where(finest["refuted"] == 0)
    rows = [
        (f"{f.name}, {words}", f"widths {pair}", *map(bound, share), f.between_singular)
        for f in generators()
        for words, bound in (("Q wide, P narrow", f.shown_of_q), ("Q narrow, P wide", f.shown_of_p))
        for pair, *share in shares.itertuples(name=None)
    ]
    return pd.DataFrame(rows, columns=["law", "pair", *BOUNDS, "limit"])


def pieces_statistics(pieces: pd.DataFrame, shown: pd.DataFrame) -> dict[str, Values]:
    """On propositions 7 and 9, by width or pair of widths."""
    case = "width " + pieces["width"].astype(str)
    plain, bare, zeros = (pieces[pieces["law"] == law] for law in (PLAIN, BARE, ZEROS))
    excess = plain["pieces"] - plain["width"] - 1
    by_pair, named = shown.set_index("pair"), shown.set_axis(shown["law"] + ", " + shown["pair"])
    finite = named[named["limit"] < math.inf]
    return {
        "proposition 9: least share of networks with exactly width + 1 pieces": (
            (excess == 0).groupby(case).agg(list).to_dict()
        ),
        "proposition 9: most pieces in excess of width + 1": excess.groupby(case).max().to_dict(),
        "proposition 9: least total variation that finitely many values show between two widths": _bounds(
            by_pair[by_pair["law"] == "total variation, Q wide, P narrow"]
        ),
        "proposition 7: least KL(wide, narrow) that finitely many values show [nats]": _bounds(
            by_pair[by_pair["law"] == "KL(Q, P), Q wide, P narrow"]
        ),
        "proposition 7: least share of f(0) + f'(infinity), where finite, that finitely many values show": _bounds(
            finite[BOUNDS].div(finite["limit"], axis=0)
        ),
        "proposition 9: most pieces of any width without hidden biases": bare["pieces"].groupby(case).max().to_dict(),
        "proposition 9: share of networks that pass for one neuron less if outgoing weights may be 0": (
            (zeros["pieces"] == PRUNED).to_list()
        ),
    }


def _bounds(of: pd.DataFrame) -> dict[str, Statistic]:
    return {name: Statistic(*row) for name, *row in of[BOUNDS].itertuples(name=None)}


def of_networks(settings: Settings) -> Findings:
    """On propositions 7 and 9."""
    pieces = count_pieces(settings)
    seen = pd.concat([see(settings, *pair) for pair in settings.pairs], ignore_index=True)
    shown = shown_by_events(seen)
    spread = pieces.groupby(["law", "width"])["pieces"].agg(["size", "min", "max"])
    events = shown.pivot(index="law", columns="pair", values="low").loc[shown["law"].unique(), shown["pair"].unique()]
    events = events.rename_axis("divergence")
    events["in the limit"] = shown.groupby("law")["limit"].first()
    events.attrs["M"] = seen["points"].max()
    return Findings(
        frames={
            "pieces": pieces.groupby(["law", "width"])["pieces"]
            .value_counts(normalize=True)
            .rename("share")
            .reset_index(),
            "widths": spread.loc[PLAIN].join(spread.loc[BARE].add_suffix(" without biases")).reset_index(),
            "seen": seen,
            "shown": events.reset_index(),
        },
        statistics=pieces_statistics(pieces, shown),
    )
