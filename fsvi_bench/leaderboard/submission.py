"""What a submission says: `submission.yaml` by its authors, `cells.json` by the tool; see docs/submitting.md.

A submission is one method with one family and one set of hyperparameters on every official task of the data sets that
it covers. These are the words and types alone; how files of strangers are read is said in `leaderboard.reading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from fsvi_bench.errors import InputError, quoted
from fsvi_bench.posteriors.base import Family, Posterior
from fsvi_bench.tasks.official import Place

MANIFEST_FILE, CELLS_FILE, POSTERIORS = "submission.yaml", "cells.json", "posteriors"
PROTOCOL = "leaderboard-v1"
LONGEST_LINE = 200  #: characters of a `Line`
DEVELOPMENT_DATASETS = ("boston", "concrete")  #: the ones to tune on; the table is made of all


class SubmissionRefused(InputError):
    """A submission that does not hold, by its own fault: not one that this machine could not verify."""


Track = Literal["full", "ffg", "singular"]
TRACKS: tuple[Track, ...] = ("full", "ffg", "singular")

#: No markup, no double quotes, no control characters, nothing that turns text around; letters of any script.
_NO_MARKUP = r"[^<>\"`\\\p{C}\p{Zl}\p{Zp}]"
_NOT_BLANK = r"[^<>\"`\\\p{C}\p{Z}]"
Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
Line = Annotated[str, Field(pattern=rf"^{_NOT_BLANK}{_NO_MARKUP}{{0,{LONGEST_LINE - 1}}}$")]
Text = Annotated[str, Field(max_length=4000, pattern=r"^(?:[^<>\p{C}]|\n)*$")]
_WEB_ADDRESS = r"^https://[A-Za-z0-9.-]+(?::\d{1,5})?(?:/[A-Za-z0-9._~/?#=&%+@:,;-]*)?$"
Link = Annotated[str, Field(max_length=300, pattern=_WEB_ADDRESS)]
PythonFile = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,60}\.py$")]
PythonName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,60}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Setting = bool | int | float | Annotated[str, Field(pattern=rf"^{_NO_MARKUP}{{0,200}}$")] | None


def _spdx(licence: str) -> str:
    try:
        return canonicalize_license_expression(licence)
    except InvalidLicenseExpression as error:
        raise ValueError(
            f"got {quoted(licence)}, expected an SPDX expression; name the licence as https://spdx.org/licenses does, "
            "such as MIT or Apache-2.0, one that is not there as LicenseRef-Name"
        ) from error


Licence = Annotated[Line, AfterValidator(_spdx)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="strings")


class Source(_Strict):
    """The file that holds the method, beside `submission.yaml`, and its class."""

    file: PythonFile
    class_: PythonName = Field(alias="class")


class Budget(_Strict):
    """What training one cell may take at most; a re-run holds it to `steps`, and to `seconds` times its patience.

    Rows and samples are what the method says that it used (`Method.work`), the largest over its cells.
    """

    steps: Annotated[int, Field(ge=0, le=10**9)]
    seconds: Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)]  #: of training, on the hardware named
    likelihood_rows: Annotated[int, Field(ge=0, le=10**15)] | None = None
    measurement_rows: Annotated[int, Field(ge=0, le=10**15)] | None = None
    function_samples: Annotated[int, Field(ge=0, le=10**15)] | None = None


class Manifest(_Strict):
    """`submission.yaml`, `fsvi-submission/1`."""

    format: Literal["fsvi-submission/1"]
    protocol: Literal["leaderboard-v1"]
    name: Slug  #: the folder's name
    method: Line  #: as records name it; seeds are derived from it
    title: Line
    authors: Annotated[list[Line], Field(min_length=1, max_length=50)]
    link: Link | None = None
    licence: Licence  #: of the source
    family: Family
    source: Source | None = None  #: without one nothing can be run again, and there is no rank
    hyperparameters: Annotated[dict[PythonName, Setting], Field(max_length=100)] = {}
    budget: Budget
    hardware: Line
    notes: Text = ""
    reference: bool = False  #: shown to compare with, never ranked: the best factorised Gaussian, say

    @property
    def track(self) -> Track:
        """Singular posteriors have no KL, and are ranked among themselves."""
        return self.family if self.family in ("full", "ffg") else "singular"


class Claim(_Strict):
    """One cell of `cells.json`: what the submission says of one official task."""

    dataset: Slug
    split: Annotated[int, Field(ge=0, le=99)]
    task_sha256: Sha256
    status: Literal["ok", "diverged", "failed"]
    reason: Text | None = None  #: why there is no posterior
    posterior_sha256: Sha256 | None = None  #: of the posterior's file
    kl: float | None = None  #: as claimed; Infinity where q has no density
    predictive_kl_box: float | None = None  #: as claimed; null for a mixture too dear to integrate over

    @property
    def file(self) -> str:
        """Where its posterior lies beneath the submission's folder."""
        return f"{POSTERIORS}/{self.dataset}/split-{self.split:02d}.safetensors"

    @model_validator(mode="after")
    def _whole(self) -> Claim:
        if self.status == "ok" and (self.posterior_sha256 is None or self.kl is None):
            raise ValueError("a cell that is ok has posterior_sha256 and kl")
        if self.status != "ok" and (self.posterior_sha256, self.kl, self.predictive_kl_box) != (None, None, None):
            raise ValueError("a cell that is not ok has neither posterior_sha256 nor scores")
        return self


class Claims(_Strict):
    """`cells.json`, `fsvi-cells/1`; the cells in the order of the official tasks, each once."""

    format: Literal["fsvi-cells/1"]
    cells: Annotated[list[Claim], Field(min_length=1, max_length=10_000)]


@dataclass(frozen=True, eq=False)
class Submission:
    """A submission's folder, read and checked; nothing in it has been run."""

    folder: Path
    manifest: Manifest
    claims: Claims
    source: bytes | None  #: text of the method's file
    posteriors: Mapping[Place, Posterior]  #: of the cells that are ok
    sha256: str  #: over the names and contents of all its files
