"""Data set cards: contents, source, splits and fit settings of each data set, and the cards of images."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fsvi_bench.errors import InputError, quoted, unknown_name
from fsvi_bench.resources import read_yaml, resource_dir
from fsvi_bench.strict import Plain, checked

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RawFile(Plain):
    """A file stored at `path` below the base folder of every mirror."""

    packed: ClassVar[bool] = False  #: whether the hash is that of the decompressed content

    path: str
    sha256: Sha256
    urls: tuple[str, ...]


class FileSource(RawFile):
    """A table of numbers. Columns are separated by commas in `*.csv.gz`, else by white space."""

    kind: Literal["file"]


class SklearnSource(Plain):
    """A data set bundled with scikit-learn; the hash covers its arrays (little-endian float64 X, then y)."""

    kind: Literal["sklearn"]
    loader: Literal["load_diabetes"]
    sha256: Sha256


class ToySource(Plain):
    """Drawn from the model itself (Burt et al. 2020, appendix F.1); each split is a new draw."""

    kind: Literal["toy"]


class Target(Plain):
    """The predicted quantity."""

    column: int
    meaning: str
    unit: str


class SplitProtocol(Plain):
    """Number of splits, and one SHA-256 over all of them (train then test indices, little-endian int64, in order).

    Splits are drawn (`fsvi_bench.tasks.splits.standard_splits`) unless `test_masks` publishes them. That file has a row
    for each data point and a column for each split: 1 for test rows, 0 for training rows.
    """

    count: int = Field(ge=1)
    sha256: Sha256 | None = None
    test_masks: FileSource | None = None


class FitSettings(Plain):
    """Settings of the sparse GP that supplies the features.

    By default, k, the start and the number of iterations are those of Burt et al. (2020), appendix F.2. The paper does
    not state jitter or noise floor; these are the defaults of GPflow, which it used.
    """

    k: int = Field(default=100, ge=1)
    initial_lengthscale: float = Field(default=1.0, gt=0, description="of every input, standardised")
    initial_noise_variance: float = Field(default=1e-4, gt=0)
    noise_floor: float = Field(default=1e-6, gt=0, description="lower bound of the noise variance, standardised")
    jitter: float = Field(default=1e-6, ge=0, description="added to the diagonal of k(Z,Z)")
    max_iterations: int = Field(default=5000, ge=1)
    initial_rows: int | None = Field(
        default=None, ge=1, description="number of rows, drawn at random, from whose exact GP the fit starts"
    )

    @model_validator(mode="after")
    def _starts_above_the_floor(self) -> FitSettings:
        if self.initial_noise_variance < 2 * self.noise_floor:
            raise ValueError(
                f"initial_noise_variance is {self.initial_noise_variance:g}, expected {2 * self.noise_floor:g} or more"
                " (twice the noise floor), since a fit that starts at the floor cannot leave it; raise it"
            )
        return self


class _Described(Plain):
    """What every card says about its data set."""

    name: str
    title: str
    description: str
    citation: str
    terms: str = Field(description="licence or terms of use, as published")
    n: int = Field(ge=2)
    D: int = Field(ge=1)
    notes: tuple[str, ...] = ()
    ethics: str | None = None


class Card(_Described):
    """A data set for regression. `n` and the columns are checked each time a raw file is read."""

    source: Annotated[FileSource | SklearnSource | ToySource, Field(discriminator="kind")]
    feature_columns: tuple[int, ...]
    target: Target
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


class IdxFile(RawFile):
    """An array of unsigned bytes in idx format, compressed by gzip.

    The hash is that of the decompressed content, since mirrors compress differently.
    """

    packed: ClassVar[bool] = True


class ImageFiles(Plain):
    """Grey levels and classes (0, 1, ...) of images for training and for testing."""

    n_test: int = Field(ge=1)
    height: int = Field(ge=1)
    width: int = Field(ge=1)
    classes: int = Field(ge=2)
    x_train: IdxFile
    y_train: IdxFile
    x_test: IdxFile
    y_test: IdxFile


class ImageCard(_Described):
    """A data set of images with classes. It has no tasks: only the named reproductions use it."""

    images: ImageFiles
    reproductions: tuple[str, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _sizes_agree(self) -> ImageCard:
        if self.images.height * self.images.width != self.D or self.images.n_test >= self.n:
            raise ValueError(f"height × width must be D = {self.D}, and n_test less than n = {self.n}")
        return self

    @property
    def files(self) -> tuple[IdxFile, ...]:
        """The raw files: images and classes for training, then those for testing."""
        return (self.images.x_train, self.images.y_train, self.images.x_test, self.images.y_test)


AnyCard = Card | ImageCard


def all_names() -> list[str]:
    """Names of all data sets with a card, sorted, including those of images."""
    return sorted(path.parent.name for path in resource_dir("datasets").glob("*/card.yaml"))


def card_names() -> list[str]:
    """Names of the data sets for regression, sorted."""
    return [name for name in all_names() if not _is_of_images(name)]


@cache
def load_card(name: str) -> Card:
    """The card of a data set for regression.

    Raises:
        InputError: there is no such data set (the nearest name is suggested), or its card is not valid.
    """
    refuse_images(name)
    if name not in all_names():
        if re.search(r"-(collapsed|logit)-\d", name):
            raise InputError(
                f"{quoted(name)} is not a data set; networks are tasks, and `fsvi-bench networks list` has their names"
            )
        raise unknown_name("data set", name, card_names())
    return checked(Card, _content(name), _path(name), "fix the card")


@cache
def load_image_card(name: str) -> ImageCard:
    """The card of a data set of images. Raises InputError if there is none, or it is not valid."""
    return checked(ImageCard, _content(name), _path(name), "fix the card")


def find_card(name: str) -> AnyCard:
    """The card of a data set of either kind.

    Raises:
        InputError: the data set does not exist (the nearest name is suggested), or its card is not valid.
    """
    if name not in all_names():
        raise unknown_name("data set", name, all_names())
    return load_image_card(name) if _is_of_images(name) else load_card(name)


def refuse_images(name: str) -> None:
    """Raises InputError if a name is that of images; for places where only data sets for regression can be used."""
    if name in all_names() and _is_of_images(name):
        uses = " or ".join(f"`fsvi-bench reproduce {each}`" for each in load_image_card(name).reproductions)
        raise InputError(
            f"{name} is a data set of images, expected one for regression, such as boston; use {name} with {uses}"
        )


def _path(name: str) -> Path:
    return resource_dir("datasets") / name / "card.yaml"


@cache
def _content(name: str) -> object:
    return read_yaml(_path(name))


def _is_of_images(name: str) -> bool:
    content = _content(name)
    return isinstance(content, dict) and "images" in content
