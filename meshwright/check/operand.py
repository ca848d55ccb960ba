"""What a rule sees instead of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from meshwright.check.refusal import Refused
from meshwright.check.source import name_of
from meshwright.check.tag import Tag
from meshwright.comm.transport import Transport
from meshwright.types.kinds import Shard
from meshwright.types.layout import SpmdLayout
from meshwright.types.notation import render

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A slice, as a value that can be a key."""

    start: Any
    stop: Any
    step: Any

    def length(self, positions: int) -> int:
        """How many of so many positions it takes."""
        return len(range(positions)[slice(self.start, self.stop, self.step)])


FULL: Final = Cut(None, None, None)


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """A tensor argument. Interned by the checker: equal ones are the same object.

    shape: of what this rank holds; whole: of what the ranks hold together. flows: it passes a gradient on.
    """

    tag: Tag
    shape: Shape
    whole: Shape
    flows: bool
    dtype: torch.dtype

    @property
    def layout(self) -> SpmdLayout:
        """What it is on every axis that is tracked."""
        return self.tag.layout

    def __repr__(self) -> str:
        owner = self.tag.owner() if self.tag.owner is not None else None
        shown = render(str(self.dtype), self.whole, self.layout)
        return shown if owner is None else f"gradient of {name_of(owner)} {shown}"


def whole_shape(shape: Shape, layout: SpmdLayout, mesh: Mapping[str, Transport]) -> Shape:
    """The global shape of which a rank holds `shape`.

    Errors: `Refused` where a shard's stated sizes are not those of the axis or not what the rank holds.
    """
    whole = list(shape)
    for axis in reversed(tuple(layout)):  # the innermost of a dim first
        kind = layout[axis]
        if not isinstance(kind, Shard):
            continue
        group = mesh[axis]
        if kind.dim >= len(shape):
            raise Refused(
                f"{kind!r} on axis {axis!r} shards dim {kind.dim} of a tensor of shape {shape}",
                "dims are counted from 0",
                f"S(dim) with dim below {len(shape)}" if shape else "R, I, V or P: a scalar has no dim to shard",
            )
        if kind.sizes is None:
            whole[kind.dim] *= group.size
        elif len(kind.sizes) == group.size and kind.sizes[group.index] == whole[kind.dim]:
            whole[kind.dim] = sum(kind.sizes)
        else:
            raise Refused(
                f"{kind!r} on axis {axis!r} of {group.size} ranks: rank {group.index} holds {whole[kind.dim]}",
                "stated sizes are what each rank of the axis holds of the dim",
                "name the length on every rank, in order",
            )
    return tuple(whole)


def local_shape(whole: Shape, layout: SpmdLayout, mesh: Mapping[str, Transport]) -> Shape:
    """What this rank holds of a tensor of global shape `whole`."""
    if not layout.sharded:
        return whole
    axes = layout.sharded
    degree, index = {axis: mesh[axis].size for axis in axes}, {axis: mesh[axis].index for axis in axes}
    return layout.local_shape(whole, degree, index)
