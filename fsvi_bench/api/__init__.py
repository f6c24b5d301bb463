"""The Python API, one function a module; `fsvi_bench` itself imports them when they are first used."""
