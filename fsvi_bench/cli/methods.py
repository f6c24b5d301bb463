"""`fsvi-bench methods list|check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fsvi_bench.cli.options import AsJson

if TYPE_CHECKING:
    from rich.table import Table as Terminal

    from fsvi_bench.conformance import Report

app = typer.Typer(no_args_is_help=True, help="Inference methods.")


@app.command("list")
def list_methods(json: AsJson = False) -> int:
    """Every method with its families and options."""
    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.methods.registry import load_method, method_names
    from fsvi_bench.presenting.tables import Table

    entries = [load_method(name) for name in method_names()]
    if json:
        print_json(
            [
                {
                    "name": entry.name,
                    "summary": entry.defaults.summary,
                    "families": list(entry.cls.families),
                    "deterministic": entry.cls.deterministic,
                    "options": entry.options({}).model_dump(mode="json"),
                }
                for entry in entries
            ]
        )
        return 0
    rows = []
    for entry in entries:
        options = ", ".join(f"{key}={value}" for key, value in entry.options({}).model_dump().items())
        rows.append((entry.name, ", ".join(entry.cls.families), options or "none", entry.defaults.summary))
    stdout.print(Table(title="", columns=("name", "families", "options", "what it is"), rows=tuple(rows)).terminal())
    return 0


@app.command("check")
def check_method(
    method: Annotated[str, typer.Argument(help="Method name, or path/file.py:Class.")],
    family: Annotated[list[str] | None, typer.Option("--family", help="Family; may be repeated. Default: all that the method has.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A method option; may be repeated.")] = None,
    measurement_points: Annotated[int | None, typer.Option("--measurement-points", min=1, help="Size M of the measurement set. Default: 10.")] = None,
    max_steps: Annotated[int | None, typer.Option("--max-steps", min=1, help="Training steps of a check. Default: 20, for methods that have the option.")] = None,
    device: Annotated[str, typer.Option("--device", help="cuda or auto compare a GPU with the CPU; cpu does not.")] = "auto",
    json: AsJson = False,
) -> int:  # fmt: skip
    """Hold a method to what every method must do: on the toy task, with few steps, without any download."""
    from dataclasses import asdict

    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.conformance import check_method as check
    from fsvi_bench.conformance import subjects
    from fsvi_bench.running.settings import parse_option
    from fsvi_bench.threads import use_one_thread
    from fsvi_bench.training.trainer import choose_device

    changes = dict(parse_option(text) for text in settings or ())
    given = {"M": measurement_points, "max_steps": max_steps}
    changes |= {name: value for name, value in given.items() if value is not None}
    gpu = choose_device(device) == "cuda"
    use_one_thread()
    report = check(subjects(method, family or (), changes, gpu=gpu))
    if json:
        print_json({**asdict(report), "ok": report.ok, "verdict": report.verdict})
    else:
        stdout.print(_report_table(report))
        stdout.print(report.verdict, style="green" if report.ok else "red")
    return 0 if report.ok else 1


def _report_table(report: Report) -> Terminal:
    from fsvi_bench.presenting.tables import Table

    styles = {"ok": "green", "failed": "red", "not applicable": "dim"}
    rows = tuple((found.family, found.check, found.status, found.message) for found in report.findings)
    table = Table(title="", columns=("family", "check", "", "what was found"), rows=rows).terminal(sections=True)
    for row, found in zip(table.rows, report.findings, strict=True):
        row.style = styles[found.status]
    for column in table.columns[:-1]:
        column.no_wrap = True
    return table
