"""Whole numbers that a checker follows, also behind a float.

Python asks nothing of an int: in `0.1 / n` a float reads it and forgets where it comes from. So a number that is
followed is none: it is numpy's, which torch takes wherever it takes an int. To `isinstance` it is an int.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import torch

from meshwright.comm.number import Number, Origin, Real, Whole, reflected, remember

checkers: Final[list[Callable[[], bool]]] = []
"""Whether each of them is on in this thread."""


class Followed(np.int64, Number):  # in this order: numpy knows a subclass by the base that comes first
    """A whole number with its origin."""

    def __new__(cls, value: int, origin: Origin | None = None) -> Any:
        if origin is None:
            return int(value)  # made by whoever takes a number's class for that of all like it
        made = super().__new__(cls, value)
        made.plain, made.origin = int(value), origin
        return made

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def __reduce__(self) -> Any:
        return int, (self.plain,)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.plain

    def __hash__(self) -> int:
        return hash(self.plain)

    def __repr__(self) -> str:
        return repr(self.plain)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.plain, spec)

    def __int__(self) -> int:
        return cast(int, self.plain)

    __index__ = __trunc__ = __int__

    def __bool__(self) -> bool:
        return bool(self.plain)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """A number that numpy computes of it remembers; an array forgets."""
        plain = [each.plain if isinstance(each, Number) else each for each in inputs]
        found = getattr(ufunc, method)(*plain, **kwargs)
        return Real(float(found), self.origin) if isinstance(found, np.floating) else found


def whole(value: int, origin: Origin) -> int:
    """`value` with its origin: a `Followed` where a checker is on."""
    return cast(int, Followed(value, origin)) if any(each() for each in checkers) else Whole(value, origin)


def grounded(value: Any) -> Any:
    """What a call is given, with a `Whole` for each `Followed`; the same object where there is none."""
    kind = type(value)
    if kind is Followed:
        return Whole(value.plain, value.origin)
    if kind in _SEQUENCES and not _HOLDING.isdisjoint(map(type, value)):
        found = [grounded(each) for each in value]
        return value if all(map(operator.is_, found, value)) else kind(found)
    if kind is dict and not _HOLDING.isdisjoint(map(type, value.values())):
        return {name: grounded(each) for name, each in value.items()}
    if kind is slice and not _HOLDING.isdisjoint(map(type, (value.start, value.stop, value.step))):
        return slice(*map(grounded, (value.start, value.stop, value.step)))
    return value


_SEQUENCES: Final = frozenset({tuple, list, torch.Size})
_HOLDING: Final = frozenset({Followed, dict, slice, *_SEQUENCES})
"""Types of what may be, or have in it, a number that is followed."""


def _operator(name: str, function: Callable[..., Any], remembers: Any) -> None:
    """What Python computes of it: with its origin where `remembers` does, else as of the plain number."""

    def method(self: Followed, *others: Any) -> Any:
        if remembers is not None:
            found = remembers(self, *others)
            if found is not NotImplemented:
                return found
        if any(isinstance(each, torch.Tensor) for each in others):
            return NotImplemented
        found = function(self.plain, *[each.plain if isinstance(each, Number) else each for each in others])
        return Followed(found, self.origin) if type(found) is int else found

    setattr(Followed, name, method)


remember(Followed, Followed, (Whole, Real))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _operator(f"__{_name}__", getattr(operator, _name), getattr(Followed, f"__{_name}__"))
    _operator(f"__r{_name}__", reflected(getattr(operator, _name)), getattr(Followed, f"__r{_name}__"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "lshift", "rshift", "and", "or", "xor"):
    _operator(f"__{_name}__", getattr(operator, f"__{_name}__"), None)
for _name in ("lshift", "rshift", "and", "or", "xor"):
    _operator(f"__r{_name}__", reflected(getattr(operator, f"__{_name}__")), None)
_operator("__invert__", operator.invert, None)

Followed.__name__ = Followed.__qualname__ = "number of this rank, of which int() makes a plain one"
"""What is said of it where a plain int alone is taken, as by the seed of torch's own generator."""
