"""Pieces of ReLU networks against the function itself, evaluated in fractions, and against networks made by hand."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsvi_bench.papers.burt2020.theory.networks import (
    Network,
    bends,
    exact_network,
    linear_pieces,
    pieces_seen,
    whole,
)
from tests.maths.draws import PROPERTY

small = st.integers(-3, 3).map(Fraction)  #: so that bends coincide and weights vanish often


def value_of(network, x):
    """f(x)."""
    return network.output_bias + sum(v * max(w * x + b, 0) for w, b, v in zip(*network[:3], strict=True))


def exactly(*numbers):
    return np.array([Fraction(number) for number in numbers], dtype=object)


@st.composite
def networks(draw):
    width = draw(st.integers(0, 6))
    return Network(*(exactly(*(draw(small) for _ in range(width))) for _ in range(3)), draw(small))


def pieces_of_the_function(network):
    """Slopes left of, between and right of all candidate places, from values alone; neighbours of equal slope are one."""
    places = sorted({-b / w for w, b in zip(network.input_weights, network.input_biases, strict=True) if w})
    if not places:
        return 1
    ends = [places[0] - 1, *places, places[-1] + 1]
    slopes = [(value_of(network, b) - value_of(network, a)) / (b - a) for a, b in pairwise(ends)]
    return 1 + sum(a != b for a, b in pairwise(slopes))


@PROPERTY
@given(networks())
def test_count_is_that_of_the_function(network):
    assert linear_pieces(network) == pieces_of_the_function(network) <= len(network.input_weights) + 1


@PROPERTY
@given(networks(), st.lists(st.fractions(-5, 5, max_denominator=7), min_size=2, max_size=12, unique=True))
def test_values_never_show_more_than_there_is_and_more_values_never_less(network, places):
    """Whichever place is left out, an inner one too."""
    places = exactly(*sorted(places))
    values = network.values(places)
    seen = pieces_seen(places, values)
    assert seen <= linear_pieces(network)
    for i in range(len(places)):
        assert pieces_seen(np.delete(places, i), np.delete(values, i)) <= seen


@PROPERTY
@given(networks())
def test_close_enough_values_show_everything(network):
    """Two places in each piece and one at each bend: no triple sees two bends."""
    places = sorted(bends(network))
    if not places:
        return
    gap = min([b - a for a, b in pairwise(places)], default=Fraction(1)) / 3
    dense = exactly(*sorted({x + shift for x in places for shift in (-gap, 0, gap)}))
    assert pieces_seen(dense, network.values(dense)) == linear_pieces(network)


def test_whole_numbers_are_the_values_times_a_constant():
    of_units, places = torch.tensor([[1.1, -0.3], [0.2, 0.7], [-2.3, 1.9]]).double(), [-7 / 3, 0.2, 2.0]
    X, unit = whole(places)
    values = exact_network(of_units, 0.7).values(X, unit)
    assert all(isinstance(number, int) for number in (*X, *values))
    as_given = Network(*(exactly(*column) for column in of_units.tolist()), Fraction(0.7))
    scales = [value / value_of(as_given, Fraction(place)) for place, value in zip(places, values, strict=True)]
    assert 0 < scales[0] == scales[1] == scales[2]


def test_without_biases_every_width_has_at_most_two_pieces_through_the_origin_only():
    """A second input of 1 stands for biases: along (x, 1) the count is width + 1 again where along (x, 0) it is 2."""
    generator = torch.Generator().manual_seed(0)
    for width in (1, 2, 5, 9):
        w, other, v = torch.randn(3, width, generator=generator, dtype=torch.float64)
        assert linear_pieces(exact_network(torch.stack([w, torch.zeros_like(w), v]), 0.0)) == 2
        assert linear_pieces(exact_network(torch.stack([w, other, v]), 0.0)) == width + 1


@pytest.mark.parametrize(
    ("places", "values", "pieces"), [((-2, -1, 1, 2), (2, 1, 1, 2), 2), (range(5), (0, 1, 0, 1, 0), 3)]
)
def test_a_greedy_choice_by_hand(places, values, pieces):
    """|x| at −2, −1, 1, 2: two crooked triples that overlap prove one bend; three that overlap in turn prove two."""
    assert pieces_seen(exactly(*places), exactly(*values)) == pieces
