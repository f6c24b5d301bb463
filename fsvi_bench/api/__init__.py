"""The Python API, one function per module; `fsvi_bench` imports each on first use."""
