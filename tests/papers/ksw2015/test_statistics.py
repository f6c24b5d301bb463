"""What the experiments on networks claim, from parts made by hand so that every statistic is known."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from fsvi_bench.papers.ksw2015 import fig1, variance
from fsvi_bench.papers.ksw2015.fig1 import VARIANTS
from fsvi_bench.papers.ksw2015.measuring import Law
from fsvi_bench.papers.registry import REPRODUCTIONS


def judged(experiment, findings):
    """Verdicts by the claims' own names, without the case that decided."""
    names = [claim.statistic for claim in experiment.file.claims]
    return dict(zip(names, experiment._judge(findings), strict=True))


# --- ksw2015-fig1 -----------------------------------------------------------------------------------------------------


def test_test_errors_over_width():
    """Percentages by variant at widths 10 and 20; the second repeat's are one higher for all."""
    percent = {
        "no dropout": (1.0, 1.0), "binary": (8.0, 4.0), "Gaussian A": (9.0, 4.0), "Gaussian B": (7.0, 5.0),
        "variational A": (6.0, 3.5), "variational B": (6.0, 4.0), "variational A2": (5.0, 3.0),
    }  # fmt: skip
    rates = {"variational A": (0.1, 0.4), "variational B": (0.3, 0.4)}
    networks = pd.DataFrame(
        [
            {"variant": name, "width": width, "repeat": repeat, "error": percent[name][at] + repeat,
             "rate": rates.get(name, (0.5, 0.5))[at], "images": "digits",
             "best_epoch": 1, "rate_of_inputs": 0.5, "rate_of_hidden": 0.5}
            for name, (at, width), repeat in itertools.product(VARIANTS, enumerate((10, 20)), range(2))
        ]
    )  # fmt: skip
    found = judged(REPRODUCTIONS["ksw2015-fig1"], fig1.findings(networks))
    assert [claim.value for claim in found.values()] == pytest.approx(
        [
            -0.5,  # 3.5 − 4 at width 20; −3 at 10
            -1.0,
            -0.5,
            0.0,
            0.0,  # of B, (7 − 5) − (6 − 4); 2.5 of A
            -0.5,  # 3 − 3.5, to variational A at width 20
            0.25,
            0.75,
        ]
    )
    for claim in found.values():  # what repeats share cancels
        assert (claim.low, claim.high) == pytest.approx((claim.value, claim.value))


# --- ksw2015-variance -------------------------------------------------------------------------------------------------

POINT, BATCH = "per-point", "per-minibatch"
TIMED = pd.DataFrame([{"repeat": n, "local": 1.0, POINT: ratio} for n, ratio in enumerate((30.0, 50.0))])


def entries(of):
    """Variances from a function of epochs, layer, parameter and estimator."""
    names = ("epochs", "estimator", "layer", "parameter")
    places = itertools.product(
        (0, 10, 100), ("local", POINT, BATCH, "no-noise"), ("bottom", "top"), ("theta", "log_alpha")
    )
    rows = [dict(zip(names, place, strict=True)) for place in places]
    return [{**row, "variance": of(**row), "error": 0.1} for row in rows]


def laws():
    """V = 4 + 1; sizes up to more than half of N."""
    by_size, M, error = [], np.array([1, 10, 100]), 0.01
    *_, left_over = np.linalg.svd([1 / M, 1 - 1 / M])[2]  # what no V and C can fit
    for sampling, (estimator, shared) in itertools.product(
        ("with-replacement", "without-replacement"), (("local", 0.0), (BATCH, 0.5))
    ):
        law = Law(
            N=101, mean_log_likelihood=-0.5, second_moment=10.0, variance_of_means=4.0, mean_variance=1.0,
            shared=shared, excess_kurtosis=0.0,
        )  # fmt: skip
        case = {"sampling": sampling, "estimator": estimator, "V_of_passes": law.V}
        variance = 5.0 / M + (1 - 1 / M) * (shared or -0.02) + math.sqrt(2.0) * error * left_over  # χ² = 2
        bounds = {"printed_bound": law.bound(0.25, M), "corrected_bound": law.bound(10.0, M)}
        sizes = pd.DataFrame(
            {"M": M, "variance": variance, "expected_error": error, "predicted": law.predicted(M, sampling), **bounds}
        )
        by_size += sizes.assign(**law._asdict(), **case).to_dict("records")
    return by_size


def independent(epochs, layer, parameter, estimator):
    point = {"theta": 2.0, "log_alpha": 3.0}[parameter] + (0.5 if layer == "top" else 0.0)
    batch = point * {0: 1.5, 10: 4.0, 100: 2.0}[epochs]
    return {"local": 1.0, POINT: point, BATCH: batch, "no-noise": 0.25 * epochs / 100 if epochs else 0.1}[estimator]


def correlated(epochs, layer, parameter, estimator):
    return {"local": 8.0, POINT: 8.0, BATCH: 8.0 + epochs, "no-noise": 5.0}[estimator]


def findings(networks=2):
    """Of networks that are all alike."""

    def of_all(rows):
        return [{"network": network, **row} for network, row in itertools.product(range(networks), rows)]

    shared = {"networks": list(range(networks)), "test_errors": [0.1] * networks}
    rows = [
        {"table": "table 1", "variances": of_all(entries(independent)), "sizes": of_all(laws()), **shared},
        {"table": "table 2", "variances": of_all(entries(correlated)), "sizes": [], **shared},
    ]
    return variance.findings(pd.DataFrame(rows), TIMED, REPRODUCTIONS["ksw2015-variance"]._settings("paper"))


@pytest.fixture
def found():
    return judged(REPRODUCTIONS["ksw2015-variance"], findings())


def test_gradient_variances(found):
    values = {name: claim.value for name, claim in found.items() if name.startswith("table")}
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
            18 / 8,
            1.6,
            8.0,
        ]
    )
    assert found["seconds per step: per point over local"].value == 40
    assert found["seconds per step: per point over local"].low < 40


def test_laws(found):
    """V = 5; per minibatch C = 0.5 takes over where (M − 1) 0.5 = 5."""
    covariance, takes_over, printed, corrected = (
        found[name].value for name in found if name.startswith(("eq. 5", "appendix"))
    )
    assert covariance == pytest.approx(0.004)
    assert takes_over == pytest.approx(11)
    # Only M = 1 and 10 count, N being 101. Printed: local at M = 1, (0.25 + 1)/(4 + 1). Corrected: per minibatch at
    # M = 10, where covariances of pairs c = (101·0.5 − 1)/100 add (1 − 1/M) c to the variance and (1 − 1/N) c to the bound.
    assert printed == pytest.approx(0.25)
    assert corrected == pytest.approx((1.1 + 100 / 101 * 0.495) / ((0.91 * 4 + 1) / 10 + 0.9 * 0.495))


def test_the_papers_ratios():
    """Table 1: 2.6e3 / 1.2e3 in the top layer after 100 epochs."""
    place = ["table", "parameter", "epochs", "layer", "estimator"]
    table = findings()["ratios"].set_index(place)["paper"]
    assert table["table 1", "theta", 100, "top", POINT] == pytest.approx(2.6 / 1.2)
    assert table["table 2", "theta", 100, "top", POINT] is pd.NA
    assert table["table 1", "log_alpha", 100, "top", POINT] is pd.NA
    assert table["table 1", "theta", 0, "top", POINT] is pd.NA
