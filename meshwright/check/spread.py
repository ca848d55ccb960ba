"""Positions that are one and the same, spread over a dim: they fit however the dim is cut."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import TYPE_CHECKING, Any

from torch import Tensor

from meshwright.check.answer import Applied
from meshwright.check.operand import Operand
from meshwright.check.refusal import Refused, Short, invariant_meets
from meshwright.check.rule import Pure
from meshwright.check.tag import Tag, constant, typed
from meshwright.types.kinds import I, R, S, Shard

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck


def fitted(
    check: TypeCheck,
    rule: Pure,
    given: tuple[Any, ...],
    named: Mapping[str, Any],
    target: Any,
    call: Applied,
    refused: Refused,
) -> Any:
    """What is to be noted of a call that was refused, where expanded tensors in it fit.

    It is not kept as an answer: other tensors of the same types are no one position.

    Errors: `Refused` where they do not.
    """
    while (short := refused.short) is not None:
        values = tuple(_spread(check, seen, x, short) for seen, x in zip(given, call[1], strict=True))
        others = {name: _spread(check, seen, call[2][name], short) for name, seen in named.items()}
        if all(map(is_, values, given)) and all(others[name] is named[name] for name in named):
            break
        given, named = values, others
        try:
            return check.decide(rule, given, named, target, call)
        except Refused as another:
            refused = another
    raise refused


def _spread(check: TypeCheck, value: Any, given: Any, short: Short) -> Any:
    """An operand, of whose tensor `given` is, with S(dim) where one position was expanded to as many as a rank holds of
    the dim that another has cut; the same object where it was not.

    Errors: `Refused` where it is I, and has a gradient.
    """
    if isinstance(value, tuple) and isinstance(given, (tuple, list)):
        found = tuple(_spread(check, mine, theirs, short) for mine, theirs in zip(value, given, strict=True))
        return value if all(map(is_, found, value)) else found
    if not isinstance(value, Operand) or not isinstance(given, Tensor):
        return value
    axis, name, other, dim, held = short
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
    return check.operand_of(tag, value.shape, value)
