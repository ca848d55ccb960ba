"""Tensors that are made of Python numbers: what a number that one device would not have makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from meshwright.check.demand import demand_no_value, found_in
from meshwright.check.tag import CONSTANT, UNKNOWN, Fresh, Tag, constant, typed
from meshwright.comm.number import Number, Source, is_length
from meshwright.types.kinds import V
from meshwright.types.layout import SpmdLayout

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

MADE: Final = "a tensor that is made of it"
"""Beside what a number is a value."""
LINES: Final = {
    "arange": ("start", "end", "step"),
    "linspace": ("start", "end", "steps"),
    "logspace": ("start", "end", "steps", "base"),
    "eye": ("n", "m"),
    "tril_indices": ("row", "col", "offset"),
    "triu_indices": ("row", "col", "offset"),
}
"""Factories of values that their numbers lay out -> the names of these."""
_FAR: Final = {"arange": ("end",), "tril_indices": ("row", "col"), "triu_indices": ("row", "col")}
"""Which of these say how far the values go."""


def of_line(check: TypeCheck, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tag:
    """The tag of values that numbers lay out: as far as a rank's part of a dim they are its own, and V.

    Errors: `Refused` where a local length is a value.
    """
    names = ("end",) if name == "arange" and len(args) == 1 and "end" not in kwargs else LINES[name]
    given = {**dict(zip(names, args, strict=False)), **{each: kwargs[each] for each in names if each in kwargs}}
    axes: set[str] = set()
    for each, number in given.items():
        if each not in _FAR.get(name, ()):
            demand_no_value(check, number, MADE)
        elif is_length(number):
            axes |= number.origin.axes
    made = of_numbers(tuple(given.values()), CONSTANT)
    if made is not CONSTANT or not axes:
        return made
    ordered = name == "arange" and not given.get("start") and given.get("step", 1) == 1
    apart = () if check.local else sorted(axes & check.degree.keys())
    return constant(SpmdLayout(dict.fromkeys(apart, V)), Fresh.PLACES if ordered else Fresh.CONSTANT)


def of_numbers(values: Any, tag: Tag) -> Tag:
    """The tag of a tensor that is made of Python numbers: V where one is a rank's place on an axis.

    Of one that is made of the rank in the world nothing is known: its author has to say what it is.
    """
    axes: set[str] = set()
    for number in found_in(values, Number):
        if number.origin.source is Source.RANK:
            return UNKNOWN
        if number.origin.source is Source.INDEX:
            axes |= number.origin.axes
    return typed(SpmdLayout(dict.fromkeys(sorted(axes), V))) if axes else tag
