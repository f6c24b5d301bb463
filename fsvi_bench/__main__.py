"""`python -m fsvi_bench` is `fsvi-bench`: a process of its own, so that it may choose how it rounds."""

import sys

from fsvi_bench.arithmetic import use_portable_arithmetic
from fsvi_bench.errors import InputError


def start() -> None:
    """Entry point of the installed command: kernels first, before anything of torch is imported."""
    try:
        use_portable_arithmetic()
    except InputError as error:
        print(f"fsvi-bench: {error}", file=sys.stderr)
        sys.exit(2)
    from fsvi_bench.cli.app import main

    main()


if __name__ == "__main__":
    start()
