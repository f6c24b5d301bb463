"""An entry of a leaderboard: `entry.toml`, and the source file of a method that is not built in.

An entry has code and settings, but no scores: `leaderboard.verify` computes them (docs/leaderboard/submitting.md).
Entries are untrusted: files are opened without following links, read up to a limit, and parsed into strict types, and
no code of an entry is run here.
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
from typing import Annotated, Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from fsvi_bench.errors import InputError, did_you_mean, quoted
from fsvi_bench.files import is_directory, read_bounded, sha256_of_json
from fsvi_bench.posteriors.base import Family
from fsvi_bench.strict import Strict, parse_toml

ENTRIES, ENTRY_FILE = "entries", "entry.toml"
ENTRY_BYTES, SOURCE_BYTES = 2**16, 2**17  # parsing larger sources would take minutes
MOST_DOTS = 1000  #: `tomllib` takes minutes for a key of 30,000 parts
DEVELOPMENT_DATASETS = ("boston", "concrete")  #: for tuning; they are shown but not ranked

_NAME = r"[a-z0-9][a-z0-9-]{0,62}"
#: No markup, double quotes or invisible characters (control and formatting characters, fillers). Letters of any script
#: are allowed, with at most as many marks as languages use, so that no title covers its neighbours.
_UNSEEN = r"<>\"`\\\p{C}\p{DI}\p{M}\x{2800}\x{1D159}"
_SEEN = rf"[^{_UNSEEN}\p{{Z}}]\p{{M}}{{0,4}}"
_SEEN_OR_SPACE = rf"[^{_UNSEEN}\p{{Zl}}\p{{Zp}}]\p{{M}}{{0,4}}"
_REORDERING = re.compile("[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")  # Unicode's bidirectional controls


def _expected(words: str) -> WrapValidator:
    """An annotation for a field with a pattern or several types: says what is expected in words of its own."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise ValueError(f"expected {words}") from error

    return WrapValidator(validate)


def _no_hook(name: str) -> str:
    if re.fullmatch(r"(?i:conftest|sitecustomize|usercustomize|setup)\.py|test_.*|.*_test\.py", name):
        raise ValueError("expected a different name: tools import files of this name automatically")
    return name


def _no_integer(value: object) -> object:
    """Rejects integers of more than 64 bits, which would be rounded silently."""
    if isinstance(value, int):
        raise ValueError
    return value


Name = Annotated[str, Field(pattern=f"^{_NAME}$"), _expected("a-z, 0-9 and -, at most 63 characters")]
Line = Annotated[
    str, Field(max_length=200, pattern=rf"^{_SEEN}(?:{_SEEN_OR_SPACE})*$"),
    _expected('one line of 1 to 200 visible characters without <, >, ", ` and \\'),
]  # fmt: skip
Text = Annotated[
    str, Field(max_length=4000, pattern=r"^(?:[^<>\p{C}]|\n)*$"),
    _expected("text of at most 4,000 characters without <, > and control or invisible characters"),
]  # fmt: skip
Link = Annotated[
    str, Field(max_length=300, pattern=r"^https://[A-Za-z0-9.-]+(?::\d{1,5})?(?:/[A-Za-z0-9._~/?#=&%+@:,;-]*)?$"),
    _expected("an address of at most 300 characters that starts with https://, without user, brackets or quotes"),
]  # fmt: skip
Account = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9-]{0,37}[A-Za-z0-9])?$"),
    _expected("an account's name: letters, digits and -, at most 39 characters, without @"),
]  # fmt: skip
#: Not a file that pytest or Python imports automatically.
PythonFile = Annotated[
    str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,60}\.py$"),
    _expected("a Python file's name such as my_method.py, in letters, digits and _"), AfterValidator(_no_hook),
]  # fmt: skip
PythonName = Annotated[
    str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,60}$"), _expected("a Python name of at most 61 characters")
]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Version = Annotated[str, Field(pattern=r"^\d{1,4}\.\d{1,4}\.\d{1,4}$")]
Number = Annotated[float, Field(allow_inf_nan=False)]
Setting = Annotated[
    bool
    | Annotated[int, Field(ge=-(2**63), lt=2**63)]
    | Annotated[Number, BeforeValidator(_no_integer)]
    | Annotated[str, Field(max_length=200, pattern=r"^[^<>\p{C}]*$")],
    _expected(
        "true, false, a finite number (integers of at most 64 bits), or text of at most 200 visible characters without "
        "< and >"
    ),
]


def _spdx(licence: str) -> str:
    try:
        return canonicalize_license_expression(licence)
    except InvalidLicenseExpression as error:
        raise ValueError("expected an SPDX expression such as MIT or Apache-2.0, or LicenseRef-Name") from error


class BuiltIn(Strict):
    """A method of this package, and the oldest version of the package that has it."""

    name: Name
    version: Version


class SourceFile(Strict):
    """A file in the same folder as `entry.toml`, and the class of the method in it."""

    file: PythonFile
    class_: PythonName = Field(alias="class")


class Budget(Strict):
    """The maximum cost of training one task; `verify` allows this number of steps, and `seconds` times its patience."""

    steps: Annotated[int, Field(ge=0, le=10**9)]
    seconds: Annotated[Number, Field(gt=0, le=10**6)]  #: training seconds per task, on the hardware named in the notes


class Manifest(Strict):
    """`entry.toml`."""

    title: Line
    authors: Annotated[list[Line], Field(min_length=1, max_length=50)]
    owner: Account  #: the account on the code host that may change the entry
    licence: Annotated[Line, AfterValidator(_spdx)]  #: licence of the source
    family: Family
    method: BuiltIn | SourceFile
    settings: Annotated[dict[PythonName, Setting], Field(max_length=100)] = {}
    budget: Budget
    link: Link | None = None
    notes: Text = ""


@dataclass(frozen=True, eq=False)
class Entry:
    """The validated content of an entry's folder."""

    name: str  #: name of the folder
    manifest: Manifest
    source: bytes | None  #: of a method that is not built in

    @cached_property
    def sha256(self) -> str:
        """Identifies the entry in results: SHA-256 over its name, its manifest and its source."""
        source = None if self.source is None else hashlib.sha256(self.source).hexdigest()
        return sha256_of_json([self.name, self.manifest.model_dump(mode="json", by_alias=True), source])

    @property
    def method(self) -> str:
        """The name of the method, as used in seeds and pages."""
        method = self.manifest.method
        return method.name if isinstance(method, BuiltIn) else method.class_


def read_entry(folder: Path) -> Entry:
    """Reads an entry.

    Raises:
        InputError: the folder is a link or contains other files, a file is too large or not regular, or the manifest is
            not valid; the message says which field, what was given and what is expected.
    """
    if not is_directory(folder):
        beside = [path.parent.name for path in folder.parent.glob(f"*/{ENTRY_FILE}")]
        hint = did_you_mean(folder.name, beside)
        raise InputError(f"{folder} is not a folder: {hint}expected one with {ENTRY_FILE}")
    if folder.is_symlink():
        raise InputError(f"{folder} is a symbolic link, expected a folder with {ENTRY_FILE}; name the folder itself")
    require_name(folder.name)
    manifest = parse_manifest(read_bounded(folder / ENTRY_FILE, ENTRY_BYTES), folder / ENTRY_FILE)
    method = manifest.method
    own = {ENTRY_FILE} if isinstance(method, BuiltIn) else {ENTRY_FILE, method.file}
    with os.scandir(folder) as found:
        others = {each.name for each in islice(found, len(own) + 1)} - own  # not all of 100,000 files
    if others:
        raise InputError(
            f"{folder} contains {quoted(min(others))}, expected only {' and '.join(sorted(own))}; remove it"
        )
    source = None if isinstance(method, BuiltIn) else read_bounded(folder / method.file, SOURCE_BYTES)
    require_readable(source or b"", folder)
    return Entry(folder.name, manifest, source)


def require_readable(source: bytes, folder: Path) -> None:
    """Raises InputError if Python reads a source differently from how people see it: by another encoding (PEP 263), or
    because of characters that reorder text."""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(source).readline)[0]
        text = source.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"the source of {folder} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except SyntaxError:
        encoding, text = "unknown", ""
    if encoding not in ("utf-8", "utf-8-sig"):
        raise InputError(
            f"the source of {folder} declares the encoding {quoted(encoding)}, expected utf-8; remove the declaration"
        )
    if found := _REORDERING.search(text):
        raise InputError(
            f"the source of {folder} contains {quoted(found[0])}, which reorders text on screen; write it as an escape"
        )


def require_name(name: str) -> None:
    """Raises InputError unless this can be the name of an entry."""
    if not re.fullmatch(_NAME, name):
        raise InputError(f"{quoted(name)} cannot be the name of an entry; use a-z, 0-9 and -, at most 63 characters")


def parse_manifest(content: bytes, path: Path) -> Manifest:
    """The content of an `entry.toml`.

    Raises:
        InputError: it is not TOML, or not a manifest.
    """
    if content.count(b".") > MOST_DOTS:
        raise InputError(
            f"{path} has more than {MOST_DOTS} full stops, which would be slow to parse; shorten its notes"
        )
    return parse_toml(Manifest, content, path)
