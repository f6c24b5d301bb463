"""What a result was computed with, as far as it can be known from inside."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import fsvi_bench
from fsvi_bench.arithmetic import arithmetic


@cache
def git_revision() -> str | None:
    """The checkout's commit, with `-dirty` where tracked files differ from it; None for an installed wheel."""
    root = Path(fsvi_bench.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def _versions() -> dict[str, str | None]:
    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    names = {
        "torch": "torch",
        "lightning": "pytorch-lightning",
        "gpytorch": "gpytorch",
        "numpy": "numpy",
        "scipy": "scipy",
    }
    return {short: installed(name) for short, name in names.items()}


@cache
def _processor() -> str:
    """The processor's model where the system tells it, else its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _kernels() -> str:
    """Which kernels torch's libraries took: ATen says so itself, MKL what it was told."""
    aten = f"ATen {torch.backends.cpu.get_cpu_capability()}"
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return f"{aten}, MKL {arithmetic().get('MKL_CBWR', 'own')}" if has_mkl else aten


def provenance(device: str, seed: int, started: datetime) -> dict[str, Any]:
    """Versions, platform, the device actually used, threads, the seed, and when the cell's batch was started (UTC)."""
    hardware = torch.cuda.get_device_name() if device == "cuda" else _processor()
    return {
        "fsvi_bench": fsvi_bench.__version__,
        "git": git_revision(),
        **_versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "hardware": hardware,
        "threads": torch.get_num_threads(),
        "arithmetic": None if device == "cuda" else _kernels(),
        "seeds": [seed],
        "started": started.isoformat(timespec="seconds"),
    }


def machine_words(provenance: Mapping[str, Any]) -> str:
    """What a record's machine was, kernels included: another's last digits may differ, and training amplifies them."""
    threads, kernels = provenance.get("threads"), provenance.get("arithmetic")
    words = [str(provenance.get("device")), f"{threads} thread{'' if threads == 1 else 's'}"]
    return f"{provenance.get('hardware')} ({', '.join([*words, *([kernels] if kernels else [])])})"


def processor_words(provenance: Mapping[str, Any]) -> str:
    """Only what rounding depends on: the processor or GPU, and the kernels if they are known; empty if neither is."""
    hardware, kernels = provenance.get("hardware") or "", provenance.get("arithmetic")
    return f"{hardware} ({kernels})" if kernels else str(hardware)
