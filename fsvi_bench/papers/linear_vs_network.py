"""Do methods that come closer to a linear model's exact posterior also come closer to a network's?

Entries are methods with their families. Per score, they are ranked on each data set by means over its splits, and ranks
are averaged over the data sets of a track. The statistic is Spearman's correlation between the two tracks. A resample
of its bootstrap draws data sets and splits on each track, and then entries.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import rankdata

from fsvi_bench.errors import InputError
from fsvi_bench.networks.task import network_name
from fsvi_bench.papers.experiment import ExperimentContext, Frames
from fsvi_bench.presenting.looks import looks
from fsvi_bench.presenting.summary import cells_of
from fsvi_bench.running.options import Request
from fsvi_bench.seeds import derived_generator
from fsvi_bench.statistics.bootstrap import BEYOND, bootstrap_ranks

#: Scores of linear tasks and of networks that are compared.
PAIRS = {
    "KL and energy distance": ("kl_moment_matched", "energy_distance_20_test"),
    "energy distance, test": ("energy_distance_test", "energy_distance_20_test"),
    "predictive KL, test": ("predictive_kl_test", "predictive_kl_test"),
    "predictive KL, box": ("predictive_kl_box", "predictive_kl_box"),
    "W₂ of f, test": ("w2_test", "w2_test"),
    "NLPD": ("nlpd", "nlpd"),
}
RESAMPLES = 2000
FEWEST = 6  #: ranked entries with a correlation
Tables = Mapping[str, Float[np.ndarray, "M splits 1"]]  #: by data set
Ranks = tuple[Float[np.ndarray, " M"], Float[np.ndarray, "R M"]]  #: mean ranks, and their resamples


def compare_tracks(request: Request, context: ExperimentContext) -> Frames:
    """Mean ranks of every entry by pair of scores, and their correlations."""
    cells = cells_of(context.cells.records)
    return compared(cells.assign(network=cells["dataset"].map(lambda name: network_name(name, 0) is not None)))


def compared(cells: pd.DataFrame) -> Frames:
    """Mean ranks and correlations from cells, whose column `network` tells the track. Entries need cells on both.

    Raises:
        InputError: no entry has cells on both.
    """
    cells = cells.assign(entry=cells["method"] + " " + cells["family"])
    both = cells.groupby("entry")["network"].nunique()
    cells = cells[cells["entry"].isin(both.index[both == 2])]
    if not len(cells):
        raise InputError("no method has records on both linear tasks and networks; compute them with --compute")
    ranks = {
        pair: (_ranks(cells, pair, linear, False), _ranks(cells, pair, network, True))
        for pair, (linear, network) in PAIRS.items()
    }
    places = pd.concat([_places(cells, pair, *of_tracks) for pair, of_tracks in ranks.items()], ignore_index=True)
    found = pd.DataFrame([_correlation(pair, *of_tracks) for pair, of_tracks in ranks.items()])
    places = places.join(looks(places["method"])).merge(found[["pair", "value", "low", "high"]])
    spread = [f"ρ = {r.value:.2f} ({r.low:.2f} to {r.high:.2f})".replace("-", "−") for r in places.itertuples()]
    places = places.assign(heading=places["pair"] + "\n" + spread, fill=places["family"].ne("ffg").astype(float))
    return {"places": places.dropna(subset=["linear", "network"]), "correlations": found}


def _tables(cells: pd.DataFrame, score: str, network: bool) -> Tables:
    """Scores by data set, entries in order of their names; infinite if a cell diverged, NaN if one failed."""
    own = cells[cells["network"] == network]
    values = own[score].where(own["status"] != "diverged", np.inf)
    table = values.groupby([own["dataset"], own["entry"], own["split"]]).mean(skipna=False)
    entries = sorted(cells["entry"].unique())
    return {
        str(name): of.droplevel(0).unstack("split").reindex(entries).to_numpy()[..., None]
        for name, of in table.groupby(level=0)
    }


def _ranks(cells: pd.DataFrame, pair: str, score: str, network: bool) -> Ranks:
    """Mean ranks of the entries [M], and resamples of those that are ranked [R, M], with NaN for the others."""
    generator = derived_generator("linear vs network", pair, network)
    found = bootstrap_ranks(_tables(cells, score, network), generator, RESAMPLES)
    return found.mean_rank, found.resampled


def _places(cells: pd.DataFrame, pair: str, linear: Ranks, network: Ranks) -> pd.DataFrame:
    entries = cells[["entry", "method", "family"]].drop_duplicates().sort_values("entry", ignore_index=True)
    return entries.assign(pair=pair, linear=linear[0], network=network[0])


def _correlation(pair: str, linear: Ranks, network: Ranks) -> dict[str, object]:
    (a, of_a), (b, of_b) = linear, network
    ranked = np.flatnonzero(~np.isnan(a + b))
    scores = {"pair": pair, **dict(zip(("linear", "network"), PAIRS[pair], strict=True)), "entries": len(ranked)}
    if len(ranked) < FEWEST:  # says nothing
        return scores | {"value": 0.0, "low": -1.0, "high": 1.0}
    generator = derived_generator("linear vs network", pair, "entries")
    drawn = ranked[generator.integers(len(ranked), size=(RESAMPLES, len(ranked)))]
    resampled = spearman(*(np.take_along_axis(of, drawn, axis=1) for of in (of_a, of_b)))
    low, high = np.nanquantile(resampled, [BEYOND, 1 - BEYOND])
    return scores | {"value": float(spearman(a[ranked], b[ranked])), "low": low, "high": high}


def spearman(a: Float[np.ndarray, "*R M"], b: Float[np.ndarray, "*R M"]) -> Float[np.ndarray, "*R"]:
    """Spearman's correlation of each row, as SciPy's of one; NaN if all values of one are equal."""
    x, y = (ranks - ranks.mean(-1, keepdims=True) for ranks in (rankdata(of, axis=-1) for of in (a, b)))
    with np.errstate(invalid="ignore"):
        return np.asarray((x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1)))
