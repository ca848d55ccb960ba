"""The parts that an op returns as a tuple: a rank that picks one by its own place has another one than the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from meshwright.check.refusal import placed
from meshwright.check.rule import special
from meshwright.check.tag import typed, write
from meshwright.comm.followed import Followed
from meshwright.comm.number import Number, Source
from meshwright.types.kinds import I, P, V

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck


class Parts(tuple[Any, ...]):
    """A tuple like any, but for an index that is a rank's place."""

    __slots__ = ()

    def __getitem__(self, at: Any) -> Any:
        part = super().__getitem__(at)
        by_place = type(at) is Followed and at.origin.source is Source.INDEX
        return pick(part, at) if by_place and isinstance(part, Tensor) else part


def pick(part: Tensor, at: Number) -> Tensor:
    """The part that stands at a rank's place."""
    if has_torch_function_unary(part):
        found: Tensor = handle_torch_function(pick, (part,), part, at)
        return found
    return part


@special(pick)
def picked(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """V on the axes that the index is about, of what is R there: each rank's gradient is a part of that."""
    part, at = args
    seen = check.operand(part)
    axes = check.axes_of(at)
    for axis in axes:
        kind = seen.layout.get(axis)
        if kind in (I, P):
            raise placed(axis, "indexing a tuple", kind)
    made = part.view_as(part)
    write(made, typed(seen.layout.replace(**dict.fromkeys(axes, V)), seen.tag.counted))
    return made
