"""What every inference method and every functional objective must satisfy, as checks for those that others write.

`fsvi-bench methods check my_method.py:MyMethod` and `fsvi-bench objectives check my_objective.py:my_kl` run them, and
`parametrize_with_checks` makes tests of a method's; `tests/methods` holds our own methods to the same and more.
"""

from fsvi_bench.conformance.checks import CHECKS, check_method, parametrize_with_checks
from fsvi_bench.conformance.objectives import OBJECTIVE_CHECKS, check_objective
from fsvi_bench.conformance.report import Report
from fsvi_bench.conformance.subject import Subject, subjects

__all__ = [
    "CHECKS",
    "OBJECTIVE_CHECKS",
    "Report",
    "Subject",
    "check_method",
    "check_objective",
    "parametrize_with_checks",
    "subjects",
]
