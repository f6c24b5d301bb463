"""What every inference method must do, whatever it computes, as a suite for methods that others write.

`fsvi-bench methods check my_method.py:MyMethod` runs it; `tests/methods` holds our own methods to the same and more.
"""

from fsvi_bench.conformance.subject import Subject
from fsvi_bench.conformance.suite import CHECKS, check_method
from fsvi_bench.conformance.verdict import Finding, Report

__all__ = ["CHECKS", "Finding", "Report", "Subject", "check_method"]
