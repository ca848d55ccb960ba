"""What a rank holds of a tensor of any dtype, and what the ranks' tensors denote."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from meshwright.check.tag import Factors, Tag
from meshwright.comm.grid import ParallelismDims
from meshwright.types.kinds import P, Shard, V
from meshwright.types.layout import SpmdLayout
from tests.denotation import denoted

_TOLERANCE: Final = {torch.float32: 1e-4, torch.complex64: 1e-4, torch.bfloat16: 0.06, torch.float16: 0.01}
"""Sums over ranks are taken in another order than on one device; whole numbers and doubles agree to 1e-9."""


def values(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers without a pattern: normal where they are real or complex, -4 to 4 where they are whole."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex or dtype.is_floating_point:
        kind = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(tuple(shape), generator=generator, dtype=kind).to(dtype)
    return torch.randint(-4, 5, tuple(shape), generator=generator).to(dtype)


def held(
    layout: SpmdLayout, whole: Tensor, dims: ParallelismDims, rank: int, seed: int = 0, factors: Factors | None = None
) -> Tensor:
    """What `rank` holds of `whole`, which has a leading dim for an axis of type V.

    Parts of a sum are all different, and other ones for another seed. factors: of each dim, where some dim is a
    product; the layout counts them.
    """
    if factors is not None:
        lists = whole.shape[: sum(kind is V for kind in layout.values())]
        part = held(layout, whole.reshape(*lists, *itertools.chain(*factors)), dims, rank, seed)
        lengths = iter(part.shape)
        return part.reshape([math.prod(next(lengths) for _ in dim) for dim in factors])
    degree, index = dims.degrees(), dims.index(rank)
    for axis, kind in layout.items():
        if kind is V:
            whole = whole[index[axis]]
    for number, (axis, kind) in enumerate(layout.items()):
        if kind is P:
            seeds = range(10_000 + 1000 * number + 100 * seed, degree[axis] - 1 + 10_000 + 1000 * number + 100 * seed)
            parts = [values(whole.shape, whole.dtype, each) for each in seeds]
            whole = [*parts, whole - sum(parts)][index[axis]]
    for axis, kind in layout.items():
        if isinstance(kind, Shard):
            whole = whole.tensor_split(degree[axis], kind.dim)[index[axis]]
    return whole.clone()


def denotes(tag: Tag, parts: Sequence[Tensor], expected: Tensor, dims: ParallelismDims, near: float) -> bool:
    """Whether `parts`, one for each rank, denote `expected` under the layout of `tag`."""
    try:
        found = denoted(tag.layout, parts, dims, tag.factors)
    except (AssertionError, RuntimeError, IndexError):
        return False  # ranks differ where the layout says equal, or pieces do not fit together
    return found.shape == expected.shape and torch.allclose(
        found.to(expected.dtype), expected, rtol=near, atol=near, equal_nan=True
    )


def tolerance(tensors: Sequence[Tensor]) -> float:
    """How near is equal, for what is computed of these."""
    return max((_TOLERANCE.get(x.dtype, 1e-9) for x in tensors), default=1e-9)
