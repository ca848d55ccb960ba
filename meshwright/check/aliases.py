"""Other names of a gradient: its `.data`, and views of all of it. What is written into them is the gradient's."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor

from meshwright.check.memory import is_shared, overwritten
from meshwright.check.operand import Operand
from meshwright.check.tag import Tag, held, read, write, written
from meshwright.types.kinds import V
from meshwright.types.layout import SpmdLayout


def named_alike(gradient: Operand, made: object) -> None:
    """Note that what was made of a gradient is all of it by another name, where it is."""
    leaf = None if gradient.tag.owner is None else gradient.tag.owner()
    if leaf is None or leaf.grad is None or not isinstance(made, Tensor):
        return
    if made.numel() == math.prod(gradient.shape) and is_shared(made, leaf.grad):
        write(made, replace(read(made), owner=gradient.tag.owner))


def told(x: Tensor, owner: weakref.ref[Tensor]) -> None:
    """What `x`, which is another name of the owner's gradient, is after a write, the gradient is.

    A dim that is cut is the gradient's own: `x` may have others.
    """
    leaf = owner()
    gradient = None if leaf is None else leaf.grad
    if gradient is None or gradient is x or not is_shared(gradient, x):
        return
    if read(x).fresh is not None:
        write(gradient, read(x))
        return
    before, now = read(gradient).layout, read(x).layout
    kinds = dict(now)
    for axis in {*before.sharded, *now.sharded} & now.keys():
        kinds[axis] = before[axis] if axis in before.sharded else V
    write(gradient, Tag(SpmdLayout(kinds), owner=owner))


def note_writes(before: Iterable[tuple[Tensor, Tag]]) -> None:
    """Tensors were written, of which the tags are those from before: it is known of their other names too."""
    for x, tag in before:
        written(x)
        if tag.owner is not None:
            told(x, tag.owner)
        if not tag.layout:
            overwritten(x, read(x))


def refreshed(gradient: Tensor) -> Tag:
    """The tag of a gradient that is a part of another tensor, after what was written into that one since."""
    tag = read(gradient)
    if gradient._base is None or not tag.layout:
        return tag
    memory = held(gradient).layout
    cut = {*memory.sharded, *tag.layout.sharded}
    kinds = {axis: kind if axis in cut else memory.get(axis, kind) for axis, kind in tag.layout.items()}
    if SpmdLayout(kinds) is not tag.layout:
        write(gradient, replace(tag, layout=SpmdLayout(kinds)))
    return read(gradient)
