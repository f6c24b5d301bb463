"""Hilbert's curve by its defining properties, and KLs of rounded laws by hand."""

import math

import pytest
import torch
from scipy import integrate, stats

from fsvi_bench.papers.burt2020.theory.space_filling import hilbert_cells, rounded_kl


def uniform_square_kl() -> float:
    """KL of the uniform law on the unit square to N(0, I₂): log 2π + ½(⅓ + ⅓)."""
    return math.log(2 * math.pi) + 1 / 3


def test_first_order_by_hand():
    assert hilbert_cells(1).tolist() == [[0, 0], [0, 1], [1, 1], [1, 0]]
    assert hilbert_cells(2)[:4].tolist() == [[0, 0], [1, 0], [1, 1], [0, 1]]


@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_every_cell_once_and_neighbours_in_turn(order):
    """Length to area, and continuity: steps of one cell, and a finer curve stays inside the coarser one's cells."""
    cells = hilbert_cells(order)
    assert len({tuple(cell) for cell in cells.tolist()}) == 4**order == len(cells)
    assert bool((cells.diff(dim=0).abs().sum(-1) == 1).all())
    finer = hilbert_cells(order + 1)
    assert torch.equal(finer // 2, cells.repeat_interleave(4, dim=0))


def test_rounded_kl_of_four_cells_by_hand():
    inner, outer = (stats.norm.cdf(b) - stats.norm.cdf(a) for a, b in ((0, 0.5), (0.5, 1)))
    expected = 0.5 * math.log(0.5 / inner**2) + 0.5 * math.log(0.5 / outer**2)
    assert float(rounded_kl(torch.tensor([[0, 0], [1, 1]]), 1)) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("order", [2, 4, 6])
def test_curves_in_a_curve_are_independent_and_uniform(order):
    """(h₁, h₁∘h₂, h₂∘h₂), which is u₁, u₂ and what makes the others, visits every cell of the cube once."""
    first, second = hilbert_cells(order).unbind(-1)
    cells = torch.cat([first[:, None], hilbert_cells(order // 2)[second]], dim=-1)
    assert len({tuple(cell) for cell in cells.tolist()}) == 4**order == 2**order * 2 ** (order // 2) * 2 ** (order // 2)


def test_a_normal_cut_off_is_as_far_from_a_normal_as_the_cut_is_unlikely():
    """KL of Z given |Z| ≤ a is −log Prob(|Z| ≤ a): 2^−n for the a_n of the counterexample, 1 in sum."""
    total = 0.0
    for n in range(1, 20):
        a = stats.norm.isf(-0.5 * math.expm1(-(2.0**-n)))
        cut = stats.truncnorm(-a, a)
        found = integrate.quad(lambda z, q=cut: q.pdf(z) * (q.logpdf(z) - stats.norm.logpdf(z)), -a, a, epsabs=1e-14)[0]
        assert found == pytest.approx(2.0**-n, rel=1e-6)
        total += found
    assert total == pytest.approx(1 - 2.0**-19, rel=1e-7)


def test_rounding_tends_to_the_uniform_law_from_below():
    """Data processing: rounding only loses, finer rounding less; what is lost falls like the square of the width."""
    lost = [uniform_square_kl() - float(rounded_kl(hilbert_cells(order), order)) for order in (3, 4, 5)]
    assert lost[0] > lost[1] > lost[2] > 0
    assert lost[0] / lost[1] == pytest.approx(4, rel=1e-2)
    x = torch.linspace(0.5e-3, 1 - 0.5e-3, 1000, dtype=torch.float64)
    assert uniform_square_kl() == pytest.approx(
        float(2 * (0.5 * math.log(2 * math.pi) + 0.5 * x.square().mean())), abs=1e-6
    )
