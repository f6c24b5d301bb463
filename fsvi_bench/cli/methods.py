"""`fsvi-bench methods list|check`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import Any

from rich.table import Table as Terminal

from fsvi_bench.cli.commands import MethodsCheck, MethodsList
from fsvi_bench.cli.console import show, stderr, stdout
from fsvi_bench.conformance import Report, check_method, subjects
from fsvi_bench.errors import InputError
from fsvi_bench.methods.registry import MethodEntry, load_method, method_names
from fsvi_bench.presenting.tables import Table
from fsvi_bench.running.options import parse_settings
from fsvi_bench.threads import use_one_thread
from fsvi_bench.training.trainer import choose_device

#: Words of JSON schemas.
KINDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text", "array": "list"}
BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}


def methods_list(options: MethodsList) -> None:
    with redirect_stdout(sys.stderr):  # what the code of the method prints
        named = [load_method(options.name)] if options.name else _installed()
    entries = [(entry, entry.options({})) for entry in named]
    document = [
        {
            "name": entry.name,
            "summary": entry.defaults.summary,
            "families": list(entry.cls.families),
            "networks": entry.cls.networks is not None,
            "deterministic": entry.is_deterministic(defaults),
            "options": defaults.model_dump(mode="json"),
            "network_options": _network_options(entry),
        }
        for entry, defaults in entries
    ]
    if options.name:
        show(options.as_json, document, lambda: _option_table(named[0], document[0]))
        return
    rows = []
    for entry, defaults in entries:
        words = ", ".join(f"{key}={value}" for key, value in defaults.model_dump().items())
        networks = "yes" if entry.cls.networks else ""
        rows.append((entry.name, ", ".join(entry.cls.families), networks, words or "none", entry.defaults.summary))
    columns = ("name", "families", "networks", "options", "summary")
    show(options.as_json, document, lambda: Table(columns=columns, rows=rows).terminal())


def _installed() -> list[MethodEntry]:
    """All methods that can be imported: a package that is broken does not hide the others."""
    found = []
    for name in method_names():
        try:
            found.append(load_method(name))
        except InputError as error:
            stderr.print(f"left out: {error}")
    return found


def _network_options(entry: MethodEntry) -> dict[str, Any] | None:
    """The defaults on networks; None for a method for linear models only."""
    return entry.options(entry.defaults.network_options).model_dump(mode="json") if entry.cls.networks else None


def _option_table(entry: MethodEntry, document: Mapping[str, Any]) -> Terminal:
    """One line per option: its defaults, the values that it accepts, and its meaning, where a docstring says it."""
    kinds = {"options": "on linear models", "network_options": "on networks"}
    kinds = {kind: heading for kind, heading in kinds.items() if document[kind] is not None}
    columns = ["option", *kinds.values(), "values", "meaning"]
    rows = []
    for name, field in entry.cls.Options.model_json_schema().get("properties", {}).items():
        defaults = [json.dumps(document[kind][name]).strip('"') for kind in kinds]
        rows.append([name, *defaults, _accepted(field), _meaning(entry, name)])
    title = f"{entry.name} ({', '.join(document['families'])}): {document['summary']}"
    shown = Table(title=title, columns=columns, rows=rows or [["none", *[""] * (len(columns) - 1)]]).terminal()
    for column in shown.columns[: len(columns) - 2]:
        column.no_wrap = True
    return shown


def _accepted(field: Mapping[str, Any]) -> str:
    """The values that an option accepts, from its JSON schema."""
    if "anyOf" in field:
        return " or ".join(_accepted(each).replace(", ", " or ") for each in field["anyOf"])
    if words := field.get("enum", [field["const"]] if "const" in field else []):
        return ", ".join(map(str, words))
    kind = field.get("type", "value")
    bounds = [f"{words} {field[bound]}" for bound, words in BOUNDS.items() if bound in field]
    return f"{KINDS.get(kind, kind)} {' and '.join(bounds)}".strip()


def _meaning(entry: MethodEntry, name: str) -> str:
    """The description of an option, or the sentence about it in the docstring of the class that defines it."""
    options = entry.cls.Options
    if described := options.model_fields[name].description:
        return described
    texts = [each.__doc__ or "" for each in options.__mro__ if name in getattr(each, "__annotations__", {})]
    sentences = [sentence for text in texts for sentence in re.split(r"(?<=\.)\s+(?=[A-Z`])", " ".join(text.split()))]
    # Single letters are written without quotes.
    quoted = rf"`{name}\b" if len(name) > 1 else rf"(?<!=)\b{name}\b"
    return next((sentence for sentence in sentences if re.search(quoted, sentence)), "")


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
