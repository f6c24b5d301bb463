"""What a process gives up for good before it runs submitted code: memory, processor time, sockets, other processes.

It is a second wall behind `leaderboard.rerun.jail`, not one to stand alone: this user's files stay open to it.

None of it can be taken back without privileges, which `leaderboard.rerun.jail` takes away. The system calls are closed
with seccomp (kernel.org, userspace-api/seccomp_filter): a filter in classic BPF that makes them fail with EPERM. Linux
on x86-64 and arm64 has it; elsewhere the limits stand alone, and the verifier is told.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import platform
import resource
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_FILE = 64 * 2**20  #: bytes of one file that submitted code may write
_THREAD = 0x10000  #: CLONE_THREAD: a thread is no new process


class _Calls(NamedTuple):
    """Numbers of system calls (Linux, arch/*/entry/syscalls)."""

    architecture: int  #: AUDIT_ARCH_*
    clone: int
    clone3: int
    seccomp: int
    prlimit64: int
    refused: dict[str, int]


_CALLS = {
    "x86_64": _Calls(0xC000003E, 56, 435, 317, 302, {
        "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "socket": 41, "io_uring_setup": 425, "kill": 62,
        "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "pidfd_getfd": 438,
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_open": 434, "pidfd_send_signal": 424,
        "unshare": 272, "setns": 308, "mount": 165, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
        "add_key": 248, "request_key": 249, "keyctl": 250,
        "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "msgget": 68, "mq_open": 240,
    }),
    "aarch64": _Calls(0xC00000B7, 220, 435, 277, 261, {
        "execve": 221, "execveat": 281, "socket": 198, "io_uring_setup": 425, "kill": 129,
        "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "pidfd_getfd": 438,
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "pidfd_open": 434, "pidfd_send_signal": 424,
        "unshare": 97, "setns": 268, "mount": 40, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
        "add_key": 217, "request_key": 218, "keyctl": 219,
        "memfd_create": 279, "memfd_secret": 447, "shmget": 194, "msgget": 186, "mq_open": 180,
    }),
}  # fmt: skip


def confine(memory: int, cpu_seconds: int) -> bool:
    """Confines this process and all its threads for good; returns whether the system calls are closed, too.

    Args:
        memory: bytes of address space beyond what is mapped by now, so that it means the same whatever libraries take.
    """
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, MAX_FILE)
    _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + cpu_seconds)
    if (mapped := _mapped()) is not None:
        _limit(resource.RLIMIT_AS, mapped + memory)
    if sys.platform != "linux":
        return False
    _drop_capabilities()
    return _close_system_calls()


@contextlib.contextmanager
def closed_to_its_user() -> Iterator[None]:
    """Other processes of this user cannot open this one's memory or environment meanwhile (Linux, PR_SET_DUMPABLE)."""
    if sys.platform != "linux":
        yield
        return
    get, put, libc = 3, 4, ctypes.CDLL(None)  # PR_GET_DUMPABLE, PR_SET_DUMPABLE
    before = libc.prctl(get, 0, 0, 0, 0)
    libc.prctl(put, 0, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(put, before, 0, 0, 0)


def end_with_parent() -> None:
    """A verifier that is killed takes its child along (Linux; bubblewrap does the same for what it holds)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def _drop_capabilities() -> None:
    """Those of root, should a verifier be run by it: with them all that is closed to its user would be open (capset(2),
    version 3 of its structures)."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())


def _limit(what: int, value: int) -> None:
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def _mapped() -> int | None:
    """Bytes of this process's address space, where the system tells them."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def _close_system_calls() -> bool:
    calls = _CALLS.get(platform.machine())
    if calls is None or sys.maxsize < 2**32:
        return False
    instructions = _filter(calls)
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = _Program(len(instructions), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0:  # PR_SET_NO_NEW_PRIVS, without which nobody may set a filter
        return False
    mode, all_threads = 1, 1  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
    return bool(libc.syscall(calls.seccomp, mode, all_threads, ctypes.byref(program)) == 0)


def _filter(calls: _Calls) -> list[bytes]:
    """The filter: refused calls fail with EPERM, all others pass.

    Another architecture's calls (32-bit code in a 64-bit process, x32's numbers above 2³⁰) are refused whole: they have
    other numbers. clone makes threads only; of clone3, whose flags lie where no filter can look, the C library is told
    that there is no such call, and falls back to clone. prlimit64 is for the caller's own limits alone, as process 0.
    """
    load, equal, at_least, has_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06

    def instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, value)

    def fail(number: int) -> bytes:
        return instruction(answer, 0, 0, 0x00050000 | number)  # SECCOMP_RET_ERRNO

    program = [
        instruction(load, 0, 0, 4),  # seccomp_data.arch
        instruction(equal, 1, 0, calls.architecture),
        fail(errno.EPERM),
        instruction(load, 0, 0, 0),  # seccomp_data.nr
        instruction(at_least, 0, 1, 0x40000000),
        fail(errno.EPERM),
        instruction(equal, 0, 1, calls.clone3),
        fail(errno.ENOSYS),
    ]
    for number in calls.refused.values():
        program += [instruction(equal, 0, 1, number), fail(errno.EPERM)]
    allow, first_argument = instruction(answer, 0, 0, 0x7FFF0000), 16  # SECCOMP_RET_ALLOW; its low half
    program += [
        instruction(equal, 0, 4, calls.prlimit64),
        instruction(load, 0, 0, first_argument),
        instruction(equal, 1, 0, 0),
        fail(errno.EPERM),
        allow,
        instruction(equal, 0, 3, calls.clone),
        instruction(load, 0, 0, first_argument),
        instruction(has_bit, 1, 0, _THREAD),
        fail(errno.EPERM),
        allow,
    ]
    return program
