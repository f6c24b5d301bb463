"""Kingma, Salimans and Welling (2015), figure 1a: test error against network width for seven kinds of dropout."""

from __future__ import annotations

import numpy as np
import pandas as pd
from pydantic import Field, PositiveInt

from fsvi_bench.papers.claims import intervals
from fsvi_bench.papers.experiment import ExperimentContext, Frames, Row
from fsvi_bench.papers.ksw2015.data import ImageSource, OfImages
from fsvi_bench.papers.ksw2015.networks import Classifier, Kind, NoiseSettings, TrainSettings, error_rate, split, train
from fsvi_bench.seeds import derive_seed
from fsvi_bench.threads import use_one_thread

VARIANTS: dict[str, tuple[Kind, float]] = {  # noise and scale of the KL; A2 is type A with a third of the KL
    "no dropout": ("none", 1.0),
    "binary": ("bernoulli", 1.0),
    "Gaussian A": ("gaussian-a", 1.0),
    "Gaussian B": ("gaussian-b", 1.0),
    "variational A": ("variational-a", 1.0),
    "variational A2": ("variational-a", 1 / 3),
    "variational B": ("variational-b", 1.0),
}


class Settings(OfImages):
    """Every combination of variant and width, `repeats` times."""

    widths: tuple[PositiveInt, ...] = Field(min_length=2)
    repeats: PositiveInt
    training: TrainSettings


def train_and_test(variant: str, width: int, repeat: int, training: TrainSettings, images: ImageSource) -> Row:
    """The test error after the epoch chosen on the validation set, and the layers' final drop rates."""
    use_one_thread()
    kind, kl_scale = VARIANTS[variant]
    seed = derive_seed("width sweep", training.seed, repeat) % 2**31  # the same initial values for every variant
    training = training.model_copy(update={"kl_scale": kl_scale, "seed": seed})
    loaded = images.load()
    kept, validation = split(loaded, training)
    network = Classifier(loaded, NoiseSettings(kind=kind), width, seed)  # one α per layer
    epochs = train(network, kept, training)
    averaged = next(epochs)  # the initial network; the same module is yielded after each epoch
    test = loaded.x_test, loaded.y_test
    errors = [(error_rate(averaged, *validation), error_rate(averaged, *test)) for averaged in epochs]
    best = int(np.argmin([on_validation for on_validation, _ in errors]))
    rates = [layer.mean_drop_rate() for layer in averaged.layers]
    return {"test_error": errors[best][1], "best_epoch": best + 1, "drop_rates": rates}


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    images = ImageSource.find(context, settings.images)
    grid = {"variant": VARIANTS, "width": sorted(settings.widths), "repeat": range(settings.repeats)}
    networks = context.table(train_and_test, grid, training=settings.training, images=images)
    rates = np.array(networks["drop_rates"].tolist())  # layers in columns
    networks = networks.assign(
        images=images.name,
        error=100 * networks["test_error"],
        rate=rates.mean(1),
        rate_of_inputs=rates[:, 0],
        rate_of_hidden=rates[:, 1:].mean(1),
    )
    return findings(networks)


def findings(networks: pd.DataFrame) -> Frames:
    """Frames from trained networks; repeats share initial values across variants. Errors are in percentage points."""
    mean = networks.groupby(["variant", "repeat"])["error"].mean().reset_index()
    margins = mean.merge(mean, on="repeat", suffixes=("", "_of_other")).rename(columns={"variant_of_other": "other"})
    runs = networks.sort_values("width").groupby(["variant", "repeat"])
    fall = (runs["error"].first() - runs["error"].last()).unstack("variant")  # from the smallest width to the largest
    gain = (fall["Gaussian A"] - fall["variational A"] + fall["Gaussian B"] - fall["variational B"]) / 2
    return {
        "networks": networks,
        "points": points(networks),
        "margins": margins.assign(margin=margins["error"] - margins["error_of_other"]),
        "ends": (runs["rate"].first() / runs["rate"].last()).reset_index(name="rate_ratio"),
        "gains": gain.reset_index(name="gain"),
    }


def points(networks: pd.DataFrame) -> pd.DataFrame:
    """Means over repeats, with 95% intervals and standard errors of the error and the drop rate."""
    runs = networks.groupby(["variant", "width", "images"], sort=False)
    found = runs[["error", "best_epoch", "rate", "rate_of_inputs", "rate_of_hidden"]].mean()
    found[["low", "high"]] = intervals(runs["error"])[["low", "high"]]
    errors = runs[["error", "rate"]].sem()
    drawn = found[["error", "rate"]]
    found = found.join((drawn - errors).add_suffix("_low")).join((drawn + errors).add_suffix("_high")).reset_index()
    rates, learnt = ["rate_of_inputs", "rate_of_hidden"], found["variant"].str.startswith("variational")
    found[rates] = found[rates].where(learnt).astype("Float64")  # shown as a dash in tables, not as NaN
    # Shifted slightly so that error bars do not overlap.
    return found.assign(place=found["width"] * 1.015 ** (found["variant"].map(list(VARIANTS).index) - 3))
