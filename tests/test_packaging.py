"""A wheel of this tree, in an environment of its own, away from the tree: cards and configs travel with it."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fsvi_bench.methods.registry import default_names, method_names

ROOT = Path(__file__).resolve().parents[1]


def call(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def link_requirements(of: Distribution, folder: Path) -> None:
    """Links this environment's copies of what a distribution declares, and of what that requires, and nothing else.

    Installing them takes minutes.
    """
    for requirement in map(Requirement, of.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found = distribution(requirement.name)
            tops = {file.parts[0] for file in found.files or () if not file.parts[0].startswith(("..", "__pycache__"))}
            missing = [top for top in tops if not (folder / top).exists()]
            for top in missing:
                (folder / top).symlink_to(found.locate_file(top))
            if missing:
                link_requirements(found, folder)


@pytest.mark.slow
def test_an_installed_wheel_runs_from_an_unrelated_folder(tmp_path):
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assets = ROOT / "fsvi_bench" / "presenting" / "assets"
    expected = {path.relative_to(ROOT).as_posix() for path in assets.rglob("*") if path.is_file()}
    assert len(expected) > 8
    assert expected <= set(zipfile.ZipFile(wheel).namelist())
    env = tmp_path / "env"
    venv.create(env)
    python, command = env / "bin" / "python", env / "bin" / "fsvi-bench"
    pip = (sys.executable, "-m", "pip", "--python", python)
    call(*pip, "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel)
    (folder,) = env.glob("lib/python*/site-packages")
    (installed,) = distributions(name="fsvi-bench", path=[str(folder)])
    link_requirements(installed, folder)
    call(*pip, "check")
    away = tmp_path / "away"
    away.mkdir()
    environment = {**os.environ, "FSVI_BENCH_CACHE": str(tmp_path / "cache"), "PYTHONPATH": ""}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    names = {
        card["name"] for card in json.loads(call(command, "datasets", "list", "--json", cwd=away, env=environment))
    }
    assert len(names) == 20
    methods = json.loads(call(command, "methods", "list", "--json", cwd=away, env=environment))
    assert [method["name"] for method in methods] == method_names()
    # With its data, of scikit-learn. A task that is not fitted does not wait for the import of GPyTorch.
    official = "import sys, fsvi_bench; fsvi_bench.load_task('diabetes', split=0); assert 'gpytorch' not in sys.modules"
    call(python, "-c", official, cwd=away, env=environment)
    tiny = ("--dataset", "toy", "--splits", "0", "--max-steps", "3")
    quick = ("run", "--protocol", "quick", *tiny, "--wandb", "off", "--workers", "1", "--json")
    records = json.loads(call(command, *quick, cwd=away, env=environment))
    assert {record["method"] for record in records} == set(default_names())
    assert {record["status"] for record in records} == {"ok"}
    assert records[0]["provenance"]["git"] is None
