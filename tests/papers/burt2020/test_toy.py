"""Figure 1: the curve of a posterior, and numbers of cells in words."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from fsvi_bench.papers.burt2020.toy import _panels, curve
from fsvi_bench.posteriors.gaussian import FullGaussian


def test_a_curve_is_the_mean_and_deviation_of_f(toy):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(20, generator=generator, dtype=torch.float64)
    tril = torch.randn(20, 20, generator=generator, dtype=torch.float64).tril()
    tril.diagonal().abs_().add_(0.1)
    drawn = curve(toy, FullGaussian(mean, tril))
    assert (np.diff(drawn["x"]) > 0).all()
    assert (drawn["high"] - drawn["low"]).to_numpy() == pytest.approx(4 * drawn["sd"].to_numpy(), rel=1e-12)
    for place in (0, 57, 199):  # one input at a time, from the definition of the features and a dense covariance
        row, centres = drawn.loc[place], toy.frozen.inducing_points[:, 0]
        phi = torch.exp(-0.5 * ((row["x"] - centres) / 0.2) ** 2)
        assert row["mean"] == pytest.approx(float(phi @ mean), rel=1e-12, abs=1e-12)
        assert row["sd"] ** 2 == pytest.approx(float(phi @ (tril @ tril.mT) @ phi), rel=1e-12)


def test_a_panel_names_the_kl_of_the_run_without_jitter_wherever_its_row_is():
    """A cell without a record comes last."""
    rows = {"method": "rand-a", "kl": [44.4, math.nan], "kl_jitter": [1e-6, 0.0], "status": ["ok", "missing"]}
    curves = pd.DataFrame({"method": ["rand-a"], "x": [0.0], "low": [0.0], "high": [1.0]})
    (words,) = _panels(pd.DataFrame(rows), curves)["panel"]
    assert words == "RANDA: KL missing (jitter 1e-6: 44.4)"
