"""Whether jitter and ranks change scores or orders, on cells with known answers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest

from fsvi_bench.papers.claims import judge
from fsvi_bench.papers.numerics import compared
from fsvi_bench.papers.registry import REPRODUCTIONS

SETTINGS = {
    "": (0.0, 1e-9),
    "rank tolerance 1e-6": (0.0, 1e-6),
    "jitter 1e-6": (1e-6, 1e-9),
    "jitter 1e-4": (1e-4, 1e-9),
}
KL = {"fixed-a": 8.0, "rand-a": 2.0, "ssge": 4.0}


def cells(factors: Mapping[tuple[str, str], float] = {}) -> pd.DataFrame:
    """Scores of two data sets and splits, with factors by method and setting."""
    rows = []
    for dataset, scale in (("boston", 1.0), ("yacht", 10.0)):
        for split in range(2):
            for method, kl in KL.items():
                for setting, (jitter, tolerance) in SETTINGS.items():
                    factor = factors.get((method, setting), 1.0)
                    value = kl * scale * (1 + split) * factor
                    row: dict[str, object] = {
                        "dataset": dataset,
                        "method": method,
                        "family": "full",
                        "split": split,
                        "seed": 0,
                    }
                    row |= {"status": "ok", "settings.kl_jitter": jitter, "settings.rank_tolerance": tolerance}
                    rows.append(row | {"kl": value, "joint_predictive_kl_test.10": value / 100})
    return pd.DataFrame(rows)


def verdicts(frame: pd.DataFrame) -> dict[str, bool]:
    claims = REPRODUCTIONS["numerics"].file.claims
    return {claim.statistic: claim.holds for claim in judge(claims, compared(frame))}


def test_settings_without_an_effect_change_nothing() -> None:
    frames = compared(cells())
    assert set(frames["ratios"]["setting"]) == set(SETTINGS) - {""}
    assert (frames["ratios"]["ratio"] == 1).all()
    assert not frames["orders"]["swaps"].any()
    assert len(frames["orders"]) == 3 * 2 * 2  # settings, data sets and scores
    assert len(frames["lines"]) == 2 * 3 * 3 * 2
    found = verdicts(cells())
    assert len(found) == 9
    assert all(found.values())


def test_ratios_are_of_the_same_split_and_the_farthest_is_named() -> None:
    frame = cells(factors={("ssge", "jitter 1e-4"): 0.5})
    only = frame["dataset"].eq("yacht") & frame["settings.kl_jitter"].eq(1e-4) & frame["method"].eq("ssge")
    frame.loc[only, "kl"] *= 0.5
    row = compared(frame)["changes"].set_index(["method", "setting"]).loc["ssge", "jitter 1e-4"]
    assert row["kl_farthest"] == pytest.approx(0.25)
    assert row["kl_median"] == pytest.approx(math.sqrt(0.25 * 0.5))
    assert row["joint_farthest"] == pytest.approx(0.5)
    assert row["kl_dataset"] == "yacht"


@pytest.mark.parametrize(
    ("method", "factor", "swaps"),
    [("ssge", 3.0, 1), ("ssge", 1.05, 0), ("ssge", 0.49, 0), ("ssge", 0.4, 1), ("fixed-a", 0.1, 2)],
)
def test_an_order_is_reversed_if_it_is_clear_both_times(method: str, factor: float, swaps: int) -> None:
    """KLs are 2, 4 and 8. A factor of 0.49 puts the second barely ahead of the first: that is no clear order."""
    orders = compared(cells(factors={(method, "jitter 1e-6"): factor}))["orders"]
    changed = orders["setting"] == "jitter 1e-6"
    assert set(orders.loc[changed, "swaps"]) == {swaps}
    assert not orders.loc[~changed, "swaps"].any()


def test_a_divergence_is_infinite_and_two_of_them_are_equal() -> None:
    frame = cells()
    frame.loc[frame["settings.kl_jitter"] == 1e-4, "status"] = "diverged"
    frame.loc[frame["settings.kl_jitter"] == 1e-4, "kl"] = math.nan
    ratios = compared(frame)["ratios"].groupby("setting")["ratio"].first()
    assert math.isinf(ratios["jitter 1e-4"])
    frame["status"] = "diverged"
    assert (compared(frame)["ratios"]["ratio"] == 1).all()


def test_a_failed_cell_is_never_evidence_for_a_claim() -> None:
    frame = cells()
    failed = frame["method"].eq("ssge") & frame["settings.kl_jitter"].eq(1e-4) & frame["dataset"].eq("yacht")
    frame.loc[failed & frame["split"].eq(0), ["kl", "joint_predictive_kl_test.10"]] = math.nan
    row = compared(frame)["changes"].set_index(["method", "setting"]).loc["ssge", "jitter 1e-4"]
    assert row["kl_dataset"] == "yacht"
    assert math.isnan(row["kl_farthest"])
    assert row["kl_median"] == 1
    assert sum(verdicts(frame).values()) == 7  # not the two on ratios with this jitter
    frame.loc[failed, ["kl", "joint_predictive_kl_test.10"]] = math.nan
    assert sum(verdicts(frame).values()) == 6  # nor that on its order


def test_marks_of_infinite_ratios_are_infinite() -> None:
    lines = compared(cells(factors={("ssge", "jitter 1e-4"): math.inf}))["lines"]
    changed = lines["method"].eq("ssge") & lines["setting"].eq("jitter 1e-4")
    assert np.isinf(lines.loc[changed, ["low", "ratio", "high"]]).all(axis=None)
    assert np.isfinite(lines.loc[~changed, ["low", "ratio", "high"]]).all(axis=None)


def test_claims_fail_where_scores_change() -> None:
    found = verdicts(cells(factors={("ssge", "jitter 1e-4"): 3.0}))
    wrong = {statistic for statistic, held in found.items() if not held}
    assert len(wrong) == 3
    assert all(statistic.startswith("jitter 1e-4") for statistic in wrong)
