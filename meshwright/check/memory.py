"""Memory that several tensors share: what was put into it by any of them is known to those that have no type yet.

A tensor that a factory made, and a view of it, take their type from what is written into them. Each such write is
noted with the storage, as the bytes that it covers; another name of the same bytes, made before or after, is what they
hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch import Tensor

from meshwright.types.kinds import I, P, R, S, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout

if TYPE_CHECKING:
    from meshwright.check.tag import Tag

_WRITTEN: Final = "_spmd_written"
"""Attribute of a storage: what was written into parts of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which bytes of a storage a tensor is: from start up to end, every one of them where it is dense."""

    start: int
    end: int
    dense: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def meets(self, other: Place) -> bool:
        """Whether both may have a byte in common."""
        return self.start < other.end and other.start < self.end

    def holds(self, other: Place) -> bool:
        """Whether it covers all of `other`."""
        return self.dense and self.start <= other.start and other.end <= self.end

    def dim_of(self, other: Place, dim: int) -> int | None:
        """The dim that has the positions of dim `dim` of `other`, all of them; None where that is not seen."""
        length, step = other.shape[dim], other.strides[dim]
        found = [at for at, one in enumerate(zip(self.shape, self.strides, strict=True)) if one == (length, step)]
        apart = abs(self.start - other.start) % max(step * length, 1)
        return found[0] if len(found) == 1 and length > 1 and apart < step else None


class Written(NamedTuple):
    """What a place holds since it was written."""

    place: Place
    tag: Tag


def place_of(x: Tensor) -> Place:
    """The bytes of `x`."""
    size, shape = x.element_size(), tuple(x.shape)
    strides = tuple([step * size for step in x.stride()])
    start, whole = int(x.storage_offset()) * size, x.numel() * size
    if x.is_contiguous():
        return Place(start, start + whole, True, shape, strides)
    extent = sum((length - 1) * step for length, step in zip(shape, strides, strict=True)) + size if whole else 0
    return Place(start, start + extent, extent == whole, shape, strides)


def _storage(x: Tensor) -> Any:
    """None where a tensor has none: torch says so by an error."""
    with suppress(RuntimeError):  # and what is derived of it
        return x.untyped_storage()
    return None


def is_shared(x: Tensor, y: Tensor) -> bool:
    """Whether both lie in one storage."""
    mine, theirs = _storage(x), _storage(y)
    return mine is not None and theirs is not None and bool(mine._cdata == theirs._cdata)


def writes(x: Tensor) -> list[Written]:
    """What was written into the storage of `x`; nothing where it has none, as inside a transform."""
    storage = _storage(x)
    found: list[Written] = getattr(storage, _WRITTEN, [])
    return found


def overwritten(x: Tensor, tag: Tag) -> None:
    """The memory of `x` is `tag` from now on."""
    storage = _storage(x)
    if storage is None:
        return
    place = place_of(x)
    before = getattr(storage, _WRITTEN, ())
    setattr(storage, _WRITTEN, [each for each in before if not place.holds(each.place)] + [Written(place, tag)])


class Content(NamedTuple):
    """What a place holds, of which parts were written. like: it is what was written last; layout: what the parts are
    together; zero: where they have no type, whether all are zero; mixed: the axis on which they are nothing together.
    """

    like: Tag | None = None
    layout: SpmdLayout | None = None
    counted: frozenset[str] = frozenset()
    zero: bool = False
    mixed: str = ""


def content(x: Tensor, zero: bool, known: bool) -> Content | None:
    """What `x` holds by what was written into its memory; None where nothing was.

    zero: what nobody wrote is zero, or was never set; known: it is known to be alike on all ranks.
    """
    noted = writes(x)
    if not noted:
        return None
    place = place_of(x)
    parts = [each for each in noted if place.meets(each.place)]
    if not parts:
        return None
    last = parts[-1]
    nothing = next((each for each in parts if not each.tag.layout and each.tag.fresh is None), None)
    if nothing is not None or last.place == place:
        return Content(like=(nothing or last).tag)
    whole = _covered(place, parts)
    if not whole and not known:
        return None
    constant = (not whole and not zero) or any(each.tag.fresh is not None and not each.tag.empty for each in parts)
    given = [each for each in parts if each.tag.layout]
    found: dict[str, SpmdType] = {}
    for axis in dict.fromkeys(axis for each in given for axis in each.tag.layout):
        kind = _together([_seen(place, each, axis) for each in given if axis in each.tag.layout], constant)
        if kind is None:
            return Content(mixed=axis)
        found[axis] = kind
    counted = frozenset(axis for each in given for axis in each.tag.counted)
    return Content(layout=SpmdLayout(found), counted=counted, zero=not constant)


def _covered(place: Place, parts: Sequence[Written]) -> bool:
    reached = place.start
    for each in sorted(parts, key=lambda each: each.place.start):
        if each.place.dense and each.place.start <= reached:
            reached = max(reached, each.place.end)
    return reached >= place.end


def _seen(place: Place, part: Written, axis: str) -> SpmdType:
    """What a part is on an axis, its dims counted as those of `place`: V where they are not dims of it."""
    kind = part.tag.layout[axis]
    if not isinstance(kind, Shard):
        return kind
    dim = None if part.tag.factors is not None else place.dim_of(part.place, kind.dim)
    return V if dim is None else S(dim, kind.sizes)


def _together(kinds: Sequence[SpmdType], constant: bool) -> SpmdType | None:
    """What parts are as one tensor, some of them constants; None where parts of a sum stand beside what is none."""
    if P in kinds:
        return P if all(kind is P for kind in kinds) and not constant else None
    if all(kind in (R, I) for kind in kinds):
        return I if all(kind is I for kind in kinds) else R
    return kinds[0] if all(kind is kinds[0] for kind in kinds) and not constant else V
