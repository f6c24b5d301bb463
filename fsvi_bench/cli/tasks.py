"""`fsvi-bench tasks build|verify|show|export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.cli.options import AsJson, DataDir, Workers
from fsvi_bench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from fsvi_bench.tasks.certificate import Certificate
    from fsvi_bench.tasks.official import Source
    from fsvi_bench.tasks.refit import Refit

app = typer.Typer(no_args_is_help=True, help="Frozen tasks: fit them, check them, look at them.")
WHAT = "Task files (fsvi-task/1), folders of them, data sets that have official tasks, or one of these (boston:0)."


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
    from fsvi_bench.files import require_writable_directory
    from fsvi_bench.running.executors import LocalExecutor, available_cores
    from fsvi_bench.running.options import Request
    from fsvi_bench.running.plan import Plan, chosen_splits
    from fsvi_bench.running.prepare import fit_missing, refit_official, require_data
    from fsvi_bench.tasks.build import load_cached
    from fsvi_bench.tasks.card import load_card
    from fsvi_bench.tasks.certificate import save
    from fsvi_bench.tasks.export import split_path

    if check == (out is not None):
        raise InputError("tasks build takes either --out FOLDER, which it writes to, or --check, which writes nothing")
    chosen = chosen_splits(Request(datasets=dataset or (), splits=splits or ("0" if check else None)))
    executor, progress = LocalExecutor(workers or available_cores()), RichProgress()
    if out is None:
        with progress:
            refits = refit_official(chosen, executor, data_dir, progress)
        return _print_refits(refits)
    require_data(Plan(splits=chosen, tasks=(), variants=()), data_dir)
    require_writable_directory(out, "output folder", "choose another with --out")
    with progress:
        refusals = fit_missing(chosen, executor, data_dir, progress)
    for name, split in chosen:
        cached = None if (name, split) in refusals else load_cached(load_card(name), split)
        if cached is not None:
            save(cached, path := split_path(out, name, split))
            stdout.print(str(path), soft_wrap=True)
    for (name, split), reason in refusals.items():
        stderr.print(f"{name} split {split}: {reason}", style="red")
    return 1 if refusals else 0


def _print_refits(refits: dict[tuple[str, int], Refit | str]) -> int:
    """Says how far from the frozen tasks the second fits end; the exit status."""
    from fsvi_bench.cli.console import stderr, stdout

    for (name, split), found in refits.items():
        if isinstance(found, str):
            stderr.print(f"{name} split {split}: {found}", style="red")
        else:
            stdout.print("\n".join(_refit_lines(found)), soft_wrap=True)
    return 0 if all(not isinstance(found, str) and found.holds for found in refits.values()) else 1


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
    from fsvi_bench.tasks.build import verification
    from fsvi_bench.threads import use_one_thread

    use_one_thread()
    named, farthest, unreadable = _sources(tasks), [], 0
    for source in named:
        try:
            task, stored = source.read()
        except InputError as error:
            if len(named) == 1:
                raise
            unreadable += 1
            stderr.print(str(error), style="red")
            continue
        difference, wrong = verification(task, stored, data_dir)
        for line in wrong:
            stderr.print(f"{source}: {line}", style="red")
        if not wrong:
            against = "certificate holds" if stored else "no certificate beside it; limits hold"
            stdout.print(f"{source}: {against} (posterior computed twice agrees to {difference:.1e})", soft_wrap=True)
            farthest.append(difference)
    if len(named) > 1:
        least = f"; posteriors computed twice agree to {max(farthest):.1e} or better" if farthest else ""
        stdout.print(f"{len(farthest)} of {len(named)} hold{least}")
    return 2 if unreadable else int(len(farthest) < len(named))


@app.command()
def show(tasks: Annotated[list[str], typer.Argument(help=WHAT)], data_dir: DataDir = None, json: AsJson = False) -> int:
    """What a task holds, and what its certificate says."""
    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.tasks.certificate import certify
    from fsvi_bench.tasks.official import Source
    from fsvi_bench.tasks.task import bind_task

    certificates, named = [], _sources(tasks)
    for task, stored in map(Source.read, named):
        certificates.append(stored or certify(bind_task(task, data_dir)))
    if json:
        print_json(certificates)
        return 0
    for source, certificate in zip(named, certificates, strict=True):
        stdout.print(_certificate_table(str(source), certificate))
    return 0


def _certificate_table(name: str, c: Certificate) -> Table:
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
    return facts(lines, name)


@app.command()
def export(
    out: Annotated[Path, typer.Option("--out", help="Folder; files go to OUT/<data set>/split-00.npz.")],
    tasks: Annotated[list[str] | None, typer.Argument(help=f"{WHAT} Default: all official tasks.")] = None,
    splits: Annotated[str | None, typer.Option("--splits", help="0-19 or 0,3,5, of data sets; default: all.")] = None,
    form: Annotated[str, typer.Option("--format", help="npz or safetensors; or task: the frozen task itself (fsvi-task/1) with its certificate.")] = "npz",
    data_dir: DataDir = None,
) -> int:  # fmt: skip
    """Write what a method may see of each task (training rows, features, noise), for tools that are not Python."""
    from fsvi_bench.cli.console import stdout
    from fsvi_bench.tasks.export import export_task
    from fsvi_bench.threads import use_one_thread

    use_one_thread()
    # All are read before anything is written.
    for task, certificate in [source.read() for source in _sources(tasks, splits)]:
        stdout.print(str(export_task(task, certificate, out, form, data_dir)), soft_wrap=True)
    return 0


def _sources(names: Sequence[str] | None, splits: str | None = None) -> list[Source]:
    """The tasks that are named, in that order; all official ones if none is.

    Certificates that lie beside tasks are left out, so that a folder's `*` can be given.
    """
    from fsvi_bench.tasks.card import card_names
    from fsvi_bench.tasks.official import official_splits, sources

    chosen = names or [name for name in card_names() if official_splits(name)]
    if not chosen:
        raise InputError(
            "this installation has no official tasks; build tasks with `fsvi-bench tasks build --dataset NAME --out "
            "tasks`, and give the files that it writes"
        )
    tasks = [name for name in chosen if not name.endswith(".certificate.json")]
    if not tasks:
        raise InputError(f"{chosen[0]} is a certificate, and no task is named; name the .safetensors file beside it")
    if splits is not None:
        if any(name.endswith(".safetensors") or ":" in name for name in tasks):
            raise InputError("--splits has no meaning with a task file, which is one split; drop one of the two")
        tasks = [f"{name}:{splits}" for name in tasks]
    return [source for name in tasks for source in sources(name)]
