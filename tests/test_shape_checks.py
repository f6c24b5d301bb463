"""Shapes in signatures are checked while quick tests run, once for what is alike, and left alone in slow ones."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from fsvi_bench.maths.gaussian_dropout import gaussian_dropout_scale
from fsvi_bench.tasks.task import Task
from tests.shapes import once

THETA, ALPHA = torch.ones(3), torch.ones(2, 1)  # broadcastable, and not what the signature says


def test_a_wrong_shape_is_an_error_in_quick_tests():
    with pytest.raises(TypeCheckError):
        gaussian_dropout_scale(THETA, ALPHA)


def test_what_passed_once_is_checked_again_wherever_it_differs():
    @once
    def first(rows: list[Float[Tensor, " k"]], result: object, kind: str = "row") -> Float[Tensor, " k"]:
        return result

    row, other = torch.ones(3), torch.ones(4)
    for _ in range(2):
        assert first([row], row) is row
    for rows, result in (
        ([row], other),
        ([row], row.int()),
        ([row], [row]),
        ([row[None]], row),
        ([None], row),
        (row, row),
    ):
        for _ in range(2):
            with pytest.raises(TypeCheckError):
                first(rows, result)
    with pytest.raises(TypeCheckError):
        first([row], row, kind=1)
    assert first([other], other) is other


def test_functions_made_by_one_definition_share_what_has_passed_and_no_others_do():
    def inner(returned):
        @once
        def same(row: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
            return returned

        return same

    row, other = torch.ones(3), torch.ones(4)
    for returned in (row, 2 * row):
        assert inner(returned)(row) is returned
    with pytest.raises(TypeCheckError):
        inner(other)(row)
    assert inner(other)(other) is other


@once
@dataclass
class Pair:
    first: Float[Tensor, " k"]
    second: Float[Tensor, " k"]


def test_fields_of_dataclasses_are_checked():
    row, other = torch.ones(3), torch.ones(4)
    assert Pair(row, row).second is row
    with pytest.raises(TypeCheckError):
        Pair(row, other)
    assert Task.__init__.__wrapped__  # by the hook


@pytest.mark.slow
def test_shapes_are_not_checked_in_slow_tests():
    assert gaussian_dropout_scale(THETA, ALPHA).shape == (2, 3)
