"""Ops that move positions to other places and change none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.check.algebra import Result
from meshwright.check.factors import Factor, assembled, factored, unsharded
from meshwright.check.operand import Operand, Shape
from meshwright.check.refusal import Refused, along_shard, change, invariant_meets, placed_by
from meshwright.check.regroup import Unfit, regrouped, resolve
from meshwright.check.rule import pure
from meshwright.check.tag import typed
from meshwright.codes import Code
from meshwright.comm.number import Number, is_length
from meshwright.types.kinds import I, R, S, Shard
from meshwright.types.layout import SpmdLayout


def moved(op: str, input: Operand, places: Mapping[int, int], whole: Shape, instead: str = "") -> Result:
    """Dim d becomes dim `places[d]` of a tensor of shape `whole`; a sharded dim must have a place."""
    for axis, kind in input.layout.items():
        if isinstance(kind, Shard) and kind.dim not in places:
            raise along_shard(axis, "input", kind, op, instead)
    if input.tag.factors is None:
        types = {
            axis: S(places[kind.dim], kind.sizes) if isinstance(kind, Shard) else kind
            for axis, kind in input.layout.items()
        }
        return Result(typed(SpmdLayout(types), input.tag.counted), whole)
    dims = [[Factor(length, (), length)] for length in whole]
    for dim, factors in enumerate(_dims(input)):
        if dim in places and whole[places[dim]] == input.whole[dim]:
            dims[places[dim]] = factors
        elif dim in places and any(factor.cut for factor in factors):
            axis = next(factor.axes[0][0] for factor in factors if factor.cut)
            raise along_shard(axis, "input", S(dim), op, instead)
    return _of(input, dims)


def _dims(input: Operand) -> list[list[Factor]]:
    return factored(input.factors, input.tag.layout, input.degree, input.shape)


def _of(input: Operand, dims: Sequence[Sequence[Factor]]) -> Result:
    """A view of `input` whose dims are made of these factors."""
    layout, factors = assembled(dims, unsharded(input.tag.layout))
    whole = tuple(math.prod(factor.length for factor in dim) for dim in dims)
    return Result(typed(layout, input.tag.counted, factors), whole)


def flat(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given one by one or as one tuple."""
    flat = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple) else sizes
    flat = tuple(size.length if isinstance(size, Operand) else size for size in flat)
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
        if wanted[new + dim] in (-1, length) and not _longer(input, dim, wanted[new + dim]):
            places[dim] = new + dim
            whole[new + dim] = input.whole[dim]
    result = moved("expand", input, places, tuple(length for length in whole))
    for at, length in enumerate(wanted):
        if isinstance(length, Number) and at not in places.values() and result.tag.factors is None:
            if at >= new and input.whole[at - new] != 1:
                raise placed_by(length, "expand")
            result = spread(input, result, at, length)
    return result


def _longer(input: Operand, dim: int, wanted: int) -> bool:
    """Whether a dim that is whole is asked to be as long as what a rank holds of one that is cut."""
    return is_length(wanted) and wanted.origin.axes.isdisjoint(input.layout.sharding(dim))


def spread(input: Operand, result: Result, at: int, length: Number) -> Result:
    """A dim that is made as long as what a rank holds of a sharded dim is sharded like it: it is alike everywhere.

    Errors: `Refused` where one device would not make it as long as all ranks together.
    """
    assert result.whole is not None
    if not length.origin.share:
        raise placed_by(length, "expand")
    types = dict(result.tag.layout)
    total = result.whole[at]
    for axis in length.origin.order or sorted(length.origin.axes):
        kind = types.get(axis, R if input.tag.fresh is not None else None)
        if kind is I and input.flows:
            raise invariant_meets(axis, "input", "the length", S(at), None)
        if kind in (R, I):
            types[axis] = S(at)
            total *= input.degree.get(axis, 1)
        elif input.degree.get(axis, 1) > 1:  # a rank would have as many positions of what is not alike on all
            raise placed_by(length, "expand")
    whole = (*result.whole[:at], total, *result.whole[at + 1 :])
    return Result(typed(SpmdLayout(types), result.tag.counted), whole)


@pure("view", "reshape")
def view(input: Operand, *shape: Any) -> Result:
    """The same positions in other dims; lengths are those on this rank.

    A dim that is merged is the product of what it is made of; a sharded dim that is split is sharded in its outermost
    part.
    """
    return _viewed(input, flat(shape))


@pure("flatten")
def flatten(input: Operand, start_dim: int = 0, end_dim: int = -1) -> Result:
    """A run of dims as one, their product."""
    dims = _dims(input)
    if not dims:
        return _of(input, [[Factor(1, (), 1)]])
    start, end = from_front(start_dim, len(dims)), from_front(end_dim, len(dims))
    merged = [factor for dim in dims[start : end + 1] for factor in dim]
    return _of(input, [*dims[:start], merged, *dims[end + 1 :]])


@pure("unflatten")
def unflatten(input: Operand, dim: int, sizes: tuple[int, ...]) -> Result:
    """One dim as several."""
    at = from_front(dim, len(input.shape))
    split = resolve(sizes, input.shape[at])
    if split is None:
        raise _not_divided(input, range(at, at + 1), sizes)
    dims = _dims(input)
    return _of(input, [*dims[:at], *_regrouped(input, dims[at : at + 1], split, sizes), *dims[at + 1 :]])


def _viewed(input: Operand, sizes: Sequence[int]) -> Result:
    shape = resolve(sizes, math.prod(input.shape))
    if shape is None:
        if not input.layout.sharded and math.prod(input.shape) == 0:
            return moved("view", input, {}, tuple(sizes))
        raise _not_divided(input, *_unequal(input.shape, sizes))
    if 0 in input.shape:
        if input.layout.sharded:
            raise TypeError("a view of nothing")
        return moved("view", input, {}, shape)
    return _of(input, _regrouped(input, _dims(input), shape, sizes))


def _regrouped(
    input: Operand, dims: Sequence[Sequence[Factor]], shape: Shape, sizes: Sequence[int]
) -> list[list[Factor]]:
    try:
        found = regrouped(dims, shape, sizes)
    except Unfit as unfit:
        axes = [axis for axis, _ in unfit.factor.axes] or list(input.layout.sharded)
        if not axes:
            return [[Factor(length, (), length)] for length in shape]  # torch says whether it fits
        axis = axes[0]
        kind = input.layout[axis]
        raise Refused(
            f"on axis {axis!r} input is {kind!r}, a rank's {unfit.factor.local} of {unfit.factor.length} positions, "
            f"and the view makes dims {tuple(shape)} of it: {unfit.length} does not divide {unfit.factor.local}",
            "a view keeps a shard where a rank holds whole groups of the dim that is split",
            f"lengths that divide what a rank holds; or {change('input', axis, kind, R)}",
            code=Code.DOES_NOT_DIVIDE,
            cut=axis,
        ) from None
    _demand_meant(input, dims, found, sizes)
    for wanted, made in zip(sizes, found, strict=True):
        kept = list(made) in [list(dim) for dim in dims]
        if is_length(wanted) and not kept:
            cut = {axis for factor in made for axis, _ in factor.axes}
            if wanted.origin.axes.isdisjoint(cut):  # one device would make another dim of it
                raise placed_by(wanted, "a view")
    for dim, before in enumerate(dims):
        for factor in before:
            if any(kind.sizes is not None for _, kind in factor.axes) and factor not in [f for d in found for f in d]:
                axis, kind = factor.axes[0]
                raise Refused(
                    f"on axis {axis!r} dim {dim} of input is {kind!r}, cut unevenly, and the view splits it",
                    "parts of different lengths do not split into groups of one length",
                    change("input", axis, kind, R),
                    code=Code.DOES_NOT_DIVIDE,
                    cut=axis,
                )
    return found


def _demand_meant(
    input: Operand, dims: Sequence[Sequence[Factor]], found: Sequence[Sequence[Factor]], sizes: Sequence[int]
) -> None:
    """Where one length is left open, the others are what they are on one device: the open dim takes what is cut.

    Also a dim that stays as it was, or whose length comes of one that is cut.
    """
    if -1 not in sizes:
        return
    for wanted, factors in zip(sizes, found, strict=True):
        cut = [factor for factor in factors if factor.cut]
        if wanted == -1 or not cut or list(factors) in [list(dim) for dim in dims]:
            continue
        axis = cut[0].axes[0][0]
        if isinstance(wanted, Number) and axis in wanted.origin.axes:
            continue
        raise Refused(
            f"on axis {axis!r} input is {input.layout[axis]!r}, and in the view {tuple(sizes)} a rank's {wanted} would "
            f"be its part of {math.prod(factor.length for factor in factors)}",
            "lengths beside -1 are read as they are on one device, and the dim that is -1 takes what is cut",
            f"-1 for the dim that is cut over {axis!r}; or all lengths as they are on a rank",
            code=Code.DOES_NOT_DIVIDE,
            cut=axis,
        )


def _unequal(shape: Shape, sizes: Sequence[int]) -> tuple[range, Sequence[int]]:
    """The dims, and the sizes that are wanted of them, between those that stay as they are at both ends."""
    start, end = 0, 0
    while start < min(len(shape), len(sizes)) - 1 and shape[start] == sizes[start]:
        start += 1
    while end < min(len(shape), len(sizes)) - start - 1 and shape[-1 - end] == sizes[-1 - end]:
        end += 1
    return range(start, len(shape) - end), sizes[start : len(sizes) - end]


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
        f"a number of groups that {where} divide evenly" if axes else "lengths whose product is that of the dims",
        code=Code.DOES_NOT_DIVIDE,
    )
