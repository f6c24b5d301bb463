"""Whose rounding a process takes: its processor's own, or one that every x86 processor shares.

torch's libraries choose their kernels by the processor, and these sum in different orders. A difference in the last
digit is nothing to a score, but 15,000 steps of descent, or a line search, may amplify it to several per cent. With
portable kernels a line search has ended on the same 16 digits on an AMD EPYC and an Intel Xeon, 11 % apart without
(benchmarks/README.md says what was measured, and what it costs). They are for what must come out again elsewhere: a
protocol that says so (`arithmetic: portable`), and the runs of `submit` and `verify`. NumPy's and SciPy's own kernels
are left alone: no built-in method trains with linear algebra of theirs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Literal, get_args

from fsvi_bench.errors import InputError
from fsvi_bench.resources import read_yaml, resource_dir

Kernels = Literal["own", "portable"]
#: ATen without wide registers, and MKL's kernels that are the same on every x86-64 processor.
PORTABLE: Mapping[str, str] = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
KERNELS_VARIABLE = "FSVI_BENCH_KERNELS"  #: goes before what a command asks for


def use_kernels(asked: Kernels = "own") -> None:
    """Sets the switches for this process and those that it starts; `$FSVI_BENCH_KERNELS` overrides what is asked.

    A process that has imported torch keeps what it has, since its libraries may have chosen by then: call this first.

    Raises:
        InputError: `$FSVI_BENCH_KERNELS` is neither `own` nor `portable`.
    """
    chosen = os.environ.get(KERNELS_VARIABLE) or asked
    if chosen not in get_args(Kernels):
        raise InputError(
            f"{KERNELS_VARIABLE} is '{chosen}', expected 'own' (the processor's fastest kernels) or 'portable' (meant "
            "to give the same digits on every x86 processor); set one of them, or nothing"
        )
    if chosen == "portable" and "torch" not in sys.modules:
        for name, value in PORTABLE.items():
            os.environ[name] = os.environ.get(name) or value  # an empty one says nothing


def kernels_of_protocol(name: str | None) -> Kernels:
    """What a protocol asks for, read before torch is there; whether it is a protocol is looked at later."""
    path = resource_dir("conf") / "protocols" / f"{name}.yaml"
    content = read_yaml(path) if name and path.is_file() else None
    return "portable" if isinstance(content, dict) and content.get("arithmetic") == "portable" else "own"


def arithmetic() -> dict[str, str]:
    """The switches as they are set; what is left to the libraries is not in it."""
    return {name: os.environ[name] for name in PORTABLE if os.environ.get(name)}
