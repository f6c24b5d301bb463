"""Network tasks by name: files of one's own, and the package's, such as `yacht:0:collapsed-10`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from fsvi_bench.errors import InputError, did_you_mean, plain, quoted
from fsvi_bench.files import is_file
from fsvi_bench.networks.plan import planned_tasks
from fsvi_bench.networks.reference import Certificate, Functions, certificate_path, read_reference, reference_path
from fsvi_bench.networks.task import FORMAT, NetworkTask, Targets, build, read_network_task, task_name
from fsvi_bench.resources import resource_dir
from fsvi_bench.tensorfile import read_tensor_file

TASK_SET = "v1"


@dataclass(frozen=True, eq=False)
class CertifiedNetwork:
    """A task with functions drawn from its posterior, and the certificate that vouches for them."""

    task: NetworkTask
    reference: Functions
    certificate: Certificate

    def __repr__(self) -> str:
        log_z, level = self.certificate.log_z, self.certificate.level
        return (
            f"CertifiedNetwork({self.task.name!r}, {level}, log Z = {log_z.value:.2f} ± {log_z.error:.1g}, "
            f"{len(self.reference):,} functions)"
        )

    @property
    def sha256(self) -> str:
        """The task's identity."""
        return self.task.sha256

    @property
    def reference_sha256(self) -> str:
        """The identity of the functions."""
        return self.certificate.reference_sha256

    @property
    def place(self) -> tuple[str, int]:
        """Its row in tables of results, and the split."""
        return self.task.place


def official_path(dataset: str, split: int, model: str, targets: Targets, folder: Path | None = None) -> Path:
    """Path of an official task, in the package or another folder of data sets; the file may not exist."""
    root = folder or resource_dir("datasets")
    return root / dataset / "network-tasks" / TASK_SET / model / f"{split}-{targets}.safetensors"


def official_networks() -> dict[str, Path]:
    """The files of the official tasks by name, in order."""
    files = sorted(resource_dir("datasets").glob(f"*/network-tasks/{TASK_SET}/*/*.certificate.json"))
    return {_name_of(path): path.with_name(path.name.replace(".certificate.json", ".safetensors")) for path in files}


def official_network(sha256: str) -> str | None:
    """The name of the official task with this SHA-256, if there is one."""
    return _names_by_sha256().get(sha256)


@cache
def _names_by_sha256() -> dict[str, str]:
    return {read_network_task(path).sha256: name for name, path in official_networks().items()}


def _name_of(certificate: Path) -> str:
    split, targets = certificate.name.removesuffix(".certificate.json").split("-")
    return task_name(certificate.parents[3].name, int(split), certificate.parent.name, targets)  # type: ignore[arg-type]


def find_network(name: str | Path) -> Path | None:
    """The file of a network task, given as such or by its official name; None if the name is of another kind.

    Raises:
        InputError: the name has a network task's form, but there is no such official task.
    """
    path = Path(name)
    if is_file(path):
        try:
            read_tensor_file(path, FORMAT, ())
        except InputError:
            return None
        return path
    if str(name).count(":") < 2:
        return None
    known = official_networks()
    if str(name) not in known:
        longer = [each for each in known if each.startswith(f"{name}:")]
        hint = f"did you mean '{longer[0]}'? " if longer else did_you_mean(str(name), known)
        raise InputError(
            f"there is no network task {quoted(str(name))}; {hint}`fsvi-bench networks list` shows their names"
        )
    return known[str(name)]


def departures(found: CertifiedNetwork, data_dir: Path | None = None) -> list[str]:
    """How a task differs from the one that its data set, split and model define.

    The chains cannot be recomputed from the files: `networks build` samples them anew.

    Raises:
        InputError: the raw data cannot be loaded.
    """
    task = found.task
    fresh = build(task.dataset, task.split, task.model, task.targets, task.noise_scale, data_dir)
    made_from = {"data_sha256": "data", "linear_task": "features"}
    wrong = [
        f"it was made from other {made_from[key]}"
        for key, value in fresh.metadata.items()
        if task.metadata[key] != value
    ]
    planned = planned_tasks().get(task.name)
    expected = None if planned is None else planned.of.noise_scale
    if expected is not None and abs(expected - (task.noise_scale or 0.0)) > 1e-9:
        wrong.append(f"its noise is not that of the official task, {expected:g}")
    return wrong + [f"its {name} differs from that of {task.name}" for name in differing(task, fresh)]


def differing(task: NetworkTask, other: NetworkTask) -> list[str]:
    """The tensors of a task that are not another's, up to rounding: means, deviations and simulated targets round
    differently with other kernels and on other processors."""
    return [
        name
        for name, tensor in task.tensors.items()
        if name not in other.tensors
        or tensor.shape != other.tensors[name].shape
        or not bool(torch.isclose(tensor, other.tensors[name], rtol=1e-9, atol=1e-9).all())
    ]


def named_network(name: str | Path) -> CertifiedNetwork | None:
    """The network task of this name or file; None if the name is of another kind.

    Raises:
        InputError: as `find_network` and `load_network`.
        TaskRefused: as `load_network`.
    """
    return None if find_network(name) is None else load_network(name)


def load_network(name: str | Path) -> CertifiedNetwork:
    """A network task with its reference, from an official name or a file next to its reference and certificate.

    Raises:
        InputError: there is no such task, or a file is missing or not valid.
        TaskRefused: the certificate exceeds this version's limits.
    """
    path = (Path(name) if is_file(Path(name)) else find_network(name)) if isinstance(name, str | Path) else None
    if path is None:
        raise InputError(
            f"{plain(str(name))} is neither a file nor the name of a network task, such as yacht:0:collapsed-10"
        )
    task = read_network_task(path)
    for part in (reference_path(path), certificate_path(path)):
        if not is_file(part):
            again = f"run `fsvi-bench networks build {task.name} --out DIR`" if official_network(task.sha256) else ""
            raise InputError(
                f"the network task {path} needs {part.name} next to it; copy it from the folder that the task came from"
                + (again and f", or {again}")
            )
    reference, certificate = read_reference(path, task)
    certificate.require_limits()
    return CertifiedNetwork(task, reference, certificate)
