"""`import fsvi_bench` has the public names, and imports nothing for them until they are used."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys

import pytest

import fsvi_bench
from fsvi_bench.methods.registry import built_in_names, load_method
from fsvi_bench.sources import reached


def said_by_python(code: str):
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def test_importing_the_package_imports_no_heavy_modules():
    code = (
        "import sys, json; before = set(sys.modules); import fsvi_bench; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    new = said_by_python(code)
    assert [name for name in new if name.startswith("fsvi_bench")] == ["fsvi_bench"]
    assert not {"torch", "numpy", "pydantic", "pandas", "importlib.metadata"}.intersection(new)


def test_errors_come_without_torch():
    assert (
        said_by_python("import sys, json, fsvi_bench as f; f.InputError; print(json.dumps('torch' in sys.modules))")
        is False
    )


def test_every_name_is_there():
    assert set(fsvi_bench.__all__) == {*fsvi_bench.HOMES, "__version__"}
    for name in fsvi_bench.__all__:
        assert getattr(fsvi_bench, name) is not None
    assert set(fsvi_bench.__all__) <= set(dir(fsvi_bench))
    with pytest.raises(AttributeError, match="no attribute 'fits'"):
        _ = fsvi_bench.fits


def test_type_checkers_see_the_same_names():
    tree = ast.parse(inspect.getsource(fsvi_bench))
    (only,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        name.name: statement.module.removeprefix("fsvi_bench.")
        for statement in only.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    assert seen == fsvi_bench.HOMES


def test_every_built_in_method_is_among_them():
    classes = {load_method(name).cls for name in built_in_names()}
    assert classes <= {getattr(fsvi_bench, name) for name in fsvi_bench.__all__}


def test_a_public_name_counts_as_its_module_in_a_cells_hash():
    found = set(reached([b"from fsvi_bench import RandA, Method"]))
    assert {"fsvi_bench.methods.rand_a", "fsvi_bench.methods.base", "fsvi_bench.maths.functional_kl"} <= found
    assert "fsvi_bench" not in found
