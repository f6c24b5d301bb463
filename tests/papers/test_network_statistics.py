"""What the network experiments claim, from parts made by hand so that every statistic is known."""

import math

import pytest
from scipy.stats import chi2

from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.ksw2015 import fig1 as ksw2015_fig1
from fsvi_bench.papers.ksw2015 import variance_claims as variance
from fsvi_bench.papers.ksw2015.gradient_variance import Estimate, GradientVariance
from fsvi_bench.papers.ksw2015.minibatch_law import Law, MinibatchLaw
from fsvi_bench.papers.ksw2015.network import VARIANTS

# --- ksw2015-fig1 -----------------------------------------------------------------------------------------------------


def test_test_errors_over_width():
    """Percentages by variant at widths 10 and 20; the second repeat's are one higher for all."""
    percent = {
        "no-dropout": (1.0, 1.0), "binary": (8.0, 4.0), "gaussian-a": (9.0, 4.0), "gaussian-b": (7.0, 5.0),
        "variational-a": (6.0, 4.0), "variational-b": (6.0, 4.0), "variational-a2": (5.0, 3.0),
    }  # fmt: skip
    rates = {"variational-a": (0.1, 0.4), "variational-b": (0.3, 0.4)}
    sweep = {
        (variant, width): [
            ksw2015_fig1.Trained(
                test_error=(percent[variant][at] + repeat) / 100,
                best_epoch=1,
                drop_rates=(rates.get(variant, (0.5, 0.5))[at] - 0.05, rates.get(variant, (0.5, 0.5))[at] + 0.05),
            )
            for repeat in range(2)
        ]
        for variant in VARIANTS
        for at, width in enumerate((10, 20))
    }
    found = ksw2015_fig1.statistics(sweep)
    assert [statistic.value for statistic in found.values()] == pytest.approx(
        [
            -1.5,  # 5 − 6.5
            -1.0,  # 5 − 6
            -1.0,
            -1.0,
            1.5,  # (3 + 1)/2 − (0 + 1)/2
            -1.0,  # 4 − 5, to variational A or B
            0.75,
        ]
    )
    for statistic in found.values():  # what repeats share cancels
        assert (statistic.low, statistic.high) == pytest.approx((statistic.value, statistic.value))


# --- ksw2015-variance -------------------------------------------------------------------------------------------------

POINT, BATCH = variance.POINT, variance.BATCH


def entries(of):
    """Variances from a function of epochs, layer, parameter and estimator."""
    return tuple(
        GradientVariance(epochs, layer, parameter, estimator, Estimate(of(epochs, layer, parameter, estimator), 0.1))
        for epochs in (0, 10, 100)
        for layer in ("bottom", "top")
        for parameter in ("theta", "log_alpha")
        for estimator in ("local", POINT, BATCH, "no-noise")
    )


def law(estimator, sampling, shared):
    """V = 4 + 1; sizes up to more than half of N."""
    one = Estimate(1.0, 0.1)
    parts = Law(101, -0.5, 10.0, 4.0, 1.0, shared, 0.0)
    V, C = Estimate(5.0, 0.1), Estimate(shared or -0.02, 0.1)
    return MinibatchLaw(estimator, sampling, (1, 10, 100), (one,) * 3, V, C, 2.0, parts)


def measured(of):
    laws = [
        law(estimator, sampling, shared)
        for sampling in ("with-replacement", "without-replacement")
        for estimator, shared in (("local", 0.0), (BATCH, 0.5))
    ]
    return variance.Measured(entries=entries(of), laws=tuple(laws), test_error=0.1)


def independent(epochs, layer, parameter, estimator):
    point = {"theta": 2.0, "log_alpha": 3.0}[parameter] + (0.5 if layer == "top" else 0.0)
    batch = point * {0: 1.5, 10: 4.0, 100: 2.0}[epochs]
    return {"local": 1.0, POINT: point, BATCH: batch, "no-noise": 0.25 * epochs / 100 if epochs else 0.1}[estimator]


def correlated(epochs, layer, parameter, estimator):
    return {"local": 8.0, POINT: 8.8, BATCH: 8.0 + epochs, "no-noise": 5.0}[estimator]


@pytest.fixture
def found():
    tables = {"table 1": [measured(independent)] * 2, "table 2": [measured(correlated)] * 2}
    names = ("local", POINT)
    timed = variance.Timed(seconds=dict.fromkeys(names, (1.0, 1.0)), ratio_to_local={"local": (1, 1), POINT: (30, 50)})
    return variance.statistics(tables, timed)


def test_gradient_variances(found):
    values = {name: statistic.value for name, statistic in found.items() if name.startswith("table")}
    assert list(values.values()) == pytest.approx(
        [
            3.0,
            1.5,  # at the start, which only claims about log α count
            2.0,
            2.0,
            math.sqrt(2.0 * 2.5),
            math.sqrt(3.0 * 3.5),
            2.0,  # 4/2 in both layers
            4.0,
            math.log(1.1),
            18 / 8,
            1.6,
            8.0,
        ]
    )
    assert found["seconds per step: per point over local"].value == 40
    assert found["seconds per step: per point over local"].low < 40


def test_laws(found):
    """V = 5; per minibatch C = 0.5 takes over where (M − 1) 0.5 = 5."""
    probability, covariance, takes_over, printed, corrected = (
        found[name].value for name in found if name.startswith(("eq. 5", "appendix"))
    )
    assert probability == pytest.approx(chi2.sf(8.0, 4))  # two networks, two estimators, three sizes less two each
    assert covariance == pytest.approx(0.004)
    assert takes_over == pytest.approx(11)
    # Only M = 1 and 10 count, N being 101. Printed: local at M = 1, (0.25 + 1)/(4 + 1). Corrected: per minibatch at
    # M = 10, where covariances of pairs c = (101·0.5 − 1)/100 add (1 − 1/M) c to the variance and (1 − 1/N) c to the bound.
    assert printed == pytest.approx(0.25)
    assert corrected == pytest.approx((1.1 + 100 / 101 * 0.495) / ((0.91 * 4 + 1) / 10 + 0.9 * 0.495))


def test_bounds_are_ratios_to_the_exact_variance():
    rows = variance.bounds([measured(independent)] * 2)
    assert [(row.estimator, row.M) for row in rows] == [("local", 1), ("local", 10), (BATCH, 1), (BATCH, 10)]
    c = 0.495
    exact = (0.91 * 4 + 1) / 10 + 0.9 * c
    assert rows[-1].printed.value == pytest.approx((0.125 + 100 / 101 * c) / exact)
    assert rows[-1].corrected.value == pytest.approx((1.1 + 100 / 101 * c) / exact)


def test_the_papers_ratios():
    """Table 1: 2.6e3 / 1.2e3 in the top layer after 100 epochs."""
    cell = variance.Cell(100, "top", "theta")
    assert variance.paper_ratio("table 1", cell, POINT) == pytest.approx(2.6 / 1.2)
    assert variance.paper_ratio("table 2", cell, POINT) is None
    assert variance.paper_ratio("table 1", cell._replace(parameter="log_alpha"), POINT) is None
    assert variance.paper_ratio("table 1", cell._replace(epochs=0), POINT) is None


def test_one_network_decides_nothing():
    tables = {"table 1": [measured(independent)], "table 2": [measured(correlated)]}
    timed = variance.Timed(seconds={POINT: (1.0,)}, ratio_to_local={POINT: (300.0,)})
    statistic = variance.statistics(tables, timed)["seconds per step: per point over local"]
    assert statistic == Statistic(300.0, -math.inf, math.inf)
