"""Gal (2016), section 6.7: epistemic and aleatoric uncertainty of a network as a function of the number of data.

y = 2x + 8 + N(0, 1). Three hidden layers of 1,024 ReLU units give the mean and the log precision of y at x; the drop
probability of every layer is learnt with Concrete masks of temperature 0.1. The objective per training point is
mean [½ τ(x)(y − f(x))² − ½ log τ(x)] + KL/N, where the KL contains the entropy term −K H(p) for each layer of K inputs.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt
from scipy.stats import spearmanr
from torch import Tensor

from fsvi_bench.maths.gaussian import normal_log_density
from fsvi_bench.papers.experiment import ExperimentContext, Frames, Row
from fsvi_bench.papers.gal2016.dropout_network import LINE, NetworkSettings, fit, mean_log_density
from fsvi_bench.papers.side_by_side import without_denormals
from fsvi_bench.papers.streams import stream
from fsvi_bench.seeds import derive_seed
from fsvi_bench.strict import Plain
from fsvi_bench.threads import use_one_thread

SCORED = {"epistemic": "epistemic sd", "aleatoric": "aleatoric sd", "predictive": "predictive sd"}
SCORED |= {"test_log_likelihood": "test log likelihood", "test_rmse": "test RMSE"}


class ConcreteSettings(NetworkSettings):
    """Masks are relaxed in training only; functions are drawn from the Bernoulli posterior with the learnt p."""

    temperature: PositiveFloat
    start_rate: float = Field(gt=0, lt=1)
    lr_of_rates: PositiveFloat


class Settings(Plain):
    """`repeats` data sets and networks at every N of `sizes`."""

    sizes: tuple[PositiveInt, ...] = Field(min_length=2)
    repeats: PositiveInt
    N_test: PositiveInt
    network: ConcreteSettings


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    grid = {"N": sorted(settings.sizes), "repeat": range(settings.repeats)}
    shared = {"N_test": settings.N_test, "network": settings.network, "device": context.device}
    networks = context.table(train_and_measure, grid, **shared)
    return frames(networks.assign(predictive=np.hypot(networks["epistemic"], networks["aleatoric"])))


@without_denormals()
def train_and_measure(N: int, repeat: int, N_test: int, network: ConcreteSettings, device: str) -> Row:
    """Standard deviations of f (`epistemic`) and of the noise, drop probabilities from the first layer on, and test
    scores.

    Standard deviations are square roots of variances averaged over the test inputs, and for the noise also over
    functions, so their squares add up. The log likelihood is per test point, of the mean density over draws. The same
    seed gives the same numbers on the same device.
    """
    use_one_thread()
    purpose = "concrete dropout", derive_seed(network.seed, repeat) % 2**31
    data = LINE.draw(N, N_test, purpose[1], device)
    rates = [network.start_rate] * (network.hidden_layers + 1)
    learning = network.temperature, network.lr_of_rates
    fitted, _ = fit(data, network, purpose, 2, rates, heteroscedastic_loss, *learning)
    outputs = fitted.functions(data.x_test, network.draws, stream(device, *purpose, "draws")).double()
    f, variance, y = outputs[..., 0], (-outputs[..., 1]).exp(), data.y_test.double()
    return {
        "epistemic": float(f.var(0).mean().sqrt()),
        "aleatoric": float(variance.mean().sqrt()),
        "drop_rates": fitted.log_odds.sigmoid().tolist(),
        "test_log_likelihood": mean_log_density(normal_log_density(y.expand_as(f), f, variance)),
        "test_rmse": float((f.mean(0) - y).square().mean().sqrt()),
    }


def heteroscedastic_loss(outputs: Float[Tensor, "M 2"], y: Float[Tensor, " M"]) -> Tensor:
    """Mean of ½ τ (y − f)² − ½ log τ with outputs (f, log τ): −log N(y; f, 1/τ) without ½ log 2π."""
    f, log_precision = outputs.unbind(-1)
    return 0.5 * (log_precision.exp() * (y - f).square() - log_precision).mean()


def frames(networks: pd.DataFrame) -> Frames:
    """Networks, their scores over repeats, trends over N by repeat, and drop probabilities by layer."""
    first, last = networks["N"].min(), networks["N"].max()
    networks = networks.assign(end=networks["N"].map({first: "first", last: "last"}))
    by_N = networks.pivot(index="repeat", columns="N")
    scored = networks.rename(columns=SCORED).melt("N", list(SCORED.values()), var_name="what")
    scores = scored.sort_values("N", kind="stable").groupby(["N", "what"], sort=False)["value"]
    taken = {take: getattr(scores, take)(skipna=False) for take in ("median", "mean", "min", "max")}
    epistemic, error, predictive = by_N["epistemic"], by_N["aleatoric"] - LINE.noise, by_N["predictive"]
    late = predictive.loc[:, 10 * predictive.columns >= last].to_numpy()
    repeats = {
        "rank_correlation": [spearmanr(epistemic.columns, row).statistic for row in epistemic.to_numpy()],
        "epistemic_ratio": epistemic[last] / epistemic[first],
        "last_error": error[last],
        "error_change": error[last].abs() - error[first].abs(),
        "late_range": np.ptp(late, axis=1) / late.mean(axis=1),
    }
    return {
        "networks": networks,
        "scores": pd.DataFrame(taken).reset_index(),
        "repeats": pd.DataFrame(repeats),
        **drop_rates(networks),
    }


def drop_rates(networks: pd.DataFrame) -> Frames:
    """p by layer, counted from the inputs, and its change from the smallest N."""
    rates = networks[["N", "end", "repeat", "drop_rates"]].explode("drop_rates").rename(columns={"drop_rates": "p"})
    layer = rates.groupby(["N", "repeat"]).cumcount() + 1
    rates = rates.assign(p=rates["p"].astype(float), layer="layer " + layer.astype(str), hidden=layer > 1)
    change = rates["p"] - rates.groupby(["repeat", "layer"])["p"].transform("first")
    means = rates.groupby(["N", "layer"])["p"].mean(skipna=False).unstack("layer").reset_index()
    return {"drop_rates": rates.assign(change=change), "mean_rates": means}
