"""Drafts of submissions: from the folder of a run, or from posterior files that any tool wrote."""

from __future__ import annotations

import inspect
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsvi_bench
from fsvi_bench.arithmetic import KERNELS_VARIABLE, PORTABLE, arithmetic
from fsvi_bench.errors import InputError, plain, quoted, unknown_name
from fsvi_bench.files import canonical_json, is_directory
from fsvi_bench.leaderboard.submitting import Draft, DraftCell, MethodSource, as_line, require_whole
from fsvi_bench.methods.registry import MethodEntry, load_installed, load_method, method_names
from fsvi_bench.posteriors.base import KIND_OF, Family
from fsvi_bench.posteriors.io import read_posterior
from fsvi_bench.running.archive import read_archive
from fsvi_bench.running.cell import Record
from fsvi_bench.running.cell_files import load_posterior
from fsvi_bench.running.grid import decisive_sha256
from fsvi_bench.running.provenance import machine_words
from fsvi_bench.running.settings import setting, setting_words
from fsvi_bench.tasks.official import Place, TaskSet

WORK = ("likelihood_rows", "measurement_rows", "function_samples")


@dataclass(frozen=True)
class Choice:
    """Which of a run's methods, families and settings is meant; None and empty where there is only one."""

    method: str | None = None
    family: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def draft_from_run(
    root: Path, tasks: TaskSet, choice: Choice, source: str | None = None, *, allow_other_sources: bool = False
) -> Draft:
    """The cells of one method in a run's folder, with seed 0 and on official tasks.

    Args:
        source: `path/file.py:Class`, for a method that came from a file; it is run, being the submitter's own.
        allow_other_sources: submit, and say so in the notes, though the package's sources are not those of the run.

    Raises:
        InputError: nothing there fits, several things do, official splits are missing, or the sources are others than
            those that were run.
    """
    records = _chosen(root, tasks, choice)
    first = next(iter(records.values()))
    entry = _entry(first, source)
    remark = _require_made_by(entry, records, source, root, allow_other_sources)
    command = _command(first, entry, source, root)
    left_out = require_whole(
        set(records), tasks, lambda dataset, splits: f"run them with: {command(dataset, splits)}, then submit again"
    )
    return Draft(
        method=first.method,
        family=first.family,
        hyperparameters=first.hyperparameters,
        budget=_budget(records, entry, tasks),
        source=_method_source(entry),
        cells={place: _cell(record, root, tasks, scored=not remark) for place, record in records.items()},
        title=as_line(entry.defaults.title),
        hardware=_machines(records.values()),
        left_out=left_out,
        remark=remark,
    )


def _machines(records: Iterable[Record]) -> str:
    """All that the cells ran on; as words of a program alone, since each is cut to the length of a line."""
    return "; ".join(dict.fromkeys(as_line(machine_words(record.provenance)) for record in records))


def _require_made_by(
    entry: MethodEntry, records: Mapping[Place, Record], source: str | None, root: Path, allow: bool
) -> str:
    """What is to be said of a source that goes with results of other sources; empty if it made them itself.

    Raises:
        InputError: it did not, and that is not allowed.
    """
    made_by = {record.code_sha256 for record in records.values()}
    if made_by <= _hashes(entry):
        if len(made_by) > 1 and not allow:
            raise InputError(
                f"{root}: some cells of {entry.name} were made with other kernels of torch than others, expected one "
                "set, since a submission is run again with one; run those of one set again (fsvi-bench status says "
                f"which are stale under the present {KERNELS_VARIABLE}), or give --allow-other-sources"
            )
        return "" if len(made_by) == 1 else "Its cells were made with several sets of kernels of torch."
    if allow:
        return (
            f"Run with other sources of {entry.name} or of fsvi-bench than those of version {fsvi_bench.__version__}, "
            "with which it was submitted, or with kernels of torch chosen by hand."
        )
    what = source if source is not None else entry.name
    # A record has one hash of the method's file and of the package's sources together: which of them is not known.
    raise InputError(
        f"{what} as it is now is not what made these results: its file, or fsvi-bench itself, is another since, or "
        "kernels were chosen by other switches than those set now; set them as they were, or run it again (fsvi-bench"
        f" run --method {shlex.quote(what)} ... --out {shlex.quote(str(root))}), then submit, or "
        "give --allow-other-sources, which submits them all the same and says so in the notes"
    )


def _chosen(root: Path, tasks: TaskSet, choice: Choice) -> dict[Place, Record]:
    """Records by place of the one method, family and settings that a choice leaves."""
    official = {task.sha256 for task in tasks.tasks.values()}
    archive = read_archive(root)
    if not (records := [r for r in archive.records if r.seed == 0 and r.task_sha256 in official]):
        raise InputError(
            f"no cell in {root} is of an official task with seed 0 (official data sets: "
            f"{', '.join(tasks.datasets) or 'none yet'}); run on those, without --task and --seeds"
        )
    groups: dict[tuple[str, str, str], dict[Place, Record]] = {}
    for record in records:
        key = (record.method, record.family, canonical_json(record.hyperparameters))
        groups.setdefault(key, {})[record.dataset, record.split] = record
    fitting = [group for group in groups.values() if _fits(next(iter(group.values())), choice)]
    if len(fitting) == 1:
        return fitting[0]
    shown = [next(iter(group.values())) for group in fitting or groups.values()]
    what = "several things fit" if fitting else "nothing fits"
    raise InputError(
        f"{root}: {what}; choose one of these with --method, --family and --set: {'; '.join(_labels(shown))}"
    )


def _fits(record: Record, choice: Choice) -> bool:
    named = (choice.method in (None, record.method)) and (choice.family in (None, record.family))
    missing = object()
    return named and all(record.hyperparameters.get(name, missing) == value for name, value in choice.settings.items())


def _labels(records: Sequence[Record]) -> list[str]:
    """Method, family, and the settings in which those of one method differ."""
    labels = []
    for record in records:
        alike = [r for r in records if (r.method, r.family) == (record.method, record.family)]
        differing = {
            name: value
            for name, value in record.hyperparameters.items()
            if any(other.hyperparameters.get(name) != value for other in alike)
        }
        settings = "".join(f" --set {shlex.quote(setting(name, value))}" for name, value in differing.items())
        labels.append(f"--method {record.method} --family {record.family}{settings}")
    return labels


def _entry(record: Record, source: str | None) -> MethodEntry:
    if source is None:
        if record.method not in method_names():
            raise InputError(
                f"{record.method} is no installed method, so its file must be named; give --source path/file.py:"
                f"{record.method}"
            )
        return load_installed(record.method)
    entry = load_method(source)
    if entry.name != record.method:
        raise InputError(f"--source {source} is {entry.name}, but the run's method is {record.method}; name its class")
    return entry


def _hashes(entry: MethodEntry) -> set[str]:
    """What its cells' `code_sha256` may be, with each set of kernels: a submission's manifest says which."""
    return {decisive_sha256(entry.code_sha256, kernels) for kernels in ({}, PORTABLE, arithmetic())}


def _method_source(entry: MethodEntry) -> MethodSource:
    path = Path(inspect.getfile(entry.cls))
    text = path.read_bytes() if entry.source is None else entry.source
    return MethodSource(_file_name(path), entry.cls.__name__, text)


def _file_name(path: Path | str) -> str:
    """As a module's."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", Path(path).stem)[:60]
    return f"{name if name[:1].isalpha() else f'm{name}'}.py"


def _command(record: Record, entry: MethodEntry, source: str | None, root: Path) -> Any:
    """Writes the command that would run splits of a data set with a record's settings and kernels."""
    defaults = entry.options({}).model_dump(mode="json")
    chosen = {name: value for name, value in record.hyperparameters.items() if defaults.get(name) != value}
    words = ["--method", source or record.method, "--family", record.family, *setting_words(chosen)]
    portable = record.code_sha256 == decisive_sha256(entry.code_sha256, PORTABLE)
    kernels = f"{KERNELS_VARIABLE}=portable " if portable else ""

    def command(dataset: str, splits: list[int]) -> str:
        which = ["--dataset", dataset, "--splits", ",".join(map(str, splits))]
        return kernels + shlex.join(["fsvi-bench", "run", *which, *words, "--out", str(root)])

    return command


def _budget(records: Mapping[Place, Record], entry: MethodEntry, tasks: TaskSet) -> dict[str, Any]:
    """Steps as the method counts them itself, and the most that any cell took of the rest."""
    seconds = [record.seconds.batch_train for record in records.values() if record.seconds is not None]
    work = [record.work or {} for record in records.values()]
    # A cell alone takes no longer than the batch that it was trained in.
    budget: dict[str, Any] = {
        "steps": _steps(records, entry, tasks),
        "seconds": rounded_up(max([1.0, *seconds])),
    }
    for name in WORK:
        if amounts := [each[name] for each in work if name in each]:
            budget[name] = max(amounts)
    return budget


def rounded_up(value: float) -> float:
    """To two digits, upwards: 123.4 -> 130."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(round(value / unit, 9)) * unit:.2g}")


def _steps(records: Mapping[Place, Record], entry: MethodEntry, tasks: TaskSet) -> int:
    """The most steps over data sets: what the method says of itself before it is trained.

    Raises:
        InputError: no cell was trained, or the method cannot be made for one that was.
    """
    first_of = {place[0]: place for place in reversed(list(records)) if records[place].status != "failed"}
    if not first_of:
        raise InputError(f"every cell of {entry.name} failed, so there is nothing to submit; mend it and run it again")
    options = entry.options(next(iter(records.values())).hyperparameters)
    counts = []
    for place in first_of.values():
        try:
            counts.append(entry.cls(tasks.problem(place), records[place].family, [0], options).num_steps)
        except Exception as error:
            raise InputError(
                f"{entry.name} cannot be made for {place[0]} split {place[1]} now ({type(error).__name__}: "
                f"{plain(str(error))}), so that its steps are not known; run it again, then submit"
            ) from error
    return max(counts)


def _cell(record: Record, root: Path, tasks: TaskSet, *, scored: bool) -> DraftCell:
    if record.status != "ok" or record.scores is None:
        return DraftCell(record.status, record.reason)
    posterior = load_posterior(record, root, tasks.tasks[record.dataset, record.split])
    if posterior.kind != KIND_OF[record.family]:
        raise InputError(
            f"{record.method} gives a posterior of kind {posterior.kind}, expected {KIND_OF[record.family]} for the "
            f"family {record.family}: only those have scores that are no estimates"
        )
    return DraftCell("ok", None, posterior, record.scores.kl, record.scores.predictive_kl_box, scored)


def draft_from_files(
    folder: Path, tasks: TaskSet, method: str, family: Family, budget: Mapping[str, Any], *,
    hyperparameters: Mapping[str, Any], source: str | None = None,
) -> Draft:  # fmt: skip
    """Posterior files `<data set>/split-NN.safetensors` of any tool; nothing is claimed of them, they are scored later.

    Args:
        source: `path/file.py:Class`; the file is read, not run.

    Raises:
        InputError: a file does not belong there, is not a posterior of the family and task, or official splits of a
            data set are missing.
    """
    files = _posterior_files(folder, tasks)
    left_out = require_whole(
        set(files), tasks, lambda dataset, splits: f"add {folder}/{dataset}/split-{splits[0]:02d}.safetensors and so on"
    )
    posteriors = {}
    for place, path in files.items():
        posteriors[place] = read_posterior(path, tasks.tasks[place].k, tasks.tasks[place].sha256)
        if posteriors[place].kind != KIND_OF[family]:
            raise InputError(
                f"{path}: kind: got {quoted(posteriors[place].kind)}, expected {quoted(KIND_OF[family])} for the "
                f"family {family}; correct the family or the file"
            )
    cells = {place: DraftCell("ok", None, q, file=str(files[place])) for place, q in posteriors.items()}
    text = None if source is None else _named_source(source)
    return Draft(method, family, hyperparameters, budget, text, cells, as_line(method), None, left_out)


def _posterior_files(folder: Path, tasks: TaskSet) -> dict[Place, Path]:
    """The files by place; hidden ones are passed over."""
    if not is_directory(folder):
        raise InputError(f"there is no folder {folder}; name the one that holds <data set>/split-00.safetensors")
    files = {}
    for path in sorted(path for path in folder.rglob("*") if not path.name.startswith(".") and not path.is_dir()):
        dataset = path.parent.name
        found = re.fullmatch(r"split-([0-9]{2})\.safetensors", path.name)
        if path.parent.parent != folder or found is None:
            name = quoted(path.relative_to(folder).as_posix())
            raise InputError(f"{folder} holds {name}, expected <data set>/split-NN.safetensors alone; move it away")
        if dataset not in tasks.datasets:
            raise unknown_name("official data set", dataset, tasks.datasets)
        if (dataset, int(found[1])) not in tasks.tasks:
            raise InputError(f"{path}: {dataset} has no official split {int(found[1])}; move the file away")
        files[dataset, int(found[1])] = path
    if not files:
        raise InputError(f"{folder} holds no posterior; expected <data set>/split-00.safetensors and so on")
    return files


def _named_source(source: str) -> MethodSource:
    """A file that is read alone: whoever verifies it runs it, where it can do no harm."""
    path, _, name = source.rpartition(":")
    if not path.endswith(".py"):
        raise InputError(f"--source {quoted(source)} is not path/file.py:Class; name both")
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return MethodSource(_file_name(path), name, text)
