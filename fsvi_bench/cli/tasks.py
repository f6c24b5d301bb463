"""`fsvi-bench tasks build|verify|show|export`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group
from rich.table import Table

from fsvi_bench.cli.commands import TasksBuild, TasksExport, TasksShow, TasksVerify
from fsvi_bench.cli.console import show, stderr
from fsvi_bench.errors import InputError, unknown_name
from fsvi_bench.files import require_writable_directory
from fsvi_bench.presenting.tables import facts
from fsvi_bench.tasks.build import load_cached, verification
from fsvi_bench.tasks.card import ToySource, card_names, load_card
from fsvi_bench.tasks.certificate import Certificate, CertifiedTask, certify, save
from fsvi_bench.tasks.export import export_task, split_path
from fsvi_bench.tasks.official import Source, official_path, official_splits, sources
from fsvi_bench.tasks.refit import Refit
from fsvi_bench.tasks.sets import write_set
from fsvi_bench.tasks.splits import ranges
from fsvi_bench.tasks.task import bind_task
from fsvi_bench.threads import use_one_thread


def tasks_build(options: TasksBuild) -> int:
    # These imports take seconds, and the other commands do not need them.
    from fsvi_bench.cli.progress import RichProgress
    from fsvi_bench.running.executors import LocalExecutor, available_cores
    from fsvi_bench.running.options import Request
    from fsvi_bench.running.plan import chosen_splits
    from fsvi_bench.running.runner import fit_missing, refit_official, require_data

    out = options.out
    if options.check == (out is not None):
        raise InputError(
            "tasks build needs either --out FOLDER, to write tasks, or --check, to compare without writing; give one"
        )
    if options.check and options.as_set:
        raise InputError("--as-set writes files, but --check writes none; drop one of them")
    splits = options.splits or ("0" if options.check else None)
    chosen = chosen_splits(Request(datasets=options.datasets, splits=splits))
    executor, progress = LocalExecutor(options.workers or available_cores()), RichProgress()
    if out is None:
        with progress:
            refits = refit_official(chosen, executor, options.data_dir, progress)
        return _print_refits(refits)
    if options.as_set:
        _require_sets(chosen)
    require_data(chosen, options.data_dir)
    require_writable_directory(out, "output folder", "choose another with --out")
    with progress:
        _, refusals = fit_missing(chosen, executor, options.data_dir, progress)
    built: dict[str, list[CertifiedTask]] = {}
    for place in chosen:
        if place in refusals:
            continue
        if (cached := load_cached(load_card(place[0]), place[1])) is None:
            refusals[place] = "its file in the cache was removed or damaged after it was fitted; run the command again"
        else:
            built.setdefault(place[0], []).append(cached)
    incomplete = {name for name, _ in refusals} if options.as_set else set()
    for name in (name for name in built if name not in incomplete):
        print(*_write(name, built[name], out, options.as_set), sep="\n")
    for (name, split), reason in refusals.items():
        stderr.print(f"{name} split {split}: {reason}", style="red")
    return 1 if refusals else 0


def _require_sets(chosen: Sequence[tuple[str, int]]) -> None:
    """Raises InputError if the splits of a data set cannot be in one file."""
    for name in dict(chosen):
        splits = [split for dataset, split in chosen if dataset == name]
        if splits != list(range(len(splits))):
            raise InputError(
                f"--as-set needs the first splits of a data set, got {name} with {ranges(splits)}; pass --splits 0-9, "
                "for example"
            )
        if isinstance(load_card(name).source, ToySource) and len(splits) > 1:
            raise InputError(f"each split of {name} has its own data, so one file cannot have several; drop --as-set")


def _write(dataset: str, members: Sequence[CertifiedTask], out: Path, as_set: bool) -> list[Path]:
    """Writes the tasks of a data set, and returns the paths of their files."""
    if as_set:
        write_set(path := official_path(dataset, out), members)
        return [path]
    paths = [split_path(out, dataset, member.task.split) for member in members]
    for member, path in zip(members, paths, strict=True):
        save(member, path)
    return paths


def _print_refits(refits: dict[tuple[str, int], Refit | str]) -> int:
    """Prints how far the refits are from the frozen tasks, and returns the exit status."""
    for (name, split), found in refits.items():
        if isinstance(found, str):
            stderr.print(f"{name} split {split}: {found}", style="red")
        else:
            print(*_refit_lines(found), sep="\n")
    return 0 if all(not isinstance(found, str) and found.holds for found in refits.values()) else 1


def _refit_lines(refit: Refit) -> Iterator[str]:
    """Lines on the refit of an official task: the verdict, then each quantity in both fits with its tolerance."""
    agrees = "agrees with" if refit.holds else "DIFFERS from"
    verdict = "is identical to the official task" if refit.identical else f"{agrees} the official task"
    yield f"{refit.dataset} split {refit.split}: the refit {verdict}"
    for d in refit.distances:
        exceeded = "" if d.holds else " (exceeded)"
        yield (
            f"    {d.what}: official {d.frozen:.6f}, refitted {d.refitted:.6f}; "
            f"difference {d.apart:.2g} {d.unit}, tolerance {d.tolerance:g}{exceeded}"
        )
    if refit.other_versions:
        yield f"    fitted with other versions: {'; '.join(refit.other_versions)}"


def tasks_verify(options: TasksVerify) -> int:
    use_one_thread()
    named, differences, unreadable = _sources(options.tasks), [], 0
    for source in named:
        try:
            task, stored = source.read()
            difference, wrong = verification(task, stored, options.data_dir)
        except InputError as error:
            if len(named) == 1:
                raise
            unreadable += 1
            stderr.print(str(error), style="red")
            continue
        for line in wrong:
            stderr.print(f"{source}: {line}", style="red")
        if not wrong:
            against = "certificate holds" if stored else "no stored certificate; limits hold"
            print(f"{source}: {against} (two computations of the posterior agree to {difference:.1e})")
            differences.append(difference)
    if len(named) > 1:
        least = (
            f"; the two computations of each posterior agree to {max(differences):.1e} or better" if differences else ""
        )
        print(f"{len(differences)} of {len(named)} hold{least}")
    return 2 if unreadable else int(len(differences) < len(named))


def tasks_show(options: TasksShow) -> None:
    found = [(source, *source.read()) for source in _sources(options.tasks)]
    certificates = [stored or certify(bind_task(task, options.data_dir)) for _, task, stored in found]
    tables = (_certificate_table(str(each[0]), shown) for each, shown in zip(found, certificates, strict=True))
    show(options.as_json, certificates, lambda: Group(*tables))


def _certificate_table(name: str, c: Certificate) -> Table:
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
        lines["final gradient"] = f"{fit.gradient_norm:.3g} (largest component)"
        if (start := fit.start) is not None:
            where = f"the exact GP of {start.rows:,} rows ({start.evidence_per_row:+.5f} nats per row, "
            where += f"{start.iterations} iterations{'' if start.converged else ', not converged'})"
            lines["start"] = where if start.used else f"as set, which was better than {where}"
    return facts(lines, name)


def tasks_export(options: TasksExport) -> None:
    use_one_thread()
    # Reads all tasks before it writes anything.
    for task, certificate in [source.read() for source in _sources(options.tasks, options.splits)]:
        print(export_task(task, certificate, options.out, options.form, options.data_dir))


def _sources(names: Sequence[str], splits: str | None = None) -> list[Source]:
    """The named tasks, in this order; all official ones if there are no names.

    Certificates are skipped, so that `FOLDER/*` can be given.
    """
    chosen = names or [name for name in card_names() if official_splits(name)]
    if not chosen:
        raise InputError(
            "this installation has no official tasks; build tasks with `fsvi-bench tasks build --dataset NAME --out "
            "tasks`, and name the files it writes"
        )
    tasks = [name for name in chosen if not name.endswith(".certificate.json")]
    if not tasks:
        raise InputError(
            f"{chosen[0]} is a certificate, expected a task; name the .safetensors file in the same folder"
        )
    if splits is not None:
        if any(name.endswith(".safetensors") or ":" in name for name in tasks):
            raise InputError("--splits applies to data sets, but a task is one split; drop --splits or name a data set")
        if others := [name for name in tasks if name not in card_names()]:
            raise unknown_name("data set", others[0], card_names())
        tasks = [f"{name}:{splits}" for name in tasks]
    return [source for name in tasks for source in sources(name)]
