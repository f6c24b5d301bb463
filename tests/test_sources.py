"""A hash of code changes with what the code does, and with nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from fsvi_bench import sources
from fsvi_bench.errors import InputError
from fsvi_bench.methods import registry
from fsvi_bench.methods.registry import load_method
from fsvi_bench.sources import meaning_sha256

TEXT = '''"""A module."""

from dataclasses import dataclass


@dataclass
class Thing:
    """A thing."""

    size: int = 1_000

    def twice(self) -> float:
        """Its double."""
        return 2 * (self.size + 1e-6)  # exactly
'''


def sha256(text: str) -> str:
    return meaning_sha256(text.encode())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""A module."""', "# no docstring"),
        ('"""Its double."""', "..."),
        ("  # exactly", ""),
        ("2 * (self.size + 1e-6)", "(\n            2\n            * (self.size + 0.000001)\n        )"),
        ("1_000", "1000"),
        ("@dataclass\n", "if TYPE_CHECKING:\n    from fsvi_bench.maths import blr\n\n@dataclass\n"),
    ],
)
def test_words_and_layout_do_not_count(before, after):
    assert before in TEXT
    assert sha256(TEXT.replace(before, after)) == sha256(TEXT)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("+ 1e-6", "- 1e-6"),
        ("1_000", "1001"),
        ("1_000", "1_000.0"),
        ("1_000", '"1000"'),
        ("twice", "thrice"),
        ("size: int", "size: float"),
        ("@dataclass\n", ""),
        ("2 * (self.size + 1e-6)", "2 * self.size + 1e-6"),
        ("from dataclasses", "from pydantic.dataclasses"),
        ("@dataclass\n", "from fsvi_bench.maths import blr\n\n@dataclass\n"),
    ],
)
def test_whatever_acts_counts(before, after):
    assert before in TEXT
    assert sha256(TEXT.replace(before, after)) != sha256(TEXT)


def test_what_type_checkers_do_not_see_counts():
    checked = "if TYPE_CHECKING:\n    a = 1\nelse:\n    a = {}\n"
    assert sha256(checked.format(2)) != sha256(checked.format(3))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes modules of a package `fsvi_bench`, which is read in place of ours."""
    root = tmp_path / "fsvi_bench"
    monkeypatch.setattr(sources, "_PACKAGE", root)
    cached = (meaning_sha256, sources._module, sources._path)

    def write(name: str, text: str) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for function in cached:
            function.cache_clear()

    yield write
    for function in cached:
        function.cache_clear()


@pytest.mark.parametrize(
    "statement",
    [
        "from fsvi_bench.middle import f",
        "from fsvi_bench import middle",
        "import fsvi_bench.middle as m",
        "from . import middle",
        "from .middle import *",
        "def late():\n    from fsvi_bench.middle import f",
        "try:\n    import numpy, fsvi_bench.middle\nfinally:\n    pass",
        "from fsvi_bench.exports import f",
    ],
)
def test_imports_are_followed_wherever_they_stand(package, statement):
    package("__init__.py", "")
    package("exports/__init__.py", "from fsvi_bench.middle import f")
    package("root.py", statement)
    package("middle.py", "from fsvi_bench.far.end import f")
    package("far/end.py", "f = 1")
    package("elsewhere.py", "f = 1")
    before = meaning_sha256("fsvi_bench.root")
    package("elsewhere.py", "f = 2")
    assert meaning_sha256("fsvi_bench.root") == before
    package("far/end.py", "f = 2")
    assert meaning_sha256("fsvi_bench.root") != before


def test_type_checking_imports_and_what_is_left_out_are_not_followed(package):
    package("root.py", "import fsvi_bench.apart.here, typing\nif typing.TYPE_CHECKING:\n    import fsvi_bench.typed")
    package("apart/here.py", "import fsvi_bench.apart.there")
    package("apart/there.py", "a = 1")
    package("typed.py", "a = 1")
    apart = {"excluding": ("fsvi_bench.apart",)}
    without, as_root = meaning_sha256("fsvi_bench.root", **apart), meaning_sha256("fsvi_bench.apart.here", **apart)
    package("typed.py", "a = 2")
    package("apart/there.py", "a = 2")
    assert meaning_sha256("fsvi_bench.root", **apart) == without
    assert meaning_sha256("fsvi_bench.apart.here", **apart) == as_root
    package("apart/here.py", "a = 2")
    assert meaning_sha256("fsvi_bench.root", **apart) == without
    assert meaning_sha256("fsvi_bench.apart.here", **apart) != as_root


def test_import_cycles_end_and_a_missing_root_is_named(package):
    package("a.py", "import fsvi_bench.b")
    package("b.py", "import fsvi_bench.a")
    assert meaning_sha256("fsvi_bench.a") == meaning_sha256("fsvi_bench.b", "fsvi_bench.a")
    with pytest.raises(ModuleNotFoundError, match=r"no module fsvi_bench\.nowhere"):
        meaning_sha256("fsvi_bench.nowhere")


def test_a_methods_file_counts_with_what_it_imports_and_the_module_of_its_base_class(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    text = "from fsvi_bench.methods.exact import Exact as E\n\n\nclass Mine(E):\n    pass\n"
    path.write_text(text.replace("E\n", "E  # final, but for a test\n", 1))
    first = load_method(f"{path}:Mine").code_sha256
    path.write_text(text)
    assert load_method(f"{path}:Mine").code_sha256 == first
    followed = []
    monkeypatch.setattr(registry, "meaning_sha256", lambda *roots, own: followed.append(roots) or "0" * 64)
    load_method(f"{path}:Mine")
    bases = [f"fsvi_bench.methods.{name}" for name in ("base", "exact", "weight_space")]
    assert followed == [(text.encode(), *bases)]


METHOD = "from fsvi_bench.methods.exact import Exact\n{}\n\n\nclass Mine(Exact):\n    pass\n"


@pytest.fixture
def fresh(monkeypatch):
    """Forgets what was read of modules, as a new process would."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def forget() -> None:
        for function in (meaning_sha256, sources._module, sources._path):
            function.cache_clear()
        for name in [name for name in sys.modules if "mine" in name or name.startswith("fsvi_bench_user_")]:
            del sys.modules[name]

    yield forget
    forget()


def test_modules_beside_a_methods_file_are_found_and_count(tmp_path, monkeypatch, fresh):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "mine.py"
    path.write_text(METHOD.format("from beside_mine import f"))
    hashes = {}
    for name, a, b, other in [("first", 1, 1, 1), ("other", 1, 1, 2), ("near", 2, 1, 1), ("far", 1, 2, 1)]:
        (tmp_path / "beside_mine.py").write_text(f"import below_mine.deep\nf = {a}\n")
        (tmp_path / "below_mine").mkdir(exist_ok=True)
        (tmp_path / "below_mine" / "deep.py").write_text(f"g = {b}\n")
        (tmp_path / "unrelated.py").write_text(f"h = {other}\n")
        fresh()
        hashes[name] = load_method(f"{path}:Mine").code_sha256
    assert hashes.pop("other") == hashes["first"]
    assert len(set(hashes.values())) == 3


@pytest.mark.parametrize("statement", ["from .helpers import f", "from mine_pkg.helpers import f"])
def test_modules_of_an_installed_methods_package_count(tmp_path, monkeypatch, fresh, statement):
    monkeypatch.syspath_prepend(tmp_path)
    installed = EntryPoints([EntryPoint("mine", "mine_pkg:Mine", registry.ENTRY_POINT_GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda group: installed)
    package = tmp_path / "mine_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("from mine_pkg.method import Mine\n")
    (package / "method.py").write_text(METHOD.format(f"import not_mine\n{statement}"))
    hashes = []
    for f, other in [(1, 1), (1, 2), (2, 2)]:
        (package / "helpers.py").write_text(f"f = {f}\n")
        (package / "unused.py").write_text(f"h = {other}\n")
        (tmp_path / "not_mine.py").write_text(f"h = {other}\n")  # another package of the same folder
        fresh()
        hashes.append(load_method("mine").code_sha256)
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_module_beside_a_methods_file_that_is_not_python_is_named(tmp_path, monkeypatch, fresh):
    path = tmp_path / "mine.py"
    path.write_text(METHOD.format("try:\n    import broken\nexcept (ImportError, SyntaxError):\n    pass"))
    (tmp_path / "broken.py").write_text("print 1\n")
    with pytest.raises(InputError, match=r"the code of method 'Mine' cannot be read: .*broken\.py"):
        load_method(f"{path}:Mine")


def test_of_a_real_method_what_python_imports_is_what_is_followed():
    """But for the folders' own `__init__`, from which nothing is imported, and what is imported in functions."""
    name = "fsvi_bench.methods.rand_a"
    code = f"import sys, {name}; print(*(m for m in sys.modules.values() if m.__name__.startswith('fsvi_bench.')), sep='\\n')"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    modules = {line.split("'")[1] for line in loaded if "__init__.py" not in line}
    assert len(modules) > 20
    assert modules <= set(sources.reached([name]))
    assert not {m.split(".")[1] for m in sources.reached([name])} & {"running", "presenting", "cli", "leaderboard"}
