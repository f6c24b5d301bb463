"""Gal (2016), section 6.4: does the ELBO identify the dropout probability with the best predictions?

Networks of four hidden layers of 1,024 ReLU units with fixed drop probability p and model precision τ are trained to
maximise ELBO = Σ E_q log N(y_n; f(x_n), τ⁻¹) − KL(q ‖ p), with the KL of `dropout_network`. The KL's constant depends
on neither p nor the weights; it is not in `elbo` and is reported separately. The first layer's weights are never
dropped: dropping the only input, with probability p, would give a constant function.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

import pandas as pd
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from fsvi_bench.maths.gaussian import LOG_2PI
from fsvi_bench.papers.claims import intervals
from fsvi_bench.papers.experiment import ExperimentContext, Frames, Row
from fsvi_bench.papers.gal2016.dropout_network import WAVES, NetworkSettings, fit, mean_log_density
from fsvi_bench.papers.side_by_side import without_denormals
from fsvi_bench.papers.streams import stream
from fsvi_bench.seeds import derive_seed
from fsvi_bench.strict import Plain
from fsvi_bench.threads import use_one_thread

CLAIMED_RATES, CLAIMED_PRECISIONS = {0.0, 0.5, 0.75, 0.9}, {10.0, 20.0, 50.0}  #: values used by claims
INTERVAL = 2.0**-23  #: spacing of the weights' grid in eq. 6.6, float32's near 1
OF_THE_ELBO = {"test_log_likelihood": "test log likelihood", "test_rmse": "test RMSE"}  #: scores compared with it
Rate = Annotated[float, Field(ge=0, lt=1)]


class Settings(Plain):
    """Every combination of p and τ, `repeats` times on the same data."""

    drop_rates: tuple[Rate, ...]
    precisions: tuple[PositiveFloat, ...]
    repeats: PositiveInt
    N: PositiveInt
    N_test: int = Field(ge=2)
    network: NetworkSettings

    @model_validator(mode="after")
    def _holds_what_claims_need(self) -> Settings:
        if not (set(self.drop_rates) >= CLAIMED_RATES and set(self.precisions) == CLAIMED_PRECISIONS):
            needed = f"drop_rates {sorted(CLAIMED_RATES)} and precisions {sorted(CLAIMED_PRECISIONS)}"
            raise ValueError(f"the claims need {needed}")
        return self


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    grid = {"tau": sorted(settings.precisions), "p": sorted(settings.drop_rates), "repeat": range(settings.repeats)}
    shared = {"N_test": settings.N_test, "network": settings.network, "device": context.device}
    networks = context.table(train_and_measure, grid | {"N": [settings.N]}, **shared)
    targets = WAVES.draw(settings.N, settings.N_test, settings.network.seed).y_test.double()
    deviation = float(targets.std())
    return {**frames(networks, deviation), "targets": pd.DataFrame({"deviation": [deviation]})}


@without_denormals()
def train_and_measure(
    tau: float, p: float, repeat: int, N: int, N_test: int, network: NetworkSettings, device: str
) -> Row:
    """ELBO and log likelihoods in nats per training or test point, the KL's terms and constant in nats.

    `tau` is the model precision, `p` the drop probability. Repeats share the data of the network's seed and differ in
    everything else. `kl_weights` is ½ l² (1 − p)‖m‖² over all rows, `kl_entropy` is Σ rows · H(p), which the KL
    subtracts, and `discrete_constant` is the constant of eq. 6.6, log Z of the prior on a grid, which is not in `elbo`.
    Test scores use the mean density and the mean function over draws. The same seed gives the same numbers on the same
    device.
    """
    use_one_thread()
    data = WAVES.draw(N, N_test, network.seed, device)
    purpose = "mc dropout", derive_seed(network.seed, repeat) % 2**31
    rates = [0.0, *[p] * network.hidden_layers]
    fitted, _ = fit(data, network, purpose, 1, rates, lambda outputs, y: -log_likelihood(outputs[:, 0], y, tau).mean())
    noise = stream(device, *purpose, "draws")
    weights, entropy = (each.item() for each in fitted.kl(network.length_scale))
    f, f_test = (fitted.functions(x, network.draws, noise)[..., 0] for x in (data.x, data.x_test))
    likelihood = float(log_likelihood(f, data.y, tau).mean())
    parameters = sum(each.numel() for each in (*fitted.thetas, *fitted.biases))
    return {
        "elbo": likelihood - (weights - entropy) / N,
        "expected_log_likelihood": likelihood,
        "kl_weights": weights,
        "kl_entropy": entropy,
        # ½ log 2π − log l − log Δ per parameter: Gal's |Δw| is the volume of a cell, Δ^K in K dimensions.
        "discrete_constant": parameters * (0.5 * LOG_2PI - math.log(network.length_scale) - math.log(INTERVAL)),
        "test_log_likelihood": mean_log_density(log_likelihood(f_test, data.y_test, tau)),
        "test_rmse": float((f_test.mean(0) - data.y_test).square().mean().sqrt()),
    }


def log_likelihood(f: Float[Tensor, "*T N"], y: Float[Tensor, " N"], precision: float) -> Float[Tensor, "*T N"]:
    """log N(y; f, 1/τ), elementwise."""
    return 0.5 * (math.log(precision) - LOG_2PI - precision * (y - f).square())


def frames(networks: pd.DataFrame, deviation: float) -> Frames:
    """Networks compared with those with p = 0.5 and those with τ = 10, and rank correlations with the ELBO over p.

    Repeats are paired: they share initial values, masks and minibatches for all p and τ.

    Args:
        deviation: the test targets' standard deviation.
    """
    half = networks[["tau", "repeat"]].merge(networks[networks["p"] == 0.5], "left")
    ten = networks[["p", "repeat"]].merge(networks[networks["tau"] == 10], "left")
    paired = networks.assign(
        elbo_gain=half["elbo"] - networks["elbo"],
        likelihood_gain=half["test_log_likelihood"] - networks["test_log_likelihood"],
        rmse_ratio=networks["test_rmse"] / half["test_rmse"],
        rmse_share=networks["test_rmse"] / deviation,
        elbo_loss=ten["elbo"] - networks["elbo"],
        other=networks["p"] != 0.5,
    )
    scores = networks.set_index(["tau", "repeat"])[["elbo", *OF_THE_ELBO]].rename(columns=OF_THE_ELBO)
    # Without a score at one p there is no correlation: that over the other p would be another statistic.
    scores = scores.where(scores.notna().groupby(["tau", "repeat"]).transform("all"))
    correlated = scores.groupby(["tau", "repeat"]).corr("spearman")["elbo"].drop("elbo", level=-1)
    correlations = correlated.rename_axis(["tau", "repeat", "what"]).rename("correlation").reset_index()
    return {
        "networks": paired,
        "means": networks.groupby(["tau", "p"], as_index=False).agg(partial(pd.Series.mean, skipna=False)),
        "correlations": correlations,
        "mean_correlations": intervals(correlations.groupby(["tau", "what"], sort=False)["correlation"]).reset_index(),
    }
