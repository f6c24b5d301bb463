"""A YAML loader with the words and the decimal numbers of YAML 1.2's core schema: `no`, `12:30`, a date and `0x10` are
text, and `1e-3` is a number.

PyYAML follows YAML 1.1, which reads each of these differently.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_FLOAT = re.compile(
    r"^[-+]?(?:(?:[0-9]+\.[0-9]*|\.?[0-9]+)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"
)


class CoreLoader(yaml.SafeLoader):
    """Loads dict, list, str, int, float, bool and None."""

    yaml_implicit_resolvers: dict[str, Any] = {}


CoreLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), [*"~nN", ""])  # type: ignore[no-untyped-call]
CoreLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:[Tt]rue|[Ff]alse)$"), [*"tTfF"])  # type: ignore[no-untyped-call]
CoreLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), [*"-+0123456789"])  # type: ignore[no-untyped-call]
CoreLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, [*"-+.0123456789"])  # type: ignore[no-untyped-call]
