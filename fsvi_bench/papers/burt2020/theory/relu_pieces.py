"""Linear pieces of ReLU networks with one hidden layer along a line, counted exactly.

f(x) = c + Σ_i v_i max(0, w_i x + b_i). A unit with w_i ≠ 0 bends f at −b_i/w_i and nowhere else, where the slope grows
by |w_i| v_i: by w_i v_i where it switches on (w_i > 0), by −w_i v_i where it switches off. Between neighbouring bends f
is affine. So a network of width k has at most k bends and k + 1 pieces, and exactly k + 1 unless two bends coincide or
some w_i v_i is 0: null sets, if the parameters have a density. Two networks of different width therefore give mutually
singular laws (Burt et al. 2020, proposition 9, whose events are E_(k+1) without E_k); inputs of more dimensions are
looked at along (x, 0, …, 0), with w the weights of the first input.

That the parameters have a density is needed. Without hidden biases and with one input all bends are at 0, and every
width has at most two pieces. (With more inputs that holds along lines through the origin only: along (x, c, …), c ≠ 0,
the other inputs' weights take the place of biases, and the count tells widths apart again.) And if an outgoing weight
may be 0 with positive probability, a wide network passes for a narrow one with positive probability.

A float is a fraction, so nothing here rounds: what is counted is true of the network with exactly these parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import NamedTuple, TypeVar

from jaxtyping import Float
from torch import Tensor

Exact = TypeVar("Exact", int, Fraction)


class Network(NamedTuple):
    """One hidden layer of ReLU units along a line, in fractions: w, b and v by unit, and c."""

    input_weights: tuple[Fraction, ...]
    input_biases: tuple[Fraction, ...]
    output_weights: tuple[Fraction, ...]
    output_bias: Fraction


def exact_network(
    input_weights: Float[Tensor, " width"],
    input_biases: Float[Tensor, " width"],
    output_weights: Float[Tensor, " width"],
    output_bias: float,
) -> Network:
    """The network with these floats, as the fractions that they are."""
    w, b, v = (tuple(map(Fraction, column.tolist())) for column in (input_weights, input_biases, output_weights))
    return Network(w, b, v, Fraction(output_bias))


def bends(network: Network) -> dict[Fraction, Fraction]:
    """Where the slope changes, in rising order, and by how much; units that bend at one place are added up."""
    change: defaultdict[Fraction, Fraction] = defaultdict(Fraction)
    for w, b, v in zip(network.input_weights, network.input_biases, network.output_weights, strict=True):
        if w:
            change[-b / w] += abs(w) * v
    return {place: change[place] for place in sorted(change) if change[place]}


def linear_pieces(network: Network) -> int:
    """Number of maximal intervals on which f is affine, between 1 and width + 1."""
    return 1 + len(bends(network))


def values_as_integers(network: Network, places: Sequence[Fraction]) -> tuple[list[int], list[int]]:
    """Places and f there, each times a common positive number that makes them whole: the same pieces, 10 times as fast.

    Sums of fractions look for common divisors all the time.
    """
    D = lcm(*(part.denominator for part in (*network[0], *network[1], *network[2], network.output_bias)))
    D_x = lcm(*(x.denominator for x in places))
    w, b, v = ([int(part * D) for part in column] for column in network[:3])
    units = [(w_i, b_i * D_x, v_i) for w_i, b_i, v_i in zip(w, b, v, strict=True)]
    X, constant = [int(x * D_x) for x in places], int(network.output_bias * D) * D * D_x
    return X, [constant + sum(v_i * max(w_i * x + b_i, 0) for w_i, b_i, v_i in units) for x in X]


def pieces_seen(places: Sequence[Exact], values: Sequence[Exact]) -> int:
    """A number of pieces that values at rising places prove: 1 + the most bends shown by disjoint intervals.

    Three neighbours that are not on one line have a bend strictly between the outer two. Taking each such interval that
    starts no earlier than the last one taken ended gives the largest number of disjoint ones, since they are met by
    rising right end. More places never show fewer pieces, and no function of p pieces ever shows more than p.

    Raises:
        ValueError: the places do not rise, or are not as many as the values.
    """
    if len(places) != len(values) or any(b <= a for a, b in pairwise(places)):
        raise ValueError("expected as many values as places, and places in strictly rising order")
    runs, rises = [b - a for a, b in pairwise(places)], [b - a for a, b in pairwise(values)]
    seen, end = 1, 0
    for middle in range(1, len(runs)):
        crooked = rises[middle] * runs[middle - 1] != rises[middle - 1] * runs[middle]
        if crooked and middle - 1 >= end:
            seen, end = seen + 1, middle + 1
    return seen
