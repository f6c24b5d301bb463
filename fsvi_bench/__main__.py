"""`python -m fsvi_bench` is `fsvi-bench`: a process of its own, so that it may choose how it rounds."""

from fsvi_bench.arithmetic import use_portable_arithmetic


def start() -> None:
    """Entry point of the installed command."""
    use_portable_arithmetic()
    from fsvi_bench.cli.app import main

    main()


if __name__ == "__main__":
    start()
