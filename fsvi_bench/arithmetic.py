"""Rounding that does not depend on whose processor it is.

Libraries of linear algebra choose their kernels by the processor, and these sum in different orders. A difference in
the last digit is nothing to a score, but 15,000 steps of descent, or a line search, may amplify it to several per cent
(benchmarks/README.md). With the two switches set here the same training has ended on the same 16 digits on processors
of two makers, FIXEDA's line search included; it takes a third to two thirds longer than with the fastest kernels.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

#: ATen without wide registers, and MKL's kernels that are the same on every x86-64 processor.
PORTABLE: Mapping[str, str] = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}


def use_portable_arithmetic() -> None:
    """For this process and those that it starts, unless the environment says otherwise.

    It counts only before torch has computed anything, so that commands do it first and nothing does it at import.
    """
    for name, value in PORTABLE.items():
        os.environ.setdefault(name, value)


def arithmetic() -> dict[str, str]:
    """The switches as they are set; what is left to the libraries is not in it."""
    return {name: os.environ[name] for name in PORTABLE if name in os.environ}


def arithmetic_words() -> str:
    """`ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE`, or that the processor decides."""
    return " ".join(f"{name}={value}" for name, value in arithmetic().items()) or "the processor's own"
