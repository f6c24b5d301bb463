"""Irrevocable limits on memory, time and system calls that the process in the jail sets before it runs an entry's code.

Only the system calls that training needs are allowed (libseccomp, through pyseccomp). None of them can open a socket,
start a process or a program, signal another process, or, except in conformance checks, open a file for writing. The
only other process in the jail is the parent, whose memory, environment and open files are out of reach, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path

MAX_FILE = 2**20  #: bytes of its stderr, and of each file if it may write files
MAX_THREADS, MAX_OPEN_FILES = 512, 256  #: threads of this user in total, as counted by Linux
_CLONE_THREAD, _TEMPORARY = 0x10000, 0o20000000  #: CLONE_THREAD; O_TMPFILE without O_DIRECTORY
_ALLOWED = """
access brk clock_getres clock_gettime clock_nanosleep close close_range dup dup2 dup3 exit exit_group faccessat
faccessat2 fadvise64 fstat fstatfs futex futex_waitv get_mempolicy get_robust_list getcwd getdents64 getegid
geteuid getgid getpgrp getpid getppid getrandom getrlimit getrusage gettid gettimeofday getuid lseek lstat madvise
membarrier mincore mmap mprotect mremap munmap nanosleep newfstatat pipe2 poll ppoll pread64 preadv pselect6 read
readlink readlinkat readv restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigtimedwait
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam sched_getscheduler sched_yield select
set_robust_list set_tid_address sigaltstack stat statfs statx sysinfo time times uname write writev
"""
#: Commands of `fcntl`: F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC. Others could make a pipe signal the parent.
_FCNTL = (0, 1, 2, 3, 1030)
#: Requests of `ioctl`: TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX. Others could allocate space on a disk.
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)
_WRITING = "open openat mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 chdir fchdir fsync"


def confine(memory: int, cpu_seconds: int, may_write: bool = False) -> str:
    """Confines this process and its threads irrevocably; returns a description of the limits.

    Args:
        memory: bytes of address space in addition to what is mapped already, so that libraries do not count.
        may_write: whether the process may write small files to the scratch folder, as conformance checks do.
    """
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: MAX_FILE,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_CPU: math.ceil(time.process_time()) + cpu_seconds,
    }
    if linux := sys.platform == "linux":
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limits |= {resource.RLIMIT_NPROC: MAX_THREADS, resource.RLIMIT_AS: mapped + memory}
    for what, value in limits.items():
        hard = resource.getrlimit(what)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (least, least))
    if not linux:
        return "limits on files and time"
    return f"{'seccomp' if _deny_system_calls(may_write) else 'no seccomp'}, {memory / 2**30:.3g} GiB of memory"


def end_with_parent() -> None:
    """Makes the system kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def protect_from_others(yes: bool) -> None:
    """Forbids other processes of this user to look into this one, or allows it again; a fork inherits this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(4, int(not yes), 0, 0, 0)  # PR_SET_DUMPABLE


def leaks(planted: Path, port: int) -> list[str]:
    """Resources that this process can reach although the jail must prevent it; checked before an entry's code is run.

    Args:
        planted: a world-readable file of the verifier, in a folder that is not visible in the jail.
        port: a port on the loopback address at which the verifier listens.
    """
    found = []
    with contextlib.suppress(OSError):
        planted.read_bytes()
        found.append("a file of the verifier")
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        found.append("the network")
    # the process with the libraries, and this one
    if sum(name.isdigit() for name in os.listdir("/proc")) > 2:  # noqa: PTH208 - only names are needed
        found.append("other processes")
    if os.geteuid() == 0:
        found.append("root privileges")
    for name in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname"):
        with contextlib.suppress(OSError):
            os.close(os.open(name, os.O_WRONLY))
            found.append("/proc/sys")
    return found


def calls_are_open() -> bool:
    """Whether the filter of system calls is missing; checked after it has been set."""
    try:
        socket.socketpair()
    except OSError:
        return False
    return True


def _deny_system_calls(may_write: bool) -> bool:
    """Denies all system calls but the allowed ones, in all threads; returns whether libseccomp is available."""
    try:
        import pyseccomp as seccomp

        rules = seccomp.SyscallFilter(defaction=seccomp.ERRNO(errno.EPERM))
    except (ImportError, OSError, RuntimeError):
        return False
    rules.set_attr(seccomp.Attr.CTL_TSYNC, 1)
    for name in f"{_ALLOWED} {_WRITING if may_write else ''}".split():
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # a call that does not exist on this architecture
            rules.add_rule(seccomp.ALLOW, name)
    changing = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | _TEMPORARY
    for name, place in (("open", 1), ("openat", 2)) if not may_write else ():
        rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(place, seccomp.MASKED_EQ, changing, 0))
    for name, values in (("fcntl", _FCNTL), ("ioctl", _IOCTL)):
        for value in values:
            rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(1, seccomp.EQ, value))
    # clone may start threads only. A filter cannot read the flags of clone3; the C library falls back to clone.
    rules.add_rule(seccomp.ALLOW, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD))
    rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    rules.add_rule(seccomp.ALLOW, "prlimit64", seccomp.Arg(0, seccomp.EQ, 0), seccomp.Arg(2, seccomp.EQ, 0))
    rules.load()
    return True
