"""What each command takes: a model for each, in the order of the help, whose docstring is the command's.

`TasksBuild` is `fsvi-bench tasks build`, which calls `tasks_build` of `cli/tasks.py`. Nothing heavy is imported here:
the help does not wait for torch.
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
    """Of every command. What several of them take:

    Args:
        data_dir: Folder that holds UCI_Datasets/...; else $FSVI_BENCH_DATA, the cache, a download.
        as_json: Print one JSON document on stdout and nothing else there.
        workers: Processes of one thread each; default: one per core (with ray: all there is room for).
        root: The leaderboard's folder, which holds entries/ and editions/.
        edition: Default: the latest one.
        without_isolation: Run code that you trust without a jail; the result says so.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    def kernels(self) -> Kernels:
        """Chosen before torch is imported."""
        return "own"


class Run(RunOptions, Options):
    """Run methods on data sets, score them against the exact posterior, and print a table.

    Args:
        dry_run: Show what would be computed; compute and write nothing.
    """

    dry_run: bool = False
    as_json: bool = False

    def kernels(self) -> Kernels:
        return kernels_of_protocol(self.protocol)


class Score(Options):
    """Score one posterior file against one task, or a folder of them; features depend on the raw inputs, so these are
    needed too.

    Args:
        task: A frozen task file (fsvi-task/1), or an official task such as boston:0.
        posterior: A posterior file (fsvi-posterior/1).
        posteriors: A folder of posterior files, all of them scored.
        task_set: With --posteriors: official, or a folder of task files.
    """

    task: Path | None = None
    posterior: Path | None = None
    posteriors: Path | None = None
    task_set: str | None = None
    data_dir: Path | None = None
    as_json: bool = False


class Status(Options):
    """How many cells of a folder's plans are done, failed or missing.

    By the plans of its last runs; what today's sources would compute anew, `run --dry-run` says.

    Args:
        folder: What a run was given with --out.
    """

    folder: RunFolder
    as_json: bool = False


class Export(Options):
    """Write the records and traces of a folder's plans as Parquet tables (needs pyarrow, the extra named export).

    Args:
        folder: What a run was given with --out.
        out: Folder for records.parquet and traces.parquet. Default: DIR/export.
    """

    folder: RunFolder
    out: Path | None = None


class Report(Options):
    """Make one self-contained HTML page, and its figures as PNG and SVG, from the records of a folder.

    With --json, print its numbers: a row per data set, method, family, settings and score.

    Args:
        folder: Output folder of `fsvi-bench run`.
        out: Where the report goes. Default: DIR/report.
    """

    folder: RunFolder
    out: Path | None = None
    as_json: bool = False


class Reproduce(Options):
    """Run a published experiment: figure (PNG, SVG), tables, the numbers behind them, and what became of its claims.

    Args:
        name: Which figure; without it, what there is.
        quick: Fewer steps and splits: a look, not the result.
        compute: Compute what the folder lacks, or show only what it holds. Default: compute, unless it takes days.
        device: auto, cpu or cuda.
        out: Output folder, where a second run goes on. Default: fsvi-bench-results/NAME.
    """

    name: Annotated[str | None, typer.Argument(metavar="NAME")] = None
    quick: bool = False
    compute: Annotated[bool | None, typer.Option("--compute/--no-compute")] = None
    device: str = "auto"
    workers: Workers = None
    out: Path | None = None
    data_dir: Path | None = None
    as_json: bool = False


class Submit(Options):
    """Make an entry: code and settings. Its method is held to the rules in the jail, and runs two tasks.

    Args:
        method: A built-in method, or path/file.py:Class; with --check, an entry's folder.
        family: full, ffg, factor, bernoulli or spike-slab.
        settings: A setting; may be repeated.
        steps: Budget: steps of training one task, at most.
        seconds: Budget: seconds of it on your hardware.
        authors: Who made it; may be repeated.
        owner: Your account on the forge.
        licence: Of the source, as an SPDX expression.
        title: In tables. Default: the class and the family.
        name: Of the entry's folder. Default: from method and family.
        link: https:// address of a paper or repository.
        notes: What readers should know, the hardware included.
        check: Write nothing: hold an entry that is there to the same.
        replace: Write anew an entry that is there.
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
    """Run entries on every task of an edition, in a jail, score them, and write LEADERBOARD/results/EDITION/NAME.json.

    The same command goes on where it was interrupted.

    Args:
        entries: Folders of entries: LEADERBOARD/entries/NAME.
        secret: File of the edition's secret; a closed edition needs none.
        key: SSH private key that signs the results.
        max_seconds: Of one run, whatever its budget says.
        executor: local or ray.
        ray_address: With ray: the cluster's address.
    """

    entries: Annotated[Sequence[Path], Argument]
    edition: str | None = None
    secret: Path | None = None
    key: Path | None = None
    max_seconds: Annotated[float, Field(ge=1)] = 3600.0
    without_isolation: bool = False
    executor: Literal["local", "ray"] = "local"
    ray_address: Annotated[str | None, typer.Option("--ray-address")] = None
    workers: Workers = None
    data_dir: Path | None = None
    as_json: bool = False

    def kernels(self) -> Kernels:
        return "portable"


class DatasetsList(Options):
    """Every data set with its size, target and where its raw data are."""

    data_dir: Path | None = None
    as_json: bool = False


class DatasetsPrepare(Options):
    """Find or download raw data and check their SHA-256.

    Args:
        names: Data sets; default: all.
    """

    names: Annotated[Sequence[str], Argument] = ()
    data_dir: Path | None = None


class DatasetsVerify(Options):
    """Check SHA-256, size and standard splits of the raw data that are here (nothing is downloaded).

    Args:
        names: Data sets; default: all.
    """

    names: Annotated[Sequence[str], Argument] = ()
    data_dir: Path | None = None


class TasksBuild(Options):
    """Fit the sparse GP of each split (or take it from the cache) and write task and certificate.

    Args:
        out: Folder; files go to OUT/<data set>/split-00.safetensors.
        datasets: Data set; may be repeated. Default: diabetes.
        splits: 0-19 or 0,3,5; default: all, with --check 0.
        check: Write nothing: fit again, compare with the official task. Status 1 if it departs.
    """

    out: Path | None = None
    datasets: Sequence[str] = ()
    splits: str | None = None
    check: bool = False
    workers: Workers = None
    data_dir: Path | None = None


class TasksVerify(Options):
    """Re-derive each task's certificate from the file and the raw data, and compare with the one beside it.

    Of several, one that does not hold (status 1), or cannot be read at all (status 2), does not keep the others from
    being verified.

    Args:
        tasks: Task files (fsvi-task/1), folders of them, data sets that have official tasks, or one of these
            (boston:0). Default: all official tasks.
    """

    tasks: Annotated[Sequence[str], Argument] = ()
    data_dir: Path | None = None


class TasksShow(Options):
    """What a task holds, and what its certificate says.

    Args:
        tasks: Task files (fsvi-task/1), folders of them, data sets that have official tasks, or one of these
            (boston:0).
    """

    tasks: Annotated[Sequence[str], Argument]
    data_dir: Path | None = None
    as_json: bool = False


class TasksExport(Options):
    """Write what a method may see of each task (training rows, features, noise), for tools that are not Python.

    Args:
        out: Folder; files go to OUT/<data set>/split-00.npz.
        tasks: Task files (fsvi-task/1), folders of them, data sets that have official tasks, or one of these
            (boston:0). Default: all official tasks.
        splits: 0-19 or 0,3,5, of data sets; default: all.
        form: npz or safetensors; or task: the frozen task itself (fsvi-task/1) with its certificate.
    """

    out: Path
    tasks: Annotated[Sequence[str], Argument] = ()
    splits: str | None = None
    form: str = "npz"
    data_dir: Path | None = None


class MethodsList(Options):
    """Every method with its families and options."""

    as_json: bool = False


class MethodsCheck(Options):
    """Hold a method to what every method must do: on the toy task, with few steps, without any download.

    Args:
        method: Method name, or path/file.py:Class.
        families: Family; may be repeated. Default: all that the method has.
        settings: A method option; may be repeated.
        measurement_points: Size M of the measurement set. Default: 10.
        max_steps: Training steps of a check. Default: 20, for methods that have the option.
        device: cuda or auto compare a GPU with the CPU; cpu does not.
    """

    method: Annotated[str, Argument]
    families: Sequence[str] = ()
    settings: Sequence[str] = ()
    measurement_points: Annotated[int | None, Field(ge=1)] = None
    max_steps: Annotated[int | None, Field(ge=1)] = None
    device: str = "auto"
    as_json: bool = False


class LeaderboardInit(Options):
    """Make a leaderboard of your own, or a further edition of one, with a fresh secret.

    Args:
        secret: Where the edition's secret goes; keep it out of git.
        edition: Its name.
        datasets: May be repeated. Default: all nine.
        seeds: Of each entry on each ranked task.
        allow_without_isolation: Rank what `verify --without-isolation` makes, too.
    """

    secret: Path
    root: Path = Path("leaderboard")
    edition: str = "v1"
    datasets: Sequence[str] = ()
    seeds: Annotated[int, Field(ge=1, le=20)] = 1
    allow_without_isolation: bool = False


class LeaderboardClose(Options):
    """Publish an edition's secret: from then on anyone can make its tasks and numbers again.

    Args:
        secret: The file of the edition's secret.
    """

    secret: Path
    root: Path = Path("leaderboard")
    edition: str | None = None


class LeaderboardBuild(Options):
    """Make a static site of the entries and their results; equal folders give equal files.

    Args:
        out: Where the site goes. Default: ROOT/site.
    """

    root: Path = Path("leaderboard")
    edition: str | None = None
    out: Path | None = None


class LeaderboardServe(Options):
    """Show a built site on this machine alone, until Ctrl-C.

    Args:
        site: The built site's folder. Default: ROOT/site.
        port: 0: any that is free.
    """

    root: Path = Path("leaderboard")
    site: Path | None = None
    port: Annotated[int, Field(ge=0, le=65535)] = 8000


class LeaderboardCompare(Options):
    """Two entries by data set, paired over the ranked runs: by their track's headline, else by box inputs.

    Args:
        a: An entry's name, which is its folder's.
        b: Another's.
    """

    a: Annotated[str, Argument]
    b: Annotated[str, Argument]
    root: Path = Path("leaderboard")
    edition: str | None = None
    as_json: bool = False
