"""The options of every command: one model per command, in the order of the help; its docstring is the help text.

`TasksBuild` is `fsvi-bench tasks build`, which calls `tasks_build` in `cli/tasks.py`. Nothing heavy is imported here,
so that `--help` does not wait for torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import BaseModel, ConfigDict, Field

from fsvi_bench.arithmetic import Kernels, kernels_of_protocol
from fsvi_bench.running.options import RunOptions

Argument = typer.Argument()
RunFolder = Annotated[Path, typer.Argument(metavar="DIR")]
Workers = Annotated[int | None, Field(ge=1)]


class Options(BaseModel):
    """Base class of all commands, with the help of options that several of them share.

    Args:
        data_dir: Folder with the raw data (UCI_Datasets/..., uci_datasets/..., mnist/...). Default: $FSVI_BENCH_DATA,
            else the cache or a download.
        as_json: Print one JSON document on stdout and nothing else.
        workers: Number of single-threaded processes. Default: one per core.
        root: Folder of the leaderboard, with entries/ and editions/.
        edition: Name of the edition. Default: the latest.
        without_isolation: Run code that you trust outside the sandbox; the result records this.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    def kernels(self) -> Kernels:
        """The kernels to use; they must be chosen before torch is imported."""
        return "own"


class Run(RunOptions, Options):
    """Run methods on data sets, score them against the exact posterior, and print a table.

    Args:
        dry_run: Show what would be computed, without computing or writing anything.
    """

    dry_run: bool = False
    as_json: bool = False

    def kernels(self) -> Kernels:
        return kernels_of_protocol(self.protocol)


class Score(Options):
    """Score one posterior file against one task, or every posterior file in a folder.

    For one file, give --posterior and --task. For a folder, give --posteriors, and --task-set unless the tasks are the
    official ones.

    Scoring also needs the raw data, because the features are functions of the inputs.

    Args:
        task: With --posterior: task file, or a task such as boston:0 or (a network) yacht:0:collapsed-10.
        posterior: Posterior file (fsvi-posterior/1); requires --task.
        posteriors: Folder of posterior files to score.
        task_set: With --posteriors: official, a data set, a task file, or a folder of task files. Default: official.
    """

    task: Path | None = None
    posterior: Path | None = None
    posteriors: Path | None = None
    task_set: str | None = None
    data_dir: Path | None = None
    as_json: bool = False


class Status(Options):
    """Count the finished, failed and missing cells of an output folder.

    The counts follow the plans that earlier runs saved. `run --dry-run` shows what a command would compute now.

    Args:
        folder: Output folder of `fsvi-bench run`.
    """

    folder: RunFolder
    as_json: bool = False


class Export(Options):
    """Export the records and traces of an output folder as Parquet tables (requires the extra `export`).

    Args:
        folder: Output folder of `fsvi-bench run`.
        out: Folder for records.parquet and traces.parquet. Default: DIR/export.
    """

    folder: RunFolder
    out: Path | None = None


class Report(Options):
    """Write a self-contained HTML report of an output folder, with its figures as PNG and SVG.

    With --json, also print its numbers: one row per data set, method, family, settings and score.

    Args:
        folder: Output folder of `fsvi-bench run`.
        out: Folder for the report. Default: DIR/report.
    """

    folder: RunFolder
    out: Path | None = None
    as_json: bool = False


class Reproduce(Options):
    """Reproduce a published experiment: its figure (PNG, SVG), tables, data, and a verdict on each of its claims.

    Runs resume: rerun the command to compute missing parts.

    Args:
        name: Name of the reproduction. Default: list all of them.
        quick: Use fewer steps and splits: a preview at reduced scale, in minutes; do not cite it.
        medium: For networks: use a scale between preview and full scale, which takes an evening on two cores.
        compute: Compute missing cells, or, for reproductions made from runs, only show finished ones. Default:
            --compute, unless that takes days.
        device: auto, cpu or cuda.
        out: Output folder. Default: fsvi-bench-results/NAME.
    """

    name: Annotated[str | None, typer.Argument(metavar="NAME")] = None
    quick: bool = False
    medium: bool = False
    compute: Annotated[bool | None, typer.Option("--compute/--no-compute")] = None
    device: str = "auto"
    workers: Workers = None
    out: Path | None = None
    data_dir: Path | None = None
    as_json: bool = False


class Submit(Options):
    """Create a leaderboard entry from a method and its settings.

    The method first runs in the sandbox: the conformance checks, then the first official task of each of the edition's
    first two data sets, or the toy network in an edition of networks. The entry is written only if all of them pass.

    Args:
        method: Built-in method, or path/file.py:Class; with --check, the folder of an entry.
        family: full, ffg, factor, bernoulli, spike-slab or particles.
        settings: Method option; may be repeated.
        steps: Budget: maximum number of training steps per task. A method with `solve` needs no steps: give 0.
        seconds: Budget: training seconds per task on your hardware.
        authors: Author of the method; required without --check; may be repeated.
        owner: Your account name on the code host; required without --check.
        licence: Licence of the source, as an SPDX expression.
        title: Title in the tables. Default: the class and the family.
        name: Name of the entry's folder. Default: derived from method and family.
        link: https:// address of a paper or repository.
        notes: Notes for readers, such as the hardware.
        check: Check an existing entry without writing anything.
        replace: Overwrite an existing entry of the same name.
    """

    method: Annotated[str, typer.Argument(metavar="METHOD")]
    family: str = "full"
    settings: Sequence[str] = ()
    steps: Annotated[int, Field(ge=0)] = 15000
    seconds: float = 120.0
    authors: Sequence[str] = ()
    owner: str | None = None
    licence: Annotated[str, typer.Option("--licence", "--license")] = "MIT"
    title: str | None = None
    name: str | None = None
    link: str | None = None
    notes: str = ""
    check: bool = False
    replace: bool = False
    root: Path = Path("leaderboard")
    edition: str | None = None
    without_isolation: bool = False
    data_dir: Path | None = None

    def kernels(self) -> Kernels:
        return "portable"


class Verify(Options):
    """Run entries in the sandbox on every task of an edition, score them, and write the results.

    The results are written to LEADERBOARD/results/EDITION/NAME.json. Runs resume: rerun an interrupted command.
    With --check, nothing is written: the runs are compared with those of the stored result.

    Args:
        entries: Folders of entries: LEADERBOARD/entries/NAME.
        check: Run again and compare with the result; exit status 1 if a score differs.
        datasets: With --check: data set of the edition; may be repeated. Default: all.
        ranked: With --check: number of a ranked task; may be repeated. Default: all, unless --official is given.
        official: With --check: split of an official task; may be repeated. Default: all, unless --ranked is given.
        secret: File with the edition's secret; not needed once the edition is closed.
        key: SSH private key to sign the results with.
        networks: Folder with the references of an edition of networks (`networks build --edition`). Default: the
            edition's folder.
        max_seconds: Maximum seconds of one run, whatever its budget allows.
        executor: local or ray.
        ray_address: With ray: address of the cluster.
    """

    entries: Annotated[Sequence[Path], Argument]
    edition: str | None = None
    secret: Path | None = None
    key: Path | None = None
    networks: Path | None = None
    max_seconds: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 3600.0
    check: bool = False
    datasets: Sequence[str] = ()
    ranked: Sequence[int] = ()
    official: Sequence[int] = ()
    without_isolation: bool = False
    executor: Literal["local", "ray"] = "local"
    ray_address: Annotated[str | None, typer.Option("--ray-address")] = None
    workers: Workers = None
    data_dir: Path | None = None
    as_json: bool = False

    def kernels(self) -> Kernels:
        return "portable"


class DatasetsList(Options):
    """List the data sets with their sizes, targets and the location of their raw data."""

    data_dir: Path | None = None
    as_json: bool = False


class DatasetsPrepare(Options):
    """Locate or download raw data, and check their SHA-256.

    Args:
        names: Data sets. Default: all.
    """

    names: Annotated[Sequence[str], Argument] = ()
    data_dir: Path | None = None


class DatasetsVerify(Options):
    """Check the SHA-256, size and standard splits of local raw data, without downloading any.

    Args:
        names: Data sets. Default: all.
    """

    names: Annotated[Sequence[str], Argument] = ()
    data_dir: Path | None = None


class TasksBuild(Options):
    """Fit the sparse GP of each split, or take it from the cache, and write the task with its certificate.

    Args:
        out: Folder for the tasks: OUT/NAME/split-00.safetensors.
        datasets: Data set; may be repeated. Default: diabetes.
        splits: Splits, such as 0-19 or 0,3,5. Default: all; with --check, 0.
        check: Refit and compare with the official task, without writing. Exit status 1 if they differ.
        as_set: Write one file per data set, as for official tasks: OUT/NAME/tasks/v1.safetensors.
    """

    out: Path | None = None
    datasets: Sequence[str] = ()
    splits: str | None = None
    check: bool = False
    as_set: bool = False
    workers: Workers = None
    data_dir: Path | None = None


class TasksVerify(Options):
    """Recompute each task's certificate from its file and the raw data, and compare it with the stored one.

    All tasks are verified, even after an error. The exit status is 1 if a certificate does not hold, and 2 if a file
    cannot be read.

    Args:
        tasks: Task files (fsvi-task/1), folders of task files, data sets with official tasks, or single official tasks
            such as boston:0. Default: all official tasks.
    """

    tasks: Annotated[Sequence[str], Argument] = ()
    data_dir: Path | None = None


class TasksShow(Options):
    """Show the contents and certificates of tasks.

    Args:
        tasks: Task files (fsvi-task/1), folders of task files, data sets with official tasks, or single official tasks
            such as boston:0.
    """

    tasks: Annotated[Sequence[str], Argument]
    data_dir: Path | None = None
    as_json: bool = False


class TasksExport(Options):
    """Export the part of each task that a method may see (training rows, features, noise) for use by other tools.

    Args:
        out: Folder for the files: OUT/NAME/split-00.npz.
        tasks: Task files (fsvi-task/1), folders of task files, data sets with official tasks, or single official tasks
            such as boston:0. Default: all official tasks.
        splits: Splits of data sets, such as 0-19 or 0,3,5. Default: all.
        form: npz, safetensors, or task (the whole task file, fsvi-task/1, with its certificate).
    """

    out: Path
    tasks: Annotated[Sequence[str], Argument] = ()
    splits: str | None = None
    form: str = "npz"
    data_dir: Path | None = None


class NetworksList(Options):
    """List the network tasks: the levels of their certificates, their log evidences and the samplers' diagnostics."""

    as_json: bool = False


class NetworksVerify(Options):
    """Compare network tasks with their data sets, and their certificates with the limits. Exit status 1 if one fails.

    Args:
        names: Tasks such as yacht:0:collapsed-10, or files. Default: all official tasks.
    """

    names: Annotated[Sequence[str], Argument] = ()
    data_dir: Path | None = None


class NetworksBuild(Options):
    """Sample the posteriors of network tasks, and write tasks, references and certificates (requires the extra
    `reference`). Finished chains are kept: rerun the command to resume. Exit status 1 if a task is refused.

    Args:
        names: Tasks such as yacht:0:collapsed-10, or the first parts of their names, such as yacht. Default: all.
        out: Folder for the files: OUT/yacht/network-tasks/v1/collapsed-10/0-real.safetensors.
        edition: Build the ranked tasks of this edition of networks instead of the official ones.
        secret: File with the edition's secret; not needed once the edition is closed.
        root: Leaderboard with the edition.
    """

    out: Path
    names: Annotated[Sequence[str], Argument] = ()
    secret: Path | None = None
    root: Path = Path("leaderboard")
    edition: str | None = None
    workers: Workers = None
    data_dir: Path | None = None


class MethodsList(Options):
    """List the methods with their families and options, or the options of one method.

    Args:
        name: Method name, or path/file.py:Class. Default: all.
    """

    name: Annotated[str | None, typer.Argument(metavar="NAME")] = None
    as_json: bool = False


class MethodsCheck(Options):
    """Run the conformance checks on a method. They use the toy task and few steps, and download nothing.

    Args:
        method: Method name, or path/file.py:Class.
        families: Family; may be repeated. Default: all families of the method.
        settings: Method option; may be repeated.
        measurement_points: Size M of the measurement set. Default: 10.
        max_steps: Training steps of each check. Default: 20 or, in two checks, 100, for methods with this option.
        device: auto, cpu or cuda; with a GPU, its results are also compared with those of the CPU.
    """

    method: Annotated[str, Argument]
    families: Sequence[str] = ()
    settings: Sequence[str] = ()
    measurement_points: Annotated[int | None, Field(ge=1)] = None
    max_steps: Annotated[int | None, Field(ge=1)] = None
    device: str = "auto"
    as_json: bool = False


class ObjectivesCheck(Options):
    """Check a functional objective against the properties of a divergence, on random Gaussians.

    The command runs the file. The function takes float64 tensors mean_q [B,k], scale_tril_q [B,k,k] and Phi_A [B,M,k],
    and returns [B]: for each problem, how far the function values of q at A are from those of the prior N(0, I).

    Args:
        function: path/file.py:function.
        divergence: The divergence that the function computes: kl, or w2 for the squared 2-Wasserstein distance.
    """

    function: Annotated[str, Argument]
    divergence: Literal["kl", "w2"] = "kl"
    as_json: bool = False


class LeaderboardInit(Options):
    """Create a leaderboard, or a new edition of an existing one, with a new secret.

    Args:
        secret: File to write the edition's secret to; keep it out of git.
        edition: Name of the edition.
        datasets: Data set; may be repeated. Default: all with official tasks.
        networks: Network, such as yacht-collapsed-10, in place of data sets; may be repeated.
        seeds: Number of seeds per entry and ranked task.
        replicated_tasks: How many ranked tasks of each data set, the first ones, have all seeds. Default: all.
        allow_without_isolation: Also rank results of `verify --without-isolation`.
    """

    secret: Path
    root: Path = Path("leaderboard")
    edition: str = "v1"
    datasets: Sequence[str] = ()
    networks: Annotated[Sequence[str], typer.Option("--network")] = ()
    seeds: Annotated[int, Field(ge=1, le=20)] = 1
    replicated_tasks: Annotated[int, Field(ge=1, le=20)] | None = None
    allow_without_isolation: bool = False


class LeaderboardClose(Options):
    """Close an edition: publish its secret, so that anyone can regenerate its tasks and scores.

    Args:
        secret: File with the edition's secret.
    """

    secret: Path
    root: Path = Path("leaderboard")
    edition: str | None = None


class LeaderboardBuild(Options):
    """Build a static site from the entries and their results. The output is deterministic.

    Args:
        out: Folder for the site. Default: ROOT/site.
    """

    root: Path = Path("leaderboard")
    edition: str | None = None
    out: Path | None = None


class LeaderboardServe(Options):
    """Serve a built site on this machine only, until Ctrl-C.

    Args:
        site: Folder of the built site. Default: ROOT/site.
        port: Port to listen on; 0 picks a free one.
    """

    root: Path = Path("leaderboard")
    site: Path | None = None
    port: Annotated[int, Field(ge=0, le=65535)] = 8000


class LeaderboardCompare(Options):
    """Compare two entries on each data set, paired over the ranked runs.

    Two entries with densities are compared by KL(q‖P_D), others by their joint predictive KLs,
    and those of an edition of networks by their energy distances.

    Args:
        a: Name of the first entry, which is the name of its folder.
        b: Name of the second entry.
    """

    a: Annotated[str, Argument]
    b: Annotated[str, Argument]
    root: Path = Path("leaderboard")
    edition: str | None = None
    as_json: bool = False
