"""The jail: bubblewrap as an unprivileged user, containing only Python and its libraries.

It has no network, no other processes, no environment variables of the verifier, and of this project only the code: no
data, tasks, configuration or leaderboard. A verifier that runs as root first switches to the user `nobody`. Folders
that this user may not enter, such as a Python installation below /root, are mounted for it in a private mount
namespace. See bwrap(1), unshare(1) and setpriv(1).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import fsvi_bench
from fsvi_bench.arithmetic import PORTABLE
from fsvi_bench.errors import InputError
from fsvi_bench.resources import resource_dir
from fsvi_bench.tasks.fetch import DATA_VARIABLE, cache_dir

PACKAGE = Path(fsvi_bench.__file__).parent
NOBODY = 65534
SCRATCH = 2**24  #: bytes that libraries may write during their import, and conformance checks
MOST_TASKS = 512  #: processes and threads of a run, if a cgroup limits them
_SYSTEM = ("/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")  # links into /usr, mostly
#: Options of bubblewrap that all runs share; the last three are files that libraries read.
_OPTIONS = f"""
--unshare-all --as-pid-1 --die-with-parent --new-session --cap-drop ALL --uid {NOBODY} --gid {NOBODY} --chdir /
--proc /proc --ro-bind /proc/sys /proc/sys --dev /dev --size {SCRATCH} --tmpfs /tmp
--ro-bind-try /etc/ld.so.cache /etc/ld.so.cache
--ro-bind-try /etc/alternatives /etc/alternatives
--ro-bind-try /sys/devices/system/cpu /sys/devices/system/cpu
""".split()
_LIBRARIES = ("torch", "numpy", "scipy", "pydantic", "safetensors", "pytorch_lightning", "gpytorch", "pyseccomp")
#: Variables by which libraries choose their kernels: they affect last digits, and reveal nothing.
_NUMERICS = (*PORTABLE, "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE")
_BUS = (
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
)  #: variables by which `systemd-run --user` finds systemd; unset in the jail
_SCOPE = ["systemd-run", "--quiet", "--scope", f"--property=TasksMax={MOST_TASKS}"]
_SCOPE += [] if os.geteuid() == 0 else ["--user"]
#: Mounts each pair of folders (from, to), then runs what follows `--` as `nobody`.
_AS_NOBODY = """
while [ "$1" != -- ]; do mount --rbind "$1" "$2" || exit 125; shift 2; done; shift
exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs -- "$@"
"""


@dataclass(frozen=True)
class Jail:
    """How to start a process. Without bubblewrap the process can access everything that its user can."""

    bwrap: str | None
    cgroup: bool = False  #: whether systemd limits memory and processes; else the process limits itself (rlimit)

    @property
    def words(self) -> str:
        """Description for the result file."""
        return "none" if self.bwrap is None else f"bubblewrap, {'cgroup' if self.cgroup else 'rlimit'}"

    def command(self, arguments: Sequence[str], memory: int, stage: Path, datasets: Path | None = None) -> list[str]:
        """A command line that runs Python with these arguments.

        Args:
            memory: bytes in addition to those of Python and its libraries.
            stage: an empty folder that all users may enter, for the mounts if the verifier is root.
            datasets: a folder that replaces the data sets of the package.
        """
        python = [sys.executable, "-P", "-s", "-B", *arguments]
        if self.bwrap is None:
            return python
        shown = {path: path for path in _needed()}
        if datasets is not None:
            shown[resource_dir("datasets")] = datasets
        before: list[str] = []
        if self.cgroup:  # without swap, since swapped memory does not count
            before = [*_SCOPE, f"--property=MemoryMax={memory + 4 * 2**30}", "--property=MemorySwapMax=0", "--"]
        if os.geteuid() == 0:
            staged = {path: stage / str(place) for place, path in enumerate(shown)}
            before += ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _AS_NOBODY, "sh"]
            for path, mounted in staged.items():
                mounted.mkdir()
                before += [str(shown[path]), str(mounted)]
            before, shown = [*before, "--"], staged
        return [*before, self.bwrap, *_options(shown), "--", *python]


def require_jail() -> Jail:
    """The jail of this system; each run checks from inside that it is tight.

    Raises:
        InputError: bubblewrap is not available.
    """
    bwrap = shutil.which("bwrap")
    if sys.platform != "linux" or bwrap is None:
        raise InputError(
            "the sandbox needs bubblewrap (bwrap), which is not available; install it, or give "
            "--without-isolation for code that you trust"
        )
    return Jail(bwrap, _has_scopes())


def require_hidden(jail: Jail, paths: Iterable[Path | None]) -> None:
    """Checks that the process will not see these files and folders, such as a secret.

    Raises:
        InputError: one of them is inside a folder that Python or its libraries need.
    """
    shown, hidden = ([], []) if jail.bwrap is None else (_needed(), _never_shown())
    for path in (path.resolve() for path in paths if path is not None):
        if (folder := next(filter(path.is_relative_to, shown), None)) and not any(map(path.is_relative_to, hidden)):
            raise InputError(f"{path} is inside {folder}, which the sandbox shows to the entry; move it elsewhere")


def environment() -> dict[str, str]:
    """The environment of the process, which contains no credentials."""
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
    given = {name: os.environ[name] for name in (*_NUMERICS, *_BUS) if name in os.environ}
    fixed = {"HOME": "/tmp", "USER": "nobody", "LANG": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    return {**fixed, **threads, **given, "PYTHONPATH": os.pathsep.join(map(str, _import_path()))}


def _options(shown: dict[Path, Path]) -> list[str]:
    """Options of bubblewrap for the visible folders; outer folders are mounted before inner ones."""
    words = [*_OPTIONS, *(word for name in _BUS for word in ("--unsetenv", name))]
    for link in map(Path, _SYSTEM):
        words += ["--symlink", str(link.readlink()), str(link)] if link.is_symlink() else []
    hidden = [path for path in _never_shown() if path not in shown and any(map(path.is_relative_to, shown))]
    for path in sorted([*shown, *hidden], key=lambda path: len(path.parts)):
        words += ["--tmpfs", str(path)] if path in hidden else ["--ro-bind", str(shown[path]), str(path)]
    for closed in (*hidden, "/dev", "/"):
        words += ["--remount-ro", str(closed)]
    return words


def _needed() -> list[Path]:
    """Folders that Python, its libraries and this package need."""
    system = [path for path in map(Path, ("/usr", "/nix/store", *_SYSTEM)) if path.is_dir() and not path.is_symlink()]
    prefixes = map(Path, (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix))
    folders = [*system, *prefixes, *_library_folders(), PACKAGE]
    return _outermost([*folders, *(path.resolve() for path in folders)])


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """The folders that are not inside another one of them."""
    paths = set(folders)
    return sorted(path for path in paths if paths.isdisjoint(path.parents))


def _never_shown() -> list[Path]:
    """Folders with data, configuration and leaderboards, to be hidden if they are inside a visible folder."""
    named = [Path(os.environ[DATA_VARIABLE])] if os.environ.get(DATA_VARIABLE) else []
    own = [resource_dir(name) for name in ("datasets", "conf", "leaderboard")]
    return _outermost(path.resolve() for path in [PACKAGE / "_bundled", *own, cache_dir(), *named] if path.is_dir())


def _library_folders() -> set[Path]:
    """Folders of the libraries; some may be outside the installation, such as user packages."""
    specs = [importlib.util.find_spec(name) for name in _LIBRARIES]
    found = [spec for spec in specs if spec is not None and spec.origin is not None]
    # A library may be a single file, such as pyseccomp.
    return {Path(spec.origin or "").parents[spec.submodule_search_locations is not None] for spec in found}


def _import_path() -> list[Path]:
    """The import path of the process: the folders of this package and of libraries, unless they are standard."""
    standard = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return sorted({PACKAGE.parent, *_library_folders()} - standard)


@cache
def _has_scopes() -> bool:
    """Whether systemd can create control groups for this user."""
    try:
        asked = [*_SCOPE, "--", "true"]
        return subprocess.run(asked, env=environment(), capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
