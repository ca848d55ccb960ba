"""What a rank holds of a tensor, as a tensor of its own, V; and back."""

from __future__ import annotations

from dataclasses import replace

from meshwright.check.algebra import Result
from meshwright.check.operand import Operand
from meshwright.check.tag import typed
from meshwright.types.kinds import Shard, V
from meshwright.types.layout import SpmdLayout


def of_rank(one: Operand) -> Operand:
    """What a rank holds of a tensor: V where that is cut."""
    if not one.layout.cut:
        return one
    layout = SpmdLayout({axis: V if isinstance(kind, Shard) else kind for axis, kind in one.layout.items()})
    return replace(one, tag=typed(layout, one.tag.counted), whole=one.shape, layout=layout)


def cut_like(found: Result, like: Operand) -> Result:
    """A result of the shape that a rank holds of another tensor, cut as that is where it is V."""
    cuts = {axis: kind for axis, kind in like.tag.layout.items() if isinstance(kind, Shard)}
    if not cuts or any(found.tag.layout.get(axis) is not V for axis in cuts):
        return found
    return Result(typed(found.tag.layout.replace(**cuts), found.tag.counted, like.tag.factors), like.whole)
