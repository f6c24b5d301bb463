"""fsvi-bench: how close does an inference method get to the exact Bayesian posterior in function space?"""

from importlib.metadata import version

__version__ = version("fsvi-bench")
