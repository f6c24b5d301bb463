"""`python -m fsvi_bench` is `fsvi-bench`."""

from fsvi_bench.cli.app import main as start

if __name__ == "__main__":
    start()
