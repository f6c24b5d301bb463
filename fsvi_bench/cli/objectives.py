"""`fsvi-bench objectives check`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

from fsvi_bench.cli.commands import ObjectivesCheck
from fsvi_bench.cli.methods import show_report
from fsvi_bench.conformance import check_objective
from fsvi_bench.methods.registry import load_function
from fsvi_bench.threads import use_one_thread


def objectives_check(options: ObjectivesCheck) -> int:
    use_one_thread()
    with redirect_stdout(sys.stderr):  # what the code of the objective prints; stdout is for results
        function = load_function(options.function)
        report = check_objective(function, options.divergence, options.function)
    return show_report("objective", report, options.as_json)
