"""`fsvi-bench tasks build|verify|show|export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.cli.options import AsJson, DataDir, Workers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from fsvi_bench.tasks.certificate import Certificate
    from fsvi_bench.tasks.frozen import FrozenTask
    from fsvi_bench.tasks.refit import Refit

app = typer.Typer(no_args_is_help=True, help="Frozen tasks: fit them, check them, look at them.")
WHAT = "Task files (fsvi-task/1), folders of them, or data sets that have official tasks."


@app.command()
def build(
    out: Annotated[Path | None, typer.Option("--out", help="Folder; files go to OUT/<data set>/split-00.safetensors.")] = None,
    dataset: Annotated[list[str] | None, typer.Option("--dataset", help="Data set; may be repeated. Default: diabetes.")] = None,
    splits: Annotated[str | None, typer.Option("--splits", help="0-19 or 0,3,5; default: all, with --check 0.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing: fit again, compare with the official task. Status 1 if it departs.")] = False,
    workers: Workers = None,
    data_dir: DataDir = None,
) -> int:  # fmt: skip
    """Fit the sparse GP of each split (or take it from the cache) and write task and certificate."""
    from fsvi_bench.cli.console import stderr, stdout
    from fsvi_bench.cli.progress import RichProgress
    from fsvi_bench.errors import InputError
    from fsvi_bench.files import require_writable_directory
    from fsvi_bench.running.executors import LocalExecutor, available_cores
    from fsvi_bench.running.options import Request
    from fsvi_bench.running.plan import Plan, chosen_splits
    from fsvi_bench.running.prepare import fit_missing, require_data
    from fsvi_bench.tasks.build import load_cached
    from fsvi_bench.tasks.card import load_card
    from fsvi_bench.tasks.certificate import save

    if check == (out is not None):
        raise InputError("tasks build takes either --out FOLDER, which it writes to, or --check, which writes nothing")
    chosen = chosen_splits(Request(datasets=dataset or (), splits=splits or ("0" if check else None)))
    if out is None:
        return _check(chosen, workers, data_dir)
    require_data(Plan(splits=chosen, tasks=(), variants=()), data_dir)
    require_writable_directory(out, "output folder", "choose another with --out")
    with RichProgress() as progress:
        refusals = fit_missing(chosen, LocalExecutor(workers or available_cores()), data_dir, progress)
    for name, split in chosen:
        cached = None if (name, split) in refusals else load_cached(load_card(name), split)
        if cached is not None:
            path = out / name / f"split-{split:02d}.safetensors"
            save(cached, path)
            stdout.print(str(path), soft_wrap=True)
    for (name, split), reason in refusals.items():
        stderr.print(f"{name} split {split}: {reason}", style="red")
    return 1 if refusals else 0


def _check(chosen: Sequence[tuple[str, int]], workers: int | None, data_dir: Path | None) -> int:
    """Fits official tasks again and says how far from the frozen ones that ends."""
    from fsvi_bench.cli.console import stderr, stdout
    from fsvi_bench.cli.progress import RichProgress
    from fsvi_bench.running.executors import LocalExecutor, available_cores
    from fsvi_bench.running.prepare import refit_official

    with RichProgress() as progress:
        refits = refit_official(chosen, LocalExecutor(workers or available_cores()), data_dir, progress)
    departed = False
    for (name, split), found in refits.items():
        if isinstance(found, str):
            stderr.print(f"{name} split {split}: {found}", style="red")
            departed = True
            continue
        departed = departed or not found.holds
        for line in _refit_lines(found):
            stdout.print(line, soft_wrap=True)
    return 1 if departed else 0


def _refit_lines(refit: Refit) -> Iterator[str]:
    """What became of a second fit of an official task: the verdict, then each quantity of both with its tolerance."""
    agrees = "agrees with" if refit.holds else "DEPARTS from"
    verdict = "is the official task, to the last bit" if refit.identical else f"{agrees} the official task"
    yield f"{refit.dataset} split {refit.split}: the refit {verdict}"
    for d in refit.distances:
        exceeded = "" if d.holds else ", which is exceeded"
        yield (
            f"    {d.what}: official {d.frozen:.6f}, refitted {d.refitted:.6f}; "
            f"{d.apart:.2g} {d.unit} apart, tolerance {d.tolerance:g}{exceeded}"
        )
    if refit.other_versions:
        yield f"    fitted with other versions: {'; '.join(refit.other_versions)}"


@app.command()
def verify(
    tasks: Annotated[list[str] | None, typer.Argument(help=f"{WHAT} Default: all official tasks.")] = None,
    data_dir: DataDir = None,
) -> int:  # fmt: skip
    """Re-derive each task's certificate from the file and the raw data, and compare with the one beside it.

    Of several, one that does not hold (status 1), or cannot be read at all (status 2), does not keep the others from
    being verified.
    """
    from fsvi_bench.cli.console import stderr, stdout
    from fsvi_bench.errors import InputError, TaskRefused
    from fsvi_bench.running.executors import use_one_thread
    from fsvi_bench.tasks.build import departures
    from fsvi_bench.tasks.certificate import certify, differences, read_certified
    from fsvi_bench.tasks.task import bind_task

    use_one_thread()
    paths, farthest, unreadable = _task_paths(tasks or []), [], 0
    for path in paths:
        try:
            task, stored = read_certified(path)
        except InputError as error:
            if len(paths) == 1:
                raise
            unreadable += 1
            stderr.print(str(error), style="red")
            continue
        try:
            fresh = certify(bind_task(task, data_dir), stored.fit if stored else None)
            fresh.require_limits()
            wrong = departures(task, data_dir) + (differences(stored, fresh) if stored else [])
        except TaskRefused as error:
            wrong = [str(error)]
        for line in wrong:
            stderr.print(f"{path}: {line}", style="red")
        if not wrong:
            against = "certificate holds" if stored else "no certificate beside it; limits hold"
            farthest.append(fresh.largest_difference())
            agreement = f"posterior computed twice agrees to {farthest[-1]:.1e}"
            stdout.print(f"{path}: {against} ({agreement})", soft_wrap=True)
    if len(paths) > 1:
        least = f"; posteriors computed twice agree to {max(farthest):.1e} or better" if farthest else ""
        stdout.print(f"{len(farthest)} of {len(paths)} hold{least}")
    if unreadable:
        return 2
    return 0 if len(farthest) == len(paths) else 1


@app.command()
def show(tasks: Annotated[list[str], typer.Argument(help=WHAT)], data_dir: DataDir = None, json: AsJson = False) -> int:
    """What a task holds, and what its certificate says."""
    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.tasks.certificate import certify, read_certified
    from fsvi_bench.tasks.task import bind_task

    paths, certificates = _task_paths(tasks), []
    for path in paths:
        task, stored = read_certified(path)
        certificates.append(stored or certify(bind_task(task, data_dir)))
    if json:
        print_json(certificates)
        return 0
    for path, certificate in zip(paths, certificates, strict=True):
        stdout.print(_certificate_table(path, certificate))
    return 0


def _certificate_table(path: Path, c: Certificate) -> Table:
    from fsvi_bench.presenting.tables import facts

    lines = {
        "data set": f"{c.dataset} split {c.split}",
        "task SHA-256": c.task_sha256,
        "training points, features": f"N = {c.N}, k = {c.k}",
        "noise variance, jitter": f"{c.noise_variance:.6g}, {c.jitter:g}",
        "log evidence": f"{c.log_evidence:.10g} nats",
        "collapsed bound": f"{c.bound:.10g} nats ({c.bound / c.N:+.5f} per point)",
        "condition of k(Z,Z) + jitter": f"{c.condition_inducing:.3g}",
        "condition of the precision": f"{c.condition_precision:.3g}",
    }
    for check in c.posterior_checks:
        kl = "" if check.kl is None else f", KL {check.kl:.1e}"
        apart = (
            f"mean to {check.mean_relative_difference:.1e}, covariance to {check.covariance_relative_difference:.1e}"
        )
        lines[f"exact posterior by {check.method}"] = apart + kl
    if (fit := c.fit) is not None:
        lines["fit"] = f"{fit.iterations} iterations, {fit.evaluations} evaluations, {fit.seconds:.1f} s: {fit.message}"
        lines["gradient at the end"] = f"{fit.gradient_norm:.3g} (largest component)"
    return facts(lines, str(path))


def _task_paths(names: list[str]) -> list[Path]:
    """Files, those of folders and of data sets, in the order named; all official ones if nothing is.

    Certificates that lie beside tasks are left out, so that a folder's `*` can be given.
    """
    from fsvi_bench.errors import InputError
    from fsvi_bench.tasks.card import card_names
    from fsvi_bench.tasks.official import official_path, official_splits

    if not names:
        return [official_path(name, split) for name in card_names() for split in official_splits(name)]
    paths: list[Path] = []
    for name in names:
        if name.endswith(".certificate.json"):
            continue
        # What lies here goes before an official task set of the same name.
        official = name in card_names() and not Path(name).exists()
        paths += [official_path(name, split) for split in _splits(name)] if official else _of_path(name)
    if not paths:
        raise InputError(f"{names[0]} is a certificate, and no task is named; name the .safetensors file beside it")
    return paths


def _of_path(name: str) -> list[Path]:
    """A file by itself, a folder by the tasks in it and beneath it."""
    from fsvi_bench.errors import InputError, unknown_name
    from fsvi_bench.files import is_directory, is_file
    from fsvi_bench.tasks.card import card_names

    path = Path(name)
    if is_directory(path):
        if not (found := sorted(path.rglob("*.safetensors"))):
            raise InputError(
                f"no task lies in {path}, whose files end in .safetensors; name the folder that holds them"
            )
        return found
    if not is_file(path) and path.name == name and not path.suffix:
        raise unknown_name("task file, folder or data set", name, card_names())
    return [path]


@app.command()
def export(
    out: Annotated[Path, typer.Option("--out", help="Folder; files go to OUT/<data set>/split-00.npz.")],
    tasks: Annotated[list[str] | None, typer.Argument(help="Task files, or data sets that have official tasks. Default: all official tasks.")] = None,
    splits: Annotated[str | None, typer.Option("--splits", help="0-19 or 0,3,5, of data sets; default: all.")] = None,
    form: Annotated[str, typer.Option("--format", help="npz or safetensors.")] = "npz",
    data_dir: DataDir = None,
) -> int:  # fmt: skip
    """Write what a method may see of each task (training rows, features, noise), for tools that are not Python."""
    from fsvi_bench.cli.console import stdout
    from fsvi_bench.running.executors import use_one_thread
    from fsvi_bench.tasks.export import export_problem
    from fsvi_bench.tasks.task import bind_task

    use_one_thread()
    for task in _chosen_tasks(tasks or [], splits):
        stdout.print(str(export_problem(bind_task(task, data_dir), out, form)), soft_wrap=True)
    return 0


def _chosen_tasks(names: list[str], splits: str | None) -> list[FrozenTask]:
    """Tasks of files and of data sets, in the order named; each checked before anything is written."""
    from fsvi_bench.errors import InputError
    from fsvi_bench.tasks.card import card_names
    from fsvi_bench.tasks.certificate import read_certified
    from fsvi_bench.tasks.official import official_splits

    files = [name for name in names if name.endswith(".safetensors")]
    if files and splits is not None:
        raise InputError("--splits has no meaning with a task file, which is one split; drop one of the two")
    if not names:
        names = [name for name in card_names() if official_splits(name)]
        if not names:
            raise InputError(_NO_OFFICIAL.format("this installation has no official tasks", "NAME"))
    return [
        task
        for name in names
        for task in ([read_certified(Path(name))[0]] if name in files else _official(name, splits))
    ]


_NO_OFFICIAL = (
    "{0}; build tasks with `fsvi-bench tasks build --dataset {1} --out tasks`, and give the files that it writes"
)


def _splits(dataset: str) -> list[int]:
    """Those that have an official task."""
    from fsvi_bench.errors import InputError
    from fsvi_bench.tasks.card import load_card
    from fsvi_bench.tasks.official import official_splits

    if not (found := official_splits(load_card(dataset).name)):
        raise InputError(_NO_OFFICIAL.format(f"{dataset} has no official tasks", dataset))
    return found


def _official(dataset: str, splits: str | None) -> list[FrozenTask]:
    from fsvi_bench.errors import InputError
    from fsvi_bench.tasks.official import read_official
    from fsvi_bench.tasks.splits import parse_ranges

    found = _splits(dataset)
    chosen = found if splits is None else parse_ranges(splits)
    if missing := [split for split in chosen if split not in found]:
        raise InputError(f"{dataset} has no official task of split {missing[0]}; its splits: {found[0]} to {found[-1]}")
    return [read_official(dataset, split).task for split in chosen]
