"""The command `fsvi-bench`. Only what parsing needs is imported here: `--help` must not wait for torch."""

from __future__ import annotations

import errno
import os
import re
import sys
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer

from fsvi_bench.arithmetic import use_kernels
from fsvi_bench.cli.collector import no_garbage_collection
from fsvi_bench.cli.commands import Options
from fsvi_bench.cli.options import command_of
from fsvi_bench.errors import InputError, TaskRefused, WorkersLost, plain_demands

BAD_INPUT = 2
WORK_LOST = 1  #: cells are missing, for no fault of the user's
INTERRUPTED = 130  #: exit status after Ctrl-C, by the shell's custom; Typer turns the interrupt into it

app = typer.Typer(
    name="fsvi-bench",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Score function-space inference methods against the exact Bayesian posterior.",
)
GROUPS = {
    "datasets": "Data sets: what there is, fetch it, check it.",
    "tasks": "Frozen tasks: fit them, check them, look at them.",
    "methods": "Inference methods.",
    "objectives": "Functional objectives.",
    "leaderboard": "Make a leaderboard, its site, and compare entries.",
}
MODULES = {"submit": "entries", "verify": "entries"}  #: of commands that have none of their own


def _call(words: list[str], options: Options) -> object:
    """Calls a command's function, once the kernels are chosen that torch is imported with."""
    use_kernels(options.kernels())
    with no_garbage_collection():
        module = import_module(f"fsvi_bench.cli.{MODULES.get(words[0], words[0])}")
    return getattr(module, "_".join(words))(options)


def _add_commands() -> None:
    groups = {name: typer.Typer(no_args_is_help=True, help=text) for name, text in GROUPS.items()}
    for name, group in groups.items():
        app.add_typer(group, name=name)
    for model in Options.__subclasses__():
        words = [word.lower() for word in re.findall("[A-Z][a-z]+", model.__name__)]
        groups.get(words[0], app).command(words[-1])(command_of(model, partial(_call, words)))


_add_commands()


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(version("fsvi-bench"))
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What comes before every command: nothing of torch is imported yet, so that kernels can still be chosen."""
    use_kernels()


def main(arguments: list[str] | None = None) -> None:
    """Entry point: exit status 0, 1 (some cell failed) or 2 (bad usage or input, one sentence on stderr)."""
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    try:
        outcome = typer.main.get_command(app)(arguments, "fsvi-bench", standalone_mode=False)
        sys.stdout.flush()
        return _interrupted() if outcome == INTERRUPTED else outcome or 0
    except (InputError, TaskRefused) as error:
        return _say(str(error))
    except WorkersLost as error:
        return _say(str(error), WORK_LOST)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 -- the interpreter flushes it once more at exit
        return _say("no space is left where the output goes; what was finished is kept, make space and run again")
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _say_misuse(error, arguments)


def _say_misuse(error: Any, arguments: list[str]) -> int:
    """Typer's own usage errors, whose class lives elsewhere in each of its versions."""
    said = _with_what_was_given(error.format_message(), arguments)
    command = getattr(getattr(error, "ctx", None), "command_path", "fsvi-bench")
    return _say(f"{said} (see {command} --help)") if said else BAD_INPUT  # no arguments: the help was the answer


def _with_what_was_given(said: str, arguments: list[str]) -> str:
    """Typer's `Invalid value for '--max-steps': ...`, which does not say which value, as `--max-steps is 'x', ...`."""
    if (found := re.fullmatch(r"Invalid value for '(?:-\w, )?(--[\w-]+)': (Input should .*)", said)) is None:
        return said
    option, wrong = found.groups()
    # Which of several it was, Typer does not say.
    given = [after for each, after in pairwise([*arguments, ""]) if each == option]
    given += [each.partition("=")[2] for each in arguments if each.startswith(f"{option}=")]
    return f"{option}{f' is {given[0]!r}' if len(given) == 1 else ''}, {wrong}"


def _interrupted() -> int:
    print("fsvi-bench: interrupted; what was finished is kept, the same command goes on from there", file=sys.stderr)
    return INTERRUPTED


def _say(message: str, status: int = BAD_INPUT) -> int:
    print(f"fsvi-bench: {plain_demands(' '.join(message.split()))}", file=sys.stderr)
    return status
