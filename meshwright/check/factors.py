"""Dims that are products of factors: what a flattened dim is, and how operands that factor a dim differently align.

A flattened `[4@dp, 8@cp]` is one dim of 32 positions made of the factors 4@dp and 8@cp: `[(4@dp, 8@cp)]`. Its parts on
the ranks do not lie end to end, but factor by factor all is as with any other dims. Where one operand has a dim in
factors and another has it in one, the other is split alike: its shards go to the outermost factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshwright.check.refusal import Refused
from meshwright.check.tag import Factors
from meshwright.codes import Code
from meshwright.types.kinds import S, Shard, SpmdType
from meshwright.types.layout import SpmdLayout


@dataclass(frozen=True)
class Factor:
    """length: global; axes: those that shard it, outermost first, each with its shard; local: what a rank holds."""

    length: int
    axes: tuple[tuple[str, Shard], ...]
    local: int

    @property
    def cut(self) -> bool:
        """Whether it is sharded."""
        return bool(self.axes)


def factored(
    factors: Factors, layout: SpmdLayout, degree: Mapping[str, int], shape: Sequence[int]
) -> list[list[Factor]]:
    """The factors of each dim of a tensor of which a rank holds `shape`; the layout counts factors.

    A factor that is cut unevenly takes what the others leave of what the rank holds.
    """
    found: list[list[Factor]] = []
    at = 0
    for lengths, held in zip(factors, shape, strict=True):
        cuts = []
        for _ in lengths:
            cuts.append(tuple((axis, kind) for axis in layout.sharding(at) if isinstance(kind := layout[axis], Shard)))
            at += 1
        local = [n // math.prod(degree[axis] for axis, _ in axes) for n, axes in zip(lengths, cuts, strict=True)]
        for place, axes in enumerate(cuts):
            if len(lengths) == 1 or any(kind.sizes is not None for _, kind in axes):
                local[place] = held // (math.prod(local[:place] + local[place + 1 :]) or 1)
        found.append([Factor(*each) for each in zip(lengths, cuts, local, strict=True)])
    return found


def assembled(dims: Sequence[Sequence[Factor]], others: Mapping[str, SpmdType]) -> tuple[SpmdLayout, Factors | None]:
    """The layout, and the factors if any dim has several, of dims made of these; `others`: types that shard nothing."""
    simple = [_joined(each) for each in dims]
    factors = tuple(tuple(factor.length for factor in each) for each in simple)
    types: dict[str, SpmdType] = {}
    at = 0
    for each in simple:
        for factor in each:
            types |= {axis: S(at, kind.sizes) for axis, kind in factor.axes}
            at += 1
    layout = SpmdLayout({**types, **{axis: kind for axis, kind in others.items() if axis not in types}})
    return layout, factors if any(len(each) > 1 for each in factors) else None


def _joined(dim: Sequence[Factor]) -> list[Factor]:
    """Without factors of one position, whose axes, of one rank each, go to the factor behind or before them."""
    found: list[Factor] = []
    waiting: tuple[tuple[str, Shard], ...] = ()
    for factor in dim:
        if factor.length == 1:
            waiting += factor.axes
        else:
            found.append(Factor(factor.length, (*waiting, *factor.axes), factor.local))
            waiting = ()
    if not found:
        return [Factor(1, waiting, 1)]
    last = found[-1]
    return [*found[:-1], Factor(last.length, (*last.axes, *waiting), last.local)] if waiting else found


def joined(dims: Sequence[Sequence[Factor]]) -> list[list[Factor]]:
    """The dims, of which one that nothing cuts is one factor: how it came about is given up."""
    return [list(dim) if any(each.cut for each in dim) else [_one(dim)] for dim in dims]


def _one(dim: Sequence[Factor]) -> Factor:
    length = math.prod(each.length for each in dim)
    return Factor(length, (), length)


def end_to_end(dim: Sequence[Factor]) -> bool:
    """Whether the parts of the dim lie end to end on the ranks: nothing is left before a sharded factor."""
    before = 1
    for factor in dim:
        if factor.cut and before != 1:
            return False
        before *= factor.local
    return True


def unsharded(layout: Mapping[str, SpmdType]) -> dict[str, SpmdType]:
    """The axes that shard nothing, with their types."""
    return {axis: kind for axis, kind in layout.items() if not isinstance(kind, Shard)}


def split(factor: Factor, lengths: Sequence[int], degree: Mapping[str, int], name: str) -> list[Factor]:
    """The factor as a product of factors of these lengths; what shards it shards the outermost.

    Errors: `Refused` where the axes that shard it do not divide them.
    """
    if len(lengths) == 1:
        return [factor]
    axes = list(factor.axes)
    found = []
    for length in lengths:
        mine, left = [], length
        while axes and axes[0][1].sizes is None and left % degree[axes[0][0]] == 0 and left > 1:
            left //= degree[axes[0][0]]
            mine.append(axes.pop(0))
        found.append(Factor(length, tuple(mine), left))
        if left > 1 and axes:
            break
    if axes:
        axis, kind = axes[0]
        raise Refused(
            f"on axis {axis!r} {name} is {kind!r}, a dim of {factor.length} that is to be {tuple(lengths)}: "
            f"{degree[axis]} ranks do not divide it",
            "a rank holds whole groups of a dim that is split into groups",
            f"a number of groups that {degree[axis]} divides; or all_gather({name}, {axis!r}, src={kind!r}, dst=R)",
            code=Code.DOES_NOT_DIVIDE,
            cut=axis,
        )
    return [*found, *(Factor(length, (), length) for length in lengths[len(found) :])]


def chain(dims: Sequence[Sequence[Factor]]) -> list[int] | None:
    """The lengths of the coarsest factors that all of these dims, of equal length, can be split into; None: there are
    none. Where factors only remember how a dim came about they are given up.
    """
    total = math.prod(factor.length for factor in dims[0])
    for needed in (False, True):
        cuts = sorted({cut for dim in dims for cut in _cuts(dim, needed)} - {1, total})
        ends = [1, *cuts, total]
        if all(b % a == 0 for a, b in pairwise(ends)):
            return [b // a for a, b in pairwise(ends)]
    return None


def _cuts(dim: Sequence[Factor], needed: bool) -> list[int]:
    """Where factors begin; where sharded ones begin if `needed`."""
    found, before = [], 1
    for factor in dim:
        if not needed or factor.cut:
            found.append(before)
        before *= factor.length
    return found


def refactored(dim: Sequence[Factor], lengths: Sequence[int], degree: Mapping[str, int], name: str) -> list[Factor]:
    """The dim in factors of these lengths, of which `chain` says that they fit."""
    found: list[Factor] = []
    rest = list(lengths)
    merged = _given_up(dim, lengths)
    for factor in merged:
        mine, product = [], 1
        while product < factor.length:
            mine.append(rest.pop(0))
            product *= mine[-1]
        found += split(factor, mine or [1], degree, name)
    return [factor for factor in found if factor.length != 1 or len(found) == 1]


def _given_up(dim: Sequence[Factor], lengths: Sequence[int]) -> list[Factor]:
    """Factors that do not begin where one of `lengths` begins become one with those before them: nothing cuts them."""
    starts, before = set(), 1
    for length in lengths:
        starts.add(before)
        before *= length
    merged: list[Factor] = []
    before = 1
    for factor in dim:
        if factor.length != 1:
            if before in starts or not merged:
                merged.append(factor)
            else:
                last = merged.pop()
                merged.append(Factor(last.length * factor.length, last.axes, last.local * factor.local))
        before *= factor.length
    return merged or [Factor(1, (), 1)]
