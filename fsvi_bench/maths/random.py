"""Random numbers as functions of a key, a step and an index, the same on every device.

The generator is Philox 4x64-10 (Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3").
Four words of 64 bits are a bijection of a counter under a key. Here the key is (key, 0) and the counter is
(1 + index // 4, step, 0, 0), so word i of a step depends on nothing but key, step and i. NumPy's `Philox` with the
counter (0, step, 0, 0) gives the same words, because it increments its counter before each use. On a CPU it makes them,
in a tenth of the time that torch operations take there; everywhere else torch operations make them. Words, uniform
numbers and distinct indices are equal to the last bit. Normal numbers agree to the accuracy of log, cos and sin.

Tensors of draws have the shape [T, B, count]: T consecutive steps, and one key for each of B problems.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

ROUNDS = 10
_HALF = 0xFFFFFFFF
_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_MIX = 0xBF58476D1CE4E5B9  #: splitmix64's first multiplier

Word = Tensor | int


def words(keys: Collection[int], steps: range, count: int, device: torch.device) -> Int[Tensor, "T B count"]:
    """The first `count` words of each step, 64 bits as signed integers.

    Args:
        keys: one for each problem, at least 0 and less than 2⁶⁴.
    """
    if device.type == "cpu":
        drawn = np.stack([generator.bit_generator.random_raw(count) for generator in _generators(keys, steps)])
        return torch.from_numpy(drawn.view(np.int64)).view(len(steps), len(keys), count)
    step = torch.arange(steps.start, steps.stop, device=device)[:, None, None]
    block = torch.arange(1, 2 + (count - 1) // 4, device=device)
    key = _key_tensor(tuple(keys), device)
    block = block.expand(len(steps), len(keys), -1)
    return philox((block, step, torch.zeros_like(block), 0), (key, 0)).flatten(-2)[..., :count]


def uniforms(keys: Collection[int], steps: range, count: int, device: torch.device) -> Float[Tensor, "T B count"]:
    """Numbers in [0, 1), multiples of 2⁻⁵³: the upper 53 bits of each word."""
    if device.type == "cpu":
        numbers = np.empty((len(steps) * len(keys), count))
        for place, generator in zip(numbers, _generators(keys, steps), strict=True):
            generator.random(out=place)
        return torch.from_numpy(numbers).view(len(steps), len(keys), count)
    return unit_interval(words(keys, steps, count, device))


def unit_interval(word: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The upper 53 bits of words as numbers in [0, 1)."""
    return _shifted(word, 11).to(torch.float64) * 2.0**-53


def normals(keys: Collection[int], steps: range, count: int, device: torch.device) -> Float[Tensor, "T B count"]:
    """Standard normal numbers: of each two uniform ones, a radius and an angle (Box and Muller 1958).

    The radius is taken from 1 − u > 0, so all numbers are finite; none is beyond √(106 log 2) = 8.57.
    """
    pairs = uniforms(keys, steps, count + count % 2, device).view(len(steps), len(keys), -1, 2)
    radius = (1 - pairs[..., 0]).log_().mul_(-2).sqrt_()
    angle = 2 * math.pi * pairs[..., 1]
    # Neither the vectorised loops of log, cos and sin nor their remainders round by place.
    torch.mul(radius, angle.cos(), out=pairs[..., 0])
    torch.mul(radius, angle.sin_(), out=pairs[..., 1])
    return pairs.flatten(-2)[..., :count]


# --- Philox -----------------------------------------------------------------------------------------------------------


def philox(counter: tuple[Tensor, Word, Tensor, Word], key: tuple[Word, Word]) -> Int[Tensor, "*n 4"]:
    """Four words for each counter and key, by torch operations alone; all are 64 bits as signed integers.

    Where the counter has an axis of blocks, its first and third word must have it.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _product(_MULTIPLIERS[0], c0)
        high1, low1 = _product(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = _wrapped(k0 + _signed(_WEYL[0])), _wrapped(k1 + _signed(_WEYL[1]))
    return torch.stack([torch.as_tensor(word) for word in (c0, c1, c2, c3)], -1)


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """Upper and lower 64 bits of a product of unsigned words, by halves of 32 bits."""
    a_high, a_low = a >> 32, a & _HALF
    b_high, b_low = _shifted(b, 32), b & _HALF
    across, up = a_high * b_low, a_low * b_high
    carried = _shifted(a_low * b_low, 32) + (across & _HALF) + (up & _HALF)
    return a_high * b_high + _shifted(across, 32) + _shifted(up, 32) + (carried >> 32), b * _signed(a)


def _shifted(word: Tensor, bits: int) -> Tensor:
    """A shift to the right that brings in zeros: torch's own brings in the sign."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """A word of 64 bits as two's complement."""
    return (word + 2**63) % 2**64 - 2**63


def _wrapped(word: Word) -> Word:
    return _signed(word) if isinstance(word, int) else word


@lru_cache(maxsize=256)
def _key_tensor(keys: Collection[int], device: torch.device) -> Int[Tensor, "B 1"]:
    return torch.tensor([_signed(key) for key in keys], device=device)[:, None]


def _generators(keys: Collection[int], steps: range) -> Iterator[np.random.Generator]:
    """NumPy's generator at the first word of each step and key, in this order. It is one and the same object."""
    bits = np.random.Philox(key=0)
    generator, state = np.random.Generator(bits), bits.state
    for step in steps:
        state["state"]["counter"][1] = step
        for key in keys:
            state["state"]["key"][0] = key
            bits.state = state
            yield generator


# --- Distinct indices -------------------------------------------------------------------------------------------------


def distinct(
    keys: Collection[int], steps: range, sizes: Collection[int], count: int, device: torch.device
) -> Int[Tensor, "T B count"]:
    """The first `count` entries of a random permutation of 0, ..., size − 1 for each step and problem, in O(count).

    The permutation is a generalised Feistel cipher with cycle walking (Black and Rogaway 2002, "Ciphers with arbitrary
    finite domains"). Index i is a cell (row, column) of a grid of height·width ≥ size cells. Rounds alternately add a
    keyed function of the column to the row, modulo the height, and one of the row to the column, modulo the width. An
    image outside of 0, ..., size − 1 is permuted again. The path from i visits each cell once before it returns, so it
    is inside after at most `height·width − size` more turns: that many are done, whatever the values, and `grid` keeps
    this number small (at most 19, and 2.1 on average, up to a size of 65,536).

    Two indices in different columns are in uniform rows of each other after a round with independent uniform functions,
    and so on in turn. They stay correlated with where they began as long as they share a row or a column, which lasts
    for two more rounds with a probability of about 1/min(height, width). `grid` asks for as many rounds as leave 1/1000
    of that.

    Args:
        sizes: one for each problem, none of them less than `count`.
    """
    if len({grid(size).rounds for size in sizes}) > 1:
        alone = [distinct([key], steps, [size], count, device) for key, size in zip(keys, sizes, strict=True)]
        return torch.cat(alone, 1)
    (height, width, size), over, rounds = _grids(tuple(sizes), device)
    key = (words(keys, steps, 2 * rounds, device) | 1)[..., None].unbind(-2)  # factors are odd
    # The surplus cells come last: where a walk meets one, its image is looked up.
    cells = torch.arange(count + over, device=device)
    cells = torch.where(cells < count, cells, size + cells - count)
    row = cells // width
    column = cells - row * width
    for place in range(0, len(key), 4):
        row = _moved(row, column, height, key[place], key[place + 1])
        column = _moved(column, row, width, key[place + 2], key[place + 3])
    images = row.mul_(width).add_(column)
    index, of_others = images[..., :count], images[..., count:]
    for _ in range(over):
        index = torch.where(index < size, index, of_others.gather(-1, (index - size).clamp_(min=0)))
    return index


def _moved(moving: Tensor, fixed: Tensor, modulus: Tensor, factor: Tensor, offset: Tensor) -> Tensor:
    """`moving` plus a keyed hash of `fixed`, modulo `modulus`: 31 bits of the hash, which are uniform, make a number.

    The arithmetic shift maps a word and its complement to one, and leaves the other 63 bits uniform.
    """
    hashed = torch.addcmul(offset, fixed, factor)
    hashed ^= hashed >> 29
    hashed *= _signed(_MIX)
    hashed >>= 32
    hashed &= 2**31 - 1
    hashed *= modulus
    hashed >>= 31
    hashed += moving
    hashed -= modulus
    hashed += (hashed >> 63) & modulus  # where it has become negative
    return hashed


class Grid(NamedTuple):
    """Sides of a grid of cells, and how many rounds permute it well: an even number."""

    height: int
    width: int
    rounds: int


@lru_cache(maxsize=4096)
def grid(size: int) -> Grid:
    """A grid of at least `size` cells and few more, its sides not far apart.

    Of all heights from two thirds of the square root up to the root, the one that leaves the fewest cells over.
    """
    root = math.isqrt(size)
    lowest, highest = (1, 1) if size < 3 else (max(2 * root // 3, 2), max(root, 2))
    height = min(range(lowest, highest + 1), key=lambda height: (-size % height, -height))
    width = -(-size // height)
    return Grid(height, width, max(6, 2 * math.ceil(3 / math.log10(max(min(height, width), 2)))))


@lru_cache(maxsize=256)
def _grids(sizes: Collection[int], device: torch.device) -> tuple[Int[Tensor, "3 B 1"], int, int]:
    """Height, width and size of each problem's grid; the largest number of cells too many; rounds."""
    grids = [grid(size) for size in sizes]
    over = max(each.height * each.width - size for each, size in zip(grids, sizes, strict=True))
    numbers = [(each.height, each.width, size) for each, size in zip(grids, sizes, strict=True)]
    return torch.tensor(numbers, device=device).T[..., None], over, grids[0].rounds
