"""The checker of shapes in signatures: each function once for equal kinds of arguments and results."""

from __future__ import annotations

import threading
from functools import cache, partial, update_wrapper, wraps
from types import FunctionType

import numpy as np
from beartype import beartype
from jaxtyping import config, jaxtyped
from torch import Tensor

ARRAYS = (Tensor, np.ndarray)
_CHECKS = {}  #: by module, name and code: the checker of a signature, and the kinds that have passed
_PLAIN = set()  #: types that are found to be nothing else: `isinstance` of tensors asks their metaclass
_called = threading.local()


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

    # A function in another one is made anew at each call of that: what its signature says stays the same.
    place = decorated.__module__, decorated.__qualname__, decorated.__code__
    checked, passed = _CHECKS.setdefault(place, (cache(partial(_checked, decorated)), set()))

    @wraps(decorated)
    def check(*args, **kwargs):
        if config.jaxtyping_disable:
            return decorated(*args, **kwargs)
        arguments = tuple(map(_kind, args)), tuple([(name, _kind(value)) for name, value in kwargs.items()])
        if arguments not in passed:
            _called.function = decorated
            result = checked()(*args, **kwargs)
            passed.add(arguments)
        else:
            result = decorated(*args, **kwargs)
            if (arguments, _kind(result)) in passed:
                return result
            _called.function = lambda *_, **__: result
            checked()(*args, **kwargs)
        passed.add((arguments, _kind(result)))
        return result

    return check


def _checked(decorated):
    """Checks the arguments and result of `_called.function`; made at a signature's first call, since most of what a
    process imports it never calls."""

    called = _called  # a free variable of `body`, whose globals become the function's: jaxtyping looks there for names

    def body(*args, **kwargs):
        return called.__dict__.pop("function")(*args, **kwargs)

    named = FunctionType(body.__code__, decorated.__globals__, body.__name__, None, body.__closure__)
    return jaxtyped(update_wrapper(named, decorated), typechecker=beartype)


def _kind(value):
    """What a signature can say of a value: a tensor's shape, a container's contents, a literal; of others the type."""
    kind = type(value)
    if kind in _PLAIN:
        return kind
    if isinstance(value, ARRAYS):
        return kind, value.shape, value.dtype
    if isinstance(value, (tuple, list)):
        return kind, *map(_kind, value)
    if isinstance(value, dict):
        return kind, *[(_kind(name), _kind(each)) for name, each in value.items()]
    if isinstance(value, (str, type)):
        return value
    _PLAIN.add(kind)
    return kind
