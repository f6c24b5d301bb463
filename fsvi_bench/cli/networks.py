"""`fsvi-bench networks list|verify|build`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import cast

from rich.table import Table as Terminal

from fsvi_bench.cli.commands import NetworksBuild, NetworksList, NetworksVerify
from fsvi_bench.cli.console import show, stderr
from fsvi_bench.errors import InputError, TaskRefused, unknown_name
from fsvi_bench.files import require_writable_directory
from fsvi_bench.leaderboard.edition import read_edition, read_secret
from fsvi_bench.leaderboard.network_tasks import ranked_networks
from fsvi_bench.networks.official import departures, load_network, official_networks, official_path
from fsvi_bench.networks.plan import Planned, planned_tasks
from fsvi_bench.networks.reference import Certificate, write_reference
from fsvi_bench.networks.task import build, write_network_task
from fsvi_bench.presenting.tables import Cell, Table, Written
from fsvi_bench.tasks.fetch import cache_dir

LEGEND = (
    "level: C0, checked by quadrature; C1, simulated targets, checked by annealing from an exact draw of the "
    "posterior; C2, two samplers agree, with no further evidence. log Z: log marginal likelihood in nats by SMC "
    "(at C0, by quadrature), with its standard error, and by NUTS, with the p-value of a test that the two "
    "samplers agree on it; p(MMD): that they agree on f. R̂ and effective sample sizes (ESS, the smaller of bulk "
    "and tail): the worst of f (for ESS also f²) at 60 inputs and of log p. min: minutes of one core."
)


def networks_list(options: NetworksList) -> None:
    certificates = [load_network(path).certificate for path in official_networks().values()]
    show(options.as_json, certificates, lambda: _table(certificates))


def _table(certificates: Sequence[Certificate]) -> Terminal:
    columns = ("task", "level", "log Z", "±", "by NUTS", "p", "R̂", "ESS", "p(MMD)", "min")
    table = Table(columns=columns, rows=[_row(each) for each in certificates]).terminal()
    table.caption = LEGEND
    return table


def _row(certificate: Certificate) -> list[Cell]:
    log_z, two = certificate.log_z, certificate.agreement
    return [
        certificate.task,
        certificate.level,
        Written(log_z.value, f"{log_z.value:.2f}"),
        Written(log_z.error, f"{log_z.error:.1g}"),
        Written(two.log_z_nuts.value, f"{two.log_z_nuts.value:.2f}"),
        Written(two.log_z_p, f"{two.log_z_p:.2g}"),
        Written(two.r_hat, f"{two.r_hat:.4f}"),
        round(min(two.ess_bulk, two.ess_tail)),
        Written(two.mmd_p, f"{two.mmd_p:.2g}"),
        Written(certificate.seconds / 60, f"{certificate.seconds / 60:.0f}"),
    ]


def networks_verify(options: NetworksVerify) -> int:
    named, failed, unreadable = options.names or list(official_networks()), 0, 0
    for name in named:
        try:
            wrong = departures(found := load_network(name), options.data_dir)
        except TaskRefused as error:
            wrong = [str(error)]
        except InputError as error:
            if len(named) == 1:
                raise
            unreadable += 1
            stderr.print(str(error), style="red")
            continue
        for line in wrong:
            stderr.print(f"{name}: {line}", style="red")
        if not wrong:
            print(f"{name}: matches its data set, and its certificate ({found.certificate.level}) is within the limits")
        failed += bool(wrong)
    return 2 if unreadable else int(failed > 0)


def networks_build(options: NetworksBuild) -> int:
    try:
        from fsvi_bench.networks.sampling.build import Run, build_reference
    except ModuleNotFoundError as error:
        raise InputError(
            f"sampling needs {error.name}, which is not installed; in the clone, run: "
            "pip install -c constraints.txt -e '.[reference]'"
        ) from error
    # These imports take seconds, and `networks list` does not need them.
    from fsvi_bench.running.executors import LocalExecutor, available_cores

    require_writable_directory(options.out, "output folder", "choose another with --out")
    executor, refused = LocalExecutor(options.workers or available_cores()), 0
    note, run = partial(stderr.print, style="dim"), cast(Run, executor.map)
    if options.secret is not None:
        os.umask(0o077)  # chains and references show the targets that the secret hides
    for name, planned, seed in _chosen(options):
        place = planned.of.dataset, planned.split, planned.of.model, planned.targets
        task = build(*place, planned.of.noise_scale, options.data_dir, seed)
        training = task.training(options.data_dir)
        reference, certificate = build_reference(
            task, training, planned.of.sampling, cache_dir() / "networks", run, note
        )
        if failures := certificate.failures():
            refused += 1
            for failure in failures:
                stderr.print(f"{name} is refused: {failure}", style="red")
            continue
        write_network_task(path := official_path(*place, options.out), task)
        write_reference(path, reference, certificate)
        print(path)
    return int(refused > 0)


def _chosen(options: NetworksBuild) -> list[tuple[str, Planned, int | None]]:
    """The named tasks, with the seeds of their targets if these are not official ones; all without names.

    A task is named by its whole name, or with others by the first parts of theirs.
    """
    known: dict[str, tuple[Planned, int | None]] = {name: (each, None) for name, each in planned_tasks().items()}
    if options.secret is not None or options.edition is not None:
        edition = read_edition(options.root, options.edition)
        known = {
            each.name: (each, seed) for each, seed in ranked_networks(edition, read_secret(edition, options.secret))
        }
    chosen = set[str]()
    for name in options.names:
        found = {name} & known.keys() or {each for each in known if each.startswith(f"{name}:")}
        if not found:
            raise unknown_name("network task", name, list(known))
        chosen |= found
    return [(name, *each) for name, each in known.items() if name in chosen or not options.names]
