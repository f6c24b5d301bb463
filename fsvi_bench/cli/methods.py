"""`fsvi-bench methods list|check`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import asdict

from rich.table import Table as Terminal

from fsvi_bench.cli.commands import MethodsCheck, MethodsList
from fsvi_bench.cli.console import show, stdout
from fsvi_bench.conformance import Report, check_method, subjects
from fsvi_bench.methods.registry import load_method, method_names
from fsvi_bench.presenting.tables import Table
from fsvi_bench.running.options import parse_settings
from fsvi_bench.threads import use_one_thread
from fsvi_bench.training.trainer import choose_device


def methods_list(options: MethodsList) -> None:
    entries = [(entry, entry.options({})) for entry in map(load_method, method_names())]
    document = [
        {
            "name": entry.name,
            "summary": entry.defaults.summary,
            "families": list(entry.cls.families),
            "networks": entry.cls.networks is not None,
            "deterministic": entry.cls.deterministic,
            "options": defaults.model_dump(mode="json"),
        }
        for entry, defaults in entries
    ]
    rows = []
    for entry, defaults in entries:
        words = ", ".join(f"{key}={value}" for key, value in defaults.model_dump().items())
        networks = "yes" if entry.cls.networks else ""
        rows.append((entry.name, ", ".join(entry.cls.families), networks, words or "none", entry.defaults.summary))
    columns = ("name", "families", "networks", "options", "summary")
    show(options.as_json, document, lambda: Table(columns=columns, rows=rows).terminal())


def methods_check(options: MethodsCheck) -> int:
    changes = parse_settings(options.settings)
    given = {"M": options.measurement_points, "max_steps": options.max_steps}
    changes |= {name: value for name, value in given.items() if value is not None}
    gpu = choose_device(options.device) == "cuda"
    use_one_thread()
    with redirect_stdout(sys.stderr):  # what the code of the method prints; stdout is for results
        report = check_method(subjects(options.method, options.families, changes, gpu=gpu))
    return show_report("method", report, options.as_json)


def show_report(kind: str, report: Report, as_json: bool) -> int:
    """Prints what checks found of a method or an objective, and returns the exit status."""
    findings = [asdict(finding) for finding in report.findings]
    document = {kind: report.name, "findings": findings, "ok": report.ok, "verdict": report.verdict}
    show(as_json, document, lambda: _report_table(report))
    if not as_json:
        stdout.print(report.verdict, style="green" if report.ok else "red")
    return 0 if report.ok else 1


def _report_table(report: Report) -> Terminal:
    styles = {"ok": "green", "failed": "red", "not applicable": "dim", "not run": "dim"}
    headings = {"family": "family", "check": "check", "status": "result", "message": "details"}
    if report.findings[0].family is None:
        del headings["family"]
    rows = [[getattr(found, column) for column in headings] for found in report.findings]
    shown = Table(columns=tuple(headings.values()), rows=rows).terminal(sections=report.findings[0].family is not None)
    for row, found in zip(shown.rows, report.findings, strict=True):
        row.style = styles[found.status]
    for column in shown.columns[:-1]:
        column.no_wrap = True
    return shown
