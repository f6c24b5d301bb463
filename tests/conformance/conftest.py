"""The command line in this process."""

import pytest

from fsvi_bench.cli.app import main


@pytest.fixture
def cli(capsys):
    """Runs the command in this process; returns status, stdout and stderr."""

    def call(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return call
