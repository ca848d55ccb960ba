"""Layouts for the operands of a sample, the same in every run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from meshwright.comm.grid import ParallelismDims
from meshwright.types.kinds import I, P, R, S, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout
from tests.oracle.sample import Input, Sample

LINE: Final = ParallelismDims(tp=2)
SQUARE: Final = ParallelismDims(dp_shard=2, tp=2)
WIDE: Final = ParallelismDims(dp_shard=2, tp=3)

Kinds = tuple[SpmdType, ...]
"""One type for each operand, on one axis."""


def kinds(given: Input, degree: int, lists: bool) -> list[SpmdType]:
    """What an operand may be on an axis of so many ranks."""
    cuts: list[SpmdType] = [S(dim) for dim, n in enumerate(given.shape) if n > 1 and n % degree == 0]
    sums = [] if given.dtype is torch.bool else [P]
    return [R, I, *sums, *cuts, *([V] if lists else [])]


def on_line(sample: Sample) -> list[Kinds]:
    """All that the operands may be on one axis of two ranks, in an order without a pattern, all R and all I first."""
    offered = [kinds(given, LINE.tp, sample.mixed) for given in sample.inputs]
    found = list(itertools.islice(itertools.product(*offered), 4000))
    random.Random(str(sample)).shuffle(found)
    alike = [(kind,) * len(sample.inputs) for kind in (R, I)]
    return [*alike, *(each for each in found if each not in alike)]


def on_grid(sample: Sample, fits: Sequence[Kinds], dims: ParallelismDims, count: int) -> Iterator[list[SpmdLayout]]:
    """Layouts on dp and tp: half of them of types that fit on one axis, half of any types."""
    seeded = random.Random(f"{sample} {dims}")
    degrees = {"dp": dims.dp_shard, "tp": dims.tp}
    known = [each for each in fits if V not in each]
    for number in range(count):
        layouts = []
        column = {axis: seeded.choice(known) if known and number % 2 == 0 else None for axis in degrees}
        order = seeded.sample(sorted(degrees), 2)
        for place, given in enumerate(sample.inputs):
            types = {}
            for axis in order:
                fit = column[axis]
                types[axis] = seeded.choice(kinds(given, degrees[axis], False)) if fit is None else fit[place]
            layouts.append(SpmdLayout(types))
        if all(_divides(given, layout, degrees) for given, layout in zip(sample.inputs, layouts, strict=True)):
            yield layouts


def _divides(given: Input, layout: SpmdLayout, degrees: dict[str, int]) -> bool:
    left = list(given.shape)
    for axis, kind in layout.items():
        if isinstance(kind, Shard):
            if left[kind.dim] % degrees[axis]:
                return False
            left[kind.dim] //= degrees[axis]
    return True
