"""Methods by name: built-in ones, those of installed packages (entry points), and `path/file.py:Class`."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import decode_source, find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field

from fsvi_bench.errors import InputError, did_you_mean, in_one_line, place_in, quoted, unknown_name
from fsvi_bench.files import is_file
from fsvi_bench.methods.base import Method, MethodOptions
from fsvi_bench.methods.networks import NetworkData
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.posteriors.base import Family
from fsvi_bench.resources import read_yaml, resource_dir
from fsvi_bench.sources import SourceTree, meaning_sha256, reached

ENTRY_POINT_GROUP = "fsvi_bench.methods"


class MethodDefaults(BaseModel):
    """`conf/methods/<name>.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    class_: str | None = Field(default=None, alias="class")  #: module:Class, for the methods of this package
    default: bool = False  #: whether it runs where no method is named; others run by name, or by their protocol
    title: str
    summary: str
    options: dict[str, Any] = {}
    network_options: dict[str, Any] = {}  #: override `options` in runs on networks


@dataclass(frozen=True)
class MethodEntry:
    """A method that can be run: its name, its class, and the hash of its code and what it imports of this package.

    Other processes find a method of an installed package by its name. A method from a file is sent as the file's text:
    another machine may not have the file, and an edit during a run must not mix two versions.
    """

    name: str
    cls: type[Method]
    defaults: MethodDefaults
    code_sha256: str
    spec: str  #: the argument of `load_method`
    source: bytes | None = field(default=None, repr=False)  #: the file's text, for a method from a file

    @property
    def file(self) -> str | None:
        """The name of the file, without its folder, for a method from a file."""
        return None if self.source is None else Path(self.spec.rpartition(":")[0]).name

    def __reduce__(self) -> tuple[Any, ...]:
        if self.source is None:
            return load_method, (self.spec,)
        return _from_source, (self.spec, inspect.getfile(self.cls), self.source)

    def options(self, changes: Mapping[str, Any]) -> MethodOptions:
        """The defaults updated by `changes`.

        Raises:
            InputError: a name or value that the method does not accept, or an integer too large for the length of a
                range or array.
        """
        for name, value in changes.items():
            if isinstance(value, int) and value.bit_length() >= 63:
                raise InputError(
                    f"method {self.name}, option '{name}' is a number of {value.bit_length()} bits, expected fewer "
                    "than 63 bits; choose a smaller number"
                )
        return self.cls.checked_options({**self.defaults.options, **changes}, self.name)

    def make(self, problems: Any, family: Family, seeds: Sequence[int], options: MethodOptions) -> Method:
        """The method on these problems.

        Raises:
            InputError: its own `__init__` does not call that of `Method`.
        """
        made = self.cls(problems, family, seeds, options)
        if not hasattr(made, "problems"):
            raise InputError(
                f"{type(made).__name__}.__init__ does not prepare the method; call "
                "super().__init__(problems, family, seeds, options) first"
            )
        return made

    def check(self, options: MethodOptions, problem: TrainingData | NetworkData) -> None:
        """The method's own check of its settings against one problem.

        Raises:
            InputError: the settings do not fit the problem, or the check itself fails.
        """
        self._ask("check", options, problem)

    def is_deterministic(self, options: MethodOptions) -> bool:
        """Whether nothing is drawn under these options, as the method says.

        Raises:
            InputError: its code fails.
        """
        return bool(self._ask("is_deterministic", options))

    def trains_with(self, options: MethodOptions) -> bool:
        """Whether the method trains in steps under these options, as the method says.

        Raises:
            InputError: its code fails.
        """
        return bool(self._ask("trains_with", options))

    def _ask(self, question: str, *arguments: Any) -> Any:
        try:
            return getattr(self.cls, question)(*arguments)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            said = in_one_line(error) + place_in(error, inspect.getfile(self.cls))
            raise InputError(f"method {self.name}: {question}() raised {said}; fix the method") from error


def method_names() -> list[str]:
    """Names of built-in methods and of installed entry points, sorted."""
    return sorted({*built_in_names(), *entry_points(group=ENTRY_POINT_GROUP).names})


@cache
def built_in_names() -> tuple[str, ...]:
    """Names of the methods of this package, each of which has a file `conf/methods/<name>.yaml` with its class."""
    return tuple(sorted(path.stem for path in (resource_dir("conf") / "methods").glob("*.yaml")))


def default_names() -> list[str]:
    """Names of the methods that run where none is named, whatever else is installed: those marked `default`."""
    return [name for name in built_in_names() if _read_defaults(name).default]


def network_methods() -> list[str]:
    """Names of the methods of this package that support networks, sorted."""
    return [name for name in built_in_names() if load_installed(name).cls.networks]


def require_class(spec: str) -> None:
    """Raises InputError if this is the path of a file without one of its classes."""
    if spec.endswith((".py", ".py:")):
        raise InputError(f"method {spec} names a file but no class; give it as {spec.removesuffix(':')}:Class")


def load_method(spec: str) -> MethodEntry:
    """A method by name or as `path/file.py:Class`.

    Raises:
        InputError: there is no such method, it cannot be imported, or it is not a `Method`.
    """
    require_class(spec)
    if ".py:" in spec:
        return _from_file(spec)
    path, _, name = spec.rpartition(":")
    if path and is_file(Path(f"{path}.py")):
        raise InputError(f"unknown method {quoted(spec)}: did you mean {quoted(f'{path}.py:{name}')}?")
    return load_installed(spec)


def load_installed(name: str) -> MethodEntry:
    """A method by name only, since a name read from a record must never execute a file.

    Raises:
        InputError: no installed method has that name, or it cannot be imported.
    """
    # Entry points are looked for last: finding them reads the metadata of every installed package.
    if name not in built_in_names() and name not in method_names():
        raise unknown_name("method", name, method_names())
    try:
        cls = _entry_point(name).load()
    except Exception as error:
        package = f"package {dist.name}" if (dist := _entry_point(name).dist) else "its package"
        raise InputError(
            f"method '{name}' cannot be imported: {type(error).__name__}: {error}; fix or remove {package}"
        ) from error
    return _entry(name, cls, name)


def find_method(method: object) -> MethodEntry:
    """A method by its class, defined anywhere, or by what `load_method` accepts.

    Raises:
        InputError: as `load_method`.
    """
    if isinstance(method, str):
        return load_method(method)
    if isinstance(method, Method):
        name = type(method).__name__
        raise InputError(f"the method is an object of class {name}, expected the class or a name; give {name} itself")
    cls = _require_method(method, getattr(method, "__name__", str(method)))
    place = f"{cls.__module__}:{cls.__qualname__}"
    for name in method_names():
        if _entry_point(name).value == place:
            return load_method(name)
    # No record will contain the hash of its code.
    return MethodEntry(cls.__name__, cls, _defaults(cls.__name__, cls), "", place)


def _entry_point(name: str) -> EntryPoint:
    """The entry point of an installed method; names of this package's methods take precedence."""
    if name in built_in_names():
        return EntryPoint(name, str(_read_defaults(name).class_), ENTRY_POINT_GROUP)
    return entry_points(group=ENTRY_POINT_GROUP)[name]


def load_function(spec: str) -> FunctionType:
    """The function of `path/file.py:function`; runs the file.

    Raises:
        InputError: there is no such file or function, or the file cannot be imported.
    """
    path, _, name = spec.rpartition(":")
    if not path.endswith(".py") or not name:
        raise InputError(f"the function is {quoted(spec)}, expected path/file.py:function")
    module = _import_source(path, *_read_source(spec, "function"))
    if not isinstance(function := getattr(module, name, None), FunctionType):
        known = [each for each, value in vars(module).items() if isinstance(value, FunctionType)]
        raise InputError(f"{path} has no function {quoted(name)}; {did_you_mean(name, known)}define it with def {name}")
    return function


def _from_file(spec: str) -> MethodEntry:
    return _from_source(spec, *_read_source(spec, "Class"))


def _read_source(spec: str, kind: str) -> tuple[str, bytes]:
    """The absolute path and the text of `path/file.py:name`."""
    path = Path(spec.rpartition(":")[0])
    if not is_file(path):
        raise InputError(f"there is no file {path}; give path/file.py:{kind}")
    try:
        return str(path.absolute()), path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _from_source(spec: str, file: str, source: bytes) -> MethodEntry:
    """The method of a file with this text; `file` becomes the module's `__file__` and need not exist."""
    path, _, name = spec.rpartition(":")
    module = _import_source(path, file, source)
    if not hasattr(module, name):
        classes = {each: cls for each, cls in vars(module).items() if isinstance(cls, type) and issubclass(cls, Method)}
        own = [each for each, cls in classes.items() if cls.__module__ == module.__name__]
        raise InputError(
            f"{path} has no class {quoted(name)}; {did_you_mean(name, own)}give the method as path/file.py:Class"
        )
    if name in method_names():
        raise InputError(f"{path}: the name '{name}' is taken by an installed method; rename the class")
    return _entry(name, getattr(module, name), spec, source, Path(file).parent)


def _import_source(path: str, file: str, source: bytes) -> ModuleType:
    """Executes a text as a module, registered under a name made from its content so that annotations resolve."""
    name = f"fsvi_bench_user_{hashlib.sha256(source).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = file
    if (folder := str(Path(file).parent)) not in sys.path:
        sys.path.append(folder)  # for what lies beside it; last, so that it hides no other module
    try:
        # Tracebacks and `inspect` show this text even if the file is missing.
        linecache.cache[file] = (len(source), None, decode_source(source).splitlines(keepends=True), file)
        with warnings.catch_warnings():
            # _require_method refuses such a method.
            warnings.filterwarnings("ignore", "Field name .* shadows an attribute", UserWarning)
            exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"{path} cannot be imported: {type(error).__name__}: {error}; fix the file") from error
    return module


def _require_method(cls: object, spec: str) -> type[Method]:
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise InputError(f"'{spec}' is not a subclass of fsvi_bench.methods.base.Method; derive it from that class")
    if inspect.isabstract(cls):
        lacking = ", ".join(sorted(cls.__abstractmethods__))
        raise InputError(f"'{spec}' is not a complete fsvi_bench.methods.base.Method; implement {lacking}")
    if all(getattr(cls, name) is getattr(Method, name) for name in ("loss", "solve", "solve_at", "training_step")):
        raise InputError(f"'{spec}' is not a complete fsvi_bench.methods.base.Method; implement loss or solve")
    if not (isinstance(cls.Options, type) and issubclass(cls.Options, MethodOptions)):
        raise InputError(
            f"'{spec}': Options is not a subclass of fsvi_bench.methods.base.MethodOptions; derive it from that class"
        )
    _require_own_names(cls.Options, spec)
    known = get_args(Family)
    if not (isinstance(cls.families, tuple) and cls.families and all(family in known for family in cls.families)):
        raise InputError(
            f"'{spec}': families is {cls.families!r}, expected a tuple with one or more of {', '.join(known)}"
        )
    return cls


def _require_own_names(options: type[MethodOptions], spec: str) -> None:
    """Raises InputError if an option has the name of an attribute or method that its class inherits."""
    for base in (each for each in options.__mro__[1:] if issubclass(each, BaseModel)):
        for name in options.model_fields:
            if name not in base.model_fields and hasattr(base, name):
                raise InputError(f"'{spec}': option '{name}' hides an attribute of {base.__name__}; rename the option")


def _entry(name: str, cls: object, spec: str, source: bytes | None = None, folder: Path | None = None) -> MethodEntry:
    """A method; from a file, with the file's text and its folder."""
    cls = _require_method(cls, spec)
    try:
        code = _code_sha256(cls, source)
        if source is not None and folder is not None:
            _require_neighbours(spec, source, SourceTree(folder))
    except (ImportError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"the code of method {quoted(name)} cannot be read: {in_one_line(error)}; mend it") from error
    return MethodEntry(name, cls, _defaults(name, cls), code, spec, source)


def _require_neighbours(spec: str, source: bytes, own: SourceTree) -> None:
    """Raises InputError if a module beside a file is not the one that `import` finds, since that of another folder
    would run under the hash of this one."""
    for name in sorted({module.partition(".")[0] for module in reached([source], own=own)}):
        beside = own.file(name)
        if beside is None or name == "fsvi_bench":
            continue
        found = find_spec(name)
        if found is None or found.origin is None or Path(found.origin).resolve() != beside.resolve():
            origin = "nothing" if found is None else found.origin
            raise InputError(f"{spec}: `import {name}` finds {origin}, expected {beside}; rename one of the modules")


def _code_sha256(cls: type[Method], source: bytes | None) -> str:
    """Hash of a method's code and of what it imports of this package, and of its own package or its file's folder."""
    # A file may import its base classes from the public API instead of their own modules.
    bases = sorted({base.__module__ for base in cls.__mro__ if base.__module__.startswith("fsvi_bench.")})
    file = Path(inspect.getfile(cls))
    if source is not None:
        return meaning_sha256(source, *bases, own=SourceTree(file.parent))
    package, *inner = cls.__module__.split(".")
    folder = file.parents[len(inner) + (file.name == "__init__.py")]
    return meaning_sha256(cls.__module__, *bases, own=SourceTree(folder, package))


def _defaults(name: str, cls: type[Method]) -> MethodDefaults:
    """Built-in methods have their defaults in a file, others in their `Options`."""
    if name in built_in_names():
        return _read_defaults(name)
    return MethodDefaults(title=name, summary=(inspect.getdoc(cls) or "no description").splitlines()[0])


@cache
def _read_defaults(name: str) -> MethodDefaults:
    return MethodDefaults.model_validate(read_yaml(resource_dir("conf") / "methods" / f"{name}.yaml"))
