"""The checker of shapes in signatures: each function once for equal kinds of arguments and results."""

from __future__ import annotations

from functools import wraps

import numpy as np
from beartype import beartype
from torch import Tensor


def once(function):
    """Beartype's check of a function, omitted for arguments of the types, shapes and dtypes that have passed before.

    What a signature says depends on nothing else, so that nothing is missed. jaxtyping passes the result of a checked
    function as one of the arguments. Training makes the same calls at every step: checks of all of them would be a
    third of the time of quick tests.
    """
    checked, passed = beartype(function), set()

    @wraps(function)
    def check(*args, **kwargs):
        kind = tuple(map(_kind, args)), tuple([(name, _kind(value)) for name, value in kwargs.items()])
        if kind in passed:
            return function(*args, **kwargs)
        out = checked(*args, **kwargs)
        passed.add(kind)
        return out

    return check


def _kind(value):
    """What a signature can say of a value: a tensor's shape, a container's contents, a literal; of others the type."""
    if isinstance(value, Tensor | np.ndarray):
        return type(value), value.shape, value.dtype
    if isinstance(value, tuple | list):
        return type(value), *map(_kind, value)
    if isinstance(value, dict):
        return type(value), *[(_kind(name), _kind(each)) for name, each in value.items()]
    return value if isinstance(value, str | type) else type(value)
