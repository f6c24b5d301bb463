"""What every inference method must do, whatever it computes, as checks for methods that others write.

`fsvi-bench methods check my_method.py:MyMethod` runs them, and `parametrize_with_checks` makes tests of them;
`tests/methods` holds our own methods to the same and more.
"""

from fsvi_bench.conformance.checks import CHECKS, Report, check_method, parametrize_with_checks
from fsvi_bench.conformance.subject import Subject, subjects

__all__ = ["CHECKS", "Report", "Subject", "check_method", "parametrize_with_checks", "subjects"]
