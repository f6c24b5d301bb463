"""An entry of a leaderboard: `entry.toml`, and the source file of a method that is not built in.

An entry is code and settings and holds no numbers: `leaderboard.verify` computes them (docs/leaderboard/submitting.md).
Everything here comes from strangers, so that files are opened without following links, read up to a limit, and parsed
into strict types; no code of theirs is run.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tokenize
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, get_args

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from pydantic import AfterValidator, BeforeValidator, Field

from fsvi_bench.errors import InputError, quoted
from fsvi_bench.files import is_directory, read_bounded, sha256_of_json
from fsvi_bench.posteriors.base import Family
from fsvi_bench.strict import Strict, parse_toml

ENTRIES, ENTRY_FILE = "entries", "entry.toml"
ENTRY_BYTES, SOURCE_BYTES = 2**16, 2**17  # parsing larger sources would take a reader of boards minutes
MOST_DOTS = 1000  #: a key of 30,000 parts takes `tomllib` minutes
DEVELOPMENT_DATASETS = ("boston", "concrete")  #: the ones to tune on; they are shown, and ranks leave them out

Track = Literal["full", "ffg", "singular"]
TRACKS: tuple[Track, ...] = get_args(Track)

_NAME = r"[a-z0-9][a-z0-9-]{0,62}"
#: No markup, no double quotes, nothing that is not seen (control and formatting characters, fillers); letters of any
#: script, with as many marks as languages put on one, so that no title paints over its neighbours.
_UNSEEN = r"<>\"`\\\p{C}\p{DI}\p{M}\x{2800}\x{1D159}"
_SEEN = rf"[^{_UNSEEN}\p{{Z}}]\p{{M}}{{0,4}}"
_SEEN_OR_SPACE = rf"[^{_UNSEEN}\p{{Zl}}\p{{Zp}}]\p{{M}}{{0,4}}"
_REORDERING = re.compile("[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")  # Unicode's bidirectional controls


def _no_hook(name: str) -> str:
    if re.fullmatch(r"(?i:conftest|sitecustomize|usercustomize|setup)\.py|test_.*|.*_test\.py", name):
        raise ValueError("expected another name: tools import files of this one by themselves")
    return name


def _no_integer(value: object) -> object:
    """One beyond 64 bits would be rounded without a word."""
    if isinstance(value, int):
        raise ValueError("expected a whole number of at most 64 bits")
    return value


Name = Annotated[str, Field(pattern=f"^{_NAME}$")]
Line = Annotated[str, Field(max_length=200, pattern=rf"^{_SEEN}(?:{_SEEN_OR_SPACE})*$")]
Text = Annotated[str, Field(max_length=4000, pattern=r"^(?:[^<>\p{C}]|\n)*$")]
Link = Annotated[
    str, Field(max_length=300, pattern=r"^https://[A-Za-z0-9.-]+(?::\d{1,5})?(?:/[A-Za-z0-9._~/?#=&%+@:,;-]*)?$")
]
Account = Annotated[str, Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9-]{0,37}[A-Za-z0-9])?$")]
#: Not one that pytest or Python would import by itself.
PythonFile = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,60}\.py$"), AfterValidator(_no_hook)]
PythonName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,60}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Version = Annotated[str, Field(pattern=r"^\d{1,4}\.\d{1,4}\.\d{1,4}$")]
Number = Annotated[float, Field(allow_inf_nan=False)]
Setting = (
    bool
    | Annotated[int, Field(ge=-(2**63), lt=2**63)]
    | Annotated[Number, BeforeValidator(_no_integer)]
    | Annotated[str, Field(max_length=200, pattern=r"^[^<>\p{C}]*$")]
)


def _spdx(licence: str) -> str:
    try:
        return canonicalize_license_expression(licence)
    except InvalidLicenseExpression as error:
        raise ValueError("expected an SPDX expression such as MIT or Apache-2.0, or LicenseRef-Name") from error


class BuiltIn(Strict):
    """A method of this package, and the oldest version of the package in which it is the method meant."""

    name: Name
    version: Version


class SourceFile(Strict):
    """A file beside `entry.toml`, and the method's class in it."""

    file: PythonFile
    class_: PythonName = Field(alias="class")


class Budget(Strict):
    """What training one task may take; `verify` allows no more steps, and `seconds` times its patience."""

    steps: Annotated[int, Field(ge=0, le=10**9)]
    seconds: Annotated[Number, Field(gt=0, le=10**6)]  #: of training one task, on the hardware that the notes name


class Manifest(Strict):
    """`entry.toml`."""

    title: Line
    authors: Annotated[list[Line], Field(min_length=1, max_length=50)]
    owner: Account  #: the account on the forge that may change the entry
    licence: Annotated[Line, AfterValidator(_spdx)]  #: of the source
    family: Family
    method: BuiltIn | SourceFile
    settings: Annotated[dict[PythonName, Setting], Field(max_length=100)] = {}
    budget: Budget
    link: Link | None = None
    notes: Text = ""

    @property
    def track(self) -> Track:
        """Singular posteriors have an infinite KL and are ranked among themselves."""
        return self.family if self.family in ("full", "ffg") else "singular"


@dataclass(frozen=True, eq=False)
class Entry:
    """An entry's folder, read and checked."""

    name: str  #: the folder's
    manifest: Manifest
    source: bytes | None  #: of a method that is not ours

    @cached_property
    def sha256(self) -> str:
        """Names the entry in results: SHA-256 over its name, its manifest's content and its source."""
        source = None if self.source is None else hashlib.sha256(self.source).hexdigest()
        return sha256_of_json([self.name, self.manifest.model_dump(mode="json", by_alias=True), source])

    @property
    def method(self) -> str:
        """The method's name, as seeds and pages have it."""
        method = self.manifest.method
        return method.name if isinstance(method, BuiltIn) else method.class_


def read_entry(folder: Path) -> Entry:
    """Reads an entry.

    Raises:
        InputError: the folder is a link or holds other files than an entry's, a file is too large or no plain file, or
            the manifest is not one; says which field, what was got and what is expected.
    """
    if folder.is_symlink() or not is_directory(folder):
        raise InputError(f"{folder} is not a folder, expected one that holds {ENTRY_FILE}; links are not followed")
    require_name(folder.name)
    manifest = parse_manifest(read_bounded(folder / ENTRY_FILE, ENTRY_BYTES), folder / ENTRY_FILE)
    method = manifest.method
    own = {ENTRY_FILE} if isinstance(method, BuiltIn) else {ENTRY_FILE, method.file}
    with os.scandir(folder) as found:
        others = {each.name for each in islice(found, len(own) + 1)} - own  # not all of 100,000 files
    if others:
        raise InputError(f"{folder} holds {quoted(min(others))}, expected only {' and '.join(sorted(own))}")
    source = None if isinstance(method, BuiltIn) else read_bounded(folder / method.file, SOURCE_BYTES)
    require_readable(source or b"", folder)
    return Entry(folder.name, manifest, source)


def require_readable(source: bytes, folder: Path) -> None:
    """Raises InputError of a source that Python reads otherwise than people do: by another encoding (PEP 263), or with
    characters that reorder what is shown."""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(source).readline)[0]
        text = source.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"the source of {folder} is not UTF-8 (byte {error.start}); save it as such") from error
    except SyntaxError:
        encoding, text = "unknown", ""
    if encoding not in ("utf-8", "utf-8-sig"):
        raise InputError(f"the source of {folder} declares an encoding, {quoted(encoding)}, expected utf-8; remove it")
    if found := _REORDERING.search(text):
        raise InputError(f"the source of {folder} holds {quoted(found[0])}, which reorders what readers see; escape it")


def require_name(name: str) -> None:
    """Raises InputError unless a folder of this name can be an entry's."""
    if not re.fullmatch(_NAME, name):
        raise InputError(f"{quoted(name)} cannot be an entry's name; use a-z, 0-9 and -, 63 at most")


def parse_manifest(content: bytes, path: Path) -> Manifest:
    """The content of an `entry.toml`.

    Raises:
        InputError: it is no TOML, or not a manifest.
    """
    if content.count(b".") > MOST_DOTS:
        raise InputError(f"{path} has more than {MOST_DOTS} dots; shorten its notes")
    return parse_toml(Manifest, content, path)
