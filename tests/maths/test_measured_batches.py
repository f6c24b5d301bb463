"""Measurement sets of a batch: each problem as if it were alone, to the bit, whatever its neighbours are."""

import numpy as np
import pytest
import torch

from fsvi_bench.maths.functional_kl import measure
from tests.maths.draws import close
from tests.maths.test_functional_kl import WAYS, case, everything, gradient


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("M", "row"), [(3, 0), (3, 2), (6, 0), (6, 5), (8, 0), (8, 7), (11, 0)])
def test_a_set_that_is_not_finite_is_nan_for_its_problem_alone(M, row, way, bad):
    Phi_A, *q = case("regular", M, seed=7)
    healthy = everything(Phi_A, *q, **WAYS[way])
    Phi_A[1, row, 3] = bad
    for before, after in zip(healthy, everything(Phi_A, *q, **WAYS[way]), strict=True):
        assert torch.equal(after[::2], before[::2])
        assert after[1].isnan().any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["regular", "combination"])
@pytest.mark.parametrize("M", [3, 6, 8])
def test_a_part_of_a_batch_is_measured_as_those_problems_are(M, kind, way):
    """The second problem, degenerate in one case, falls into the part once and out of it once."""
    Phi_A, mean, factor, scale = case(kind, M, seed=9)
    whole = measure(Phi_A, **WAYS[way])
    for start, stop in ((0, 2), (1, 3), (2, 3)):
        part = whole.narrow(start, stop)
        q = mean[start:stop], factor[start:stop], scale[start:stop]
        for of_part, of_whole in zip(results(part, *q), results(whole, mean, factor, scale), strict=True):
            close(of_part, of_whole[start:stop], rtol=1e-13, atol=1e-13)


def results(A, mean, factor, scale):
    full, diagonal = gradient(A, mean, factor), gradient(A, mean, scale)
    return full.kl, full.root, diagonal.kl, A.project(mean), A.project_rows(factor)
