"""Whether places on linear tasks predict places on networks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata, spearmanr

from fsvi_bench.papers import linear_vs_network
from fsvi_bench.papers.linear_vs_network import PAIRS, compared, spearman

METHODS = ["ensemble", "ivon", "laplace", "mean-field-vi", "rand-a", "sgld", "ssge", "svgd"]


def cells(network_order: list[int], noise: float = 0.0) -> pd.DataFrame:
    """Three linear data sets and two networks of two splits; each method's scores are near its place in an order."""
    generator = np.random.default_rng(4)
    rows = []
    for dataset, network in (("boston", False), ("wine", False), ("yacht", False), ("net-a", True), ("net-b", True)):
        for split in range(2):
            for place, method in enumerate(METHODS):
                base = network_order[place] if network else place
                scores = {pair[network]: base + noise * generator.standard_normal() for pair in PAIRS.values()}
                row = {"dataset": dataset, "network": network, "split": split, "method": method, "family": "ffg"}
                rows.append(row | {"status": "ok"} | scores)
    return pd.DataFrame(rows)


def correlations(frame: pd.DataFrame) -> pd.DataFrame:
    found = compared(frame)["correlations"]
    assert found["pair"].tolist() == list(PAIRS)
    return found


@pytest.mark.parametrize(("order", "value"), [(list(range(8)), 1.0), (list(range(7, -1, -1)), -1.0)])
def test_the_same_order_correlates_fully_and_the_reverse_negatively(order: list[int], value: float) -> None:
    found = correlations(cells(order))
    assert found[["value", "low", "high"]].to_numpy() == pytest.approx(np.full((len(PAIRS), 3), value))


def test_the_correlation_is_spearmans_of_mean_ranks() -> None:
    frame = cells([2, 0, 1, 3, 6, 4, 7, 5], noise=2.0)
    found = correlations(frame).set_index("pair")
    for pair, scores in PAIRS.items():
        ranks = []
        for network in (False, True):
            own = frame[frame["network"] == network]
            means = own.groupby(["dataset", "method"])[scores[network]].mean().unstack("method")[METHODS]
            ranks.append(np.mean([rankdata(row) for row in means.to_numpy()], axis=0))
        assert found.loc[pair, "value"] == pytest.approx(spearmanr(*ranks).statistic)
        assert found.loc[pair, "low"] < found.loc[pair, "value"] < found.loc[pair, "high"]


def test_unrelated_orders_leave_zero_in_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nominal 95 %: of 40 orders drawn at random, at least 30 intervals contain 0 (binomial probability above 0.999)."""
    monkeypatch.setattr(linear_vs_network, "PAIRS", {"NLPD": PAIRS["NLPD"]})
    generator = np.random.default_rng(0)
    found = [compared(cells(generator.permutation(8).tolist(), noise=0.5))["correlations"].iloc[0] for _ in range(40)]
    assert sum(row["low"] <= 0 <= row["high"] for row in found) >= 30


def test_an_entry_needs_scores_on_both_tracks_and_a_divergence_is_last() -> None:
    frame = cells(list(range(8)))
    frame = frame[~(frame["network"] & frame["method"].eq("ivon"))].copy()
    lost = frame["network"] & frame["method"].eq("ensemble") & frame["dataset"].eq("net-a")
    frame.loc[lost, "status"] = "diverged"
    frame.loc[lost, list({pair[1] for pair in PAIRS.values()})] = np.nan
    places = compared(frame)["places"]
    nlpd = places[places["pair"] == "NLPD"].set_index("entry")
    assert "ivon ffg" not in nlpd.index
    assert nlpd.loc["ensemble ffg", "network"] == pytest.approx((7 + 1) / 2)  # last of seven, then first


def test_an_entry_that_failed_somewhere_is_not_ranked() -> None:
    frame = cells(list(range(8)))
    failed = frame["method"].eq("svgd") & frame["dataset"].eq("wine") & frame["split"].eq(1)
    frame.loc[failed, "status"] = "failed"
    frame.loc[failed, list({name for pair in PAIRS.values() for name in pair})] = np.nan
    found = compared(frame)
    assert "svgd ffg" not in set(found["places"]["entry"])
    assert (found["correlations"]["entries"] == 7).all()


def test_a_constant_has_no_correlation() -> None:
    assert np.isnan(spearman(np.ones(3), np.arange(3.0)))
