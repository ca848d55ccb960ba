"""What is known of a tensor, kept as an attribute of the tensor itself."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from meshwright.check.memory import content, overwritten
from meshwright.types.kinds import I, P, R, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout

ATTRIBUTE: Final = "_spmd_tag"
"""Attribute of a tensor: its tag."""
VERSION: Final = "_spmd_version"
"""Attribute of a tensor: how often its memory had been written when the tag was noted."""
_NOTHING: Final = SpmdLayout({})

Factors = tuple[tuple[int, ...], ...]
"""For each dim, the global lengths of the factors that it is made of, outermost first."""


class Fresh(Enum):
    """A tensor that a factory made from nothing but Python arguments: the same on every rank of every axis.

    It takes its type from the first tensor that is written into it, or from the author's `assert_type`.
    """

    CONSTANT = "constant"
    EMPTY = "empty"
    """memory that nobody has written yet"""
    UNIFORM = "uniform"
    """one value everywhere: where its length is that of a rank's part, it stands for the whole as well"""
    ZERO = "zero"
    """zeros everywhere, and so a tensor of any type, P too"""
    PLACES = "places"
    """0, 1, ... as far as a rank's part of a dim goes: all that it holds of it, in order"""


@dataclass(frozen=True, slots=True, eq=False)
class Tag:
    """What is known of one tensor.

    layout: its type on the axes on which one was stated or followed; fresh: set where it needs none, but on axes over
        which it is cut as the dim that gave it its length.
    counted: axes on which it is V and what the ranks hold alike was added to it: a sum over ranks would count that
        once a rank.
    factors: set where some dim is a product, as a flattened dim is; then the layout counts factors in place of dims.
    owner: the parameter whose gradient it is. stated: the source line that stated the type. mixed: the axis on which
        parts of its memory are a sum over ranks, beside others that are none.
    """

    layout: SpmdLayout
    fresh: Fresh | None = None
    counted: frozenset[str] = frozenset()
    factors: Factors | None = None
    owner: weakref.ref[Tensor] | None = None
    stated: str = ""
    mixed: str = ""

    @property
    def empty(self) -> bool:
        """Nothing stands in it yet: nobody has written it, or it is zero."""
        return self.fresh is Fresh.ZERO or self.fresh is Fresh.EMPTY

    @property
    def even(self) -> bool:
        """It is one value everywhere: a part of it and the whole are alike."""
        return self.fresh is Fresh.ZERO or self.fresh is Fresh.UNIFORM

    def __reduce__(self) -> Any:
        kinds = tuple((axis, repr(kind)) for axis, kind in self.layout.items())
        fresh = None if self.fresh is None else self.fresh.value
        return _restored, (kinds, fresh, tuple(sorted(self.counted)), self.factors)  # the rest is this process's


UNKNOWN: Final = Tag(_NOTHING)
"""Nothing is known."""
CONSTANT: Final = Tag(_NOTHING, Fresh.CONSTANT)
EMPTY: Final = Tag(_NOTHING, Fresh.EMPTY)
UNIFORM: Final = Tag(_NOTHING, Fresh.UNIFORM)
ZERO: Final = Tag(_NOTHING, Fresh.ZERO)
ASSUMED: Final = Tag(_NOTHING)
"""Something was wrong with it, which was said: it goes with anything until its type is stated."""

_ALONE: Final[frozenset[str]] = frozenset()
_interned: Final[dict[Any, Tag]] = {
    (_NOTHING, tag.fresh, _ALONE, None): tag for tag in (UNKNOWN, CONSTANT, EMPTY, UNIFORM, ZERO)
}


def typed(layout: SpmdLayout, counted: frozenset[str] = _ALONE, factors: Factors | None = None) -> Tag:
    """The tag of a tensor of which no more is known; the same object for the same layout."""
    return _kept(layout, None, counted, factors)


def constant(layout: SpmdLayout, fresh: Fresh, factors: Factors | None = None) -> Tag:
    """The tag of what a factory made, cut as `layout` says; the same object for the same layout."""
    return _kept(layout, fresh, _ALONE, factors)


def _kept(layout: SpmdLayout, fresh: Fresh | None, counted: frozenset[str], factors: Factors | None) -> Tag:
    key = layout, fresh, counted, factors
    found = _interned.get(key)
    return found if found is not None else _interned.setdefault(key, Tag(*key))


def _restored(
    kinds: tuple[tuple[str, str], ...], fresh: str | None, counted: tuple[str, ...], factors: Factors | None
) -> Tag:
    layout = SpmdLayout({axis: _kind(text) for axis, text in kinds})
    return typed(layout, frozenset(counted), factors) if fresh is None else constant(layout, Fresh(fresh), factors)


def _kind(text: str) -> SpmdType:
    """`S(1)`, `S(0, (3, 2))` or a letter, as printed."""
    if not text.startswith("S"):
        return {kind.letter: kind for kind in (R, I, V, P)}[text]
    dim, *sizes = map(int, re.findall(r"-?\d+", text))
    return Shard(dim, tuple(sizes) or None)


torch.serialization.add_safe_globals([_restored])  # a tensor that was saved under the checker loads like any other


def noted(x: Tensor) -> Tag:
    """What was noted of `x` by its own name."""
    tag: Tag = x.__dict__.get(ATTRIBUTE, UNKNOWN)
    return tag


def read(x: Tensor) -> Tag:
    """The tag of `x`; `UNKNOWN` where it has none.

    A constant that wants a gradient is a leaf like any other: its author has to say what the gradient will be.
    """
    tag = noted(x)
    if tag.fresh is None and tag is not UNKNOWN:
        return tag
    if x.requires_grad and x.is_leaf:
        return UNKNOWN
    return _by_memory(x, tag)


def held(x: Tensor) -> Tag:
    """What the memory of `x` holds, of which nothing else is known."""
    return _by_memory(x, UNKNOWN)


APART: Final = "_spmd_apart"
"""Attribute of a tensor that a custom Function returned: its author says what it is, whatever memory it shares."""


def _by_memory(x: Tensor, tag: Tag) -> Tag:
    """`tag`, or what was written into the memory of `x` by other names of it; from then on `x` keeps that."""
    if APART in x.__dict__:
        return tag
    found = content(x, tag.empty, tag.fresh is not None)
    if found is None:
        return UNKNOWN if x.requires_grad and tag is not UNKNOWN else tag
    if found.mixed:
        return _mixed.setdefault(found.mixed, Tag(_NOTHING, mixed=found.mixed))
    if found.like is not None:
        holds = found.like
    elif found.layout:
        holds = typed(found.layout, found.counted)
    else:
        return ZERO if found.zero else CONSTANT
    if holds.layout and tag is not UNKNOWN:
        write(x, holds)
    return holds


_mixed: Final[dict[str, Tag]] = {}


def write(x: Tensor, tag: Tag) -> None:
    """Make `tag` what is known of `x`, as it is now."""
    known = x.__dict__
    before: Tag | None = known.get(ATTRIBUTE)
    if before is not None and before.fresh is not None and before is not tag:
        overwritten(x, tag)
    if tag is UNKNOWN:
        known.pop(ATTRIBUTE, None)
        known.pop(VERSION, None)
    else:
        known[ATTRIBUTE] = tag
        try:
            known[VERSION] = id(x), x._version
        except RuntimeError:  # in inference mode nobody counts writes
            known.pop(VERSION, None)


def written(x: Tensor) -> None:
    """A write into `x` was judged: what is known of it, and of what it is a view of, still holds."""
    if torch.is_inference(x):
        return
    for each in (x, x._base, *_twins(x)):
        if each is not None:
            each.__dict__[VERSION] = id(each), each._version


_sources: Final = WeakIdKeyDictionary()
"""Tensor -> the one of which it is another name."""


def share(x: Tensor, source: Tensor) -> None:
    """`x` is what `source` holds, by another name that torch does not call a view."""
    _sources[x] = weakref.ref(source)


def _twins(x: Tensor) -> Iterator[Tensor]:
    """The tensors that `x`, or what it is a view of, is another name of."""
    for each in (x, x._base):
        while each is not None:
            twin = _sources.get(each)
            each = twin() if twin is not None else None
            if each is not None:
                yield each
                if each._base is not None:
                    yield each._base


def is_stale(x: Tensor) -> bool:
    """Whether something was written into the memory of `x`, by a call that nobody judged, since its type was noted."""
    noted = x.__dict__.get(VERSION)
    if noted is None or noted[0] != id(x) or x._version <= noted[1]:
        return False  # what was copied with its attributes is another tensor
    base = x._base
    return base is None or base.__dict__.get(VERSION, (0, -1))[1] < x._version
