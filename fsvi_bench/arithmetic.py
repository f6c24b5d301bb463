"""Kernels of a process: the fastest ones for its processor, or portable ones that round alike on all x86 processors.

torch's libraries choose their kernels by the processor, and these sum in different orders. A difference in the last
digit does not matter to a score, but 15,000 steps of descent, or a line search, may amplify it to several per cent.
With portable kernels a line search gave the same 16 digits on an AMD EPYC and an Intel Xeon; without them the results
were 11% apart (benchmarks/README.md has the measurements and the cost). They are for results that must be reproducible
on other machines: protocols with `arithmetic: portable`, and the runs of `submit` and `verify`. The kernels of NumPy
and SciPy are unaffected: no built-in method trains with their linear algebra.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Literal, get_args

from fsvi_bench.errors import InputError
from fsvi_bench.files import is_file
from fsvi_bench.resources import read_yaml, resource_dir

Kernels = Literal["own", "portable"]
#: ATen without wide registers, and the MKL kernels that are the same on every x86-64 processor.
PORTABLE: Mapping[str, str] = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
KERNELS_VARIABLE = "FSVI_BENCH_KERNELS"  #: overrides the choice of a command


def use_kernels(asked: Kernels = "own") -> None:
    """Sets the kernels of this process and of those it starts; `$FSVI_BENCH_KERNELS` overrides `asked`.

    It has no effect after torch has been imported, since its libraries may have chosen by then: call this first.

    Raises:
        InputError: `$FSVI_BENCH_KERNELS` is neither `own` nor `portable`.
    """
    chosen = os.environ.get(KERNELS_VARIABLE) or asked
    if chosen not in get_args(Kernels):
        raise InputError(
            f"{KERNELS_VARIABLE} is '{chosen}', expected 'own' (the processor's fastest kernels) or 'portable' (the "
            "same digits on every x86 processor); set one of them, or unset the variable"
        )
    if chosen == "portable" and "torch" not in sys.modules:
        for name, value in PORTABLE.items():
            os.environ[name] = os.environ.get(name) or value  # an empty variable counts as unset


def kernels_of_protocol(name: str | None) -> Kernels:
    """The kernels of a protocol, read before torch is imported; the protocol itself is checked later."""
    path = resource_dir("conf") / "protocols" / f"{name}.yaml"
    content = read_yaml(path) if name and is_file(path) else None
    return "portable" if isinstance(content, dict) and content.get("arithmetic") == "portable" else "own"


def require_kernels_of(protocol: str | None) -> None:
    """Raises InputError if a protocol asks for portable kernels and this process has others."""
    if kernels_of_protocol(protocol) == "portable" and not arithmetic() and os.environ.get(KERNELS_VARIABLE) != "own":
        raise InputError(
            f"the protocol {protocol} asks for portable kernels, but this process has the processor's own; call "
            f'fsvi_bench.arithmetic.use_kernels("portable") before torch is imported, or set {KERNELS_VARIABLE}=own'
        )


def arithmetic() -> dict[str, str]:
    """The environment variables that select kernels, as far as they are set."""
    return {name: os.environ[name] for name in PORTABLE if os.environ.get(name)}
