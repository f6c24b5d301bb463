"""`fsvi-bench methods list`."""

from __future__ import annotations

import typer

from fsvi_bench.cli.options import AsJson

app = typer.Typer(no_args_is_help=True, help="Inference methods.")


@app.callback()
def _group() -> None:
    """Keeps `list` a subcommand while it is the only one."""


@app.command("list")
def list_methods(json: AsJson = False) -> int:
    """Every method with its families and options."""
    from rich.table import Table

    from fsvi_bench.cli.console import print_json, stdout
    from fsvi_bench.methods.registry import load_method, method_names

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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "families", "options", "what it is"):
        table.add_column(heading, overflow="fold")
    for entry in entries:
        options = ", ".join(f"{key}={value}" for key, value in entry.options({}).model_dump().items())
        table.add_row(entry.name, ", ".join(entry.cls.families), options or "none", entry.defaults.summary)
    stdout.print(table)
    return 0
