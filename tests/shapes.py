"""The checker of shapes in signatures: each function once for equal kinds of arguments and results."""

from __future__ import annotations

import threading
from functools import cache, update_wrapper, wraps
from types import FunctionType

import numpy as np
from beartype import beartype
from jaxtyping import config, jaxtyped
from torch import Tensor

ARRAYS = (Tensor, np.ndarray)


def once(decorated=None, *, typechecker=None):
    """jaxtyping's check of a function or dataclass by beartype, omitted for arguments and results of the types, shapes
    and dtypes that have passed before.

    What a signature says depends on nothing else, so that nothing is missed. Training makes the same calls at every
    step: checks of all of them would be a third of the time of quick tests, and jaxtyping's preparations for a check
    that is then omitted a seventh.

    Args:
        typechecker: what the import hook, which takes this for `jaxtyped`, would check by.
    """
    if decorated is None:
        return once
    if isinstance(decorated, type):
        if "__init__" in vars(decorated) and "__dataclass_fields__" in vars(decorated):
            decorated.__init__ = once(decorated.__init__)
        return decorated

    computed = threading.local()

    def body(*args, **kwargs):
        return computed.__dict__.pop("result") if "result" in computed.__dict__ else decorated(*args, **kwargs)

    @cache  # made at the first call, since most of what a process imports it never calls
    def checked():
        # jaxtyping looks for the names of annotations among the function's globals.
        named = FunctionType(body.__code__, decorated.__globals__, body.__name__, None, body.__closure__)
        return jaxtyped(update_wrapper(named, decorated), typechecker=beartype)

    passed = set()

    @wraps(decorated)
    def check(*args, **kwargs):
        if config.jaxtyping_disable:
            return decorated(*args, **kwargs)
        arguments = tuple(map(_kind, args)), tuple([(name, _kind(value)) for name, value in kwargs.items()])
        if arguments not in passed:
            result = checked()(*args, **kwargs)
            passed.add(arguments)
        else:
            result = decorated(*args, **kwargs)
            if (arguments, _kind(result)) in passed:
                return result
            computed.result = result
            checked()(*args, **kwargs)
        passed.add((arguments, _kind(result)))
        return result

    return check


def _kind(value):
    """What a signature can say of a value: a tensor's shape, a container's contents, a literal; of others the type."""
    if isinstance(value, ARRAYS):
        return type(value), value.shape, value.dtype
    if isinstance(value, (tuple, list)):
        return type(value), *map(_kind, value)
    if isinstance(value, dict):
        return type(value), *[(_kind(name), _kind(each)) for name, each in value.items()]
    return value if isinstance(value, (str, type)) else type(value)
