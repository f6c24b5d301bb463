"""Hashes of code by its syntax tree, so that results of changed code are never taken for those of the old code.

Comments, docstrings, layout and code under `if TYPE_CHECKING:` do not count; annotations do, because pydantic and
dataclasses use them. The hashes do not depend on the version of Python.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

_PACKAGE = Path(__file__).resolve().parent


_IGNORED_FIELDS = {"ctx", "kind", "type_comment"}  #: fields of a syntax tree that do not affect the code


class SourceTree(NamedTuple):
    """The modules in a folder, or those of one package in it."""

    folder: Path
    package: str | None = None

    def file(self, name: str) -> Path | None:
        """The file of a module of this tree; None for other names."""
        if self.package is None or f"{name}.".startswith(f"{self.package}."):
            place = self.folder.joinpath(*name.split("."))
            for path in (place / "__init__.py", place.with_suffix(".py")):
                if path.is_file():
                    return path
        return None


class _Module(NamedTuple):
    """The hash of a module, and the modules that count and that it imports anywhere in its code."""

    sha256: str
    imports: frozenset[str]


@cache
def meaning_sha256(*roots: str | bytes, excluding: tuple[str, ...] = (), own: SourceTree | None = None) -> str:
    """SHA-256 over the roots and all modules of this package that they import, directly or indirectly.

    A package's `__init__` counts if something is imported from it.

    Args:
        roots: names of modules of this package or of `own`, or texts of any Python files.
        excluding: packages whose modules count only as roots.
        own: a tree whose modules count as those of this package do.

    Raises:
        ModuleNotFoundError: a root is not such a module.
        SyntaxError, ValueError, RecursionError, MemoryError: as `tree_sha256`, for any of the modules.
    """
    return hashlib.sha256(repr(sorted(reached(roots, excluding, own).items())).encode()).hexdigest()


def reached(
    roots: Iterable[str | bytes], excluding: Iterable[str] = (), own: SourceTree | None = None
) -> dict[str, str]:
    """The hashes, by module, that `meaning_sha256` combines; texts are named `<0>`, `<1>`, ..."""
    found = {f"<{place}>": _module(root, own) for place, root in enumerate(roots) if isinstance(root, bytes)}
    named = {root for root in roots if isinstance(root, str)}
    waiting = [*named, *(name for module in found.values() for name in module.imports)]
    excluded = tuple(f"{package}." for package in excluding)
    while waiting:
        name = waiting.pop()
        if name not in found and (name in named or not f"{name}.".startswith(excluded)):
            found[name] = _module(name, None if _path(name) else own)
            waiting += found[name].imports
    return {name: module.sha256 for name, module in found.items()}


def tree_sha256(source: bytes) -> str:
    """SHA-256 of the syntax tree of a text, without its imports.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it is not valid Python, or nested too deeply.
    """
    return _module(source).sha256


@cache
def package_sha256() -> str:
    """SHA-256 over the texts of all modules of the package, to compare two machines."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}:{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


@cache
def _module(root: str | bytes, own: SourceTree | None = None) -> _Module:
    """Parses a module of the package or of `own`, given by name, or a text."""
    path, package = None, ""
    if isinstance(root, bytes):
        text = root
    elif (path := _path(root, own)) is None:
        raise ModuleNotFoundError(f"there is no module {root} in {_PACKAGE if own is None else own.folder}", name=root)
    else:
        text, package = path.read_bytes(), root if path.name == "__init__.py" else root.rpartition(".")[0]
    words: list[str] = []
    imports: list[ast.Import | ast.ImportFrom] = []
    _write(ast.parse(text, filename=str(path or "<unknown>")), words, imports)
    names = {name for statement in imports for name in _imported(statement, package, own)}
    return _Module(hashlib.sha256(" ".join(words).encode(errors="surrogatepass")).hexdigest(), frozenset(names))


@cache
def _path(name: str, own: SourceTree | None = None) -> Path | None:
    """The file of a module of this package or of `own`; None for other names."""
    path = SourceTree(_PACKAGE.parent, _PACKAGE.name).file(name)
    return own.file(name) if path is None and own else path


def _imported(statement: ast.Import | ast.ImportFrom, package: str, own: SourceTree | None) -> Iterator[str]:
    """The modules that count and that a statement imports: for `from a import b`, a.b, or a if b is not a module, or
    the module that defines b if it is a name of the public API."""
    if isinstance(statement, ast.Import):
        yield from (each.name for each in statement.names if _path(each.name, own))
        return
    start = "." * statement.level + (statement.module or "")
    if statement.level and not package:
        return  # a relative import outside a package
    origin = resolve_name(start, package)
    public = import_module(_PACKAGE.name).HOMES  # a statement would make this module part of every hash
    for each in statement.names:
        home = f"{origin}.{public.get(each.name)}" if origin == _PACKAGE.name else ""
        yield from [name for name in (f"{origin}.{each.name}", home, origin) if _path(name, own)][:1]


def _write(node: ast.AST, words: list[str], imports: list[ast.Import | ast.ImportFrom]) -> None:
    """Appends a tree as words, and its imports. Empty fields are skipped, since a later Python may add some."""
    words.append(node.__class__.__name__)
    values = node.__dict__
    for field in node._fields:
        value = values.get(field)
        if value is None or value == [] or field in _IGNORED_FIELDS:
            continue
        words.append(field)
        if isinstance(value, ast.AST):
            _write(value, words, imports)
        elif isinstance(value, list):
            _write_list(value, words, imports)
        else:
            words.append(repr(value))
    words.append(")")


def _write_list(items: list[ast.AST | str], words: list[str], imports: list[ast.Import | ast.ImportFrom]) -> None:
    """Appends a list of a tree; statements occur only in lists."""
    for item in items:
        if isinstance(item, ast.If) and _only_for_type_checkers(item.test):
            _write_list([*item.orelse], words, imports)
        elif not isinstance(item, ast.AST):
            words.append(repr(item))
        elif not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)):  # a docstring, or `...`
            _write(item, words, imports)
            if isinstance(item, ast.Import | ast.ImportFrom):
                imports.append(item)


def _only_for_type_checkers(test: ast.expr) -> bool:
    return (getattr(test, "id", None) or getattr(test, "attr", None)) == "TYPE_CHECKING"
