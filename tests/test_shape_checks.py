"""Shapes in signatures are checked while quick tests run, and left alone in slow ones."""

import pytest
import torch
from jaxtyping import TypeCheckError

from fsvi_bench.maths.gaussian_dropout import gaussian_dropout_scale

THETA, ALPHA = torch.ones(3), torch.ones(2, 1)  # broadcastable, and not what the signature says


def test_a_wrong_shape_is_an_error_in_quick_tests():
    with pytest.raises(TypeCheckError):
        gaussian_dropout_scale(THETA, ALPHA)


@pytest.mark.slow
def test_shapes_are_not_checked_in_slow_tests():
    assert gaussian_dropout_scale(THETA, ALPHA).shape == (2, 3)
