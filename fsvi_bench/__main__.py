"""`python -m fsvi_bench` is `fsvi-bench`."""

from fsvi_bench.cli.app import main

if __name__ == "__main__":
    main()
