"""What a rule sees instead of a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from meshwright.check.refusal import Refused
from meshwright.check.source import name_of
from meshwright.check.tag import Factors, Tag, read
from meshwright.codes import Code
from meshwright.comm.number import Origin, Source
from meshwright.comm.transport import Transport
from meshwright.types.kinds import P, S, Shard
from meshwright.types.layout import SpmdLayout
from meshwright.types.notation import render

Shape = tuple[int, ...]


_SLICE: Final = object()


class Cut(NamedTuple):
    """A slice, as a value that can be a key. mark: so that it equals no tuple of three."""

    start: Any
    stop: Any
    step: Any
    mark: object = _SLICE

    def length(self, positions: int) -> int:
        """How many of so many positions it takes."""
        return len(range(positions)[slice(self.start, self.stop, self.step)])


def keeps_sums(into: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether parts of a sum in `dtype` still add up to it in `into`: none is rounded, and whole numbers wrap alike."""
    if into is dtype:
        return True
    if into in _NARROW or dtype in _NARROW:
        return False
    if torch.promote_types(into, dtype) == into:
        return True
    return into in _WHOLE and dtype in _WHOLE


_NARROW: Final = frozenset(dtype for name, dtype in vars(torch).items() if name.startswith("float8_"))
"""Dtypes that torch promotes to no other: a sum is not made in them."""
_WHOLE: Final = (torch.int32, torch.int64)

FULL: Final = Cut(None, None, None)


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """A tensor argument. Interned by the checker: equal ones are the same object.

    shape: of what this rank holds; whole: of what the ranks hold together. flows: it passes a gradient on.
    layout: what it is on every axis that is tracked; where a dim is a product, each axis shards the dim that its
    factor is in. degree: ranks of each axis of the mesh. length: the number, where it is one that may be a length.
    """

    tag: Tag
    shape: Shape
    whole: Shape
    flows: bool
    dtype: torch.dtype
    layout: SpmdLayout
    degree: Mapping[str, int]
    length: int | None = None
    known: bool = field(init=False)
    """Whether it has a type on any axis."""
    partial: bool = field(init=False)
    """Whether it is a sum over the ranks of any axis."""
    cuts: tuple[Origin | None, ...] = field(init=False)
    """What to say of the local length of each dim that is sharded; empty where none is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", len(self.layout) > 0)
        object.__setattr__(self, "partial", P in self.layout.values())
        axes = [self.layout.sharding(dim) for dim in range(len(self.shape))]
        if self.tag.fresh is not None and self.layout.varying:  # each rank made it as long as it wanted
            axes = [
                each or self.layout.varying if length != 1 else each
                for each, length in zip(axes, self.shape, strict=True)
            ]
        cuts = tuple(
            Origin(Source.LENGTH, frozenset(each), f"x.shape[{dim}]", order=each) if each else None
            for dim, each in enumerate(axes)
        )
        object.__setattr__(self, "cuts", cuts if any(axes) else ())

    @property
    def factors(self) -> Factors:
        """The global lengths of the factors of each dim; of most dims there is one."""
        return self.tag.factors or tuple((length,) for length in self.whole)

    def __repr__(self) -> str:
        owner = self.tag.owner() if self.tag.owner is not None else None
        shown = render(str(self.dtype), self.whole, self.tag.layout, self.tag.factors)
        return shown if owner is None else f"gradient of {name_of(owner)} {shown}"


def operand(
    tag: Tag, shape: Shape, flows: bool, dtype: torch.dtype, mesh: Mapping[str, Transport], degree: Mapping[str, int]
) -> Operand:
    """What a rule sees of a tensor of which a rank holds `shape`.

    Errors: `Refused` where the shape does not fit the tag.
    """
    if tag.factors is None:
        return Operand(tag, shape, whole_shape(shape, tag.layout, mesh), flows, dtype, tag.layout, degree)
    whole = tuple(math.prod(factors) for factors in tag.factors)
    return Operand(tag, shape, whole, flows, dtype, on_dims(tag.layout, tag.factors), degree)


def stale(x: Tensor) -> Refused:
    """What is said of a tensor whose memory was written by a call that nobody judged."""
    refused = Refused(
        "the memory of a tensor was written by a call that was not judged, since its type was noted",
        "nothing is known of what it holds now",
        "write it where the checker sees it; or state what it is: assert_type(x, {axis: type}) after the write",
        code=Code.STALE,
    )
    tag = read(x)
    refused.operands = (Operand(tag, tuple(x.shape), tuple(x.shape), False, x.dtype, tag.layout, {}),)
    return refused


def on_dims(layout: SpmdLayout, factors: Factors) -> SpmdLayout:
    """A layout that counts factors, with each sharded factor's dim in place of the factor.

    Of a dim that is cut unevenly a rank holds what it holds of the factor, times the factors inside it.
    """
    place_of = [(dim, math.prod(each[place + 1 :])) for dim, each in enumerate(factors) for place in range(len(each))]
    inner_last = sorted(layout, key=lambda axis: kind.dim if isinstance(kind := layout[axis], Shard) else -1)
    kinds = {axis: layout[axis] for axis in inner_last}
    return SpmdLayout(
        {axis: _on_dim(kind, *place_of[kind.dim]) if isinstance(kind, Shard) else kind for axis, kind in kinds.items()}
    )


def _on_dim(factor: Shard, dim: int, inner: int) -> Shard:
    return S(dim, None if factor.sizes is None else tuple(size * inner for size in factor.sizes))


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
                code=Code.SHAPE,
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
                code=Code.SHAPE,
            )
    return tuple(whole)


def local_shape(whole: Shape, tag: Tag, mesh: Mapping[str, Transport]) -> Shape:
    """What this rank holds of a tensor of global shape `whole`."""
    layout = tag.layout
    if not layout.sharded:
        return whole
    axes = layout.sharded
    degree, index = {axis: mesh[axis].size for axis in axes}, {axis: mesh[axis].index for axis in axes}
    if tag.factors is None:
        return layout.local_shape(whole, degree, index)
    pieces = iter(layout.local_shape(tuple(length for each in tag.factors for length in each), degree, index))
    return tuple(math.prod(next(pieces) for _ in each) for each in tag.factors)
