"""Ops that move positions to other places and change none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.check.algebra import Result
from meshwright.check.operand import Operand, Shape
from meshwright.check.refusal import Refused, along_shard, change
from meshwright.check.regroup import Run, resolve, runs
from meshwright.check.rule import pure
from meshwright.check.tag import typed
from meshwright.types.kinds import R, S, Shard, SpmdType
from meshwright.types.layout import SpmdLayout


def moved(op: str, input: Operand, places: Mapping[int, int], whole: Shape, instead: str = "") -> Result:
    """Dim d becomes dim `places[d]` of a tensor of shape `whole`; a sharded dim must have a place."""
    types: dict[str, SpmdType] = {}
    for axis, kind in input.layout.items():
        if isinstance(kind, Shard):
            if kind.dim not in places:
                raise along_shard(axis, "input", kind, op, instead)
            kind = S(places[kind.dim], kind.sizes)
        types[axis] = kind
    return Result(typed(SpmdLayout(types), input.tag.counted), whole)


def flat(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given one by one or as one tuple."""
    flat = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple) else sizes
    if not all(isinstance(size, int) for size in flat):
        raise TypeError(f"sizes {flat}")
    return flat


def from_front(dim: int, count: int) -> int:
    """`dim` counted from the front, of a tensor of `count` dims."""
    return dim % max(count, 1)


@pure("permute")
def permute(input: Operand, *dims: Any) -> Result:
    """The dims in another order."""
    order = [from_front(dim, len(input.shape)) for dim in flat(dims)]
    return moved("permute", input, {old: new for new, old in enumerate(order)}, tuple(input.whole[d] for d in order))


@pure("transpose", "swapaxes", "swapdims")
def transpose(input: Operand, dim0: int, dim1: int) -> Result:
    """Two dims change places."""
    order = list(range(len(input.shape)))
    a, b = from_front(dim0, len(order)), from_front(dim1, len(order))
    if order:
        order[a], order[b] = order[b], order[a]
    return permute(input, tuple(order))


@pure("t")
def t(input: Operand) -> Result:
    """The two dims of a matrix change places."""
    return permute(input, tuple(reversed(range(len(input.shape)))))


@pure("unsqueeze")
def unsqueeze(input: Operand, dim: int) -> Result:
    """A new dim of one position."""
    count = len(input.shape)
    at = dim % (count + 1)
    places = {old: old + (old >= at) for old in range(count)}
    return moved("unsqueeze", input, places, (*input.whole[:at], 1, *input.whole[at:]))


@pure("squeeze")
def squeeze(input: Operand, dim: Any = None) -> Result:
    """Dims of one position go; a sharded dim has more, even where a rank holds one."""
    count = len(input.shape)
    named = range(count) if dim is None else (dim,) if isinstance(dim, int) else dim
    gone = {from_front(each, count) for each in named if input.shape[each] == 1}
    kept = [old for old in range(count) if old not in gone]
    return moved("squeeze", input, {old: new for new, old in enumerate(kept)}, tuple(input.whole[d] for d in kept))


@pure("expand")
def expand(input: Operand, *sizes: Any, implicit: bool = False) -> Result:
    """Dims of one position are spread over more; new dims stand in front."""
    wanted = flat(sizes)
    new = len(wanted) - len(input.shape)
    whole = list(wanted)
    places = {}
    for dim, length in enumerate(input.shape):
        if wanted[new + dim] in (-1, length):
            places[dim] = new + dim
            whole[new + dim] = input.whole[dim]
    return moved("expand", input, places, tuple(whole))


@pure("view", "reshape")
def view(input: Operand, *shape: Any) -> Result:
    """The same positions in other dims; lengths are those on this rank.

    A sharded dim is split or merged only where it is the outermost of the dims that change.
    """
    return _viewed(input, flat(shape))


@pure("flatten")
def flatten(input: Operand, start_dim: int = 0, end_dim: int = -1) -> Result:
    """A run of dims as one."""
    count = len(input.shape)
    start, end = from_front(start_dim, count), from_front(end_dim, count)
    merged = math.prod(input.shape[start : end + 1])
    return _viewed(input, (*input.shape[:start], merged, *input.shape[end + 1 :]))


@pure("unflatten")
def unflatten(input: Operand, dim: int, sizes: tuple[int, ...]) -> Result:
    """One dim as several."""
    at = from_front(dim, len(input.shape))
    split = resolve(sizes, input.shape[at])
    if split is None:
        raise _not_divided(input, range(at, at + 1), sizes)
    return _viewed(input, (*input.shape[:at], *split, *input.shape[at + 1 :]))


def _viewed(input: Operand, sizes: Sequence[int]) -> Result:
    shape = resolve(sizes, math.prod(input.shape))
    matched = None if shape is None else runs(input.shape, shape)
    if shape is None or matched is None:
        if not input.layout.sharded and shape is not None:
            return moved("view", input, {}, shape)
        raise _not_divided(input, range(len(input.shape)), sizes)
    whole = list(shape)
    places = {}
    for run in matched:
        for dim in run[0]:
            if input.layout.sharding(dim):
                places[dim] = _outermost(input, run, shape, dim, sizes)
                whole[places[dim]] *= input.whole[dim] // input.shape[dim] if input.shape[dim] else 1
                if len(run[0]) == len(run[1]) == 1:
                    whole[places[dim]] = input.whole[dim]
    return moved("view", input, places, tuple(whole))


def _outermost(input: Operand, run: Run, shape: Shape, dim: int, sizes: Sequence[int]) -> int:
    """The dim of the view that is sharded as `dim` is: the first of its run, or the one written -1 behind ones."""
    before, after = run
    if len(before) == len(after) == 1:
        return after[0]
    axis = input.layout.sharding(dim)[0]
    shard = input.layout[axis]
    assert isinstance(shard, Shard)
    outer = [other for other in before if other < dim and input.whole[other] != 1]
    free = [place for place in after if sizes[place] == -1]
    target = free[0] if free else after[0] if shape[after[0]] != 1 else -1
    if shard.sizes is not None or outer or target < 0 or any(shape[place] != 1 for place in after if place < target):
        raise Refused(
            f"on axis {axis!r} input is {shard!r}, and the view makes dims {tuple(shape[p] for p in after)} of dims "
            f"{tuple(input.whole[d] for d in before)}",
            "a view keeps a shard where the sharded dim is the outermost of the dims that it splits or merges, and cut "
            "evenly; which of the new dims is cut then shows by its length, or by -1",
            f"-1 for the new dim that is cut over {axis!r}; or permute, so that dim {dim} comes first; or "
            f"{change('input', axis, shard, R)}",
        )
    return target


def _not_divided(input: Operand, dims: Sequence[int], sizes: Sequence[int]) -> Refused:
    known = math.prod(size for size in sizes if size != -1)
    local, total = (math.prod(shape[dim] for dim in dims) for shape in (input.shape, input.whole))
    axes = [axis for dim in dims for axis in input.layout.sharding(dim)]
    ranks = f"axis {axes[0]!r}" if len(axes) == 1 else f"axes {', '.join(map(repr, axes))}"
    where = f"{total // max(local, 1)} ranks of {ranks}" if axes else "one rank"
    groups = f", {total // known} groups of {known}" if known and total % known == 0 and -1 in sizes else ""
    return Refused(
        f"{total} positions over all ranks{groups} do not split over {where}: a rank holds {local}, and the view wants "
        f"{tuple(sizes)} of them",
        "lengths in a view are those on one rank",
        f"a number of groups that {where} divide evenly" if axes else "",
    )
