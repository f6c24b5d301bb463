"""What each command takes: a model for each, in the order of the help, whose docstring is the command's.

`TasksBuild` is `fsvi-bench tasks build`, which calls `tasks_build` of `cli/tasks.py`.

Nothing heavy is imported here: the help does not wait for torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict, Field

from fsvi_bench.arithmetic import Kernels, kernels_of_protocol
from fsvi_bench.running.options import RunOptions

Argument = typer.Argument()
DataDir = Annotated[Path | None, "Folder that holds UCI_Datasets/...; else $FSVI_BENCH_DATA, the cache, a download."]
AsJson = Annotated[bool, "Print one JSON document on stdout and nothing else there."]
Workers = Annotated[
    int | None, Field(ge=1), "Processes of one thread each; default: one per core (with ray: all there is room for)."
]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR"), "What a run was given with --out."]
Names = Annotated[Sequence[str], Argument, "Data sets; default: all."]
TASKS = "Task files (fsvi-task/1), folders of them, data sets that have official tasks, or one of these (boston:0)."
Tasks = Annotated[Sequence[str], Argument, f"{TASKS} Default: all official tasks."]
Root = Annotated[Path, "The leaderboard's folder, which holds entries/ and editions/."]
EditionName = Annotated[str | None, "Default: the latest one."]
WithoutIsolation = Annotated[bool, "Run code that you trust without a jail; the result says so."]


class Options(BaseModel):
    """Of every command."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    def kernels(self) -> Kernels:
        """Chosen before torch is imported."""
        return "own"


class Run(RunOptions, Options):
    """Run methods on data sets, score them against the exact posterior, and print a table."""

    dry_run: Annotated[bool, "Show what would be computed; compute and write nothing."] = False
    as_json: AsJson = False

    def kernels(self) -> Kernels:
        return kernels_of_protocol(self.protocol)


class Score(Options):
    """Score one posterior file against one task, or a folder of them; features depend on the raw inputs, so these are
    needed too."""

    task: Annotated[Path | None, "A frozen task file (fsvi-task/1), or an official task such as boston:0."] = None
    posterior: Annotated[Path | None, "A posterior file (fsvi-posterior/1)."] = None
    posteriors: Annotated[Path | None, "A folder of posterior files, all of them scored."] = None
    task_set: Annotated[str | None, "With --posteriors: official, or a folder of task files."] = None
    data_dir: DataDir = None
    as_json: AsJson = False


class Status(Options):
    """How many cells of a folder's plans are done, failed or missing.

    By the plans of its last runs; what today's sources would compute anew, `run --dry-run` says.
    """

    folder: RunFolder
    as_json: AsJson = False


class Export(Options):
    """Write the records and traces of a folder's plans as Parquet tables (needs pyarrow, the extra named export)."""

    folder: RunFolder
    out: Annotated[Path | None, "Folder for records.parquet and traces.parquet. Default: DIR/export."] = None


class Report(Options):
    """Make one self-contained HTML page, and its figures as PNG and SVG, from the records of a folder.

    With --json, print its numbers: a row per data set, method, family, settings and score.
    """

    folder: Annotated[Path, typer.Argument(metavar="DIR"), "Output folder of `fsvi-bench run`."]
    out: Annotated[Path | None, "Where the report goes. Default: DIR/report."] = None
    as_json: AsJson = False


class Reproduce(Options):
    """Run a published experiment: figure (PNG, SVG), tables, the numbers behind them, and what became of its claims."""

    name: Annotated[str | None, typer.Argument(metavar="NAME"), "Which figure; without it, what there is."] = None
    quick: Annotated[bool, "Fewer steps and splits: a look, not the result."] = False
    compute: Annotated[
        bool | None,
        typer.Option("--compute/--no-compute"),
        "Compute what the folder lacks, or show only what it holds. Default: compute, unless it takes days.",
    ] = None
    device: Annotated[str, "auto, cpu or cuda."] = "auto"
    workers: Workers = None
    out: Annotated[Path | None, "Output folder, where a second run goes on. Default: fsvi-bench-results/NAME."] = None
    data_dir: DataDir = None
    as_json: AsJson = False


class Submit(Options):
    """Make an entry: code and settings. Its method is held to the rules in the jail, and runs two tasks."""

    method: Annotated[
        str,
        typer.Argument(metavar="METHOD"),
        "A built-in method, or path/file.py:Class; with --check, an entry's folder.",
    ]
    family: Annotated[str, "full, ffg, bernoulli or spike-slab."] = "full"
    settings: Annotated[Sequence[str], "A setting; may be repeated."] = ()
    steps: Annotated[int, Field(ge=0), "Budget: steps of training one task, at most."] = 15_000
    seconds: Annotated[float, "Budget: seconds of it on your hardware."] = 120.0
    authors: Annotated[Sequence[str], "Who made it; may be repeated."] = ()
    owner: Annotated[str | None, "Your account on the forge."] = None
    licence: Annotated[str, typer.Option("--licence", "--license"), "Of the source, as an SPDX expression."] = "MIT"
    title: Annotated[str | None, "In tables. Default: the class and the family."] = None
    name: Annotated[str | None, "Of the entry's folder. Default: from method and family."] = None
    link: Annotated[str | None, "https:// address of a paper or repository."] = None
    notes: Annotated[str, "What readers should know, the hardware included."] = ""
    check: Annotated[bool, "Write nothing: hold an entry that is there to the same."] = False
    replace: Annotated[bool, "Write anew an entry that is there."] = False
    root: Root = Path("leaderboard")
    edition: EditionName = None
    without_isolation: WithoutIsolation = False
    data_dir: DataDir = None

    def kernels(self) -> Kernels:
        return "portable"


class Verify(Options):
    """Run entries on every task of an edition, in a jail, score them, and write LEADERBOARD/results/EDITION/NAME.json.

    The same command goes on where it was interrupted.
    """

    entries: Annotated[Sequence[Path], Argument, "Folders of entries: LEADERBOARD/entries/NAME."]
    edition: EditionName = None
    secret: Annotated[Path | None, "File of the edition's secret; a closed edition needs none."] = None
    key: Annotated[Path | None, "SSH private key that signs the results."] = None
    max_seconds: Annotated[float, Field(ge=1), "Of one run, whatever its budget says."] = 3600.0
    without_isolation: WithoutIsolation = False
    executor: Annotated[str, "local or ray."] = "local"
    ray_address: Annotated[str | None, "With ray: the cluster's address."] = None
    workers: Workers = None
    data_dir: DataDir = None
    as_json: AsJson = False

    def kernels(self) -> Kernels:
        return "portable"


class DatasetsList(Options):
    """Every data set with its size, target and where its raw data are."""

    data_dir: DataDir = None
    as_json: AsJson = False


class DatasetsPrepare(Options):
    """Find or download raw data and check their SHA-256."""

    names: Names = ()
    data_dir: DataDir = None


class DatasetsVerify(Options):
    """Check SHA-256, size and standard splits of the raw data that are here (nothing is downloaded)."""

    names: Names = ()
    data_dir: DataDir = None


class TasksBuild(Options):
    """Fit the sparse GP of each split (or take it from the cache) and write task and certificate."""

    out: Annotated[Path | None, "Folder; files go to OUT/<data set>/split-00.safetensors."] = None
    datasets: Annotated[Sequence[str], "Data set; may be repeated. Default: diabetes."] = ()
    splits: Annotated[str | None, "0-19 or 0,3,5; default: all, with --check 0."] = None
    check: Annotated[bool, "Write nothing: fit again, compare with the official task. Status 1 if it departs."] = False
    workers: Workers = None
    data_dir: DataDir = None


class TasksVerify(Options):
    """Re-derive each task's certificate from the file and the raw data, and compare with the one beside it.

    Of several, one that does not hold (status 1), or cannot be read at all (status 2), does not keep the others from
    being verified.
    """

    tasks: Tasks = ()
    data_dir: DataDir = None


class TasksShow(Options):
    """What a task holds, and what its certificate says."""

    tasks: Annotated[Sequence[str], Argument, TASKS]
    data_dir: DataDir = None
    as_json: AsJson = False


class TasksExport(Options):
    """Write what a method may see of each task (training rows, features, noise), for tools that are not Python."""

    out: Annotated[Path, "Folder; files go to OUT/<data set>/split-00.npz."]
    tasks: Tasks = ()
    splits: Annotated[str | None, "0-19 or 0,3,5, of data sets; default: all."] = None
    form: Annotated[str, "npz or safetensors; or task: the frozen task itself (fsvi-task/1) with its certificate."] = (
        "npz"
    )
    data_dir: DataDir = None


class MethodsList(Options):
    """Every method with its families and options."""

    as_json: AsJson = False


class MethodsCheck(Options):
    """Hold a method to what every method must do: on the toy task, with few steps, without any download."""

    method: Annotated[str, Argument, "Method name, or path/file.py:Class."]
    families: Annotated[Sequence[str], "Family; may be repeated. Default: all that the method has."] = ()
    settings: Annotated[Sequence[str], "A method option; may be repeated."] = ()
    measurement_points: Annotated[int | None, Field(ge=1), "Size M of the measurement set. Default: 10."] = None
    max_steps: Annotated[
        int | None, Field(ge=1), "Training steps of a check. Default: 20, for methods that have the option."
    ] = None
    device: Annotated[str, "cuda or auto compare a GPU with the CPU; cpu does not."] = "auto"
    as_json: AsJson = False


class LeaderboardInit(Options):
    """Make a leaderboard of your own, or a further edition of one, with a fresh secret."""

    secret: Annotated[Path, "Where the edition's secret goes; keep it out of git."]
    root: Root = Path("leaderboard")
    edition: Annotated[str, "Its name."] = "v1"
    datasets: Annotated[Sequence[str], "May be repeated. Default: all nine."] = ()
    seeds: Annotated[int, Field(ge=1, le=20), "Of each entry on each ranked task."] = 1
    allow_without_isolation: Annotated[bool, "Rank what `verify --without-isolation` makes, too."] = False


class LeaderboardClose(Options):
    """Publish an edition's secret: from then on anyone can make its tasks and numbers again."""

    secret: Annotated[Path, "The file of the edition's secret."]
    root: Root = Path("leaderboard")
    edition: EditionName = None


class LeaderboardBuild(Options):
    """Make a static site of the entries and their results; equal folders give equal files."""

    root: Root = Path("leaderboard")
    edition: EditionName = None
    out: Annotated[Path | None, "Where the site goes. Default: ROOT/site."] = None


class LeaderboardServe(Options):
    """Show a built site on this machine alone, until Ctrl-C."""

    root: Root = Path("leaderboard")
    site: Annotated[Path | None, "The built site's folder. Default: ROOT/site."] = None
    port: Annotated[int, Field(ge=0, le=65535), "0: any that is free."] = 8000


class LeaderboardCompare(Options):
    """Two entries by data set, paired over the ranked runs: by their track's headline, else by box inputs."""

    a: Annotated[str, Argument, "An entry's name, which is its folder's."]
    b: Annotated[str, Argument, "Another's."]
    root: Root = Path("leaderboard")
    edition: EditionName = None
    as_json: AsJson = False
