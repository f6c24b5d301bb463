"""Which learning rate, schedule and number of steps leave each method nearest to its own objective's minimum.

The search looks at a method's own objective on the training rows of the development sets, and never at the exact
posterior. Every method has the same grid. With several families it gets one setting for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, PositiveFloat, PositiveInt

from fsvi_bench.papers.experiment import ExperimentContext, Frames, Plain, Rising
from fsvi_bench.papers.tuning.runs import Schedule, Schedules, Setting, Variant, train_and_measure

RATES = ["lr", "schedule"]  #: what a method's search is over, with the number of steps fixed


class Settings(Plain):
    """The grid, the same for each method, and the development sets, of which the first `splits` are used.

    `off_diagonal_lr` is searched with the method `roots`, of full covariances, and the best value is used for all
    methods. A method's number of steps is the least of `budgets` at which its objective is within `tolerance` (nats,
    mean over tasks) of the lowest. Curves are those of the chosen setting and of `reference`, on split 0.
    """

    datasets: tuple[str, ...] = Field(min_length=1)
    splits: PositiveInt
    methods: dict[str, tuple[str, ...]] = Field(min_length=1)  #: with their families
    roots: str
    lr: Annotated[tuple[PositiveFloat, ...], Rising]
    schedules: dict[str, Schedule]
    off_diagonal_lr: Annotated[tuple[PositiveFloat, ...], Rising]
    steps: PositiveInt  #: of the search
    budgets: Annotated[tuple[PositiveInt, ...], Rising]
    tolerance: PositiveFloat
    reference: Setting
    curve: Annotated[tuple[PositiveInt, ...], Rising]  #: steps of the curves, as far as a run goes

    def grid(self, off_diagonal_lr: float) -> list[Setting]:
        """Every learning rate with every schedule."""
        return [
            Setting(lr=lr, schedule=name, max_steps=self.steps, off_diagonal_lr=off_diagonal_lr)
            for lr, name in product(self.lr, self.schedules)
        ]


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """The search's log, the winners, and their learning curves."""
    search = Search(settings, context)
    factors = [each for factor in settings.off_diagonal_lr for each in settings.grid(factor)]
    roots = ranked(search.runs([Variant(method=settings.roots, family="full")], factors), ["off_diagonal_lr", *RATES])
    off_diagonal_lr = float(roots["off_diagonal_lr"].iloc[0])
    log = ranked(search.runs(search.variants(), settings.grid(off_diagonal_lr)), RATES)
    winners = log.groupby("method", sort=False).first().reset_index()
    budgets = [
        search.runs(search.variants(name), [_setting(winner, off_diagonal_lr, steps) for steps in settings.budgets])
        for name, winner in zip(winners["method"], winners.to_dict("records"), strict=True)
    ]
    by_budget = ranked(pd.concat(budgets), [*RATES, "max_steps"])
    chosen = choose_budgets(by_budget, settings.tolerance).assign(off_diagonal_lr=off_diagonal_lr)
    curves = []
    for row in chosen.to_dict("records"):
        both = [_setting(row, off_diagonal_lr, row["max_steps"]), settings.reference]
        found = search.runs(search.variants(row["method"]), both, splits=1, curve=settings.curve)
        curves.append(found.assign(which=np.where(found["setting"] == both[0], "tuned", "reference")))
    return {"roots": roots, "log": log, "budgets": by_budget, "chosen": chosen, **compared(pd.concat(curves))}


def _setting(row: Mapping[Any, Any], off_diagonal_lr: float, max_steps: int) -> Setting:
    own = {"lr": row["lr"], "schedule": row["schedule"]}
    return Setting(**own, off_diagonal_lr=off_diagonal_lr, max_steps=max_steps)


class Search:
    """Training runs, as parts of an experiment."""

    def __init__(self, settings: Settings, context: ExperimentContext) -> None:
        self.settings, self.context = settings, context

    def variants(self, *methods: str) -> list[Variant]:
        """These methods, by default all, with their families."""
        of_methods = {name: self.settings.methods[name] for name in methods or self.settings.methods}
        return [Variant(method=name, family=family) for name, families in of_methods.items() for family in families]

    def runs(self, variants: list[Variant], settings: list[Setting], **changes: Any) -> pd.DataFrame:
        """One row per variant, setting and data set, with the `objectives` of its splits."""
        data_dir = self.context.data_dir
        shared: dict[str, Any] = {
            "splits": self.settings.splits,
            "schedules": Schedules(of=self.settings.schedules),
            "curve": (),
            "data_dir": None if data_dir is None else str(data_dir),
        }
        grid = {"variant": variants, "dataset": self.settings.datasets, "setting": settings}
        parts = self.context.table(train_and_measure, grid, **shared | changes)
        names = [
            variant.model_dump() | setting.model_dump() for variant, setting in parts[["variant", "setting"]].values
        ]
        return parts.join(pd.DataFrame(names))


def ranked(runs: pd.DataFrame, settings: list[str]) -> pd.DataFrame:
    """One row per method and setting, each method's best first.

    `excess` is the mean over tasks and families of the objective above the least that any setting reached there, in
    nats. A setting that diverged anywhere comes after all that did not.
    """
    each = runs.explode("objectives", ignore_index=True)
    each["objective"] = each.pop("objectives").astype(float)
    each["split"] = each.groupby(["method", "family", "dataset", *settings]).cumcount()
    least = each.groupby(["method", "family", "dataset", "split"])["objective"].transform("min")
    each = each.assign(excess=each["objective"] - least, diverged=~np.isfinite(each["objective"]))
    groups = each.groupby(["method", *settings], sort=False)
    found = groups.agg(excess=("excess", "mean"), diverged=("diverged", "sum"), seconds=("seconds", "mean"))
    for family in each["family"].unique():
        found[family] = each[each["family"] == family].groupby(["method", *settings])["excess"].mean()
    found["place"] = found.reset_index().groupby("method", sort=False).ngroup().to_numpy()
    return found.reset_index().sort_values(["place", "diverged", "excess"], kind="stable", ignore_index=True)


def choose_budgets(budgets: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """For each method, the fewest steps whose excess is within the tolerance of the least."""
    rows = []
    for _, of_method in budgets.groupby("method", sort=False):
        near = of_method[(of_method["excess"] <= of_method["excess"].min() + tolerance) & of_method["diverged"].eq(0)]
        rows.append((near if len(near) else of_method).sort_values("max_steps").iloc[0])
    return pd.DataFrame(rows).reset_index(drop=True)


def compared(curves: pd.DataFrame) -> Frames:
    """Learning curves above the least objective of both settings, and by method the tuned setting's end minus the
    reference's."""
    own = ["method", "family", "dataset", "which"]
    ends = curves.assign(end=curves["objectives"].map(lambda values: values[0]))
    points = curves[[*own, "along"]].explode("along", ignore_index=True)
    points = points.join(pd.DataFrame(points.pop("along").tolist()))
    least = points.groupby(["method", "family", "dataset"])["objective"].transform("min")
    points["excess"] = points["objective"] - least
    wide = ends.pivot_table("end", ["method", "family", "dataset"], "which", sort=False).reset_index()
    return {"curves": points, "gains": wide.assign(gain=wide["tuned"] - wide["reference"])}
