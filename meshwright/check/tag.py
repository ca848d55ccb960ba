"""What is known of a tensor, kept as an attribute of the tensor itself."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from torch import Tensor

from meshwright.types.kinds import SpmdType
from meshwright.types.layout import SpmdLayout

_ATTRIBUTE: Final = "_spmd_tag"
_NOTHING: Final = SpmdLayout({})


class Fresh(Enum):
    """A tensor that a factory made from nothing but Python arguments: the same on every rank of every axis.

    It takes its type from the first tensor that is written into it, or from the author's `assert_type`.
    """

    CONSTANT = "constant"
    ZERO = "zero"
    """zeros everywhere, and so a tensor of any type, P too"""


@dataclass(frozen=True, slots=True, eq=False)
class Tag:
    """What is known of one tensor.

    layout: its type on the axes on which one was stated or followed; fresh: set where it needs none.
    counted: axes on which it is V and what the ranks hold alike was added to it: a sum over ranks would count that
        once a rank.
    owner: the parameter whose gradient it is. stated: the source line that stated the type.
    """

    layout: SpmdLayout
    fresh: Fresh | None = None
    counted: frozenset[str] = frozenset()
    owner: weakref.ref[Tensor] | None = None
    stated: str = ""

    def __reduce__(self) -> Any:
        return Tag, (self.layout, self.fresh, self.counted)  # what else there is belongs to this process


UNKNOWN: Final = Tag(_NOTHING)
"""Nothing is known."""
CONSTANT: Final = Tag(_NOTHING, Fresh.CONSTANT)
ZERO: Final = Tag(_NOTHING, Fresh.ZERO)

_ALONE: Final[frozenset[str]] = frozenset()
_interned: dict[tuple[SpmdLayout, frozenset[str]], Tag] = {(_NOTHING, _ALONE): UNKNOWN}


def typed(layout: SpmdLayout, counted: frozenset[str] = _ALONE) -> Tag:
    """The tag of a tensor of which no more is known; the same object for the same layout."""
    key = layout, counted
    found = _interned.get(key)
    return found if found is not None else _interned.setdefault(key, Tag(layout, counted=counted))


def read(x: Tensor) -> Tag:
    """The tag of `x`; `UNKNOWN` where it has none.

    A constant that wants a gradient is a leaf like any other: its author has to say what the gradient will be.
    """
    tag: Tag = x.__dict__.get(_ATTRIBUTE, UNKNOWN)
    return UNKNOWN if tag.fresh is not None and x.requires_grad else tag


def write(x: Tensor, tag: Tag) -> None:
    """Make `tag` what is known of `x`."""
    if tag is UNKNOWN:
        x.__dict__.pop(_ATTRIBUTE, None)
    else:
        x.__dict__[_ATTRIBUTE] = tag


def layout_of(x: Tensor) -> Mapping[str, SpmdType]:
    """The layout of `x` as far as the checker knows it."""
    return read(x).layout
