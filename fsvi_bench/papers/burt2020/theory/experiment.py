"""Burt et al. (2020), propositions 3 to 9, made visible: statistics, tables, numbers."""

from __future__ import annotations

from typing import Any

from fsvi_bench.papers.burt2020.theory.data_processing import (
    CELLS,
    Nested,
    data_processing_values,
    indicator_kls,
    measure_nested,
)
from fsvi_bench.papers.burt2020.theory.f_divergence import generators
from fsvi_bench.papers.burt2020.theory.figure import draw
from fsvi_bench.papers.burt2020.theory.networks import Pieces, count_pieces, pieces_values
from fsvi_bench.papers.burt2020.theory.settings import Settings
from fsvi_bench.papers.burt2020.theory.singular import (
    Case,
    Curve,
    Rounded,
    follow,
    follow_curve,
    follow_rounded,
    rounded_values,
    singular_values,
)
from fsvi_bench.papers.claims import Statistic
from fsvi_bench.papers.experiment import Experiment, Findings, Laboratory
from fsvi_bench.papers.intervals import largest, smallest
from fsvi_bench.presenting.tables import Cell, Table


def investigate(settings: Settings, laboratory: Laboratory) -> Findings:
    """All in this process: it is a matter of seconds."""
    nested = measure_nested(settings)
    cases, curve = [follow(settings, k, M) for k, M in settings.cases], follow_curve(settings)
    rounded, pieces = follow_rounded(settings), count_pieces(settings)
    return Findings(
        figure=draw(nested, cases, pieces),
        tables=[
            _data_processing_table(settings, nested),
            _indicator_table(),
            _cases_table(cases),
            _curve_table(curve),
            _rounded_table(rounded),
            _singular_table(cases),
            _pieces_table(settings, pieces),
            _seen_table(pieces),
            _shown_table(pieces),
        ],
        statistics={
            **data_processing_values(settings, nested),
            **{name: Statistic.exact(value) for name, value in rounded_values(rounded).items()},
            **singular_values(settings, cases, curve),
            **pieces_values(settings, pieces),
        },
        numbers=_numbers(nested, cases, pieces),
    )


def _data_processing_table(settings: Settings, nested: Nested) -> Table:
    k = settings.features
    shown = sorted({1, k // 2, k - 1, k, k + settings.extra_points})
    rows: list[tuple[Cell, ...]] = []
    for f, weights, values, repeated in zip(
        nested.generators, nested.weights, nested.values, nested.repeated, strict=True
    ):
        at = [float((values[:, M - 1] / weights).mean()) for M in shown]
        rows.append((f.name, float(weights.mean()), *at, float((repeated / weights).mean())))
    return Table(
        title=f"Propositions 3 and 6: divergence of the weights; functional as a share of it, k = {k}; means",
        columns=("divergence", "weights", *(f"M = {M}" for M in shown), f"{k - 1} points, each three times"),
        rows=tuple(rows),
    )


def _indicator_table() -> Table:
    return Table(
        title="Proposition 3: g(theta)(x) = 1[|x - theta| <= width/2] at ten points; width 0 is injective [nats]",
        columns=("width", "functional KL", "weight KL"),
        rows=tuple((cell, *indicator_kls(cell)) for cell in CELLS),
    )


def _cases_table(cases: list[Case]) -> Table:
    rows = []
    for case in cases:
        reverse = float(case.noise[-1] * case.reverse_kl[-1])
        nothing = case.without_noise["KL(Q, P)"], case.without_noise["KL(P, Q)"]
        found = case.slope(case.kl), float(case.kl[-1]), case.leading.constant, case.leading.reverse, reverse
        rows.append((case.parameters, case.points, 0.5 * case.missing, *found, *nothing))
    return Table(
        title=f"Proposition 4: smoothed by e^2 down to {float(cases[0].noise[-1]):g}, and without [nats]",
        columns=(
            "k", "M", "(M - k)/2", "slope of KL(Q_e, P)", "KL(Q_e, P)", "constant beside the slope",
            "limit of e^2 KL(P, Q_e)", "e^2 KL(P, Q_e)", "KL(Q, P)", "KL(P, Q)",
        ),
        rows=tuple(rows),
    )  # fmt: skip


def _curve_table(curve: Curve) -> Table:
    rows = [(noise, *left, curve.limit) for noise, left in curve.left.items()]
    return Table(
        title=f"Proposition 4, one parameter, nonlinear, M = {curve.points}: KL(Q_e, P) - (M - 1)/2 log(1/e^2) [nats]",
        columns=("e^2", "mean over draws", "low", "high", "limit"),
        rows=tuple(rows),
    )


def _rounded_table(rounded: Rounded) -> Table:
    return Table(
        title="Proposition 4: one continuous parameter at two points, rounded to cells of width 2^-n: KL [nats]",
        columns=("n", "Hilbert's curve, not Lipschitz", "diagonal, Lipschitz"),
        rows=tuple(zip(rounded.orders, rounded.hilbert, rounded.diagonal, strict=True)),
    )


def _singular_table(cases: list[Case]) -> Table:
    rows = []
    for f in generators():
        found = [case.without_noise[f.name] for case in cases]
        rows.append((f.name, f.at_zero, f.slope_at_infinity, f.between_singular, smallest(found), largest(found)))
    return Table(
        title="Proposition 8: f-divergences between singular laws; the paper has f'(infinity)",
        columns=("divergence", "f(0)", "f'(infinity)", "f(0) + f'(infinity)", "least found", "largest found"),
        rows=tuple(rows),
    )


def _pieces_table(settings: Settings, pieces: Pieces) -> Table:
    rows = []
    for width, counts in pieces.counts.items():
        bare = pieces.without_biases[width]
        rows.append((width, counts.total(), min(counts), max(counts), min(bare), max(bare)))
    return Table(
        title="Proposition 9: linear pieces of random ReLU networks with one input",
        columns=("width", "networks", "fewest", "most", "fewest without hidden biases", "most without hidden biases"),
        rows=tuple(rows),
    )


def _seen_table(pieces: Pieces) -> Table:
    rows = [
        (each.narrow, each.wide, points, *share)
        for each in pieces.seen
        for points, share in zip(each.points, each.shares, strict=True)
    ]
    return Table(
        title="Proposition 9: total variation between the laws of values at M points, at least",
        columns=("width", "other width", "M", "share of the wider", "low", "high"),
        rows=tuple(rows),
    )


def _shown_table(pieces: Pieces) -> Table:
    """Both ways: f-divergences are not symmetric. Where every wide network was seen, an estimate would be the limit."""
    rows: list[tuple[Cell, ...]] = [
        (f"{f.name}, {words}", *(each.shown(f, wide_first=first).low for each in pieces.seen), f.between_singular)
        for f in generators()
        for first, words in ((True, "Q wide, P narrow"), (False, "Q narrow, P wide"))
    ]
    widths = [each.name for each in pieces.seen]
    return Table(
        title=f"Proposition 7: f-divergences between the laws of values at M = {pieces.seen[0].points[-1]} points, "
        "at least (lower ends of 95% intervals); in the limit f(0) + f'(infinity)",
        columns=("divergence", *widths, "in the limit"),
        rows=tuple(rows),
    )


def _numbers(nested: Nested, cases: list[Case], pieces: Pieces) -> dict[str, Any]:
    names = [f.name for f in nested.generators]
    return {
        "weight divergences": dict(zip(names, nested.weights.tolist(), strict=True)),
        "functional divergences": dict(zip(names, nested.values.tolist(), strict=True)),
        "rank": nested.rank.tolist(),
        "cases": [_case_numbers(case) for case in cases],
        "pieces": {width: dict(sorted(counts.items())) for width, counts in pieces.counts.items()},
        "pieces with outgoing weights that may be 0": dict(sorted(pieces.pruned.items())),
    }


def _case_numbers(case: Case) -> dict[str, Any]:
    return {
        "k": case.parameters,
        "M": case.points,
        "noise variance": case.noise.tolist(),
        "KL(Q_e, P)": case.kl.tolist(),
        "KL(P, Q_e)": case.reverse_kl.tolist(),
        "log(1 - TV)": case.log_overlap.tolist(),
        "log(1 - squared Hellinger)": case.log_affinities[0.5].tolist(),
        "event: under Q_e, at most under P": [[event.under_q, event.under_p] for event in case.events],
    }


BURT2020_THEORY = Experiment("burt2020-theory", Settings, investigate)
