"""Checks of the rules that every inference method must follow, including methods of third parties.

`fsvi-bench methods check my_method.py:MyMethod` runs the checks, and `parametrize_with_checks` turns them into pytest
tests. The built-in methods have further tests in `tests/methods`.
"""

from fsvi_bench.conformance.checks import CHECKS, Report, check_method, parametrize_with_checks
from fsvi_bench.conformance.subject import Subject, subjects

__all__ = ["CHECKS", "Report", "Subject", "check_method", "parametrize_with_checks", "subjects"]
