"""Burt et al. (2020), propositions 3 to 9, made visible."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fsvi_bench.papers.burt2020.theory.data_processing import (
    CELLS,
    data_processing_statistics,
    indicator_kls,
    measure_nested,
)
from fsvi_bench.papers.burt2020.theory.networks import (
    BARE,
    PLAIN,
    bars,
    count_pieces,
    pieces_statistics,
    see,
    shown_by_events,
)
from fsvi_bench.papers.burt2020.theory.settings import Settings
from fsvi_bench.papers.burt2020.theory.singular import (
    ends,
    follow,
    follow_curve,
    follow_rounded,
    rounded_statistics,
    singular_statistics,
    without_noise,
)
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.presenting.tables import Frames


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """All in this process: it is a matter of seconds."""
    nested, rounded = measure_nested(settings), follow_rounded(settings)
    along, bare = (
        pd.concat([of(settings, k, M) for k, M in settings.cases], ignore_index=True) for of in (follow, without_noise)
    )
    curve, slope = follow_curve(settings)
    pieces = count_pieces(settings)
    counts = pieces.value_counts(sort=False).reset_index(name="networks")
    seen = pd.concat([see(settings, *pair) for pair in settings.pairs], ignore_index=True)
    shown = shown_by_events(seen)
    return Findings(
        frames={
            **_of_data_processing(nested),
            **_of_singular(along, bare),
            "curve": curve,
            "rounded": rounded,
            "pieces": counts,
            **_of_networks(pieces, seen, shown),
        },
        statistics={
            **data_processing_statistics(settings, nested),
            **rounded_statistics(rounded),
            **singular_statistics(settings, along, bare),
            "proposition 4: a nonlinear model with one parameter, distance of its slope from (M - 1)/2, share": slope,
            **pieces_statistics(pieces, shown),
        },
        drawings={"pieces": bars(counts)},
    )


def _of_data_processing(nested: pd.DataFrame) -> Frames:
    means = nested.pivot_table("share", "divergence", "inputs", sort=False)
    groups = nested[nested["inputs"].str.startswith("M")].groupby(["divergence", "points"], sort=False)["share"]
    return {
        "nested": nested,
        "shares": means.assign(weights=nested.groupby("divergence")["weights"].mean()).reset_index(),
        "bands": groups.agg(["min", "median", "max"]).reset_index(),
        "indicators": pd.DataFrame(
            [(cell, *indicator_kls(cell)) for cell in CELLS], columns=["width", "functional", "weight"]
        ),
    }


def _of_singular(along: pd.DataFrame, bare: pd.DataFrame) -> Frames:
    last, rise = ends(along)
    found = bare.pivot(index="case", columns="divergence", values="found")
    drawn = {
        "log_noise": -np.log10(along["noise"]),
        "kl_share": along["kl"] / along["missing"],
        "asymptote_share": along["asymptote"] / along["missing"],
        "below_hellinger": np.exp(along["alpha = 0.5"]),
        "below_event": 1 - along["event"],
        "below_total_variation": np.exp(along["log_overlap"]),
    }
    return {
        "along": along.assign(**drawn),
        "cases": last.assign(half=0.5 * last["missing"], rise=rise["kl"], scaled=last["noise"] * last["reverse_kl"])
        .join(found[["KL(Q, P)", "KL(P, Q)"]])
        .reset_index(),
        "bare": bare,
        "singular": bare.groupby(["divergence", "at_zero", "slope_at_infinity", "largest"], sort=False)["found"]
        .agg(["min", "max"])
        .reset_index(),
    }


def _of_networks(pieces: pd.DataFrame, seen: pd.DataFrame, shown: pd.DataFrame) -> Frames:
    spread = pieces.groupby(["law", "width"])["pieces"].agg(["size", "min", "max"])
    lows = shown.assign(divergence=shown["divergence"] + ", " + shown["way"]).pivot_table(
        "low", ["divergence", "limit"], "pair", sort=False
    )
    events = lows.reset_index("limit").reset_index()
    events["in the limit"] = events.pop("limit")
    events.attrs["M"] = seen["points"].max()
    return {
        "widths": spread.loc[PLAIN].join(spread.loc[BARE], rsuffix=" without biases").reset_index(),
        "seen": seen,
        "shown": events,
    }


BURT2020_THEORY = Experiment("burt2020-theory", Settings, investigate)
