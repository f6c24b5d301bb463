"""The commands that make an entry's cells, and its verification, again."""

from __future__ import annotations

import json
import shlex

from fsvi_bench.leaderboard.entries import Entry
from fsvi_bench.leaderboard.site.material import Material
from fsvi_bench.reporting.report.troubles import ranges


def reproduction(entry: Entry, material: Material) -> str | None:
    """`fsvi-bench run` of the submitted source with all of its settings; None where there is no source."""
    manifest = entry.manifest
    if manifest.source is None:
        return None
    covered = {cell.dataset for cell in entry.verification.cells} if entry.verification else set(material.datasets)
    datasets = [name for name in material.datasets if name in covered]
    splits = {task.split for name in datasets for task in material.tasks[name]}
    words = ["fsvi-bench", "run", "--method", _file(entry), "--family", manifest.family]
    words += [word for name in datasets for word in ("--dataset", name)]
    words += ["--splits", ranges(splits)] if splits else []
    for name, value in manifest.hyperparameters.items():
        if name == "M":
            words += ["--measurement-points", str(value)]
        elif name == "max_steps":
            words += ["--max-steps", str(value)]
        else:
            words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words)


def _file(entry: Entry) -> str:
    source = entry.manifest.source
    assert source is not None
    return f"submissions/{entry.name}/{source.file}:{source.class_}"


def verification_command(entry: Entry) -> str:
    """`fsvi-bench verify`, which runs the source again where one was handed in."""
    rerun = entry.verification.rerun if entry.verification else None
    words = ["fsvi-bench", "verify", f"submissions/{entry.name}"]
    count = len(rerun.official) if rerun else 2
    return shlex.join([*words, *(["--rerun", str(count)] if entry.manifest.source else [])])
