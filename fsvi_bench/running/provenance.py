"""Provenance of a result: code, libraries, hardware and settings of the process that computed it."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import fsvi_bench
from fsvi_bench.arithmetic import PORTABLE, Kernels, arithmetic
from fsvi_bench.files import sha256_of_json
from fsvi_bench.sources import meaning_sha256

#: Names in records -> packages.
LIBRARIES = {
    "torch": "torch",
    "lightning": "pytorch-lightning",
    "gpytorch": "gpytorch",
    "numpy": "numpy",
    "scipy": "scipy",
}
#: The modules that train and score a cell. The rest of their package does not affect results.
TRAINS_AND_SCORES = ("fsvi_bench.running.job", "fsvi_bench.running.network_job")


def decisive_sha256(method_sha256: str) -> str:
    """Hash of everything except settings that determines a result: method, training and scoring code, and kernels."""
    shared = meaning_sha256(*TRAINS_AND_SCORES, excluding=("fsvi_bench.running",))
    asked = arithmetic()
    return sha256_of_json([method_sha256, shared, *([asked] if asked else [])])


def git_revision() -> str | None:
    """The commit of the checkout, with `-dirty` if tracked files have changed; None for an installed wheel."""
    root = Path(fsvi_bench.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def _unchanging() -> dict[str, Any]:
    return {
        "fsvi_bench": fsvi_bench.__version__,
        "git": git_revision(),
        **{name: version(library) for name, library in LIBRARIES.items()},
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


@cache
def _processor() -> str:
    """The model of the processor if the system reports it, else its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _kernels() -> str:
    """The kernels of torch's libraries: as reported by ATen, and as requested for MKL."""
    aten = f"ATen {torch.backends.cpu.get_cpu_capability()}"
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return f"{aten}, MKL {arithmetic().get('MKL_CBWR', 'own')}" if has_mkl else aten


def provenance(device: str, seed: int, started: datetime) -> dict[str, Any]:
    """Versions, platform, the device used, threads, the seed, and when the cell's batch was started (UTC)."""
    there = torch.cuda.is_available()  # the command's own machine need not have the GPU of a cluster
    hardware = _processor() if device != "cuda" else torch.cuda.get_device_name() if there else None
    return {
        **_unchanging(),
        "device": device,
        "hardware": hardware,
        "threads": torch.get_num_threads(),
        "arithmetic": None if device == "cuda" else _kernels(),
        "seeds": [seed],
        "started": started.isoformat(timespec="seconds"),
    }


def kernels_of(provenance: Mapping[str, Any]) -> Kernels:
    """The kernels that the record's process was asked for, by those of MKL: ATen's are the default ones on ARM, too."""
    return "portable" if f"MKL {PORTABLE['MKL_CBWR']}" in (provenance.get("arithmetic") or "") else "own"


def processor_words(provenance: Mapping[str, Any]) -> str:
    """What rounding depends on: the processor or GPU, and the kernels if they are known; empty if neither is known."""
    hardware, kernels = provenance.get("hardware") or "", provenance.get("arithmetic")
    return f"{hardware} ({kernels})" if kernels else str(hardware)
