"""Data set cards: contents, source, splits and fit settings of each data set."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fsvi_bench.errors import unknown_name
from fsvi_bench.resources import read_yaml, resource_dir
from fsvi_bench.strict import checked

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Strict(BaseModel):
    """Base of everything read from a file: unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileSource(Strict):
    """A table of numbers, stored at `path` below the base folder of every mirror.

    Columns are separated by commas in `*.csv.gz`, else by white space.
    """

    kind: Literal["file"]
    path: str
    sha256: Sha256
    urls: tuple[str, ...]


class SklearnSource(Strict):
    """A data set bundled with scikit-learn; the hash covers its arrays (little-endian float64 X, then y)."""

    kind: Literal["sklearn"]
    loader: Literal["load_diabetes"]
    sha256: Sha256


class ToySource(Strict):
    """Drawn from the model itself (Burt et al. 2020, appendix F.1); each split is a new draw."""

    kind: Literal["toy"]


class Target(Strict):
    """The predicted quantity."""

    column: int
    meaning: str
    unit: str


class SplitProtocol(Strict):
    """Number of splits, and one SHA-256 over all of them (train then test indices, little-endian int64, in order).

    Splits are drawn (`fsvi_bench.tasks.splits.standard_splits`) unless `test_masks` publishes them. That file has a row
    for each data point and a column for each split: 1 for test rows, 0 for training rows.
    """

    count: int = Field(ge=1)
    sha256: Sha256 | None = None
    test_masks: FileSource | None = None


class FitSettings(Strict):
    """Settings of the sparse GP that supplies the features.

    k, the initial noise and the number of iterations are those of Burt et al. (2020), appendix F.2. The paper does not
    state jitter or noise floor; these are the defaults of GPflow, which it used.
    """

    k: int = Field(default=100, ge=1)
    initial_noise_variance: float = Field(default=1e-4, gt=0)
    noise_floor: float = Field(default=1e-6, gt=0, description="lower bound of the noise variance, standardised")
    jitter: float = Field(default=1e-6, ge=0, description="added to the diagonal of k(Z,Z)")
    max_iterations: int = Field(default=5000, ge=1)


class Card(Strict):
    """One data set. `n` and the columns are checked each time a raw file is read."""

    name: str
    title: str
    description: str
    citation: str
    terms: str = Field(description="licence or terms of use, as published")
    source: Annotated[FileSource | SklearnSource | ToySource, Field(discriminator="kind")]
    n: int = Field(ge=2)
    D: int = Field(ge=1)
    feature_columns: tuple[int, ...]
    target: Target
    notes: tuple[str, ...] = ()
    ethics: str | None = None
    splits: SplitProtocol
    fit: FitSettings = FitSettings()
    refit_tolerance: float = Field(
        default=0.01, gt=0, description="largest difference in the bound between two fits, nats per training point"
    )

    @model_validator(mode="after")
    def _columns_agree(self) -> Card:
        if len(self.feature_columns) != self.D or self.target.column in self.feature_columns:
            raise ValueError(f"feature_columns must list {self.D} columns and not the target column")
        return self

    @property
    def files(self) -> tuple[FileSource, ...]:
        """The raw files: the data and the test masks, if they are files."""
        return tuple(each for each in (self.source, self.splits.test_masks) if isinstance(each, FileSource))


def card_names() -> list[str]:
    """Names of all data sets with a card, sorted."""
    return sorted(path.parent.name for path in resource_dir("datasets").glob("*/card.yaml"))


@cache
def load_card(name: str) -> Card:
    """The card of a data set.

    Raises:
        InputError: the data set does not exist (the nearest name is suggested), or its card is not valid.
    """
    if name not in card_names():
        raise unknown_name("data set", name, card_names())
    path = resource_dir("datasets") / name / "card.yaml"
    return checked(Card, read_yaml(path), path, "fix the card")
