"""How a process with submitted code is kept from the rest of the machine: bubblewrap where it works.

In the jail the process sees Python and its libraries, this package without its data, and its own job, all of it read
only; a small folder in memory to write to; no network but a loopback of its own, no other processes, nothing of the
environment. What does not lie there cannot be read: neither raw data, nor tasks, nor other submissions, nor a home.
See bwrap(1) and github.com/containers/bubblewrap.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import fsvi_bench
from fsvi_bench.arithmetic import PORTABLE
from fsvi_bench.errors import InputError
from fsvi_bench.resources import resource_dir
from fsvi_bench.tasks.raw import DATA_VARIABLE, cache_dir

SCRATCH = 64 * 2**20  #: bytes that may be written in all, to memory
_SYSTEM = ("/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")  # links into /usr, mostly
_AS_THEY_ARE = ("/etc/ld.so.cache", "/etc/alternatives", "/sys/devices/system/cpu")  # what libraries look up
_LIBRARIES = ("torch", "numpy", "scipy", "pydantic", "safetensors", "pytorch_lightning", "gpytorch", "jaxtyping")
#: How libraries choose their kernels: it moves last digits, and tells nothing.
_NUMERICS = (*PORTABLE, "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE")


@dataclass(frozen=True)
class Jail:
    """How to start a process; without bubblewrap it sees all that its user does."""

    bwrap: str | None
    hidden: tuple[Path, ...] = ()  #: folders that must not be seen wherever they lie

    @property
    def words(self) -> str:
        if self.bwrap is None:
            return "no jail: this user's files were in the submitted code's reach"
        return "bubblewrap: no network, no other processes, no files but its own and Python's"

    def command(self, folder: Path, arguments: Sequence[str]) -> list[str]:
        """A command line that runs Python with these arguments; `folder` is what it may read besides.

        Raises:
            InputError: what must be hidden cannot be, since Python lies in the same folder.
        """
        python = [sys.executable, "-P", "-s", "-B", *arguments]
        if self.bwrap is None:
            return python
        apart = [
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
            "--uid",
            "65534",
            "--gid",
            "65534",
            "--cap-drop",
            "ALL",
        ]
        writable = ["--size", str(SCRATCH), "--tmpfs", "/tmp", "--size", str(SCRATCH), "--tmpfs", "/dev/shm"]
        sealed = ["--chdir", "/tmp", "--remount-ro", "/dev", "--remount-ro", "/"]
        job = ["--ro-bind", str(folder), str(folder)]
        own = ["--proc", "/proc", "--dev", "/dev", *writable]
        mounts, emptied = self._mounts()
        # Last, since a folder that is read only takes no further mount; and what hides a folder could be written to.
        sealed += [word for path in emptied for word in ("--remount-ro", str(path))]
        return [self.bwrap, *apart, *own, *mounts, *job, *sealed, "--", *python]

    def _mounts(self) -> tuple[list[str], list[Path]]:
        """Shown and hidden folders, the outer before the inner: of two the one that lies deeper decides."""
        shown = {variant for path in _needed() for variant in (path, path.resolve())}
        hidden = {path.resolve() for path in self.hidden if path.is_dir()} - {Path("/")}
        if both := sorted(shown & hidden):
            raise InputError(
                f"{both[0]} holds both Python and what submitted code must not see (a home, data, submissions); "
                "move one of them, or use a virtual environment"
            )
        within = {path for path in hidden if any(path.is_relative_to(outer) for outer in shown)}
        mounts = _links_and_files()
        for path in sorted(shown | within, key=lambda path: (len(path.parts), path)):
            mounts += ["--ro-bind", str(path), str(path)] if path in shown else ["--tmpfs", str(path)]
        return mounts, sorted(within)


def environment(threads: int = 1) -> dict[str, str]:
    """All that the process gets of an environment; nobody's keys are in it."""
    counts = {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "MKL", "OPENBLAS")}
    numerics = {name: os.environ[name] for name in _NUMERICS if name in os.environ}
    fixed = {"HOME": "/tmp", "TMPDIR": "/tmp", "USER": "nobody", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    return {**fixed, **counts, **numerics, "PYTHONPATH": os.pathsep.join(map(str, _import_path()))}


def find_jail(hidden: Iterable[Path] = ()) -> Jail:
    """The best jail that works here.

    Args:
        hidden: folders that must not be seen, beside the raw data, the cache, the tasks and the home.
    """
    own = [resource_dir("datasets"), cache_dir()]
    with contextlib.suppress(RuntimeError):  # a user without a home
        own.append(Path.home())
    named = [Path(os.environ[DATA_VARIABLE])] if os.environ.get(DATA_VARIABLE) else []
    bwrap = shutil.which("bwrap")
    return Jail(bwrap if bwrap is not None and _works(bwrap) else None, (*own, *named, *hidden))


@lru_cache
def _works(bwrap: str) -> bool:
    """Whether Python starts in it: many systems have it, but not for everybody."""
    here = Path(__file__).parent
    try:
        command = Jail(bwrap).command(here, ["-c", "import ctypes"])
        return subprocess.run(command, env=environment(), capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _links_and_files() -> list[str]:
    mounts = []
    for link in _SYSTEM:
        if Path(link).is_symlink():
            mounts += ["--symlink", str(Path(link).readlink()), link]
    return mounts + [word for name in _AS_THEY_ARE for word in ("--ro-bind-try", name, name)]


def _needed() -> list[Path]:
    """Folders without which Python, its libraries and this package do not load."""
    system = [path for path in map(Path, ("/usr", "/nix/store", *_SYSTEM)) if path.is_dir() and not path.is_symlink()]
    prefixes = [Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)]
    package = Path(fsvi_bench.__file__).parent
    return [*system, *prefixes, *_library_folders(), package, resource_dir("conf")]


def _library_folders() -> list[Path]:
    """Where the libraries lie that are not in the installation itself (a user's own, say)."""
    specs = [importlib.util.find_spec(name) for name in _LIBRARIES]
    folders = {Path(spec.origin).parents[1] for spec in specs if spec is not None and spec.origin is not None}
    standard = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return sorted(folders - standard)


def _import_path() -> list[Path]:
    """What the other Python must be told to look into: this package's place, unless it is installed, and libraries'."""
    package = Path(fsvi_bench.__file__).parents[1]
    standard = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return [path for path in dict.fromkeys([package, *_library_folders()]) if path not in standard]
