"""What an entry's page draws: its spectra, and its re-runs on their way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.site.drawings import Curve, Strip, curves, spectrum
from fsvi_bench.leaderboard.site.render import colour
from fsvi_bench.leaderboard.site.tables import SCORES
from fsvi_bench.leaderboard.tables import Score
from fsvi_bench.leaderboard.verification import Waypoint
from fsvi_bench.tasks.official import Place


def spectrum_strips(entry: Entry, datasets: Sequence[str]) -> Markup | None:
    """A strip per data set that the entry covers: each of the 21 quantiles is its median over splits."""
    if entry.verification is None:
        return None
    strips = []
    for dataset in datasets:
        own = [cell for cell in entry.verification.cells if cell.dataset == dataset]
        found = [cell.scores.overconfidence.quantiles for cell in own if cell.scores is not None]
        if own:
            strips.append(Strip(dataset, tuple(np.median(np.asarray(found), axis=0).tolist()) if found else ()))
    return spectrum(strips, "spectrum", colour(entry.manifest.method)) if strips else None


def along_the_way(entry: Entry, score: Score, floors: Mapping[Place, float]) -> list[Markup]:
    """The track's score of the verifier's own re-runs, against steps and against seconds; of tasks with a floor alone,
    which are the ones that the tables are of."""
    if entry.verification is None or entry.verification.rerun is None:
        return []
    drawn: dict[str, list[Curve]] = {"steps": [], "seconds": []}
    for cell in entry.verification.rerun.official:
        floor = floors.get((cell.dataset, cell.split))
        if floor is None:
            continue
        for across, found in drawn.items():
            points = [(float(getattr(at, across)), _value(at, score, floor)) for at in cell.waypoints]
            if len(points) > 1:
                found.append(Curve(f"{cell.dataset}, split {cell.split}", tuple(points)))
    look = colour(entry.manifest.method)
    return [
        curves(found, f"along-{across}", across, _capital(SCORES[score]), look)
        for across, found in drawn.items()
        if found
    ]


def _value(at: Waypoint, score: Score, floor: float) -> float:
    if score == "predictive_kl_box":
        return math.inf if at.predictive_kl_box is None else at.predictive_kl_box
    return at.kl - floor if score == "kl_above_floor" else at.kl


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]
