"""What `submit` and `verify` say to arguments that do not fit: one sentence and status 2."""

from __future__ import annotations

import pytest

from fsvi_bench.cli.app import main


def exit_status(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verify"], "name folders of submissions, or a leaderboard's folder with --all"),
        (["verify", "x", "--all", "y"], "name folders of submissions, or a leaderboard's folder with --all"),
        (["verify", "x", "--seed", "1"], "--seed, --tolerance, --max-seconds and --without-isolation need --rerun"),
        (["verify", "--all", "x", "--save", "y"], "--save has no meaning with --all"),
        (["verify", "--all", "nowhere"], "there is no folder nowhere/submissions"),
        (["verify", "nowhere"], "cannot read nowhere"),
        (["submit"], "name the folder of a run, or posterior files"),
        (["submit", "x", "--licence", "MIT"], "give --author too"),
        (["submit", "x", "--author", "A"], "give --licence too"),
        (["submit", "x", "--author", "A", "--licence", "MIT"], "there is no folder x"),
        (["submit", "x", "--author", "A", "--licence", "MIT", "--steps", "3"], "--steps has no meaning with a run's folder"),
        (["submit", "x", "--author", "A", "--licence", "MIT", "--set", "lr"], "--set 'lr' is not understood"),
        (["submit", "--posteriors", "x", "--author", "A", "--licence", "MIT"], "give --method, --family, --steps, --seconds, --hardware too"),
        (["submit", "--posteriors", "x", "--method", "A"], "give --author, --licence, --family, --steps, --seconds, --hardware"),
    ],
)  # fmt: skip
def test_usage(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert exit_status(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
