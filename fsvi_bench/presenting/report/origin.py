"""Where the numbers come from: versions, hardware, code, tasks, time spent, and the commands that make them again."""

from __future__ import annotations

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import load_installed, method_names
from fsvi_bench.presenting.report.study import Entry, Study
from fsvi_bench.presenting.report.troubles import ranges

FIELDS = {
    "fsvi_bench": "fsvi-bench",
    "git": "git revision",
    "python": "Python",
    "torch": "PyTorch",
    "lightning": "Lightning",
    "gpytorch": "GPyTorch",
    "numpy": "NumPy",
    "scipy": "SciPy",
    "platform": "platform",
    "hardware": "hardware",
    "device": "device",
    "threads": "threads per worker",
    "arithmetic": "kernels",
}
FLAGS = {"M": "--measurement-points", "max_steps": "--max-steps"}  #: settings that have one of their own


@dataclass(frozen=True)
class Fact:
    """One line of provenance: its values, each with the number of records that have it."""

    name: str
    values: list[tuple[str, int]]

    @property
    def mixed(self) -> bool:
        return len(self.values) > 1


@dataclass(frozen=True)
class Origin:
    """Provenance of all records."""

    facts: list[Fact]
    code: list[tuple[str, list[tuple[str, int]]]]  #: method -> code hashes
    tasks: list[tuple[str, list[tuple[int, str]]]]  #: data set -> split, hash
    seconds_training: float
    seconds_scoring: float
    commands: list[str]

    @property
    def several_codes(self) -> list[str]:
        """Methods whose records come from more than one version of the code."""
        return [method for method, hashes in self.code if len(hashes) > 1]


def origin(study: Study) -> Origin:
    """Everything that the records say about how they were made."""
    records = study.results.records
    code = {entry.method: Counter[str]() for entry in study.entries}
    tasks: dict[str, dict[int, str]] = defaultdict(dict)
    for record in records:
        code[record.method][record.code_sha256] += 1
        if record.task_sha256 is not None:
            tasks[record.dataset][record.split] = record.task_sha256
    seconds = [record.seconds for record in records if record.seconds is not None]
    return Origin(
        facts=[_fact(label, [record.provenance.get(name) for record in records]) for name, label in FIELDS.items()],
        code=[(method, sorted(hashes.items())) for method, hashes in code.items()],
        tasks=[(dataset, sorted(tasks[dataset].items())) for dataset in sorted(tasks)],
        seconds_training=sum(each.train for each in seconds),
        seconds_scoring=sum(each.score for each in seconds),
        commands=commands(study),
    )


def _fact(label: str, values: Sequence[object]) -> Fact:
    counted = Counter("not recorded" if value is None else str(value) for value in values)
    return Fact(label, sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def commands(study: Study) -> list[str]:
    """`fsvi-bench run` with what each method's records differ in from its defaults; methods that agree share a line."""
    families: dict[tuple[tuple[str, ...], str], list[str]] = defaultdict(list)
    for entry in study.entries:
        families[(*_where(study, entry), *_settings(entry)), entry.method].append(entry.family)
    methods: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = defaultdict(list)
    for (rest, method), own in families.items():
        # A record knows the name of a method's class, not where its file lay.
        spec = method if method in method_names() else f"FILE.py:{method}"
        methods[rest, tuple(dict.fromkeys(own))].append(spec)
    return [
        shlex.join(["fsvi-bench", "run", *_each("--method", specs), *_each("--family", together), *rest])
        for (rest, together), specs in methods.items()
    ]


def _each(flag: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _where(study: Study, entry: Entry) -> list[str]:
    cells = pd.concat([found for (_, own), found in study.cells.items() if own == entry])
    seeds = ranges(cells["seed"])
    words = [*_each("--dataset", sorted(cells["dataset"].unique())), "--splits", ranges(cells["split"])]
    return words if seeds == "0" else [*words, "--seeds", seeds]


def _settings(entry: Entry) -> list[str]:
    try:
        defaults = load_installed(entry.method).options({}).model_dump(mode="json")
    except InputError:  # not installed here, or it has no complete defaults: all are named
        defaults = {}
    words = []
    for name, value in entry.hyperparameters.items():
        if name in defaults and defaults[name] == value:
            continue
        if name in FLAGS:
            words += [FLAGS[name], str(value)]
        else:
            words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return words
