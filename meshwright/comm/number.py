"""Python numbers that are not what one device would have: a rank's place, the local length of a sharded dim.

They are ints and floats like any other, and remember through arithmetic where they come from, so that a checker can
say what a tensor meets.

Python asks no int that stands behind a float: `0.1 / n` forgets n. Where a checker listens, `followed` has numbers that
are asked.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple, TypeGuard


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
    """source, the axes that it is about, and the words for it: `dist.get_rank()`, `x.shape[1]`.

    share: a length times the ranks is that of one device; of `x.shape[1] + 1` it is not. order: the axes that cut the
    dim of a length, outermost first; empty where it is the length of no dim.
    """

    source: Source
    axes: frozenset[str]
    text: str
    share: bool = True
    order: tuple[str, ...] = ()


class Number:
    """What all kinds of such numbers share."""

    origin: Origin
    plain: Any
    """The same number, without its origin."""


def is_length(value: Any) -> TypeGuard[Number]:
    """Whether it is the local length of a sharded dim, or made of one."""
    return isinstance(value, Number) and value.origin.source is Source.LENGTH


class Whole(Number, int):
    """A whole number with its origin."""

    def __new__(cls, value: int, origin: Origin) -> Whole:
        made = super().__new__(cls, value)
        made.origin = origin
        return made

    @property
    def plain(self) -> int:
        """The same number, without its origin."""
        return int(self)

    def __reduce__(self) -> Any:
        return int, (int(self),)


class Real(Number, float):
    """A real number with its origin."""

    def __new__(cls, value: float, origin: Origin) -> Real:
        made = super().__new__(cls, value)
        made.origin = origin
        return made

    @property
    def plain(self) -> float:
        """The same number, without its origin."""
        return float.__float__(self)

    def __reduce__(self) -> Any:
        return float, (self.plain,)


forgetting: Final[list[Callable[[Number], None]]] = []
"""Who wants to know that a number becomes a plain float, and forgets where it comes from."""


def _plain_float(self: Any) -> float:
    for tell in forgetting:
        tell(self)
    return float(self.plain)


_WEIGHT: Final = {Source.SIZE: 0, Source.DEGREE: 1, Source.LENGTH: 2, Source.INDEX: 3, Source.RANK: 4}


def _both(a: Origin, b: Origin, name: str) -> Origin | None:
    """Of a number made of two: a rank outweighs a length. A local length times the ranks is that of one device."""
    if a.source is not b.source:
        more, less = (a, b) if _WEIGHT[a.source] > _WEIGHT[b.source] else (b, a)
        if name == "mul" and more.source is Source.LENGTH:
            left = more.axes - less.axes
            return more._replace(axes=left, order=tuple(a for a in more.order if a in left)) if left else None
        return more
    if a.source is Source.LENGTH and a.axes == b.axes and name in ("truediv", "floordiv"):
        return None  # of two lengths that are cut alike: as the whole ones to each other
    return a if a == b else Origin(a.source, a.axes | b.axes, f"{a.text} and {b.text}", a.share and b.share)


def _shares(name: str, a: Number, b: Any, value: float) -> bool:
    """Whether what the operator `name` makes of a and b is, of all ranks together, what one device makes.

    value: b, as a plain number.
    """
    if isinstance(b, Number) and a.origin.source is b.origin.source:
        alike = a.origin.axes == b.origin.axes
        return name in ("add", "sub") if alike else name in ("mul", "rmul") and a.origin.axes.isdisjoint(b.origin.axes)
    if name == "floordiv":
        return value != 0 and a.plain % value == 0
    return name in ("mul", "rmul") or (name in ("add", "radd", "sub") and value == 0)


def remember(cls: Any, whole: Callable[[int, Origin], Any], others: tuple[type[Number], ...]) -> None:
    """Give `cls` the arithmetic that remembers: with plain numbers, and with those of its own class and of `others`.

    whole: what its whole results are made by.
    """
    numbers: tuple[type[Number], ...] = (cls, *others)

    def forward(name: str, function: Callable[..., Any], bare: str = "") -> None:
        def method(self: Any, *arguments: Any) -> Any:
            origin: Origin | None = self.origin
            values = []
            for each in arguments:
                value = each
                if isinstance(each, numbers):
                    assert origin is not None
                    value = each.plain
                    origin = _both(origin, each.origin, bare)
                elif type(each) not in (int, float, bool):
                    return NotImplemented
                if origin is not None and origin.source is Source.LENGTH and origin.share:
                    origin = origin._replace(share=_shares(name, self, each, value))
                values.append(value)
            result = function(self.plain, *values)
            if origin is None:
                return result
            if type(result) is int:
                return whole(result, origin)
            return Real(result, origin) if type(result) is float else result

        method.__doc__ = f"{name} of numbers, with the origin of what comes out."
        setattr(cls, f"__{name}__", method)

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        function = pow if name == "pow" else getattr(operator, name)
        forward(name, function, name)
        forward(f"r{name}", reflected(function), name)
    for alone in (operator.neg, operator.abs, operator.pos, round, math.ceil, math.floor):
        forward(alone.__name__, alone)
    cls.__divmod__ = _divmod
    cls.__rdivmod__ = reflected(_divmod)
    cls.__float__ = _plain_float


def reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its two operands exchanged."""
    return lambda a, b: function(b, a)


def _divmod(self: Any, other: Any) -> Any:
    return self // other, self % other


for _cls in (Whole, Real):
    remember(_cls, Whole, (Whole, Real))
