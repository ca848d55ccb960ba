"""Positions that are one and the same, spread over a dim: they fit however the dim is cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from meshwright.check.operand import Operand, operand
from meshwright.check.refusal import Refused, invariant_meets
from meshwright.check.tag import Tag, constant, typed
from meshwright.comm.transport import Transport
from meshwright.types.kinds import I, R, S, Shard


def spread(value: Any, given: Any, refused: Refused, mesh: Mapping[str, Transport], degree: Mapping[str, int]) -> Any:
    """The operands of a call, of whose tensors `given` are, with S(dim) where one position was expanded to as many as a
    rank holds of the dim that another has cut: the same objects where none was.

    Errors: `Refused` where such a one is I, and has a gradient.
    """
    if isinstance(value, tuple) and isinstance(given, (tuple, list)):
        found = [spread(mine, theirs, refused, mesh, degree) for mine, theirs in zip(value, given, strict=False)]
        return value if all(a is b for a, b in zip(found, value, strict=True)) else tuple(found)
    if isinstance(value, Mapping) and isinstance(given, Mapping):
        return {name: spread(each, given.get(name), refused, mesh, degree) for name, each in value.items()}
    if not isinstance(value, Operand) or not isinstance(given, Tensor) or refused.short is None:
        return value
    axis, name, other, dim, held = refused.short
    here = dim < given.dim() and given.shape[dim] == held > 1 and given.stride(dim) == 0
    if not here or value.tag.factors is not None or isinstance(value.layout.get(axis), Shard):
        return value
    kind = value.layout.get(axis, R if value.tag.fresh is not None else None)
    if kind is I and value.flows:
        raise invariant_meets(axis, name, other, S(dim), None)
    if kind not in (R, I):
        return value
    layout = value.tag.layout.replace(**{axis: S(dim)})
    tag: Tag = typed(layout, value.tag.counted) if value.tag.fresh is None else constant(layout, value.tag.fresh)
    return operand(tag, value.shape, value.flows, value.dtype, mesh, degree)
