"""Which learning rate, schedule and number of steps leave each method nearest to its own objective's minimum.

The search looks at a method's own objective on the training rows of the development sets, and never at the exact
posterior. Every method has the same grid. With several families it gets one setting for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, PositiveFloat, PositiveInt

from fsvi_bench.papers.claims import Verdict
from fsvi_bench.papers.experiment import ExperimentContext, Frames, Plain, Rising, Scale
from fsvi_bench.papers.pages import render
from fsvi_bench.papers.tuning.runs import Schedule, Schedules, Setting, Variant, train_and_measure

TEMPLATE = Path(__file__).with_name("tuning.md.j2")
PARTS = ["variant", "setting"]
RATES = ["lr", "schedule"]  #: what the two rounds are about, with the number of steps fixed
TASK = ["method", "family", "dataset"]


class Screening(Plain):
    """A short look at the whole grid, after which each method keeps its best settings."""

    splits: PositiveInt
    steps: PositiveInt
    kept: PositiveInt


class Settings(Plain):
    """The grid, the same for each method, and the development sets, of which the first `splits` are used.

    `off_diagonal_lr` is searched with the method `roots`, of full covariances, and its winner is used for all methods.
    All methods then search the grid in two rounds: `screening`, and a run of `steps` of what it kept. Of settings
    within `tolerance` (nats, mean over tasks) of the best, those with the smallest learning rates win. The number
    of steps is the smallest of `budgets` within the same tolerance. Curves are those of the chosen setting and of the
    `paper`'s, on split 0.
    """

    datasets: tuple[str, ...] = Field(min_length=1)
    splits: PositiveInt
    methods: dict[str, tuple[str, ...]] = Field(min_length=1)  #: with their families
    roots: str
    lr: Annotated[tuple[PositiveFloat, ...], Rising]
    schedules: dict[str, Schedule]
    off_diagonal_lr: Annotated[tuple[PositiveFloat, ...], Rising]
    screening: Screening
    steps: PositiveInt
    budgets: Annotated[tuple[PositiveInt, ...], Rising]
    tolerance: PositiveFloat
    paper: Setting
    curve: Annotated[tuple[PositiveInt, ...], Rising]  #: steps of the curves, as far as a run goes

    def rules(self) -> dict[str, Any]:
        """The numbers in the page's text."""
        names = {"datasets": " and ".join(self.datasets), "lr": ", ".join(f"{lr:g}" for lr in self.lr)}
        counts = {"budgets": ", ".join(f"{steps:,}" for steps in self.budgets), "last_split": self.splits - 1}
        reference = {"paper_lr": self.paper.lr, "paper_steps": self.paper.max_steps}
        screening = {f"screening_{name}": value for name, value in self.screening}
        return {**names, **counts, **reference, **screening, "steps": self.steps, "tolerance": self.tolerance}

    def grid(self, off_diagonal_lr: float, steps: int) -> list[Setting]:
        """Every learning rate with every schedule."""
        return [
            Setting(lr=lr, schedule=name, max_steps=steps, off_diagonal_lr=off_diagonal_lr)
            for lr, name in product(self.lr, self.schedules)
        ]


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """The search's log, the winners, and their learning curves."""
    search, screening = Search(settings, context), settings.screening
    roots = search.roots()
    factor = float(gentlest(roots, ["off_diagonal_lr", "lr"], settings.tolerance)["off_diagonal_lr"].iloc[0])
    first = search.runs(search.variants(), settings.grid(factor, screening.steps), splits=screening.splits)
    screened = ranked(first, RATES)
    kept = screened.groupby("method", sort=False).head(screening.kept)
    log = ranked(search.of_each(kept, factor, [settings.steps]), RATES)
    winners = gentlest(log, ["lr"], settings.tolerance)
    budgets = ranked(search.of_each(winners, factor, settings.budgets), [*RATES, "max_steps"])
    chosen = gentlest(budgets, ["max_steps"], settings.tolerance).assign(off_diagonal_lr=factor)
    tables = {"roots": roots, "screened": screened, "log": log, "budgets": budgets, "chosen": chosen}
    return {**tables, **compared(search.curves(chosen)), "rules": pd.DataFrame([settings.rules()])}


class Search:
    """Training runs, as parts of an experiment."""

    def __init__(self, settings: Settings, context: ExperimentContext) -> None:
        self.settings, self.context = settings, context

    def roots(self) -> pd.DataFrame:
        """The whole grid with every `off_diagonal_lr`, for full covariances."""
        settings = self.settings
        grid = [each for factor in settings.off_diagonal_lr for each in settings.grid(factor, settings.steps)]
        found = self.runs([Variant(method=settings.roots, family="full")], grid)
        return ranked(found, ["off_diagonal_lr", *RATES])

    def of_each(self, chosen: pd.DataFrame, off_diagonal_lr: float, steps: Sequence[int]) -> pd.DataFrame:
        """Runs of each method with its own learning rates and schedules, at each number of steps."""
        found = []
        for method, rows in chosen.groupby("method", sort=False):
            own: Any = product(rows[RATES].to_dict("records"), steps)
            settings = [Setting(**rates, max_steps=count, off_diagonal_lr=off_diagonal_lr) for rates, count in own]
            found.append(self.runs(self.variants(str(method)), settings))
        return pd.concat(found, ignore_index=True)

    def curves(self, chosen: pd.DataFrame) -> pd.DataFrame:
        """Runs on split 0 with the chosen setting of each method and with the paper's, observed on the way."""
        found, rows = [], chosen.to_dict("records")
        for row in rows:
            own = Setting(**{str(name): row[name] for name in Setting.model_fields})
            for which, setting in {"chosen": own, "paper": self.settings.paper}.items():
                runs = self.runs(self.variants(row["method"]), [setting], splits=1, curve=self.settings.curve)
                found.append(runs.assign(which=which))
        return pd.concat(found, ignore_index=True)

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
        names = [{**variant.model_dump(), **setting.model_dump()} for variant, setting in parts[PARTS].to_numpy()]
        return parts.join(pd.DataFrame(names))


def ranked(runs: pd.DataFrame, settings: list[str]) -> pd.DataFrame:
    """One row per method and setting, each method's best first.

    `excess` is the mean over tasks and families of the objective above the least that any setting reached there, in
    nats. A setting that diverged anywhere comes after all that did not.
    """
    each = runs.explode("objectives", ignore_index=True).rename(columns={"objectives": "objective"})
    each["objective"] = each["objective"].astype(float)
    each["split"] = each.groupby([*TASK, *settings]).cumcount()
    least = each.groupby([*TASK, "split"])["objective"].transform("min")
    each = each.assign(excess=each["objective"] - least, diverged=~np.isfinite(each["objective"]))
    found = each.groupby(["method", *settings], sort=False)[["excess", "diverged"]].agg(
        {"excess": "mean", "diverged": "sum"}
    )
    found = found.reset_index().sort_values(["diverged", "excess"], kind="stable")
    return pd.concat([found[found["method"] == name] for name in runs["method"].unique()], ignore_index=True)


def gentlest(found: pd.DataFrame, by: list[str], tolerance: float) -> pd.DataFrame:
    """One row per method: of those within the tolerance of its least excess, the first by these columns.

    Smaller learning rates diverge less on other data sets, and fewer steps cost less.
    """
    rows = []
    for _, of_method in found.groupby("method", sort=False):
        sound = of_method[of_method["diverged"] == 0]
        sound = sound if len(sound) else of_method.head(1)
        near = sound[sound["excess"].isna() | (sound["excess"] <= sound["excess"].min() + tolerance)]
        rows.append(near.sort_values([*by, "excess"], kind="stable").iloc[0])
    return pd.DataFrame(rows).reset_index(drop=True)


def compared(curves: pd.DataFrame) -> Frames:
    """Learning curves above the lowest objective of both settings, and by task the end of training with the chosen
    setting minus the paper's."""
    ends = curves.assign(end=curves["objectives"].map(lambda values: values[0]))
    points = curves[[*TASK, "which", "along"]].explode("along", ignore_index=True)
    points = points.join(pd.DataFrame(points.pop("along").tolist()))
    least = points.groupby(TASK)["objective"].transform("min")
    points["excess"] = points["objective"] - least
    wide = ends.pivot(index=TASK, columns="which", values="end").reset_index()
    return {"curves": points, "gains": wide.assign(gain=wide["chosen"] - wide["paper"])}


def page(frames: Frames, verdicts: Sequence[Verdict], scale: Scale) -> str:
    """The documentation page of the search."""
    rules = frames["rules"].iloc[0].to_dict()
    return render(
        TEMPLATE, verdicts=verdicts, scale=scale, rules=rules, **{k: v for k, v in frames.items() if k != "rules"}
    )
