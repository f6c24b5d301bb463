"""The command `fsvi-bench`. It imports only what parsing needs, so that `--help` does not wait for torch."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer

from fsvi_bench.arithmetic import use_kernels
from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.commands import Options
from fsvi_bench.cli.options import Command, Group, command_of
from fsvi_bench.errors import InputError, TaskRefused, WorkersLost, plain_demands
from fsvi_bench.tasks.card import load_card

BAD_INPUT = 2
WORK_LOST = 1  #: cells are missing because workers were lost
INTERRUPTED = 130  #: exit status after Ctrl-C, by shell convention; Typer also returns it

app = typer.Typer(
    name="fsvi-bench",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Score approximate inference methods against the exact Bayesian posterior.",
)
GROUPS = {
    "datasets": "List, download and check data sets.",
    "tasks": "Fit, verify, show and export frozen tasks.",
    "networks": "List, verify and build network tasks, whose posteriors are sampled.",
    "methods": "List and check inference methods.",
    "objectives": "Check functional objectives.",
    "leaderboard": "Create a leaderboard, build its site, and compare entries.",
}
#: What a command takes instead of a positional argument.
INSTEAD = {"fsvi-bench score": "give a file as --posterior FILE --task TASK, or a folder as --posteriors DIR"}
MODULES = {"submit": "entries", "verify": "entries"}  #: modules of commands that share one


class _Interrupted(Exception):
    """Ctrl-C in a command; the message says how much is finished, if the command says so. Typer would drop it."""


def _call(words: list[str], options: Options) -> object:
    """Chooses the kernels, which must precede the import of torch, and calls the command's function."""
    if words != ["verify"]:  # its edition may be of networks
        for name in getattr(options, "datasets", ()):
            load_card(name)  # a misspelt name is found before the imports below, which take seconds
    use_kernels(options.kernels())
    with no_garbage_collection():
        module = import_module(f"fsvi_bench.cli.{MODULES.get(words[0], words[0])}")
    try:
        return getattr(module, "_".join(words))(options)
    except KeyboardInterrupt as error:
        raise _Interrupted(str(error)) from error


def _add_commands() -> None:
    groups = {name: typer.Typer(cls=Group, no_args_is_help=True, help=text) for name, text in GROUPS.items()}
    for name, group in groups.items():
        app.add_typer(group, name=name)
    for model in Options.__subclasses__():
        words = [word.lower() for word in re.findall("[A-Z][a-z]+", model.__name__)]
        groups.get(words[0], app).command(words[-1], cls=Command)(command_of(model, partial(_call, words)))


_add_commands()


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(version("fsvi-bench"))
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Runs before every command. Kernels can still be chosen here: torch is not imported yet."""
    use_kernels()


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Exits with 0, 1 (a cell failed) or 2 (bad usage or input, with one sentence on stderr)."""
    for stream in (sys.stdout, sys.stderr):
        # No result is lost in a locale without its characters. A stream that was moved to a pipe cannot be changed.
        with suppress(OSError):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    try:
        outcome = typer.main.get_command(app)(arguments, "fsvi-bench", standalone_mode=False)
        sys.stdout.flush()
        return _interrupted() if outcome == INTERRUPTED else outcome or 0
    except (InputError, TaskRefused) as error:
        return _fail(str(error))
    except _Interrupted as error:
        return _interrupted(str(error))
    except WorkersLost as error:
        return _fail(str(error), WORK_LOST)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 -- the interpreter flushes stdout again at exit
        return _fail("no space left on the output device; finished work is kept: free some space and rerun the command")
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _fail_usage(error, arguments)


def _fail_usage(error: Any, arguments: list[str]) -> int:
    """Reports a usage error found by Typer, whose class is in a different module in each version."""
    message = _with_given_value(error.format_message(), arguments)
    command = getattr(getattr(error, "ctx", None), "command_path", "fsvi-bench")
    if message.startswith("Got unexpected extra argument") and command in INSTEAD:
        message = f"{message}; {INSTEAD[command]}"
    return (
        _fail(f"{message} (see {command} --help)") if message else BAD_INPUT
    )  # without arguments, Typer shows the help


def _with_given_value(message: str, arguments: list[str]) -> str:
    """Turns Typer's `Invalid value for '--max-steps': ...`, which omits the value, into `--max-steps is 'x', ...`."""
    if (found := re.fullmatch(r"Invalid value for '(?:-\w, )?(--[\w-]+)': (Input should .*)", message)) is None:
        return message
    option, wrong = found.groups()
    # If the option is given several times, Typer does not say which one is wrong.
    given = [after for each, after in pairwise([*arguments, ""]) if each == option]
    given += [each.partition("=")[2] for each in arguments if each.startswith(f"{option}=")]
    return f"{option}{f' is {given[0]!r}' if len(given) == 1 else ''}, {wrong}"


def _interrupted(done: str = "") -> int:
    words = "compute the rest" if done else "resume"
    print(f"fsvi-bench: interrupted; {done or 'finished work is kept'}: rerun the command to {words}", file=sys.stderr)
    return INTERRUPTED


def _fail(message: str, status: int = BAD_INPUT) -> int:
    print(f"fsvi-bench: {plain_demands(' '.join(message.split()))}", file=sys.stderr)
    return status
