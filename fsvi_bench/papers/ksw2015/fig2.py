"""Kingma, Salimans and Welling (2015), figure 2: the KL to the log-uniform prior and its approximations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from torch import Tensor

from fsvi_bench.maths.log_uniform import gaussian_dropout_kl, ksw_cubic_kl, ksw_lower_bound_kl, molchanov_kl
from fsvi_bench.papers.experiment import ExperimentContext, Frames
from fsvi_bench.strict import Plain

FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "exact": gaussian_dropout_kl,
    "cubic": ksw_cubic_kl,
    "lower bound": ksw_lower_bound_kl,
    "sigmoid (Molchanov et al. 2017)": molchanov_kl,
}


class Settings(Plain):
    """The range of α = p/(1−p), given by drop rates, and the number of values, evenly spaced in log α."""

    lowest_rate: float = Field(gt=0, lt=0.5)
    highest_rate: float = Field(gt=0, le=0.5)
    points: int = Field(ge=2)


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """All forms as plotted in the paper: −KL, with the constant such that the exact one is 0 at α = 1."""
    low, high = (math.log(p / (1 - p)) for p in (settings.lowest_rate, settings.highest_rate))
    log_alpha = torch.linspace(low, high, settings.points, dtype=torch.float64).clamp(max=0.0)
    at_one = gaussian_dropout_kl(torch.ones(1, dtype=torch.float64))
    forms = pd.DataFrame({name: at_one - form(log_alpha.exp()) for name, form in FORMS.items()})
    errors = forms.sub(forms["exact"], axis=0)
    curves = forms.assign(log_alpha=log_alpha.numpy()).melt("log_alpha", var_name="form", value_name="negative_kl")
    curves["error"] = errors.melt()["value"]
    return {"curves": curves, "errors": _worst(errors, log_alpha, np.ptp(forms["exact"]))}


def _worst(errors: pd.DataFrame, log_alpha: Tensor, height: float) -> pd.DataFrame:
    """The largest error of each form, and its size relative to the figure's height, for claims."""
    errors = errors.drop(columns="exact")
    highest, lowest = errors.max(skipna=False), errors.min(skipna=False)  # NaN must not be skipped
    furthest = errors.abs().idxmax()
    found = {
        "error": highest.where(highest > -lowest, lowest),
        "alpha": log_alpha.exp().numpy()[furthest],
        "share": np.maximum(highest, -lowest) / height,
        "share_of_shape": (highest - lowest) / (2 * height),
        "below": -highest,
    }
    return pd.DataFrame(found).rename_axis("form").reset_index()
