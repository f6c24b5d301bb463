"""Problems on which objectives are tested."""

import numpy as np
import pytest
import torch

from tests.maths.draws import linspace
from tests.scoring.objectives import problem_of


@pytest.fixture(scope="module")
def small(toy):
    """8 well-conditioned features: optimisers get to the end of the road."""
    rng = np.random.default_rng(0)
    Phi = torch.from_numpy(rng.standard_normal((30, 8)))
    return problem_of(toy, torch.from_numpy(rng.standard_normal(30)), Phi=Phi)


@pytest.fixture(scope="module")
def grid(toy):
    """A problem whose measurement sets, too, are far from losing rank (singular values from 1 to 1e-2 at M = 8)."""
    return problem_of(toy, linspace(0, 7, 30).sin())
