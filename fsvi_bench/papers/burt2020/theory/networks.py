"""Propositions 7 and 9: ReLU networks of different width, told apart by their number of linear pieces.

An event that has probability p under the wide law and 0 under the narrow one shows p of the total variation, and of
every other f-divergence at least that of Bernoulli(p) and Bernoulli(0). KL(wide, narrow) is infinite for every p > 0:
that takes finitely many inputs. KL(narrow, wide) is at least −log(1 − p), and infinite in the limit.

**Linear pieces**, counted exactly. f(x) = c + Σ_i v_i max(0, w_i x + b_i). A unit with w_i ≠ 0 bends f at −b_i/w_i and
nowhere else, where the slope grows by |w_i| v_i: by w_i v_i where it switches on (w_i > 0), by −w_i v_i where it
switches off. Between neighbouring bends f is affine. So a network of width k has at most k bends and k + 1 pieces, and
exactly k + 1 unless two bends coincide or some w_i v_i is 0: null sets, if the parameters have a density. Two networks
of different width therefore give mutually singular laws (Burt et al. 2020, proposition 9, whose events are E_(k+1)
without E_k); inputs of more dimensions are looked at along (x, 0, …, 0), with w the weights of the first input.

That the parameters have a density is needed. Without hidden biases and with one input all bends are at 0, and every
width has at most two pieces. (With more inputs that holds along lines through the origin only: along (x, c, …), c ≠ 0,
the other inputs' weights take the place of biases, and the count tells widths apart again.) And if an outgoing weight
may be 0 with positive probability, a wide network passes for a narrow one with positive probability.

A float is a fraction, so nothing here rounds: what is counted is true of the network with exactly these parameters.
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

PRUNED = 6  #: width whose outgoing weights may be 0
BOUNDS = ["value", "low", "high"]
PLAIN, WHOLE, BARE, ZEROS = "as they are", "the same, without zeros", "no hidden biases", "weights may be 0"


class Network(NamedTuple):
    """One hidden layer of ReLU units along a line: w, b and v by unit, and c; arrays of whole numbers or fractions."""

    input_weights: NDArray[Any]
    input_biases: NDArray[Any]
    output_weights: NDArray[Any]
    output_bias: int | Fraction

    def values(self, X: NDArray[Any], unit: int = 1) -> NDArray[Any]:
        """unit · f(x) at the places x = X/unit, whole numbers if all are."""
        w, b, v = (column[:, None] for column in self[:3])
        return self.output_bias * unit + (v * np.maximum(w * X + b * unit, 0)).sum(0)


def whole(floats: Iterable[float]) -> tuple[NDArray[Any], int]:
    """Floats, each times the power of 2 that makes all of them whole numbers."""
    exact = list(map(Fraction, floats))
    unit = max(each.denominator for each in exact)
    return np.array([int(each * unit) for each in exact], dtype=object), unit


def exact_network(of_units: Float[Tensor, "3 width"], output_bias: float) -> Network:
    """The network with these w, b and v by unit, f times a power of 4: the same pieces, in whole numbers, 20 times as
    fast."""
    numbers, unit = whole([*of_units.ravel().tolist(), output_bias])
    w, b, v = np.split(numbers[:-1], 3)
    return Network(w, b, v, numbers[-1] * unit)


def bends(network: Network) -> dict[Fraction, Fraction]:
    """Where the slope changes, in rising order, and by how much; units that bend at one place are added up."""
    change: defaultdict[Fraction, Fraction] = defaultdict(Fraction)
    for w, b, v in zip(*network[:3], strict=True):
        if w:
            change[Fraction(-b) / w] += abs(w) * v
    return {place: change[place] for place in sorted(change) if change[place]}


def linear_pieces(network: Network) -> int:
    """Number of maximal intervals on which f is affine, between 1 and width + 1."""
    return 1 + len(bends(network))


def pieces_seen(places: NDArray[Any], values: NDArray[Any]) -> int:
    """A number of pieces that values at strictly rising places prove: 1 + the most bends shown by disjoint intervals.

    Three neighbours that are not on one line have a bend strictly between the outer two. Taking each such interval that
    starts no earlier than the last one taken ended gives the largest number of disjoint ones, since they are met by
    rising right end. More places never show fewer pieces, and no function of p pieces ever shows more than p.
    """
    runs, rises = np.diff(places), np.diff(values)
    seen, end = 1, 0
    for start in np.flatnonzero(rises[1:] * runs[:-1] != rises[:-1] * runs[1:]).tolist():
        if start >= end:
            seen, end = seen + 1, start + 2
    return seen


def draw_network(width: int, generator: torch.Generator, biases: bool = True, zero_probability: float = 0) -> Network:
    """All parameters N(0, 1), hidden biases or none; each outgoing weight is 0 with that probability."""
    of_units = torch.randn(3, width, generator=generator, dtype=torch.float64)
    of_units[1] *= biases
    of_units[2] *= torch.rand(width, generator=generator, dtype=torch.float64) >= zero_probability
    return exact_network(of_units, float(torch.randn((), generator=generator, dtype=torch.float64)))


def places(level: int) -> NDArray[np.float64]:
    """The 2^level − 1 quantiles of a Cauchy law, which −b/w follows; those of a level contain those of the last."""
    return stats.cauchy.ppf(np.arange(1, 2**level) / 2**level)


def count_pieces(settings: Settings) -> pd.DataFrame:
    """Linear pieces of each network drawn, by its law and width."""
    # Whether there are biases, and with which probability an outgoing weight is 0.
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
    """How many pieces networks have beside how many they can have, and in which shares."""
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
    """Of the wider networks, the share that show more pieces than the narrow ones can have, by their values at 3, 7,
    15, … points: a lower bound on the total variation between the two laws of values at the points.

    `refuted` is how many of the narrow ones do so at the finest points: the theorem says 0.
    """
    generator = settings.generator("seen", narrow, wide)
    X, unit = whole(places(settings.finest))
    steps = 2 ** np.arange(settings.finest - 2, -1, -1)

    def shown(width: int) -> NDArray[np.bool_]:
        """By network and level."""
        drawn = (draw_network(width, generator).values(X, unit) for _ in range(settings.seen_networks))
        counts = [[pieces_seen(X[s - 1 :: s], values[s - 1 :: s]) for s in steps] for values in drawn]
        return np.array(counts) > narrow + 1

    seen = pd.DataFrame(map(Statistic.of_proportion, shown(wide).T))
    return seen.assign(
        points=2**settings.finest // steps - 1, pair=f"{narrow} and {wide}", narrow=narrow, wide=wide,
        refuted=shown(narrow)[:, -1].sum(),
    )  # fmt: skip


def shown_by_events(seen: pd.DataFrame) -> pd.DataFrame:
    """Lower bounds on f-divergences at the finest points. They rise with p, so that p's interval gives theirs.

    NaN where narrow networks show the event, which then proves nothing. Both ways, as f-divergences are not symmetric.
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
    """On propositions 7 and 9."""
    seen = pd.concat([see(settings, *pair) for pair in settings.pairs], ignore_index=True)
    events = shown_by_events(seen)
    limits = events.groupby("law")["limit"].first()
    shown = events.pivot_table("low", "law", "pair", sort=False, dropna=False).assign(**{"in the limit": limits})
    shown = shown.reset_index(names="divergence")
    shown.attrs["M"] = seen["points"].max()
    return {**judged_by_width(count_pieces(settings)), "seen": seen, "events": events, "shown": shown}
