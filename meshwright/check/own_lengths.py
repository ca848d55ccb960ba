"""Local lengths beside vectors that are a rank's own, V: of these they are lengths and places, and theirs are such."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from meshwright.check.operand import Cut, Operand
from meshwright.comm.number import Number, is_length
from meshwright.types.kinds import V

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck


OWN: Final = "_spmd_own_lengths"
"""Attribute of what was made so: the axes on which its lengths are a rank's own."""


def as_own(
    check: TypeCheck, given: tuple[Any, ...], named: dict[str, Any], seen: Sequence[Operand]
) -> tuple[tuple[Any, ...], dict[str, Any], frozenset[str]]:
    """The arguments of a call on a vector, with plain numbers for lengths of dims that are cut over axes on which all
    its tensors are V; and these axes.
    """
    typed = [each for each in seen if each.known and each.tag.fresh is None]
    own = [
        number
        for number in check.numbers
        if is_length(number) and all(each.layout.get(axis) is V for each in typed for axis in number.origin.axes)
    ]
    if check.local or not own or not typed or len(typed[0].shape) != 1:
        return given, named, frozenset()
    check.numbers[:] = [number for number in check.numbers if not _is_one(number, own)]
    plain = {name: _plain(value, own) for name, value in named.items()}
    axes = frozenset().union(*[number.origin.axes for number in own])
    return tuple(_plain(value, own) for value in given), plain, axes


def _plain(value: Any, own: Collection[Number]) -> Any:
    if isinstance(value, Number):
        return value.plain if _is_one(value, own) else value
    if type(value) is Cut:
        return Cut(*[_plain(each, own) for each in value[:3]])
    return tuple(_plain(each, own) for each in value) if type(value) is tuple else value


def _is_one(number: Number, own: Collection[Number]) -> bool:
    return any(number is each for each in own)
