"""Whole numbers that a checker follows, also behind a float.

Python and torch ask nothing of an int: in `0.1 / n` a float reads it and forgets where it comes from. So a number that
is followed is none. It says that it is one: to Python always, so that nothing else about it is new; to torch, that it
is a `torch.SymInt`, as long as a checker hears the call and puts a `Whole` in its place. Where nobody listens torch
takes it by its index, or refuses it.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import torch

from meshwright.comm.number import Number, Origin, Real, Whole, reflected, remember


class Listener(NamedTuple):
    """A checker: is_on(), whether it checks this thread; hears(), whether it is told of a call that is made now."""

    is_on: Callable[[], bool]
    hears: Callable[[], bool]


listeners: Final[list[Listener]] = []


class _Shape(threading.local):
    in_making: bool = False


_shape: Final = _Shape()


class _Seen(torch.SymInt, int):  # type: ignore[misc]
    """What `isinstance` and torch are told."""


class Followed(Number):
    """A whole number with its origin."""

    __slots__ = ("origin", "plain")

    def __init__(self, value: int, origin: Origin) -> None:
        self.plain, self.origin = value, origin

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return _Seen if _shape.in_making or any(each.hears() for each in listeners) else int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    @property
    def node(self) -> Followed:
        """What torch asks of a symbolic number."""
        return self

    def is_nested_int(self) -> bool:
        """It is no ragged length."""
        return False

    def __reduce__(self) -> Any:
        return int, (self.plain,)

    def __hash__(self) -> int:
        return hash(self.plain)

    def __repr__(self) -> str:
        return repr(self.plain)

    def __format__(self, spec: str) -> str:
        return format(self.plain, spec)

    def __int__(self) -> int:
        return cast(int, self.plain)

    __index__ = __trunc__ = __floor__ = __ceil__ = __int__

    def __bool__(self) -> bool:
        return bool(self.plain)


def whole(value: int, origin: Origin) -> int:
    """`value` with its origin: a `Followed` where a checker is on."""
    return cast(int, Followed(value, origin)) if any(each.is_on() for each in listeners) else Whole(value, origin)


def sizes(lengths: Sequence[int]) -> torch.Size:
    """A shape of lengths, of which some are followed."""
    before, _shape.in_making = _shape.in_making, True
    try:
        return torch.Size(lengths)
    finally:
        _shape.in_making = before


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


def _on_tensors(name: str) -> None:
    """Where no checker hears a call, torch leaves the number's own method to compute with a tensor."""
    of_numbers = getattr(Followed, name)
    function = getattr(operator, name.strip("_").removeprefix("r"))
    turned = reflected(function) if name.startswith("__r") else function

    def method(self: Followed, other: Any) -> Any:
        return turned(grounded(self), other) if isinstance(other, torch.Tensor) else of_numbers(self, other)

    setattr(Followed, name, method)


def _compared(name: str) -> None:
    function = getattr(operator, name)

    def method(self: Followed, other: Any) -> Any:
        other = other.plain if isinstance(other, Number) else other
        return function(self.plain, other) if isinstance(other, (int, float)) else NotImplemented

    setattr(Followed, f"__{name}__", method)


def _of_bits(name: str, function: Callable[..., Any]) -> None:
    def method(self: Followed, *others: Any) -> Any:
        return Followed(function(self.plain, *[int(each) for each in others]), self.origin)

    setattr(Followed, name, method)


remember(Followed, Followed, (Whole, Real))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "pow"):
    _on_tensors(f"__{_name}__")
    _on_tensors(f"__r{_name}__")
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _compared(_name)
for _name in ("lshift", "rshift", "and", "or", "xor"):
    _function = getattr(operator, f"__{_name}__")
    _of_bits(f"__{_name}__", _function)
    _of_bits(f"__r{_name}__", reflected(_function))
_of_bits("__invert__", operator.invert)

Followed.__name__ = Followed.__qualname__ = "number of this rank, of which int() makes a plain one"
"""What torch calls it where it takes a plain int only, as the seed of its own generator."""
