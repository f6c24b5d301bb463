"""Propositions 7 and 9: ReLU networks of different width, told apart by their number of linear pieces.

An event that has probability p under the wide law and 0 under the narrow one shows p of the total variation, and of
every other f-divergence at least that of Bernoulli(p) and Bernoulli(0). KL(wide, narrow) is infinite for every p > 0:
that takes finitely many inputs. KL(narrow, wide) is at least −log(1 − p), and infinite in the limit.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

import torch
from scipy import stats

from fsvi_bench.papers.burt2020.theory.f_divergence import Generator, generators
from fsvi_bench.papers.burt2020.theory.relu_pieces import (
    Network,
    exact_network,
    linear_pieces,
    pieces_seen,
    values_as_integers,
)
from fsvi_bench.papers.burt2020.theory.settings import Settings
from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.intervals import largest_named, least_named

PRUNED = 6  #: width whose outgoing weights may be 0


class Seen(NamedTuple):
    """Of the wider networks, how many show more pieces than the narrow ones can have; by number of points, a row."""

    narrow: int
    wide: int
    points: list[int]
    found: list[int]
    networks: int
    narrow_found: int  #: of the narrow ones, at the finest points: the theorem says 0

    @property
    def name(self) -> str:
        """As claims on the worst of several call it."""
        return f"widths {self.narrow} and {self.wide}"

    @property
    def shares(self) -> list[Statistic]:
        """A lower bound on the total variation between the two laws of values at the points."""
        return [share(found, self.networks) for found in self.found]

    def shown(self, f: Generator, *, wide_first: bool) -> Statistic:
        """A lower bound on D_f at the finest points; it rises with p, so that p's interval gives its own.

        NaN where narrow networks show the event, which then proves nothing.
        """
        if self.narrow_found:
            return Statistic.exact(math.nan)
        bound = f.shown_of_q if wide_first else f.shown_of_p
        return Statistic(*map(bound, self.shares[-1]))


class Pieces(NamedTuple):
    """How many networks have how many pieces, by width."""

    counts: dict[int, Counter[int]]
    without_biases: dict[int, Counter[int]]
    pruned: Counter[int]  #: width 6, outgoing weights 0 with positive probability
    whole: Counter[int]  #: width 6, none of them
    seen: list[Seen]


def share(found: int, of: int) -> Statistic:
    """With the interval of Clopper and Pearson."""
    low = float(stats.beta.ppf(0.025, found, of - found + 1)) if found else 0.0
    high = float(stats.beta.ppf(0.975, found + 1, of - found)) if found < of else 1.0
    return Statistic(found / of, low, high)


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


def count_pieces(settings: Settings) -> Pieces:
    """All counts."""
    counts, bare = {}, {}
    for width in settings.widths:
        generator = settings.generator("pieces", width)
        counts[width] = Counter(linear_pieces(draw_network(width, generator)) for _ in range(settings.networks))
        bare[width] = Counter(
            linear_pieces(draw_network(width, generator, biases=False)) for _ in range(settings.networks)
        )
    generator = settings.generator("pruned")
    whole = Counter(linear_pieces(draw_network(PRUNED, generator)) for _ in range(settings.networks))
    drawn = (
        draw_network(PRUNED, generator, zero_probability=settings.zero_probability) for _ in range(settings.networks)
    )
    pruned = Counter(linear_pieces(network) for network in drawn)
    return Pieces(counts, bare, pruned, whole, [see(settings, *pair) for pair in settings.pairs])


def see(settings: Settings, narrow: int, wide: int) -> Seen:
    """Values at 3, 7, 15, … points."""
    levels, generator = list(range(2, settings.finest + 1)), settings.generator("seen", narrow, wide)
    A, found = places(settings.finest), [0] * len(levels)
    for _ in range(settings.seen_networks):
        X, values = values_as_integers(draw_network(wide, generator), A)
        for place, level in enumerate(levels):
            step = 2 ** (settings.finest - level)
            found[place] += pieces_seen(X[step - 1 :: step], values[step - 1 :: step]) > narrow + 1
    narrow_ones = (values_as_integers(draw_network(narrow, generator), A) for _ in range(settings.seen_networks))
    false = sum(pieces_seen(X, values) > narrow + 1 for X, values in narrow_ones)
    return Seen(narrow, wide, [2**level - 1 for level in levels], found, settings.seen_networks, false)


def _total_variation() -> Generator:
    return next(f for f in generators() if f.name == "total variation")


def pieces_values(settings: Settings, pieces: Pieces) -> dict[str, Statistic]:
    """One statistic for each claim on proposition 9; the worst of several with its widths."""
    others = [f for f in generators() if f.between_singular < math.inf]
    every = [
        (
            f"{f.name} of Q {'wide, P narrow' if first else 'narrow, P wide'}, {seen.name}",
            Statistic(*(bound / f.between_singular for bound in seen.shown(f, wide_first=first))),
        )
        for seen in pieces.seen
        for f in others
        for first in (True, False)
    ]
    kl = next(f for f in generators() if f.slope_at_infinity == math.inf)
    start = "proposition 9: "
    return {
        start + "least share of networks with exactly width + 1 pieces": least_named(
            (f"width {width}", share(counts[width + 1], settings.networks)) for width, counts in pieces.counts.items()
        ),
        start + "most pieces in excess of width + 1": largest_named(
            (f"width {width}", max(counts) - width - 1) for width, counts in pieces.counts.items()
        ),
        start + "least total variation that finitely many values show between two widths": least_named(
            (seen.name, seen.shown(_total_variation(), wide_first=True)) for seen in pieces.seen
        ),
        "proposition 7: least KL(wide, narrow) that finitely many values show [nats]": least_named(
            (seen.name, seen.shown(kl, wide_first=True)) for seen in pieces.seen
        ),
        "proposition 7: least share of f(0) + f'(infinity), where finite, that finitely many values show": least_named(
            every
        ),
        start + "most pieces of any width without hidden biases": largest_named(
            (f"width {width}", max(counts)) for width, counts in pieces.without_biases.items()
        ),
        start + "share of networks that pass for one neuron less if outgoing weights may be 0": share(
            pieces.pruned[PRUNED], settings.networks
        ),
    }
