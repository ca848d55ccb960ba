"""Python numbers that are not what one device would have: a rank's place, the local length of a sharded dim.

They are ints and floats like any other, and remember through arithmetic where they come from, so that a checker can
say what a tensor meets.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple


class Source(Enum):
    """Where a number comes from."""

    __hash__ = object.__hash__

    INDEX = "index"
    """a rank's place on named axes: another number on each of their ranks, V"""
    RANK = "rank"
    """the rank in the whole world, of which no axis is known"""
    LENGTH = "length"
    """how much of a sharded dim a rank holds"""
    SIZE = "size"
    """the number of ranks of axes: by it a local length is made the whole one"""
    DEGREE = "degree"
    """the same, of a model whose values are those of one device: no value of it is scaled by that"""


class Origin(NamedTuple):
    """source, the axes that it is about, and the words for it: `dist.get_rank()`, `x.shape[1]`."""

    source: Source
    axes: frozenset[str]
    text: str


class Number:
    """What the two kinds of numbers share."""

    origin: Origin


class Whole(Number, int):
    """A whole number with its origin."""

    def __new__(cls, value: int, origin: Origin) -> Whole:
        made = super().__new__(cls, value)
        made.origin = origin
        return made

    def __reduce__(self) -> Any:
        return int, (int(self),)


class Real(Number, float):
    """A real number with its origin."""

    def __new__(cls, value: float, origin: Origin) -> Real:
        made = super().__new__(cls, value)
        made.origin = origin
        return made

    def __reduce__(self) -> Any:
        return float, (float.__float__(self),)


watchers: Final[list[Callable[[Number], None]]] = []
"""Who wants to know that a number becomes a plain float, and forgets where it comes from."""


def _plain_float(self: Any) -> float:
    for watch in watchers:
        watch(self)
    return int.__float__(self) if isinstance(self, int) else float.__float__(self)


for _each in (Whole, Real):
    setattr(_each, "__float__", _plain_float)  # noqa: B010

_NUMBERS: Final[tuple[type[Number], ...]] = (Whole, Real)


def _bare(number: Any) -> Any:
    """The same number, without its origin."""
    return int(number) if isinstance(number, int) else float.__float__(number)


def _with(value: Any, origin: Origin) -> Any:
    if type(value) is int:
        return Whole(value, origin)
    return Real(value, origin) if type(value) is float else value


_WEIGHT: Final = {Source.SIZE: 0, Source.DEGREE: 1, Source.LENGTH: 2, Source.INDEX: 3, Source.RANK: 4}


def _both(a: Origin, b: Origin, name: str) -> Origin | None:
    """Of a number made of two: a rank outweighs a length. A local length times the ranks is that of one device."""
    if a.source is not b.source:
        more, less = (a, b) if _WEIGHT[a.source] > _WEIGHT[b.source] else (b, a)
        if name == "mul" and more.source is Source.LENGTH:
            left = more.axes - less.axes
            return more._replace(axes=left) if left else None
        return more
    return a if a == b else Origin(a.source, a.axes | b.axes, f"{a.text} and {b.text}")


def _forward(name: str, function: Callable[..., Any], cls: type[Number]) -> None:
    def method(self: Any, *others: Any) -> Any:
        origin: Origin | None = self.origin
        values = []
        for other in others:
            if isinstance(other, Number):
                assert origin is not None
                origin = _both(origin, other.origin, name.strip("_").removeprefix("r"))
                other = _bare(other)
            elif type(other) not in (int, float, bool):
                return NotImplemented
            values.append(other)
        result = function(_bare(self), *values)
        return result if origin is None else _with(result, origin)

    setattr(cls, name, method)


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: function(b, a)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    for _cls in _NUMBERS:
        _function = getattr(operator, _name)
        _forward(f"__{_name}__", _function, _cls)
        _forward(f"__r{_name}__", _reflected(_function), _cls)
for _name in ("neg", "abs", "pos"):
    for _cls in _NUMBERS:
        _forward(f"__{_name}__", getattr(operator, _name), _cls)


def _divmod(self: Any, other: Any) -> Any:
    return self // other, self % other


for _cls in _NUMBERS:
    _forward("__round__", round, _cls)
    setattr(_cls, "__divmod__", _divmod)  # noqa: B010
    setattr(_cls, "__rdivmod__", _reflected(_divmod))  # noqa: B010
