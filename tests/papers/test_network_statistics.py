"""What the network experiments claim, from parts made by hand so that every statistic is known."""

import pytest

from fsvi_bench.papers.gal2016 import elbo as gal2016_elbo
from fsvi_bench.papers.gal2016 import uncertainty as gal2016_uncertainty
from fsvi_bench.papers.gal2016.concrete import ConcreteResult
from fsvi_bench.papers.gal2016.mc_dropout import McDropoutResult

# --- gal2016-uncertainty ----------------------------------------------------------------------------------------------


def concrete(N, epistemic, aleatoric, rates):
    return ConcreteResult(N, 0, epistemic, aleatoric, rates, 0.0, 0.0, (), 0.0)


def test_uncertainties():
    """Two repeats, alike, so that intervals are points; epistemic ranks 1, 3, 2 of N ranks 3, 1, 2 make ρ −1."""
    by_size = {
        10: [concrete(10, 2.0, 0.5, (0.01, 0.45, 0.5))] * 2,
        200: [concrete(200, 0.6, 0.8, (0.04, 0.3, 0.35))] * 2,
        1000: [concrete(1000, 0.5, 1.2, (0.02, 0.15, 0.2))] * 2,
    }
    found = gal2016_uncertainty.statistics(by_size)
    assert {name: statistic.value for name, statistic in found.items()} == pytest.approx(
        {
            "rank correlation of N and epistemic sd": -1,
            "epistemic sd at the largest N over that at the smallest": 0.25,
            "largest N: error of the aleatoric sd": 0.2,
            "error of the aleatoric sd at the largest N less that at the smallest": -0.3,
            # predictive: √(0.36 + 0.64) = 1 and √(0.25 + 1.44) = 1.3; N = 10 is more than a decade below
            "predictive sd: relative range over the last decade of N": 0.3 / 1.15,
            "smallest N: p of the hidden layers, least": 0.45,
            "p at the largest N less that at the smallest, hidden layers, greatest": -0.3,
            "largest N: p of the hidden layers, least": 0.15,
            "largest N: p of the hidden layers, greatest": 0.2,
            "p of the first layer, greatest over N": 0.04,
        }
    )
    for statistic in found.values():
        assert (statistic.low, statistic.high) == pytest.approx((statistic.value, statistic.value))


# --- gal2016-elbo -----------------------------------------------------------------------------------------------------


def dropout(tau, p, elbo, likelihood, rmse):
    return McDropoutResult(p, tau, 0, elbo, 0.0, 0.0, 0.0, 0.0, likelihood, 0.0, rmse, 0.0)


def test_elbo_and_test_likelihood():
    rates = (0.0, 0.5, 0.75, 0.9)
    elbos = {10.0: (1.0, 3.0, 2.5, 0.0), 20.0: (1.0, 2.8, 2.0, 0.0), 50.0: (1.0, 2.0, 1.8, 0.5)}
    likelihoods = {10.0: (-1.0, -1.4, -2.0, -3.0), 20.0: (-2.0, -1.0, -1.5, -3.0), 50.0: (-9.0, -2.0, -3.0, -8.0)}
    rmses = {10.0: (0.3, 0.3, 0.3, 0.3), 20.0: (0.3, 0.3, 0.3, 0.3), 50.0: (0.3, 0.4, 0.5, 0.6)}
    grid = {
        (tau, p): [dropout(tau, p, elbos[tau][i], likelihoods[tau][i], rmses[tau][i])] * 2
        for tau in elbos
        for i, p in enumerate(rates)
    }
    found = gal2016_elbo.statistics(grid, 0.8)
    assert [statistic.value for statistic in found.values()] == pytest.approx(
        [
            0.8,  # ranks 2 4 3 1 against 1 4 3 2: 1 − 6·2/60
            1.0,
            -0.4,
            2.0,
            0.4,  # 2 4 3 1 against 1 2 3 4: 1 − 6·14/60 = −0.4
            7.0,
            1.25,
            0.75,
            0.2,  # 2.0 − 1.8, at τ = 50 and p = 0.75
            0.2,  # 3.0 − 2.8, to τ = 20
        ]
    )


def test_claims_about_a_grid_need_its_points():
    settings = {
        "drop_rates": (0.0, 0.5), "precisions": (10.0, 20.0, 50.0), "repeats": 1, "N": 1, "N_test": 2, "network": {},
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"the claims need drop_rates \[0\.0, 0\.5, 0\.75, 0\.9\]"):
        gal2016_elbo.Settings.model_validate(settings)
