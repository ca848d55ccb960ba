"""What an argument of a public call may be: one table of kinds, and one way to say that it is another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from meshwright.codes import Code
from meshwright.errors import Problem, SpmdTypeError

_ADDRESS: Final = " at 0x"


@dataclass(frozen=True)
class Kind:
    """holds: whether a value is of the kind; words: what it is; like: what to write."""

    holds: Callable[[Any], bool]
    words: str
    like: str
    code: Code = Code.ARGUMENT


def optional(kind: Kind) -> Kind:
    """The kind, or None where nothing is said."""
    return Kind(lambda value: value is None or kind.holds(value), kind.words, f"{kind.like}, or None", kind.code)


def demand(where: str, name: str, value: object, kind: Kind) -> None:
    """Errors: `SpmdTypeError` where `value`, the argument `name`, is of another kind."""
    if not kind.holds(value):
        raise SpmdTypeError(
            Problem(
                where=where,
                what=f"{name}={shown(value)} is not {kind.words}",
                why="an argument of another kind would be taken for something else, or fail far from here",
                fix=f"{name}: {kind.like}",
                code=kind.code,
            )
        )


def shown(value: object) -> str:
    """A value as it is written, where that is short and says more than where the object lies; else what it is."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    is_told = len(text) <= 60 and "\n" not in text and _ADDRESS not in text
    return text if is_told else f"a {type(value).__name__}"


def is_whole(value: object) -> bool:
    """Whether it is a whole number, which a bool is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _are_whole(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(map(is_whole, value))


def _are_degrees(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(axis, str) and is_whole(degree) and degree >= 1 for axis, degree in value.items()
    )


def _are_pairs(value: object) -> bool:
    return isinstance(value, Sequence) and all(_are_whole(pair) and len(pair) == 2 for pair in value)


NAME: Final = Kind(lambda value: isinstance(value, str), "a name", '"tp"')
FLAG: Final = Kind(lambda value: isinstance(value, bool), "True or False", "True or False")
WHOLE: Final = Kind(is_whole, "a whole number", "a whole number")
WHOLES: Final = Kind(_are_whole, "a sequence of whole numbers", "[2, 3], a number for each rank")
PAIRS: Final = Kind(_are_pairs, "a sequence of pairs of whole numbers", "((ranks, distance), ...)")
DEGREES: Final = Kind(_are_degrees, "{axis: number of ranks}", '{"dp": 2, "tp": 4}, the outermost axis first')
MAPPING: Final = Kind(lambda value: isinstance(value, Mapping), "a mapping", "{name: value}")
CALLABLE: Final = Kind(callable, "something that can be called", "a function, without parentheses after its name")
