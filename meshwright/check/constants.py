"""Tensors that factories made, and what is computed of them alone: alike on all ranks, or cut as a dim is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from meshwright.check.algebra import Result
from meshwright.check.demand import demand_no_fraction
from meshwright.check.operand import Operand, Shape
from meshwright.check.refusal import Refused
from meshwright.check.rule import Pure
from meshwright.check.tag import Fresh, constant
from meshwright.codes import Code
from meshwright.comm.number import Source

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck


def are_cut(
    check: TypeCheck, rule: Pure, given: tuple[Any, ...], named: Mapping[str, Any], seen: Sequence[Operand]
) -> bool:
    """Whether constants, of which a call is made, or what it makes of them, are cut as a sharded dim is.

    What needs the dim in one piece makes a constant like any: as Python reads it, of what it has at hand.

    Errors: `Refused` where the local length of a dim becomes a value of what is alike on all ranks.
    """
    made = _made_as_long(check, rule, given, named) if check.numbers else False
    if not made and not any(each.tag.fresh is not None and each.layout.cut for each in seen):
        return False
    if not all(each.tag.fresh is not None for each in seen):
        return False
    try:
        rule.infer(*given, **named)
    except Refused:
        return False
    except (TypeError, ValueError, IndexError):
        return True  # it has no answer, which is said where it is asked
    return True


def _made_as_long(check: TypeCheck, rule: Pure, given: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether a constant is made as long as what a rank holds of a sharded dim, and so is cut like it."""
    if check.local or not any(each.origin.source is Source.LENGTH for each in check.numbers):
        return False
    cut = False
    try:
        made = rule.infer(*given, **named)
        cut = isinstance(made, Result) and bool(made.tag.layout.cut)
    except Refused as refused:
        reads = refused.owned or rule.name in _COMPARE  # of a constant it takes what places it wants
        if refused.code is Code.LENGTH and not reads:
            raise
    except (TypeError, ValueError, IndexError):  # a form of the call of which no rule is needed
        pass
    demand_no_fraction(check, rule.name)
    return cut


_COMPARE: Final = frozenset(form for name in ("eq", "ne", "lt", "le", "gt", "ge") for form in (name, f"__{name}__"))
"""A constant is held against a length by who asks whether it is as long, or full."""


def of_constants(outcomes: Any, zero: bool) -> Any:
    """What is noted of what a call makes of constants alone: constants, of the types that were found.

    zero: they are zero everywhere.
    """
    if outcomes is None:
        return None
    if hasattr(outcomes, "tag"):
        return outcomes._replace(tag=constant(outcomes.tag.layout, Fresh.ZERO if zero else Fresh.CONSTANT))
    return tuple([of_constants(each, zero) for each in outcomes])


def is_view(one: Operand, shape: Shape) -> bool:
    """Whether a view of such a shape is what the tensor is: nothing yet, or all places, with dims of one added."""
    return one.tag.empty or (one.tag.fresh is Fresh.PLACES and math.prod(shape) == math.prod(one.shape))


def is_zero(rule: Pure, given: tuple[Any, ...], named: Mapping[str, Any], seen: Sequence[Operand]) -> bool:
    """Whether a call on tensors that are zero everywhere is, as a sum of products."""
    if not any(each.tag.fresh is Fresh.ZERO for each in seen):
        return False
    try:
        result = rule.infer(*given, **named)
    except Exception:  # whether it is, is not known
        return False
    each = (result,) if isinstance(result, Result) else result
    return all(one.tag.fresh is Fresh.ZERO for one in each)
