"""What the experiments on networks claim, from parts made by hand so that every statistic is known."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2

from fsvi_bench.papers.claims import Claim, judge
from fsvi_bench.papers.ksw2015 import fig1, variance
from fsvi_bench.papers.ksw2015.fig1 import VARIANTS
from fsvi_bench.papers.ksw2015.gradient_variance import GradientVariance
from fsvi_bench.papers.ksw2015.measuring import Measured, Training
from fsvi_bench.papers.ksw2015.minibatch_law import Law, MinibatchLaw
from fsvi_bench.papers.ksw2015.timing import Timed
from fsvi_bench.resources import read_yaml, resource_dir

CONF = resource_dir("conf") / "reproductions"


def judged(name, statistics):
    """Verdicts by the claims' own names, without the case that decided."""
    claims = [Claim(**claim) for claim in read_yaml(CONF / f"{name}.yaml")["claims"]]
    return {claim.statistic: verdict for claim, verdict in zip(claims, judge(claims, statistics), strict=True)}


# --- ksw2015-fig1 -----------------------------------------------------------------------------------------------------


def test_test_errors_over_width():
    """Percentages by variant at widths 10 and 20; the second repeat's are one higher for all."""
    percent = {
        "no dropout": (1.0, 1.0), "binary": (8.0, 4.0), "Gaussian A": (9.0, 4.0), "Gaussian B": (7.0, 5.0),
        "variational A": (6.0, 4.0), "variational B": (6.0, 4.0), "variational A2": (5.0, 3.0),
    }  # fmt: skip
    rates = {"variational A": (0.1, 0.4), "variational B": (0.3, 0.4)}
    networks = pd.DataFrame(
        [
            {"variant": name, "width": width, "repeat": repeat, "error": percent[name][at] + repeat,
             "rate": rates.get(name, (0.5, 0.5))[at]}
            for name, (at, width), repeat in itertools.product(VARIANTS, enumerate((10, 20)), range(2))
        ]
    )  # fmt: skip
    found = judged("ksw2015-fig1", fig1.statistics(networks))
    assert [claim.value for claim in found.values()] == pytest.approx(
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
    for claim in found.values():  # what repeats share cancels
        assert (claim.low, claim.high) == pytest.approx((claim.value, claim.value))


# --- ksw2015-variance -------------------------------------------------------------------------------------------------

POINT, BATCH = variance.POINT, variance.BATCH
TIMED = Timed(repeats=tuple(({"local": 1.0, POINT: ratio},) for ratio in (30.0, 50.0)))


def entries(of):
    """Variances from a function of epochs, layer, parameter and estimator."""
    places = itertools.product(
        (0, 10, 100), ("local", POINT, BATCH, "no-noise"), ("bottom", "top"), ("theta", "log_alpha")
    )
    return [
        GradientVariance(
            epochs=epochs,
            layer=layer,
            parameter=parameter,
            estimator=estimator,
            variance=of(epochs, layer, parameter, estimator),
            error=0.1,
        )
        for epochs, estimator, layer, parameter in places
    ]


def law(estimator, sampling, shared):
    """V = 4 + 1; sizes up to more than half of N."""
    parts = Law(
        N=101, mean_log_likelihood=-0.5, second_moment=10.0, variance_of_means=4.0, mean_variance=1.0, shared=shared,
        excess_kurtosis=0.0,
    )  # fmt: skip
    M = np.array([1, 10, 100])
    sizes = {
        "M": M,
        "variance": 1.0 + 0 * M,
        "error": 0.1 + 0 * M,
        "predicted": parts.predicted(M, sampling),
        "paper_bound": parts.bound(0.25, M),
        "corrected_bound": parts.bound(10.0, M),
    }
    return MinibatchLaw(
        estimator=estimator,
        sampling=sampling,
        sizes={name: values.tolist() for name, values in sizes.items()},
        fit={"V": 5.0, "V_error": 0.1, "C": shared or -0.02, "C_error": 0.1, "chi_square": 2.0},
        law=parts,
    )


def measured(of):
    laws = [
        law(estimator, sampling, shared)
        for sampling in ("with-replacement", "without-replacement")
        for estimator, shared in (("local", 0.0), (BATCH, 0.5))
    ]
    return Measured(variances=entries(of), laws=laws if of is independent else [], test_error=0.1)


def independent(epochs, layer, parameter, estimator):
    point = {"theta": 2.0, "log_alpha": 3.0}[parameter] + (0.5 if layer == "top" else 0.0)
    batch = point * {0: 1.5, 10: 4.0, 100: 2.0}[epochs]
    return {"local": 1.0, POINT: point, BATCH: batch, "no-noise": 0.25 * epochs / 100 if epochs else 0.1}[estimator]


def correlated(epochs, layer, parameter, estimator):
    return {"local": 8.0, POINT: 8.8, BATCH: 8.0 + epochs, "no-noise": 5.0}[estimator]


def frames(networks=2):
    """Of networks that are all alike."""
    kinds = (("table 1", measured(independent)), ("table 2", measured(correlated)))
    places, results = zip(*itertools.product(kinds, range(networks)), strict=True)
    trainings = [
        Training.model_construct(table=table, network=n) for (table, _), n in zip(places, results, strict=True)
    ]
    found = variance.tidy(trainings, [each for _, each in places])
    return found | {"rounds": variance.rounds_of(TIMED)}


@pytest.fixture
def found():
    return judged("ksw2015-variance", variance.statistics(frames()))


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
    ratios = variance.bound_ratios(frames()["sizes"])
    assert list(ratios["printed"].index) == [("local", 1), ("local", 10), (BATCH, 1), (BATCH, 10)]
    c = 0.495
    exact = (0.91 * 4 + 1) / 10 + 0.9 * c
    assert list(ratios["printed"].iloc[-1]) == pytest.approx([(0.125 + 100 / 101 * c) / exact] * 2)
    assert list(ratios["corrected"].iloc[-1]) == pytest.approx([(1.1 + 100 / 101 * c) / exact] * 2)


def test_the_papers_ratios():
    """Table 1: 2.6e3 / 1.2e3 in the top layer after 100 epochs."""
    published = pd.DataFrame(read_yaml(CONF / "ksw2015-variance.yaml")["paper"]["published"])
    table = variance.ratios(frames()["variances"], published).set_index([*variance.CELL, "estimator"])["paper"]
    assert table["table 1", "theta", 100, "top", POINT] == pytest.approx(2.6 / 1.2)
    assert table["table 2", "theta", 100, "top", POINT] is None
    assert table["table 1", "log_alpha", 100, "top", POINT] is None
    assert table["table 1", "theta", 0, "top", POINT] is None


def test_one_network_decides_nothing():
    found = judged("ksw2015-variance", variance.statistics(frames(networks=1)))
    claim = found["table 1, theta: per point over local, mean"]
    assert (claim.low, claim.high) == (0.0, math.inf)
