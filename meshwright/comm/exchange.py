"""The all_to_all in which axes change the dims that they cut, or their order: pieces of pieces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

from meshwright.codes import Code
from meshwright.comm.transport import Transport
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import split_sizes
from meshwright.types.layout import SpmdLayout
from meshwright.types.transition import Step


def exchange(step: Step, group: Transport) -> Callable[[Tensor], Tensor]:
    """Each rank sends every other what of its piece lies in the other's piece afterwards."""
    before, after, degree = step.before, step.after, group.axes
    ranks = tuple(itertools.product(*(range(size) for size in degree.values())))
    places = [dict(zip(degree, rank, strict=True)) for rank in ranks]
    me = places[group.index]

    def cuts(layout: SpmdLayout, dim: int) -> int:
        return math.prod(degree.get(axis, 1) for axis in layout.sharding(dim))

    @cache
    def boxes(local: torch.Size) -> tuple[Box, Box, list[Box], list[Box]]:
        """What this rank holds before and after; what it sends each rank, and what it gets from each."""
        whole = tuple(length * cuts(before, dim) for dim, length in enumerate(local))
        held = [_box(before, whole, degree, place) for place in places]
        wanted = [_box(after, whole, degree, place) for place in places]
        mine, mine_after = _box(before, whole, degree, me), _box(after, whole, degree, me)
        return mine, mine_after, [_meet(mine, other) for other in wanted], [_meet(other, mine_after) for other in held]

    def run(x: Tensor) -> Tensor:
        for dim, length in enumerate(x.shape):
            demand_even(length * cuts(before, dim), dim, cuts(after, dim), tuple(x.shape), step)
        mine, mine_after, outgoing, incoming = boxes(x.shape)
        flat = group.all_to_all(
            torch.cat([x[_within(box, mine)].reshape(-1) for box in outgoing]),
            [_volume(box) for box in incoming],
            [_volume(box) for box in outgoing],
        )
        out = x.new_empty([len(held) for held in mine_after])
        for piece, box in zip(flat.split([_volume(box) for box in incoming]), incoming, strict=True):
            out[_within(box, mine_after)] = piece.view([len(held) for held in box])
        return out

    return run


Box = tuple[range, ...]
"""The positions along each dim."""


def _box(layout: SpmdLayout, whole: tuple[int, ...], degree: Mapping[str, int], place: Mapping[str, int]) -> Box:
    return tuple(layout.span(dim, length, degree, place) for dim, length in enumerate(whole))


def _meet(a: Box, b: Box) -> Box:
    starts = [max(x.start, y.start) for x, y in zip(a, b, strict=True)]
    stops = [min(x.stop, y.stop) for x, y in zip(a, b, strict=True)]
    return tuple(range(start, max(start, stop)) for start, stop in zip(starts, stops, strict=True))


def _within(box: Box, outer: Box) -> tuple[slice, ...]:
    return tuple(slice(x.start - y.start, x.stop - y.start) for x, y in zip(box, outer, strict=True))


def _volume(box: Box) -> int:
    return math.prod(len(held) for held in box)


def demand_even(length: int, dim: int, parts: int, shape: tuple[int, ...], step: Step) -> None:
    """Errors: `SpmdTypeError` where `parts` ranks cannot hold equal lengths of a dim."""
    if length % parts:
        alone = len(step.axes) == 1
        raise SpmdTypeError(
            Problem(
                where=step.where,
                what=f"{step}: dim {dim} of {shape} does not split evenly over {parts} ranks",
                why="ranks hold different lengths only where the layout states them",
                fix=f"S({dim}, sizes={split_sizes(length, parts)})" if alone else f"a length that {parts} divides",
                code=Code.DOES_NOT_DIVIDE,
            )
        )
