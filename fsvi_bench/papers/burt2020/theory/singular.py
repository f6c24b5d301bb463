"""Propositions 4 and 8: a model with k parameters against a Gaussian process that has a density at M > k points.

The models are subsets of regressors with k inducing points of the process itself, where the benchmark's features come
from: approximations of it that serve well, and that every f-divergence takes for the worst there is (remark 3).
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch

from fsvi_bench.maths.features import ard_kernel as rbf_kernel
from fsvi_bench.maths.features import inducing_tril, nystrom_features
from fsvi_bench.papers.burt2020.theory.degenerate import Flat
from fsvi_bench.papers.burt2020.theory.f_divergence import generators, log_chernoff, log_overlap
from fsvi_bench.papers.burt2020.theory.settings import Settings
from fsvi_bench.papers.burt2020.theory.smoothed_curve import smoothed_curve_kl_constant, smoothed_curve_log_ratio
from fsvi_bench.papers.burt2020.theory.space_filling import hilbert_cells, rounded_kl
from fsvi_bench.papers.claims import Statistic, Values
from fsvi_bench.papers.experiment import Findings

ALPHAS = (0.25, 0.5, 0.75, 2.0)
CURVE_NOISE = (1e-6, 1e-12)


def draw_problem(settings: Settings, k: int, M: int) -> Flat:
    """Points 0, 1, …, M − 1 and a unit RBF of lengthscale 1; inducing points evenly among them; q's weights random."""
    generator = settings.generator("gaussian process", k, M)
    x, one = torch.arange(M, dtype=torch.float64)[:, None], torch.ones((), dtype=torch.float64)
    Z = (M - 1) * (torch.arange(k, dtype=torch.float64)[:, None] + 0.5) / k
    features = nystrom_features(x, Z, one[None], one, inducing_tril(Z, one[None], one, 0 * one))
    mean, scales = (
        torch.randn(k, generator=generator, dtype=torch.float64),
        torch.rand(k, generator=generator, dtype=torch.float64),
    )
    rotation = torch.linalg.qr(torch.randn(k, k, generator=generator, dtype=torch.float64)).Q
    # Standard deviations between 0.1 and 0.9 of the prior's: Q is narrower than P everywhere, as a posterior is.
    factor = features @ rotation * (0.1 + 0.8 * scales)
    return Flat(features @ mean, factor, torch.linalg.cholesky(rbf_kernel(x, x, one[None], one)))


def follow(settings: Settings, k: int, M: int) -> pd.DataFrame:
    """Divergences of one problem with noise of variance 1 down, a row each; `redundant` is KL(Q_ε‖P) with every feature
    there twice, with a parameter each: 2k parameters that do no more than k."""
    problem = draw_problem(settings, k, M)
    twice = problem._replace(factor=torch.cat([problem.factor, problem.factor], dim=1))
    leading, rows = problem.asymptotics(), []
    for noise in torch.logspace(0, math.log10(settings.smallest_noise), settings.steps, dtype=torch.float64).tolist():
        seen, event = problem.seen(noise), problem.revealing_event(noise)
        row = {
            "noise": noise,
            "time": math.log(1 / noise),
            "kl": problem.kl(noise),
            "asymptote": leading.slope * math.log(1 / noise) + leading.constant,
            "redundant": twice.kl(noise),
            "reverse_kl": problem.reverse_kl(noise),
            "reverse_asymptote": leading.reverse / noise,
            "log_overlap": log_overlap(seen),
            **{f"alpha = {alpha:g}": log_chernoff(seen, alpha) for alpha in ALPHAS},
            "event": event.under_q - event.under_p,
        }
        rows.append({name: float(value) for name, value in row.items()})
    known = {"case": f"k = {k}, M = {M}", "k": k, "M": M, "missing": M - k, **leading._asdict()}
    return pd.DataFrame(rows).assign(**known)


def without_noise(settings: Settings, k: int, M: int) -> pd.DataFrame:
    """The same without noise: what each divergence is, and its largest value."""
    seen = draw_problem(settings, k, M).seen(0.0)
    rows = [
        (f.name, f.at_zero, f.slope_at_infinity, f.between_singular, float(f.divergence(seen))) for f in generators()
    ]
    columns = ["divergence", "at_zero", "slope_at_infinity", "largest", "found"]
    return pd.DataFrame(rows, columns=columns).assign(case=f"k = {k}, M = {M}")


def follow_curve(settings: Settings) -> tuple[pd.DataFrame, list[float]]:
    """The nonlinear model at inputs 0, ½, 1, …, on the same draws at every noise variance: what is left of the KL
    beside ½(M − 1) log(1/ε²), and by draw how far its slope is from ½(M − 1), as a share."""
    M, generator = settings.curve_points, settings.generator("curve")
    x, one = torch.arange(M, dtype=torch.float64) / 2, torch.ones((), dtype=torch.float64)
    tril = torch.linalg.cholesky(rbf_kernel(x[:, None], x[:, None], 0.5 * one[None], one))
    theta = torch.randn(settings.curve_draws, generator=generator, dtype=torch.float64)
    noise = torch.randn(settings.curve_draws, M, generator=generator, dtype=torch.float64)
    ratios = {e: smoothed_curve_log_ratio(theta, noise, e, x, tril) for e in CURVE_NOISE}
    left = [(e, *Statistic.of_mean((ratio - 0.5 * (M - 1) * math.log(1 / e)).tolist())) for e, ratio in ratios.items()]
    slope = (ratios[CURVE_NOISE[1]] - ratios[CURVE_NOISE[0]]) / math.log(CURVE_NOISE[0] / CURVE_NOISE[1])
    frame = pd.DataFrame(left, columns=["noise", "value", "low", "high"])
    frame.attrs["M"] = M
    return frame.assign(limit=smoothed_curve_kl_constant(x, tril)), (slope / (0.5 * (M - 1)) - 1).tolist()


def follow_rounded(settings: Settings) -> pd.DataFrame:
    """KLs to N(0, I₂) of Hilbert's curve, which is not Lipschitz, and of the diagonal of the unit square, rounded to
    cells of width 2^−n."""
    rows = [
        (n, float(rounded_kl(hilbert_cells(n), n)), float(rounded_kl(torch.arange(2**n)[:, None].expand(-1, 2), n)))
        for n in range(1, settings.finest + 1)
    ]
    return pd.DataFrame(rows, columns=["n", "hilbert", "diagonal"])


def singular_statistics(settings: Settings, along: pd.DataFrame, bare: pd.DataFrame) -> dict[str, Values]:
    """On propositions 4 and 8, by case."""
    end, rise = ends(along)
    half, found = 0.5 * end["missing"], bare.pivot(index="case", columns="divergence", values="found")
    square = {k: draw_problem(settings, k, k) for k in end["k"]}
    affinities = pd.DataFrame({a: rise[f"alpha = {a:g}"] / (-half * (1 - a)) - 1 for a in ALPHAS if a < 1}).abs()
    excess = along["event"] + np.expm1(along["log_overlap"])
    off = (bare["found"] - bare["largest"]).abs().where(bare["found"] != bare["largest"], 0.0)
    total_variation = bare[bare["divergence"] == "total variation"].iloc[0]
    found_by_name: dict[str, pd.Series[float]] = {
        "proposition 4: least KL without noise, either way [nats]": (
            found[["KL(Q, P)", "KL(P, Q)"]].min(axis=1, skipna=False)
        ),
        "proposition 4: KL(Q_e, P), largest distance of its slope from (M - k)/2, share": rise["kl"] / half - 1,
        "proposition 4: KL(Q_e, P), largest distance from its asymptote at the end [nats]": end["kl"]
        - end["asymptote"],
        "proposition 4: KL(Q_e, P), largest distance of its slope from (M - rank)/2, redundant parameters, share": (
            rise["redundant"] / half - 1
        ),
        "proposition 4: KL(P, Q_e), largest distance of its slope in log-log from 1, share": rise["log_reverse_kl"] - 1,
        "proposition 4: e^2 KL(P, Q_e), largest distance from its limit at the end, share": (
            end["reverse_kl"] / end["reverse_asymptote"] - 1
        ),
        "proposition 8: least total variation at the end": -np.expm1(end["log_overlap"]),
        "proposition 8: total variation that one explicit event shows at the end, least": end["event"],
        "proposition 8: explicit event, largest excess over the total variation": (
            excess.set_axis(along["case"] + ", e^2 = " + along["noise"].map("{:g}".format))
        ),
        "proposition 8: least squared Hellinger distance at the end": -np.expm1(end["alpha = 0.5"]),
        "proposition 8: affinities, largest distance of their slope in log-log from (1 - alpha)(M - k)/2, share": (
            affinities.max(axis=1, skipna=False)
        ),
        "proposition 8: alpha = 2, largest distance of its slope in log-log from (M - k)/2, share": (
            rise["alpha = 2"] / half - 1
        ),
        "proposition 8: without noise, largest distance from f(0) + f'(infinity)": (
            off.groupby(bare["case"]).agg(pd.Series.max, skipna=False)
        ),
    }
    return {
        **{name: values.to_dict() for name, values in found_by_name.items()},
        "proposition 4: largest KL without noise where points are as many as parameters [nats]": {
            f"k = M = {k}": float(torch.stack([q.kl(0.0), q.reverse_kl(0.0)]).max()) for k, q in square.items()
        },
        "proposition 8 as written: distance of total variation without noise from its f'(infinity)": (
            total_variation["found"] - total_variation["slope_at_infinity"]
        ),
    }


def ends(along: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """By case, the last row, and the slopes in log(1/ε²) over the last step."""
    numbers = along.assign(log_reverse_kl=np.log(along["reverse_kl"])).set_index("case")
    at_end = numbers["noise"] == numbers["noise"].min()
    rise = numbers.groupby(level="case").diff()[at_end]
    return numbers[at_end], rise.div(rise["time"], axis=0)


def of_singular(settings: Settings) -> Findings:
    """On propositions 4 and 8."""
    along, bare = (
        pd.concat([of(settings, k, M) for k, M in settings.cases], ignore_index=True) for of in (follow, without_noise)
    )
    (curve, slope), rounded = follow_curve(settings), follow_rounded(settings)
    last, slopes = ends(along)
    cases = last.assign(half=0.5 * last["missing"], rise=slopes["kl"], scaled=last["noise"] * last["reverse_kl"])
    infinite = bare.pivot(index="case", columns="divergence", values="found")[["KL(Q, P)", "KL(P, Q)"]]
    laws = bare.groupby(["divergence", "at_zero", "slope_at_infinity", "largest"], sort=False)["found"]
    drawn = {
        "log_noise": -np.log10(along["noise"]),
        "kl_share": along["kl"] / along["missing"],
        "asymptote_share": along["asymptote"] / along["missing"],
        "below_hellinger": np.exp(along["alpha = 0.5"]),
        "below_event": 1 - along["event"],
        "below_total_variation": np.exp(along["log_overlap"]),
    }
    rise = rounded.diff().iloc[-1]
    by_halving = {
        "proposition 4, rounded to cells: rise of KL over the last halving, Hilbert's curve, not Lipschitz [nats]": (
            rise["hilbert"]
        ),
        "proposition 4, rounded to cells: rise of KL over the last halving, a Lipschitz curve, distance from log 2, "
        "share": rise["diagonal"] / math.log(2) - 1,
    }
    return Findings(
        frames={
            "along": along.assign(**drawn),
            "cases": cases.join(infinite).reset_index(),
            "bare": bare,
            "curve": curve,
            "rounded": rounded,
            "singular": laws.agg(["min", "max"]).reset_index(),
        },
        statistics={
            **singular_statistics(settings, along, bare),
            "proposition 4: a nonlinear model with one parameter, distance of its slope from (M - 1)/2, share": slope,
            **by_halving,
        },
    )
