"""The data files of the package: cards, frozen tasks, method defaults, protocols."""

from __future__ import annotations

from pathlib import Path

import yaml

from fsvi_bench.errors import InputError

_PACKAGE = Path(__file__).resolve().parent
#: libyaml's loader, where PyYAML was built with it, takes a tenth of the time.
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def resource_dir(name: str) -> Path:
    """The folder `datasets`, `conf` or `leaderboard`, inside an installed wheel or at the top of a checkout."""
    bundled = _PACKAGE / "_bundled" / name
    return bundled if bundled.is_dir() else _PACKAGE.parent / name


def read_yaml(path: Path) -> object:
    """The parsed YAML of a file, with safe tags only.

    Raises:
        InputError: the file cannot be read or is not YAML.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not valid YAML: {reason}; fix the file") from error
