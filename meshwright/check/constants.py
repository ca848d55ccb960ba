"""Tensors that factories made, and what is computed of them alone: alike on all ranks, or cut as a dim is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from meshwright.check.algebra import Result
from meshwright.check.answer import in_its_words, refusal_of
from meshwright.check.demand import demand_no_share
from meshwright.check.operand import Operand
from meshwright.check.refusal import Refused
from meshwright.check.rule import Pure
from meshwright.check.tag import Fresh, constant
from meshwright.codes import Code
from meshwright.comm.number import is_length

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck


def are_cut(
    check: TypeCheck, rule: Pure, given: tuple[Any, ...], named: Mapping[str, Any], seen: Sequence[Operand]
) -> bool:
    """Whether constants, of which a call is made, or what it makes of them, are cut as a sharded dim is.

    A constant is alike along the dim that is cut, and so is its mean, or its greatest value, on each rank what it is on
    all: what `_READ` makes of one is a constant like any.

    Errors: `Refused` where the local length of a dim becomes a value of what is alike on all ranks.
    """
    partial = any(each.partial for each in seen)
    if partial and rule.name in _COMPARE:  # who holds a sum against a length asks whether all are there
        check.numbers.clear()
        return False
    made = _made_as_long(check, rule, given, named) if check.numbers else False
    if made is None:
        return False
    if not made and not any(each.tag.fresh is not None and (each.layout.cut or each.partial) for each in seen):
        return False
    if not all(each.tag.fresh is not None for each in seen):
        return False
    if rule.name in _READ and not partial:
        return made or refusal_of(rule, given, named) is None
    return made or not (rule.name in _COMPARE and check.numbers)


def _made_as_long(check: TypeCheck, rule: Pure, given: tuple[Any, ...], named: Mapping[str, Any]) -> bool | None:
    """Whether a constant is made as long as what a rank holds of a sharded dim, and so is cut like it.

    None where a length says which places of it are taken, or it is asked whether it is as long.
    """
    if check.local or not any(map(is_length, check.numbers)):
        return False
    cut: bool | None = False
    try:
        made = in_its_words(rule, given, named)
        cut = isinstance(made, Result) and bool(made.tag.layout.cut)
    except Refused as refused:
        reads = refused.owned or rule.name in _COMPARE  # of a constant it takes what places it wants
        if refused.code is Code.LENGTH and not reads:
            raise
        cut = None if refused.code is Code.LENGTH else False
    except (TypeError, ValueError, IndexError):  # a form of the call of which no rule is needed
        pass
    demand_no_share(check, rule.name, constants=True)
    return cut


_COMPARE: Final = frozenset(form for name in ("eq", "ne", "lt", "le", "gt", "ge") for form in (name, f"__{name}__"))
"""A constant is held against others, and against lengths."""
_READ: Final = frozenset(
    ["all", "any", "max", "min", "amax", "amin", "mean", "argmax", "argmin", "__getitem__", "select", "narrow"]
)
"""Ops that make the same of what is alike along a dim, however much there is of it."""


def of_constants(outcomes: Any) -> Any:
    """What is noted of what a call makes of constants alone: constants, of the types that were found."""
    if outcomes is None:
        return None
    if not hasattr(outcomes, "tag"):
        return tuple(map(of_constants, outcomes))
    tag = outcomes.tag
    return outcomes._replace(tag=constant(tag.layout, tag.fresh or Fresh.CONSTANT, tag.factors))


def kept_by(seen: Sequence[Operand], made: Any) -> Fresh | None:
    """What a view of a constant is, as that is: nothing yet, or all places; None where it is another constant."""
    if len(seen) != 1 or not isinstance(made, Tensor) or made._base is None:
        return None
    (one,) = seen
    places = one.tag.fresh is Fresh.PLACES and math.prod(made.shape) == math.prod(one.shape)
    return one.tag.fresh if places or (one.tag.empty and not one.layout.cut) else None


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
