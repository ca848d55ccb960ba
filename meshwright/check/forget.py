"""What a region does not follow: operands with V where they are cut, once an op does not keep the cut."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from meshwright.check.operand import Cut, Operand, operand
from meshwright.check.refusal import Refused
from meshwright.check.tag import Tag, typed
from meshwright.codes import Code
from meshwright.comm.number import Number
from meshwright.comm.transport import Transport
from meshwright.types.kinds import I, P, R, Shard, V
from meshwright.types.layout import SpmdLayout


def forgotten(value: Any, refused: Refused, mesh: Mapping[str, Transport], degree: Mapping[str, int]) -> Any:
    """The arguments of a call, with V where they are cut over the axis about which it is refused.

    Counts that are P, of positions that a rank has of its own, are V too.

    Errors: `Refused` where a local length would become the value of what is the same on every rank.
    """
    axis = refused.cut
    assert axis is not None
    if isinstance(value, Operand):
        kind = value.layout.get(axis)
        of_lengths = refused.code is Code.LENGTH
        if of_lengths and not refused.owned and kind in (R, I, P):
            raise refused
        counts = refused.owned and not of_lengths and kind is P and not value.dtype.is_floating_point
        if not counts and not isinstance(kind, Shard):
            return value
        return operand(varying(value, axis), value.shape, value.flows, value.dtype, mesh, degree)
    if isinstance(value, Number) and refused.code is Code.LENGTH:
        return int(value) if isinstance(value, int) else float(value)  # type: ignore[arg-type]
    if type(value) is Cut:
        return Cut(*[forgotten(each, refused, mesh, degree) for each in value[:3]])
    if type(value) is tuple:
        return tuple([forgotten(each, refused, mesh, degree) for each in value])
    if isinstance(value, Mapping):
        return {name: forgotten(each, refused, mesh, degree) for name, each in value.items()}
    return value


def varying(operand: Operand, axis: str) -> Tag:
    """The tag of `operand` with V on `axis`."""
    tag, cut = operand.tag, operand.tag.layout.get(axis)
    layout = SpmdLayout({name: V if name == axis else kind for name, kind in tag.layout.items()})
    if tag.factors is None or not isinstance(cut, Shard):
        return typed(layout, tag.counted, tag.factors)
    place = itertools.count()  # the factor that was cut is as long as a rank's part of it
    factors = tuple(
        tuple(length // operand.degree[axis] if next(place) == cut.dim else length for length in dim)
        for dim in tag.factors
    )
    return typed(layout, tag.counted, factors)
