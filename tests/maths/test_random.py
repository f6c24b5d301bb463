"""Philox against NumPy's and the authors' own answers; what is drawn has its distribution, whatever is drawn with it.

Statistics have fixed seeds. Each is compared with the point that a true generator passes once in 10⁵ times, so the few
dozen tests here would fail by chance once in some thousand such files.
"""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats

from fsvi_bench.maths.random import _key_tensor, distinct, grid, normals, philox, uniforms, unit_interval, words

CPU, META = torch.device("cpu"), torch.device("meta")
RARE = 1e-5
KEYS = (0, 5, 2**63, 2**64 - 1)


def by_torch(keys, steps, count):
    """Words as they are made where there is no NumPy: the torch operations, on this processor."""
    step, block = torch.tensor([*steps])[:, None, None], torch.arange(1, 2 + (count - 1) // 4)
    key = _key_tensor(tuple(keys), CPU)
    block = block.expand(len(steps), len(keys), -1)
    return philox((block, step, torch.zeros_like(block), 0), (key, 0)).flatten(-2)[..., :count]


def chi_square(counts, expected=None):
    """The probability of counts at least as far from the expected ones."""
    return stats.chisquare(np.asarray(counts), expected).pvalue


# --- Philox -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_philox_is_numpy_s(seed):
    """NumPy increments its counter before each use, all 256 bits of it; ours are the counter's own four words."""
    rng = np.random.default_rng(seed)
    key = rng.integers(0, 2**64, 2, dtype=np.uint64)
    counter = rng.integers(0, 2**64, 4, dtype=np.uint64)
    counter[0] %= 2**63  # no carry into the second word
    expected = np.random.Philox(key=key, counter=counter).random_raw(40).view(np.int64)
    first, *others = torch.from_numpy(counter.view(np.int64))
    blocks = first + torch.arange(1, 11)
    got = philox((blocks, *(one.expand(10) for one in others)), tuple(torch.from_numpy(key.view(np.int64))))
    assert got.flatten().tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0, 0), "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
        ((-1,) * 4, (-1, -1), "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
        (
            (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0 - 2**64, 0x082EFA98EC4E6C89),
            (0x452821E638D01377, 0xBE5466CF34E90C6C - 2**64),
            "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
        ),
    ],
)
def test_philox_gives_the_authors_known_answers(counter, key, expected):
    """Random123's `kat_vectors`, philox4x64 with 10 rounds; the third counter and key are digits of π."""
    got = philox(tuple(torch.tensor(word) for word in counter), key)
    assert " ".join(f"{int(word) % 2**64:016x}" for word in got) == expected


@pytest.mark.parametrize("count", [1, 4, 7, 64])
def test_words_are_the_same_by_numpy_and_by_torch(count):
    """And so are uniform numbers, to the last bit."""
    for steps in (range(3), range(2**40, 2**40 + 2)):
        expected = by_torch(KEYS, steps, count)
        assert torch.equal(words(KEYS, steps, count, CPU), expected)
        assert torch.equal(uniforms(KEYS, steps, count, CPU), unit_interval(expected))


@pytest.mark.parametrize("draw", [words, uniforms, normals])
def test_a_draw_depends_on_key_step_and_index_alone(draw):
    """Bit for bit, in any batch, order and number of steps, and the same where more are drawn."""
    whole = draw(KEYS, range(9), 41, CPU)
    for step in (7, 0, 3):
        for place in (2, 0):
            alone = draw(KEYS[place : place + 1], range(step, step + 1), 23, CPU)
            assert torch.equal(alone[0, 0], whole[step, place, :23])
    assert torch.equal(draw(KEYS[::-1], range(2, 6), 41, CPU), whole[2:6].flip(1))


@pytest.mark.parametrize("sizes", [(7, 7, 7), (457, 12, 11), (455, 450, 460)])
def test_distinct_indices_depend_on_key_step_size_and_index_alone(sizes):
    """Grids of different sizes in one batch have different numbers of cells to leave out, and of rounds."""
    whole = distinct(KEYS[:3], range(9), sizes, 7, CPU)
    for place, size in enumerate(sizes):
        for step, count in ((7, 7), (0, 5), (3, 1)):
            alone = distinct(KEYS[place : place + 1], range(step, step + 1), [size], count, CPU)
            assert torch.equal(alone[0, 0], whole[step, place, :count])


@pytest.mark.parametrize("draw", [words, uniforms, normals])
def test_shapes_do_not_depend_on_values(draw):
    """A meta tensor has none: whatever waited for a number would fail."""
    assert draw(KEYS, range(3), 7, META).shape == (3, 4, 7)
    assert distinct(KEYS, range(3), [457, 455, 450, 460], 7, META).shape == (3, 4, 7)


# --- Distributions ----------------------------------------------------------------------------------------------------


def test_words_are_uniform_in_every_bit_and_byte():
    drawn = words(range(20), range(50), 100, CPU).flatten()
    for shift in range(0, 64, 8):
        assert chi_square(torch.bincount((drawn >> shift) & 255, minlength=256)) > RARE
    for bit in range(64):
        assert stats.binomtest(int(((drawn >> bit) & 1).sum()), len(drawn)).pvalue > RARE


def test_uniform_numbers_are_uniform():
    drawn = uniforms(range(20), range(50), 100, CPU)
    assert 0 <= drawn.min() < drawn.max() < 1
    assert stats.kstest(drawn.flatten(), "uniform").pvalue > RARE


def test_normal_numbers_are_normal():
    drawn = normals(range(20), range(50), 100, CPU)
    assert stats.kstest(drawn.flatten(), "norm").pvalue > RARE
    # χ² with as many degrees of freedom, and a fourth moment of 3 with a variance of 96.
    n = drawn.numel()
    assert stats.chi2.sf(float(drawn.square().sum()), n) == pytest.approx(0.5, abs=0.5 - RARE)
    assert abs(float(drawn.pow(4).mean()) - 3) < stats.norm.isf(RARE) * math.sqrt(96 / n)


@pytest.mark.parametrize("axis", ["keys", "steps", "indices"])
def test_neighbours_are_independent(axis):
    """Counts of pairs in a 16 × 16 grid, and correlations of normal numbers, along each of the three."""
    dim = {"steps": 0, "keys": 1, "indices": 2}[axis]
    u, z = (draw(range(30), range(60), 60, CPU) for draw in (uniforms, normals))
    even, odd = (u.index_select(dim, torch.arange(first, u.shape[dim], 2)) for first in (0, 1))
    cells = (even * 16).long() * 16 + (odd * 16).long()
    assert chi_square(torch.bincount(cells.flatten(), minlength=256)) > RARE
    length = z.shape[dim] - 1
    products = z.narrow(dim, 0, length) * z.narrow(dim, 1, length)  # of variance 1, uncorrelated
    assert abs(float(products.sum())) < stats.norm.isf(RARE / 2) * math.sqrt(products.numel())


def test_normals_are_the_formula_s():
    """Box and Muller in NumPy from the same uniform numbers. log, cos and sin are right to an ulp, the rest to half an
    ulp: 4 ulps in all."""
    u = uniforms(KEYS, range(2), 2000, CPU).numpy().reshape(2, 4, 1000, 2)
    radius, angle = np.sqrt(-2 * np.log(1 - u[..., 0])), 2 * np.pi * u[..., 1]
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).reshape(2, 4, 2000)
    got = normals(KEYS, range(2), 2000, CPU).numpy()
    assert (np.abs(got - expected) <= 4 * np.spacing(np.abs(expected))).all()


# --- Distinct indices -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 23, 40, 457, 10741, 27281, 10**6])
def test_indices_are_distinct_and_of_the_set(size):
    count = min(size, 300)
    for drawn in distinct(KEYS[:2], range(25), [size] * 2, count, CPU).flatten(0, 1):
        assert 0 <= drawn.min() <= drawn.max() < size
        assert len(drawn.unique()) == count


def test_a_grid_has_few_cells_too_many():
    """27,281 of all sizes up to 65,536 needs the most: 19."""
    sizes = np.arange(1, 2**16 + 1)
    height, width, rounds = np.array([grid(int(size)) for size in sizes]).T
    over = height * width - sizes
    assert (over >= 0).all()
    assert over.max() == over[27281 - 1] == 19
    assert over.mean() < 2.1
    assert (height <= width).all()
    assert (width[24:] < 4 * height[24:]).all()
    assert (rounds % 2 == 0).all()
    assert (np.maximum(height, 2) ** (rounds / 2) >= 999).all()


@pytest.mark.parametrize("size", [2, 3, 5, 6, 7, 12, 23, 40])
def test_ordered_pairs_are_uniform(size):
    """With 20,000 sets, a bias of 1/1000 would shift χ² by 0.02."""
    drawn = distinct([9], range(20000), [size], 2, CPU)[:, 0]
    counts = torch.bincount(drawn[:, 0] * size + drawn[:, 1], minlength=size**2)
    pairs = [i * size + j for i, j in permutations(range(size), 2)]
    assert chi_square(counts[pairs]) > RARE


@pytest.mark.parametrize("size", [4, 5, 6, 7, 11])
def test_ordered_triples_are_uniform(size):
    drawn = distinct([3], range(20000), [size], 3, CPU)[:, 0]
    code = (drawn * torch.tensor([size**2, size, 1])).sum(-1)
    triples = [i * size**2 + j * size + k for i, j, k in permutations(range(size), 3)]
    assert chi_square(torch.bincount(code, minlength=size**3)[triples]) > RARE


@pytest.mark.parametrize(("size", "count"), [(455, 40), (457, 80), (10741, 80)])
def test_sets_hold_every_index_and_every_neighbour_equally_often(size, count):
    """Sums over a random set have the variance of sampling without replacement, as patterns among its indices would
    show, and each eighth of the set's order, too, is spread evenly."""
    sets = 4000
    drawn = distinct([7], range(sets), [size], count, CPU)[:, 0]
    eighths = drawn * 8 // size
    expected = torch.bincount(torch.arange(size) * 8 // size).double() * sets / size
    for place in (0, 1, count // 2, count - 1):
        assert chi_square(torch.bincount(eighths[:, place]), expected.numpy()) > RARE
    for values in (torch.arange(size).double(), torch.arange(size).double() % 2, torch.arange(size).square() % 101.0):
        of_one = values.var(correction=0) * (size - count) / (size - 1)
        sums = (values[drawn].sum(-1) - count * values.mean()) / (count * of_one).sqrt()
        assert stats.kstest(sums, "norm").pvalue > RARE or float(values.max()) == 1
        statistic = float(sums.square().sum())
        assert RARE < stats.chi2.sf(statistic, sets) < 1 - RARE
