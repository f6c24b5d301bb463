"""Kingma, Salimans and Welling (2015), figure 1a: test error against network width for seven kinds of dropout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from typing import Any

import pandas as pd
import torch
from pydantic import Field, PositiveInt, model_validator

from fsvi_bench.papers.claims import intervals
from fsvi_bench.papers.experiment import ExperimentContext, Frames, Row
from fsvi_bench.papers.ksw2015.data import ImageSource, OfImages
from fsvi_bench.papers.ksw2015.networks import Classifier, Kind, NoiseSettings, TrainSettings, errors, split, train
from fsvi_bench.papers.side_by_side import side_by_side, without_denormals
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

    @model_validator(mode="after")
    def _chooses_an_epoch(self) -> Settings:
        epochs, share = self.training.epochs, self.training.validation_share
        if not (epochs and share):
            raise ValueError(
                f"got {epochs} epochs and a validation share of {share:g}, expected both above 0, since the validation"
                " set chooses the epoch; raise them"
            )
        return self


@without_denormals()
def train_and_test(width: int, runs: Sequence[tuple[str, int]], training: TrainSettings, images: ImageSource) -> Row:
    """Networks of one width, trained side by side: for each variant and repeat of `runs` the test error after the epoch
    chosen on the validation set, and the layers' final drop rates."""
    use_one_thread()
    loaded = images.load()
    noise = [NoiseSettings(kind=VARIANTS[variant][0]) for variant, _ in runs]  # one α per layer
    # The same initial values, minibatches and validation set for every variant.
    seeds = [derive_seed("width sweep", training.seed, repeat) % 2**31 for _, repeat in runs]
    out, _ = split(len(loaded.x_train), training.validation_share, seeds)
    out = out.to(images.device)
    network = Classifier(loaded, noise, width, seeds)
    epochs = train(network, loaded, training, [VARIANTS[variant][1] for variant, _ in runs])
    averaged = next(epochs)  # the initial networks; the same module is yielded after each epoch
    on_validation, on_test = [], []
    for averaged in epochs:
        on_validation.append(errors(averaged, loaded.x_train[out], loaded.y_train[out]))
        on_test.append(errors(averaged, loaded.x_test, loaded.y_test))
    best = torch.stack(on_validation).cpu().numpy().argmin(0)  # the first of equals
    test_errors = torch.stack(on_test).cpu()
    rates = zip(*(layer.mean_drop_rates() for layer in averaged.layers), strict=True)
    return {
        "networks": [
            {
                "variant": variant,
                "repeat": repeat,
                "test_error": float(test_errors[epoch, place]),
                "last_test_error": float(test_errors[-1, place]),
                "best_epoch": int(epoch) + 1,
                "rate": sum(of_layers) / len(of_layers),
                "rate_of_inputs": of_layers[0],
                "rate_of_hidden": sum(of_layers[1:]) / len(of_layers[1:]),
            }
            for place, ((variant, repeat), epoch, of_layers) in enumerate(zip(runs, best, rates, strict=True))
        ]
    }


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    images = ImageSource.find(context, settings.images)
    by_type = defaultdict(list)  # noise on inputs and noise on weights are different computations
    for variant, repeat in product(VARIANTS, range(settings.repeats)):
        by_type[VARIANTS[variant][0].endswith("-b")].append((variant, repeat))
    runs = [each for of_type in by_type.values() for each in side_by_side(of_type, context.device)]
    grid: dict[str, Sequence[Any]] = {"width": sorted(settings.widths), "runs": runs}
    parts: Any = context.table(train_and_test, grid, training=settings.training, images=images).to_dict("records")
    networks = pd.json_normalize(parts, "networks", "width")
    order: dict[Any, Any] = {"variant": pd.CategoricalDtype(list(VARIANTS), ordered=True), "width": int}
    networks = networks.astype(order).sort_values(["variant", "width", "repeat"], ignore_index=True)
    return findings(networks.assign(images=images.name, error=100 * networks["test_error"]).astype({"variant": str}))


def findings(networks: pd.DataFrame) -> Frames:
    """Frames from trained networks; repeats share initial values across variants. Errors are in percentage points."""
    of_each = networks[["variant", "width", "repeat", "error"]]
    margins = of_each.merge(of_each, on=["width", "repeat"], suffixes=("", "_of_other"))
    margins = margins.rename(columns={"variant_of_other": "other"})
    runs = networks.sort_values("width").groupby(["variant", "repeat"])
    fall = (runs["error"].first() - runs["error"].last()).unstack("variant")  # from the smallest width to the largest
    gains = pd.DataFrame({kind: fall[f"Gaussian {kind}"] - fall[f"variational {kind}"] for kind in ("A", "B")})
    return {
        "networks": networks,
        "points": points(networks),
        "margins": margins.assign(margin=margins["error"] - margins["error_of_other"]),
        "ends": (runs["rate"].first() / runs["rate"].last()).reset_index(name="rate_ratio"),
        "gains": gains.reset_index().melt("repeat", var_name="type", value_name="gain"),
    }


def points(networks: pd.DataFrame) -> pd.DataFrame:
    """Means over repeats, with 95% intervals and standard errors of the error and the drop rate."""
    runs = networks.groupby(["variant", "width", "images"], sort=False)
    found = runs[["error", "best_epoch", "rate", "rate_of_inputs", "rate_of_hidden"]].mean()
    found[["low", "high"]] = intervals(runs["error"])[["low", "high"]]
    sem = runs[["error", "rate"]].sem()
    drawn = found[["error", "rate"]]
    found = found.join((drawn - sem).add_suffix("_low")).join((drawn + sem).add_suffix("_high")).reset_index()
    rates, learnt = ["rate_of_inputs", "rate_of_hidden"], found["variant"].str.startswith("variational")
    found[rates] = found[rates].where(learnt).astype("Float64")  # shown as a dash in tables, not as NaN
    # Shifted slightly so that error bars do not overlap.
    return found.assign(place=found["width"] * 1.015 ** (found["variant"].map(list(VARIANTS).index) - 3))
