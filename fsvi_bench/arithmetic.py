"""Rounding that does not depend on whose processor it is.

torch's libraries choose their kernels by the processor, and these sum in different orders. A difference in the last
digit is nothing to a score, but 15,000 steps of descent, or a line search, may amplify it to several per cent. With the
switches set here a line search has ended on the same 16 digits on an AMD EPYC and an Intel Xeon, 11 % apart without
(benchmarks/README.md says what was measured, and what it costs). NumPy's and SciPy's own kernels are left alone: no
built-in method trains with linear algebra of theirs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fsvi_bench.errors import InputError

#: ATen without wide registers, and MKL's kernels that are the same on every x86-64 processor.
PORTABLE: Mapping[str, str] = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
KERNELS_VARIABLE = "FSVI_BENCH_KERNELS"  #: `portable`, what commands take unless told otherwise, or `own`


def use_portable_arithmetic() -> None:
    """For this process and those that it starts, unless the environment says otherwise.

    It counts only before gpytorch is imported and before torch has computed anything, so that commands do it first, and
    nothing does it at import.

    Raises:
        InputError: `FSVI_BENCH_KERNELS` is neither `portable` nor `own`.
    """
    chosen = os.environ.get(KERNELS_VARIABLE) or "portable"
    if chosen not in ("portable", "own"):
        raise InputError(
            f"{KERNELS_VARIABLE} is '{chosen}', expected 'portable' (meant to give the same digits on every x86 "
            "processor) or 'own' (the processor's fastest kernels); set one of them, or nothing"
        )
    if chosen == "portable":
        for name, value in PORTABLE.items():
            os.environ[name] = os.environ.get(name) or value  # an empty one says nothing


def arithmetic() -> dict[str, str]:
    """The switches as they are set; what is left to the libraries is not in it."""
    return {name: os.environ[name] for name in PORTABLE if os.environ.get(name)}
