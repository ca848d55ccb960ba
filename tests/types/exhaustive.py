"""The fewest bytes between two layouts, found by trying every legal step in every layout: the planner's witness."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction

from meshwright.types.kinds import I, P, R, Shard, SpmdType
from meshwright.types.layout import SpmdLayout

SENT = {
    "gather": lambda n: Fraction(n - 1),
    "scatter": lambda n: Fraction(n - 1, n),
    "exchange": lambda n: Fraction(n - 1, n),
    "reduce": lambda n: 2 * Fraction(n - 1, n),
    "quiet": lambda n: Fraction(0),
}
"""What a rank sends of each byte that it holds, over n ranks."""


def fewest_bytes(src: SpmdLayout, dst: SpmdLayout, degree: Mapping[str, int]) -> Fraction:
    """Per rank and per byte held in `src`."""
    best = {src: Fraction(0)}
    heap = [(Fraction(0), 0, src)]
    tickets = itertools.count(1)
    while heap:
        cost, _, layout = heapq.heappop(heap)
        if layout is dst:
            return cost
        if cost > best[layout]:
            continue
        for kind, axes, after in legal_steps(layout, src, dst):
            n = math.prod(degree[axis] for axis in axes)
            total = cost + SENT[kind](n) * held(layout, src, degree)
            if after not in best or total < best[after]:
                best[after] = total
                heapq.heappush(heap, (total, next(tickets), after))
    raise AssertionError(f"{src} -> {dst}")


def held(layout: SpmdLayout, src: SpmdLayout, degree: Mapping[str, int]) -> Fraction:
    """The bytes that a rank holds of `layout`, for each that it held of `src`."""
    cut, was = (math.prod(degree[axis] for axis in each.sharded) for each in (layout, src))
    return Fraction(was, cut)


def legal_steps(
    layout: SpmdLayout, src: SpmdLayout, dst: SpmdLayout
) -> Iterator[tuple[str, tuple[str, ...], SpmdLayout]]:
    """(what it costs, the axes, the layout afterwards) of all steps over any number of axes."""
    for kind, axes, after in _steps(layout, dst):
        dims = {shard.dim for shard in after.values() if isinstance(shard, Shard)}
        together = all(
            set(after.sharding(dim)) <= set(src.sharding(dim)) or set(after.sharding(dim)) <= set(dst.sharding(dim))
            for dim in dims
        )
        stays = all(after[axis] is src[axis] for axis in src if src[axis] is dst[axis] and src[axis] in (R, I, P))
        if together and stays:
            yield kind, axes, after


def _steps(layout: SpmdLayout, dst: SpmdLayout) -> Iterator[tuple[str, tuple[str, ...], SpmdLayout]]:
    dims = {kind.dim for kind in (*layout.values(), *dst.values()) if isinstance(kind, Shard)}
    shards = [Shard(dim) for dim in dims]
    for count in range(1, len(layout) + 1):
        for axes in itertools.permutations(layout, count):
            kinds = {layout[axis] for axis in axes}
            if len(kinds) == 1:
                (kind,) = kinds
                for op, to in _changes(kind, shards):
                    cut = kind.dim if isinstance(kind, Shard) else None
                    if cut is None or layout.sharding(cut)[-count:] == axes:
                        yield op, axes, layout.replace(**dict.fromkeys(axes, to))
    for counts in itertools.product(*(range(len(layout.sharding(dim)) + 1) for dim in dims)):
        inner = [axis for dim, n in zip(dims, counts, strict=True) for axis in layout.sharding(dim)[::-1][:n]]
        for order in itertools.permutations(inner):
            for cuts in itertools.product(shards, repeat=len(inner)):
                yield "exchange", order, layout.replace(**dict(zip(order, cuts, strict=True)))


def _changes(kind: SpmdType, shards: list[Shard]) -> Iterator[tuple[str, SpmdType]]:
    if isinstance(kind, Shard):
        yield from (("gather", R), ("gather", I), ("quiet", P))
    elif kind is P:
        yield from (("reduce", R), ("reduce", I), *(("scatter", shard) for shard in shards))
    else:
        yield "quiet", P
        yield from (("quiet", shard) for shard in shards)
        if kind is I:
            yield "quiet", R
