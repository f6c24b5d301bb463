"""Which parametrisation, learning rate, schedule and steps bring each method nearest to its own minimum.

The search looks at a method's own objective on the training rows of the development sets, and never at the exact
posterior. Every method has the same grid. With several families it gets one setting for all of them. All methods have
the same parametrisation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, PositiveFloat, PositiveInt

from fsvi_bench.methods.registry import load_method
from fsvi_bench.papers.claims import Verdict
from fsvi_bench.papers.experiment import ExperimentContext, Frames, Rising, Scale
from fsvi_bench.papers.pages import render
from fsvi_bench.papers.tuning.runs import Schedule, Setting, Tasks, Training, Variant, train_and_measure
from fsvi_bench.strict import Plain

TEMPLATE = Path(__file__).with_name("tuning.md.j2")
START = ["parametrisation", "initial_scale", "beta2"]
RATES = ["lr", "schedule"]  #: what the two rounds are about, with the number of steps fixed
TASK = ["method", "family", "dataset"]


class Starts(Plain):
    """Parametrisations, of which all methods get the same, and a method's own: initial standard deviations, or the
    decay rates of IVON's Hessian. They are tried together, with a few learning rates."""

    parametrisation: tuple[str, ...] = Field(min_length=1)
    initial_scale: tuple[PositiveFloat, ...] = Field(min_length=1)
    beta2: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(min_length=1)
    lr: Annotated[tuple[PositiveFloat, ...], Rising]
    schedule: str
    off_diagonal_lr: PositiveFloat


class Screening(Plain):
    """A short look at the whole grid, after which each method keeps its best settings."""

    splits: PositiveInt
    steps: PositiveInt
    kept: PositiveInt


class Settings(Plain):
    """The grid, the same for each method, and the development sets, of which the first `splits` are used.

    `starts` are tried at the length of the screening; of a method's own within `tolerance` of its best, the
    smallest `initial_scale` or the largest `beta2` wins. `off_diagonal_lr` is searched with the method `roots`, of
    full covariances, and its winner is used for all methods. All methods then search the grid in two rounds:
    `screening`, and a run of `steps` of what it kept. Of settings within `tolerance` (nats, mean over tasks) of the
    best, those with the smallest learning rates win. The number of steps is the smallest of `budgets` within the
    same tolerance. Curves are those of the chosen setting and of the `paper`'s, on split 0.
    """

    datasets: tuple[str, ...] = Field(min_length=1)
    splits: PositiveInt
    methods: dict[str, tuple[str, ...]] = Field(min_length=1)  #: with their families
    starts: Starts
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
        starts_lr = ", ".join(f"{lr:g}" for lr in self.starts.lr)
        own = {"steps": self.steps, "tolerance": self.tolerance, "starts_lr": starts_lr}
        return {**names, **counts, **reference, **screening, **own}

    def grid(self, steps: int, **start: Any) -> list[Setting]:
        """Every learning rate with every schedule."""
        rates = product(self.lr, self.schedules)
        return [Setting(lr=lr, schedule=name, max_steps=steps, **start) for lr, name in rates]


def investigate(settings: Settings, context: ExperimentContext) -> Frames:
    """The search's log, the winners, and their learning curves."""
    search, screening = Search(settings, context), settings.screening
    starts = own_options(by_start(search.starts()))
    start = chosen_starts(starts, settings.tolerance)
    roots = search.roots(start[settings.roots])
    gentle = gentlest(roots, ["off_diagonal_lr", "lr"], settings.tolerance)
    factor = {"off_diagonal_lr": float(gentle["off_diagonal_lr"].iloc[0])}
    start = {method: own | factor for method, own in start.items()}
    screened = ranked(search.screening(start), RATES)
    kept = screened.groupby("method", sort=False).head(screening.kept)
    log = ranked(search.of_each(kept, start, [settings.steps]), RATES)
    winners = gentlest(log, ["lr"], settings.tolerance)
    budgets = ranked(search.of_each(winners, start, settings.budgets), [*RATES, "max_steps"])
    chosen = gentlest(budgets, ["max_steps"], settings.tolerance)
    options = pd.DataFrame([start[method] for method in chosen["method"]], columns=[*START, "off_diagonal_lr"])
    chosen = chosen.join(options)
    tables = {"starts": starts, "roots": roots, "screened": screened, "log": log, "budgets": budgets, "chosen": chosen}
    tables = {name: own_options(table) for name, table in tables.items()}
    return {**tables, **compared(search.curves(chosen)), "rules": pd.DataFrame([settings.rules()])}


class Search:
    """Training runs, as parts of an experiment."""

    def __init__(self, settings: Settings, context: ExperimentContext) -> None:
        self.settings, self.context = settings, context

    def starts(self) -> pd.DataFrame:
        """Every start that a method has, with every learning rate."""
        its, screening = self.settings.starts, self.settings.screening
        common: dict[str, Any] = its.model_dump(include={"schedule", "off_diagonal_lr"}) | {
            "max_steps": screening.steps
        }
        found = []
        for method in self.settings.methods:
            known = load_method(method).cls.Options.model_fields
            varied = {name: getattr(its, name) for name in START if name in known} | {"lr": its.lr}
            places = [dict(zip(varied, values, strict=True)) for values in product(*varied.values())]
            grid = [Setting(**place, **common) for place in places]
            found.append(self.runs(self.variants(method), grid, splits=screening.splits))
        return pd.concat(found, ignore_index=True)

    def roots(self, start: dict[str, Any]) -> pd.DataFrame:
        """The whole grid with every `off_diagonal_lr`, for full covariances."""
        settings = self.settings
        factors = [{**start, "off_diagonal_lr": factor} for factor in settings.off_diagonal_lr]
        grid = [each for own in factors for each in settings.grid(settings.steps, **own)]
        found = self.runs([Variant(method=settings.roots, family="full")], grid)
        return ranked(found, ["off_diagonal_lr", *RATES])

    def screening(self, start: Mapping[str, dict[str, Any]]) -> pd.DataFrame:
        """The whole grid, each method from its own start."""
        its, grid = self.settings.screening, self.settings.grid
        return pd.concat(
            [self.runs(self.variants(name), grid(its.steps, **own), splits=its.splits) for name, own in start.items()],
            ignore_index=True,
        )

    def of_each(self, chosen: pd.DataFrame, start: Mapping[str, dict[str, Any]], steps: Sequence[int]) -> pd.DataFrame:
        """Runs of each method with its own learning rates and schedules, at each number of steps."""
        found = []
        for method, rows in chosen.groupby("method", sort=False):
            own: Any = product(rows[RATES].to_dict("records"), steps)
            settings = [Setting(**rates, max_steps=count, **start[str(method)]) for rates, count in own]
            found.append(self.runs(self.variants(str(method)), settings))
        return pd.concat(found, ignore_index=True)

    def curves(self, chosen: pd.DataFrame) -> pd.DataFrame:
        """Runs on split 0 with the chosen setting of each method and with the paper's, observed on the way."""
        found, rows = [], chosen.to_dict("records")
        for row in rows:
            own = Setting(
                **{str(name): row[name] for name in row if name in Setting.model_fields and pd.notna(row[name])}
            )
            for which, setting in {"chosen": own, "paper": self.settings.paper}.items():
                runs = self.runs(self.variants(row["method"]), [setting], splits=1, curve=self.settings.curve)
                found.append(runs.assign(which=which))
        return pd.concat(found, ignore_index=True)

    def variants(self, method: str) -> list[Variant]:
        """The method with each of its families."""
        return [Variant(method=method, family=family) for family in self.settings.methods[method]]

    def runs(
        self,
        variants: list[Variant],
        settings: list[Setting],
        splits: int | None = None,
        curve: tuple[int, ...] = (),
    ) -> pd.DataFrame:
        """One row per variant, setting and data set, with the `objectives` of its splits."""
        its, pairs = self.settings, product(variants, settings)
        trainings = [Training.of(variant, each, its.schedules[each.schedule]) for variant, each in pairs]
        tasks = [Tasks.of(dataset, splits or its.splits, self.context.data_dir) for dataset in its.datasets]
        parts = self.context.table(train_and_measure, {"training": trainings, "tasks": tasks}, curve=curve)
        names = [
            {"method": training.method, "family": training.family, "dataset": each.dataset, **dict(training.setting)}
            for training, each in parts[["training", "tasks"]].to_numpy()
        ]
        return parts.join(pd.DataFrame(names))


def ranked(runs: pd.DataFrame, settings: list[str]) -> pd.DataFrame:
    """One row per method and setting, each method's best first.

    `excess` is the mean over tasks and families of the objective above the least that any setting reached there, in
    nats. A setting that diverged anywhere comes after all that did not.
    """
    each = runs.explode("objectives", ignore_index=True).rename(columns={"objectives": "objective"})
    each["objective"] = each["objective"].astype(float)
    each["split"] = each.groupby([*TASK, *settings], dropna=False).cumcount()
    least = each.groupby([*TASK, "split"])["objective"].transform("min")
    each = each.assign(excess=each["objective"] - least, diverged=~np.isfinite(each["objective"]))
    found = each.groupby(["method", *settings], sort=False, dropna=False)[["excess", "diverged"]].agg(
        {"excess": "mean", "diverged": "sum"}
    )
    found = found.reset_index().sort_values(["diverged", "excess"], kind="stable")
    return pd.concat([found[found["method"] == name] for name in runs["method"].unique()], ignore_index=True)


def own_options(table: pd.DataFrame) -> pd.DataFrame:
    """Without values of options that a method does not have, and rows that then are the same."""
    known = {name: load_method(name).cls.Options.model_fields for name in table["method"].unique()}
    for option in table.columns.intersection([*START, "off_diagonal_lr"]):
        has = table["method"].map(lambda name, option=option: option in known[name])
        table = table.assign(**{option: table[option].astype(object).where(has, None)})
    return table.drop_duplicates([*table.columns.difference(["excess", "diverged"])]).reset_index(drop=True)


def by_start(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per method and start: the `excess` at its best learning rate, and on how many tasks it `diverged` at the
    rate with the fewest."""
    each = ranked(runs, [*START, "lr"]).groupby(["method", *START], sort=False, dropna=False)
    return each.agg({"excess": "min", "diverged": "min"}).reset_index()


def chosen_starts(starts: pd.DataFrame, tolerance: float) -> dict[str, dict[str, Any]]:
    """For each method, its options of `START`: the parametrisation with the least excess on average over the methods
    that have one, each at its best start, and of its own starts there within the tolerance of the best the one with the
    smallest standard deviations or the largest `beta2`."""
    best = starts.groupby(["method", "parametrisation"], sort=False)["excess"].min()
    parametrisation = best.groupby("parametrisation", sort=False).mean().idxmin()
    there = starts[starts["parametrisation"].isin([parametrisation]) | starts["parametrisation"].isna()]
    least = there.groupby("method")["excess"].transform("min")
    near = there[there["excess"] <= least + tolerance]
    near = near.sort_values(["initial_scale", "beta2"], ascending=[True, False], kind="stable")
    rows = near.drop_duplicates("method").set_index("method")[START]
    return {str(method): rows.loc[method].dropna().to_dict() for method in starts["method"].unique()}


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
    shown = {name: frame for name, frame in frames.items() if name != "rules"}
    for name in ("starts", "chosen"):  # in full: rounded to four digits, 1 - 1e-5 is 1
        exact = frames[name]["beta2"].map(lambda value: None if pd.isna(value) else f"{value:g}")
        shown[name] = frames[name].assign(beta2=exact)
    return render(TEMPLATE, verdicts=verdicts, scale=scale, rules=frames["rules"].iloc[0].to_dict(), **shown)
