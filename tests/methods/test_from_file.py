"""A method from a user's file goes to other processes and machines as its text."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.methods import registry
from fsvi_bench.methods.registry import load_installed, load_method

FILE = """
from __future__ import annotations
from pathlib import Path
from fsvi_bench.methods.base import Method, MethodOptions

HERE = Path(__file__)

class Options(MethodOptions):
    wanted: float | None = None  # resolved by name in this module

class Mine(Method):
    "First."
    Options = Options
    deterministic = True
    said = "first"
    def solve(self, problem): raise RuntimeError("planted")
"""
#: What another process says of a pickled method: its own words, its options, file and source, as it finds them.
ASK = """
import inspect, pickle, sys
entry = pickle.loads(sys.stdin.buffer.read())
cls = entry.cls
print(cls.said, entry.options({"wanted": 2}).wanted, inspect.getmodule(cls).HERE, entry.code_sha256, sep="|")
print(inspect.getsource(cls).count("planted"), pickle.dumps(entry) == pickle.dumps(pickle.loads(pickle.dumps(entry))))
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def ask(pickled: bytes, folder: Path) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    done = subprocess.run([sys.executable, "-c", ASK], input=pickled, capture_output=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split("\n")


def test_another_process_needs_no_file_and_never_sees_an_edit(file, tmp_path, monkeypatch):
    """As on another machine: the path was relative, the folder is another, the file is gone or says something else."""
    monkeypatch.chdir(tmp_path)
    entry = load_method("mine.py:Mine")
    pickled = pickle.dumps(entry)
    expected = [f"first|2.0|{file}|{entry.code_sha256}", "1 True", ""]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    file.write_text(FILE.replace("first", "second"))
    assert pickle.loads(pickled).cls is entry.cls  # here the module is there already
    monkeypatch.delitem(sys.modules, entry.cls.__module__)
    assert pickle.loads(pickled).cls.said == "first"
    file.unlink()
    assert ask(pickled, elsewhere) == expected


def test_an_edited_file_is_another_method(file):
    first = load_method(f"{file}:Mine")
    file.write_text(FILE.replace("first", "second"))
    second = load_method(f"{file}:Mine")
    assert (first.cls.said, second.cls.said) == ("first", "second")
    assert first.code_sha256 != second.code_sha256
    assert pickle.loads(pickle.dumps(first)).cls is first.cls


@pytest.mark.parametrize("families", ['("nonsense",)', '"full"', "()", '["full"]', '(["full"],)'])
def test_families_are_a_tuple_of_families(file, families):
    file.write_text(FILE.replace('said = "first"', f"families = {families}"))
    with pytest.raises(InputError, match=r"families is .*, expected a tuple with one or more of full, ffg, factor"):
        load_method(f"{file}:Mine")


def test_a_method_of_this_package_travels_by_name():
    assert len(pickle.dumps(load_method("rand-a"))) < 200


def test_errors_in_a_file_name_it_and_its_lines(file):
    file.write_text(FILE + "\nraise ValueError('planted')\n")
    with pytest.raises(InputError, match=r"mine\.py cannot be imported: ValueError: planted; fix the file") as raised:
        load_method(f"{file}:Mine")
    frames = inspect.getinnerframes(raised.value.__cause__.__traceback__)
    assert (frames[-1].filename, frames[-1].code_context) == (str(file), ["raise ValueError('planted')\n"])


def test_a_name_from_a_record_never_runs_a_file(tmp_path, monkeypatch):
    """The report looks methods up by the names that records give."""
    (tmp_path / "evil.py").write_text("raise SystemExit('run')\n")
    monkeypatch.chdir(tmp_path)
    for name in ("evil.py:Evil", str(tmp_path / "evil.py:Evil"), "evil.py"):
        with pytest.raises(InputError, match="unknown method"):
            load_installed(name)
    assert load_installed("exact").name == "exact"


@pytest.mark.parametrize(
    ("name", "meant"), [("mine:Mine", "'mine.py:Mine'?"), ("mine.py:mine", "'Mine'?"), ("mine.py:Min", "'Mine'?")]
)
def test_a_misspelt_file_or_class_gets_a_hint(tmp_path, monkeypatch, name, meant):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    with pytest.raises(InputError) as raised:
        load_method(name)
    assert f"did you mean {meant}" in str(raised.value)


SHADOWING = """
from fsvi_bench.methods.base import AdamOptions, Method
class Mine(Method):
    class Options(AdamOptions):
        {field} = 3
    def loss(self, q, batch): ...
"""


@pytest.mark.parametrize(("field", "refused"), [("rows: int", True), ("copy: int", True), ("lr: float", False)])
def test_an_option_that_hides_an_attribute_is_refused_at_once(tmp_path, recwarn, field, refused):
    path = tmp_path / "mine.py"
    path.write_text(SHADOWING.format(field=field))
    if refused:
        with pytest.raises(
            InputError, match=r"option '(rows|copy)' hides an attribute of AdamOptions; rename the option"
        ):
            load_method(f"{path}:Mine")
    else:
        assert load_method(f"{path}:Mine").options({}).lr == 3
    assert recwarn.list == []


WRONG = """
import torch
from fsvi_bench.methods.base import Method
from fsvi_bench.posteriors.gaussian import FactorisedGaussian

class Mine(Method):
    "First."
    families = ("full",)
    deterministic = True
    def solve(self, problem):
        mean = torch.zeros(1, problem.k).double()
        return FactorisedGaussian(mean, mean + 1)

class NoSuper(Mine):
    def __init__(self, problems, family, seeds, options):
        pass

class Raises(Mine):
    def solve(self, problem):
        raise RuntimeError("planted")
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Mine", "the posterior is gaussian-ffg, expected gaussian-full for its family"),
        ("NoSuper", "NoSuper.__init__ does not prepare the method; call super().__init__("),
        ("Raises", 'RuntimeError: planted (mine.py, line 20: raise RuntimeError("planted"))'),
    ],
)
def test_what_is_wrong_with_a_method_is_said_with_its_place(tmp_path, cli, name, reason):
    (tmp_path / "mine.py").write_text(WRONG)
    arguments = ("--method", f"{tmp_path / 'mine.py'}:{name}", "--dataset", "toy", "--splits", "0", "--json")
    status, out, _ = cli("run", *arguments, "--workers", "1", "--wandb", "off", "--out", tmp_path / "out")
    (record,) = json.loads(out)
    assert (status, record["status"]) == (1, "failed")
    assert record["reason"].startswith(reason)


def test_a_module_beside_a_file_is_the_one_that_is_imported(tmp_path):
    """That of another folder would run under the hash of this one."""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside_a_method.py").write_text(f"SAID = {folder!r}")
        (tmp_path / folder / "mine.py").write_text(f"{FILE}import beside_a_method\n")
    assert load_method(f"{tmp_path}/first/mine.py:Mine").name == "Mine"
    expected = f"`import beside_a_method` finds {tmp_path}/first/beside_a_method.py, expected {tmp_path}/second/"
    with pytest.raises(InputError, match=re.escape(expected)):
        load_method(f"{tmp_path}/second/mine.py:Mine")


def test_a_broken_package_hides_no_other_method_and_runs_nothing(cli, monkeypatch):
    broken = EntryPoint("broken", "nowhere.at_all:Mine", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([broken]))
    status, out, err = cli("methods", "list", "--json")
    assert status == 0
    assert [each["name"] for each in json.loads(out)] == [*registry.built_in_names()]
    assert "left out: method 'broken' cannot be imported: ModuleNotFoundError: No module named 'nowhere'" in err
    assert "broken" not in registry.default_names()
    assert cli("methods", "list", "broken")[0] == 2
