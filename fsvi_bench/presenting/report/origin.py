"""Where the numbers come from: versions, hardware, code, tasks, time spent, and the commands that make them again."""

from __future__ import annotations

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    code: dict[str, Counter[str]] = defaultdict(Counter)
    tasks: dict[str, dict[int, str]] = defaultdict(dict)
    for record in records:
        code[record.method][record.code_sha256] += 1
        if record.task_sha256 is not None:
            tasks[record.dataset][record.split] = record.task_sha256
    seconds = [record.seconds for record in records if record.seconds is not None]
    methods = dict.fromkeys(entry.method for entry in study.entries)
    return Origin(
        facts=[_fact(label, [record.provenance.get(name) for record in records]) for name, label in FIELDS.items()],
        code=[(method, sorted(code[method].items())) for method in methods],
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
    variants: dict[tuple[str, ...], dict[str, list[str]]] = defaultdict(dict)
    for entry in study.entries:
        key = (*_where(study, entry), *_settings(entry))
        variants[key].setdefault(entry.method, []).append(entry.family)
    lines = []
    for key, by_method in variants.items():
        shared: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for method, families in by_method.items():
            shared[tuple(dict.fromkeys(families))].append(method)
        for together, methods in shared.items():
            named = [word for method in methods for word in ("--method", _spec(method))]
            named += [word for family in together for word in ("--family", family)]
            lines.append(shlex.join(["fsvi-bench", "run", *named, *key]))
    return lines


def _spec(method: str) -> str:
    """A record knows the name of a method's class, not where its file lay."""
    return method if method in method_names() else f"FILE.py:{method}"


def _where(study: Study, entry: Entry) -> list[str]:
    records = [r for dataset in study.datasets for r in study.records.get((dataset, entry), ())]
    words = [word for name in sorted({r.dataset for r in records}) for word in ("--dataset", name)]
    seeds = ranges({record.seed for record in records})
    return [*words, "--splits", ranges({r.split for r in records}), *(() if seeds == "0" else ("--seeds", seeds))]


def _settings(entry: Entry) -> list[str]:
    own: dict[str, Any] = json.loads(entry.hyperparameters)
    try:
        defaults = load_installed(entry.method).options({}).model_dump(mode="json")
    except InputError:  # not installed here, or it has no complete defaults: all are named
        defaults = {}
    words = []
    for name, value in own.items():
        if name in defaults and defaults[name] == value:
            continue
        if name == "M":
            words += ["--measurement-points", str(value)]
        elif name == "max_steps":
            words += ["--max-steps", str(value)]
        else:
            words += ["--set", f"{name}={json.dumps(value) if not isinstance(value, str) else value}"]
    return words
