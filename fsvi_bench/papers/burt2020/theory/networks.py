"""Propositions 7 and 9: ReLU networks of different widths, distinguished by their number of linear pieces.

An event with probability p under the wide network's distribution and 0 under the narrow one's gives the lower bound p
on the total variation, and on every other f-divergence that of Bernoulli(p) and Bernoulli(0). KL(wide, narrow) is
infinite for every p > 0, for which finitely many inputs suffice. KL(narrow, wide) is at least −log(1 − p), and infinite
in the limit.

**Linear pieces** are counted exactly. f(x) = c + Σ_i v_i max(0, w_i x + b_i). A unit with w_i ≠ 0 has its only bend at
−b_i/w_i, where the slope grows by |w_i| v_i: by w_i v_i where it switches on (w_i > 0), by −w_i v_i where it switches
off. Between adjacent bends f is affine. So a network of width k has at most k bends and k + 1 pieces, and exactly k + 1
unless two bends coincide or some w_i v_i is 0, which are null sets if the parameters have a density. Therefore networks
of different widths have mutually singular distributions (Burt et al. 2020, proposition 9, whose events are E_(k+1)
without E_k). For inputs of more dimensions, the line (x, 0, …, 0) is used, with w the weights of the first input.

The parameters must have a density. Without hidden biases and with one input all bends are at 0, and every width has at
most two pieces. (With more inputs that holds only along lines through the origin: along (x, c, …), c ≠ 0, the other
inputs' weights act as biases, and the count distinguishes widths again.) And if an outgoing weight may be 0 with
positive probability, a wide network is equivalent to a narrow one with positive probability.

Floats are treated as fractions, so nothing is rounded: the counts are exact for the network with these parameters.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fsvi_bench.papers.burt2020.theory.f_divergence import GENERATORS
from fsvi_bench.papers.burt2020.theory.settings import Settings
from fsvi_bench.papers.claims import Statistic
from fsvi_bench.presenting.frames import Frames

PRUNED = 6  #: width of the networks whose outgoing weights may be 0
BOUNDS = ["value", "low", "high"]
PLAIN, WHOLE, BARE, ZEROS = "as they are", "the same, without zeros", "no hidden biases", "weights may be 0"


class Network(NamedTuple):
    """One hidden layer of ReLU units along a line: w, b and v by unit, and c; arrays of integers or fractions."""

    input_weights: NDArray[Any]
    input_biases: NDArray[Any]
    output_weights: NDArray[Any]
    output_bias: int | Fraction

    def values(self, X: NDArray[Any], unit: int = 1) -> NDArray[Any]:
        """unit · f(x) at the places x = X/unit; integers if all inputs are."""
        w, b, v = (column[:, None] for column in self[:3])
        return self.output_bias * unit + (v * np.maximum(w * X + b * unit, 0)).sum(0)


def whole(floats: Iterable[float]) -> tuple[NDArray[Any], int]:
    """Floats multiplied by a power of 2 that makes all of them integers, and that power."""
    exact = list(map(Fraction, floats))
    unit = max(each.denominator for each in exact)
    return np.array([int(each * unit) for each in exact], dtype=object), unit


def exact_network(of_units: Float[Tensor, "3 width"], output_bias: float) -> Network:
    """The network with these w, b and v by unit, with f multiplied by a power of 4: it has the same pieces and uses
    integers, which is 20 times as fast."""
    numbers, unit = whole([*of_units.ravel().tolist(), output_bias])
    w, b, v = np.split(numbers[:-1], 3)
    return Network(w, b, v, numbers[-1] * unit)


def bends(network: Network) -> dict[Fraction, Fraction]:
    """Places where the slope changes, in ascending order, with the changes; units with the same place are summed."""
    change: defaultdict[Fraction, Fraction] = defaultdict(Fraction)
    for w, b, v in zip(*network[:3], strict=True):
        if w:
            change[Fraction(-b) / w] += abs(w) * v
    return {place: change[place] for place in sorted(change) if change[place]}


def linear_pieces(network: Network) -> int:
    """Number of maximal intervals on which f is affine, between 1 and width + 1."""
    return 1 + len(bends(network))


def pieces_seen(places: NDArray[Any], values: NDArray[Any]) -> int:
    """A lower bound on the number of pieces from values at strictly ascending places: 1 + the number of disjoint
    intervals with a bend.

    Three adjacent points that are not on a line have a bend strictly between the outer two. Taking each such interval
    that starts no earlier than the end of the last one taken gives the largest number of disjoint intervals, since they
    are visited in order of their right ends. More places never give a smaller bound, and a function of p pieces never
    gives more than p.
    """
    runs, rises = np.diff(places), np.diff(values)
    seen, end = 1, 0
    for start in np.flatnonzero(rises[1:] * runs[:-1] != rises[:-1] * runs[1:]).tolist():
        if start >= end:
            seen, end = seen + 1, start + 2
    return seen


def draw_network(width: int, generator: torch.Generator, biases: bool = True, zero_probability: float = 0) -> Network:
    """A network with N(0, 1) parameters, with or without hidden biases; outgoing weights are 0 with a probability."""
    of_units = torch.randn(3, width, generator=generator, dtype=torch.float64)
    of_units[1] *= biases
    of_units[2] *= torch.rand(width, generator=generator, dtype=torch.float64) >= zero_probability
    return exact_network(of_units, float(torch.randn((), generator=generator, dtype=torch.float64)))


def places(level: int) -> NDArray[np.float64]:
    """The 2^level − 1 quantiles of a Cauchy distribution, that of −b/w; each level contains the previous one."""
    return stats.cauchy.ppf(np.arange(1, 2**level) / 2**level)


def count_pieces(settings: Settings) -> pd.DataFrame:
    """Linear pieces of each network drawn, by distribution and width."""
    # Whether there are biases, and the probability that an outgoing weight is 0.
    plain, pruned = (
        {PLAIN: (True, 0.0), BARE: (False, 0.0)},
        {WHOLE: (True, 0.0), ZEROS: (True, settings.zero_probability)},
    )
    kinds = [(width, settings.generator("pieces", width), plain) for width in settings.widths]
    rows = [
        (law, width, linear_pieces(draw_network(width, generator, *options)))
        for width, generator, laws in [*kinds, (PRUNED, settings.generator("pruned"), pruned)]
        for law, options in laws.items()
        for _ in range(settings.networks)
    ]
    return pd.DataFrame(rows, columns=["law", "width", "pieces"])


def judged_by_width(networks: pd.DataFrame) -> Frames:
    """The numbers of pieces compared with the largest possible ones, and their frequencies."""
    possible, laws = networks["width"] + 1, networks.groupby(["law", "width"])["pieces"]
    spread = laws.agg(["size", "min", "max"])
    widths = spread.loc[PLAIN].join(spread.loc[BARE].add_suffix(" without biases")).reset_index()
    return {
        "networks": networks.assign(
            all_there=networks["pieces"] == possible, one_less=networks["pieces"] == possible - 1
        ),
        "pieces": laws.value_counts(normalize=True).reset_index(name="share"),
        "widths": widths.assign(possible=widths["width"] + 1),
    }


def see(settings: Settings, narrow: int, wide: int) -> pd.DataFrame:
    """The proportion of wide networks whose values at 3, 7, 15, … points show more pieces than narrow ones can have: a
    lower bound on the total variation between the two distributions of values at the points.

    `refuted` is the number of narrow networks that do so at the finest points; by the theorem it is 0.
    """
    generator = settings.generator("seen", narrow, wide)
    X, unit = whole(places(settings.finest))
    steps = 2 ** np.arange(settings.finest - 2, -1, -1)

    def shown(width: int) -> NDArray[np.bool_]:
        """Whether more pieces are shown, by network and level."""
        drawn = (draw_network(width, generator).values(X, unit) for _ in range(settings.seen_networks))
        counts = [[pieces_seen(X[s - 1 :: s], values[s - 1 :: s]) for s in steps] for values in drawn]
        return np.array(counts) > narrow + 1

    seen = pd.DataFrame(map(Statistic.of_proportion, shown(wide).T))
    return seen.assign(
        points=2**settings.finest // steps - 1, pair=f"{narrow} and {wide}", narrow=narrow, wide=wide,
        refuted=shown(narrow)[:, -1].sum(),
    )  # fmt: skip


def shown_by_events(seen: pd.DataFrame) -> pd.DataFrame:
    """Lower bounds on f-divergences at the finest points, in both directions. They increase with p, so p's interval
    gives theirs. They are NaN if a narrow network shows the event, which then proves nothing.
    """
    finest = seen.groupby("pair", sort=False).tail(1).set_index("pair")
    shares = finest[BOUNDS].where(finest["refuted"] == 0)
    nothing = [0.0, 0.0, 0.0]
    rows = [
        (f"{f.name}, {words}", f"widths {pair}", *map(f.of_event, q, p), f.between_singular)
        for pair, *share in shares.itertuples(name=None)
        for f in GENERATORS
        for words, q, p in (("Q wide, P narrow", share, nothing), ("Q narrow, P wide", nothing, share))
    ]
    shown = pd.DataFrame(rows, columns=["law", "pair", *BOUNDS, "limit"])
    return shown.assign(finite=shown["limit"] < math.inf)


def of_networks(settings: Settings) -> Frames:
    """Frames for propositions 7 and 9."""
    seen = pd.concat([see(settings, *pair) for pair in settings.pairs], ignore_index=True)
    events = shown_by_events(seen)
    limits = events.groupby("law")["limit"].first()
    shown = events.pivot_table("low", "law", "pair", sort=False, dropna=False).assign(**{"in the limit": limits})
    shown = shown.reset_index(names="divergence")
    shown.attrs["M"] = seen["points"].max()
    return {**judged_by_width(count_pieces(settings)), "seen": seen, "events": events, "shown": shown}
