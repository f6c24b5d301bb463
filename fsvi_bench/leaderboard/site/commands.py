"""The commands that make an entry's cells, and its verification, again."""

from __future__ import annotations

import inspect
import shlex
from dataclasses import dataclass
from pathlib import Path

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.site.material import Material
from fsvi_bench.methods.registry import built_in_names, load_method
from fsvi_bench.running.settings import setting_words
from fsvi_bench.tasks.splits import ranges


@dataclass(frozen=True)
class Reproduction:
    """Commands that train an entry's cells; `seeds_differ`: by what they draw, not quite the submitted ones."""

    commands: list[str]
    seeds_differ: bool


def reproduction(entry: Entry, material: Material) -> Reproduction | None:
    """`fsvi-bench run` with all of an entry's settings; None where there is no source.

    Seeds come from the method's name, which is the class's for a method from a file. So a built-in method, where its
    own file is what was handed in, is run by its name. Data sets that differ in their splits have a command each.
    """
    source, manifest = entry.manifest.source, entry.manifest
    if source is None:
        return None
    built_in = _is_built_in(entry)
    method = manifest.method if built_in else f"submissions/{entry.name}/{source.file}:{source.class_}"
    settings = setting_words(entry.manifest.hyperparameters)
    commands = [
        shlex.join(["fsvi-bench", "run", "--method", method, "--family", manifest.family, *where, *settings])
        for where in _tasks(entry, material)
    ]
    return Reproduction(commands, not built_in and source.class_ != manifest.method)


def _is_built_in(entry: Entry) -> bool:
    """Whether the submitted source is, letter by letter, that of the built-in method whose name it has."""
    name, source = entry.manifest.method, entry.manifest.source
    if source is None or name not in built_in_names():
        return False
    cls = load_method(name).cls
    return cls.__name__ == source.class_ and Path(inspect.getfile(cls)).read_text(encoding="utf-8") == entry.source


def _tasks(entry: Entry, material: Material) -> list[list[str]]:
    """`--dataset` and `--splits`, once for all data sets of the same splits."""
    covered = {cell.dataset for cell in entry.verification.cells} if entry.verification else set(material.datasets)
    datasets = [name for name in material.datasets if name in covered]
    alike: dict[str, list[str]] = {}
    for name in datasets:
        alike.setdefault(ranges(task.split for task in material.tasks[name]), []).append(name)
    return [
        [*(word for name in names for word in ("--dataset", name)), "--splits", splits]
        for splits, names in alike.items()
    ]


def verification_command(entry: Entry) -> str:
    """`fsvi-bench verify`, which runs the source again where one was handed in."""
    rerun = entry.verification.rerun if entry.verification else None
    words = ["fsvi-bench", "verify", f"submissions/{entry.name}"]
    count = len(rerun.official) if rerun else 2
    return shlex.join([*words, *(["--rerun", str(count)] if entry.manifest.source else [])])
