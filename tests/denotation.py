"""What local tensors denote, and local tensors that denote a given one.

All values are small whole numbers in float64, so that sums are exact in any order and equality can be asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from meshwright.comm.grid import ParallelismDims
from meshwright.types.kinds import I, P, R, Shard, SpmdType, V, split_sizes
from meshwright.types.layout import SpmdLayout

Layout = Mapping[str, SpmdType]
Factors = Sequence[Sequence[int]]


def sample(shape: Iterable[int], seed: int) -> Tensor:
    """Whole numbers from -4 to 4, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, tuple(shape), generator=generator).double()


def local(layout: Layout, whole: Tensor, dims: ParallelismDims, rank: int, factors: Factors | None = None) -> Tensor:
    """What `rank` holds of `whole`, which has a leading dim for each axis of type V, in the layout's order.

    Parts of a sum are all different, and so are their sums over some of the ranks. factors: of each dim of a tensor
    of which some dim is a product; the layout counts them.
    """
    if factors is not None:
        lists = tuple(whole.shape[: sum(kind is V for kind in layout.values())])
        held = local(layout, whole.reshape(*lists, *(n for dim in factors for n in dim)), dims, rank)
        lengths = iter(held.shape)
        return held.reshape([math.prod(next(lengths) for _ in dim) for dim in factors])
    layout, degree, index = SpmdLayout(layout), dims.degrees(), dims.index(rank)
    for axis, kind in layout.items():
        if kind is V:
            whole = whole[index[axis]]
    for number, (axis, kind) in enumerate(layout.items()):
        if kind is P:
            parts = [sample(whole.shape, 10_000 + 1000 * number + i) for i in range(degree[axis] - 1)]
            parts.append(whole - sum(parts))
            whole = parts[index[axis]]
    for axis, kind in layout.items():  # of the axes that shard one dim, the outermost comes first
        if isinstance(kind, Shard):
            sizes = kind.sizes or split_sizes(whole.shape[kind.dim], degree[axis])
            whole = whole.split(sizes, kind.dim)[index[axis]]
    return whole.clone()


def denoted(layout: Layout, parts: Sequence[Tensor], dims: ParallelismDims, factors: Factors | None = None) -> Tensor:
    """The tensor that `parts`, one for each rank, denote; ranks that hold the same value must hold the same bits.

    factors: of each dim of a tensor of which some dim is a product; the layout counts them.
    """
    layout = SpmdLayout(layout)
    if factors is not None:
        lengths = tuple(n for dim in factors for n in dim)
        shape = layout.local_shape(lengths, dims.degrees(), dims.index(0))
        whole = denoted(layout, [part.reshape(shape) for part in parts], dims)
        lists = tuple(whole.shape[: whole.dim() - len(lengths)])
        return whole.reshape(*lists, *(math.prod(dim) for dim in factors))
    lists = [axis for axis, kind in layout.items() if kind is V]
    axes = (*lists, *(axis for axis in layout if axis not in lists))
    return _denoted(axes, layout, [(dims.index(rank), part) for rank, part in enumerate(parts)], dims.degrees())


def _denoted(
    axes: tuple[str, ...], layout: SpmdLayout, held: list[tuple[dict[str, int], Tensor]], degree: Mapping[str, int]
) -> Tensor:
    if not axes:
        first = held[0][1]
        assert all(same(part, first) for _, part in held), "ranks that hold the same value differ"
        return first
    axis, *inner = axes
    pieces = [
        _denoted(tuple(inner), layout, [(index, part) for index, part in held if index[axis] == place], degree)
        for place in range(degree[axis])
    ]
    kind = layout[axis]
    if isinstance(kind, Shard):
        if kind.sizes is not None:
            assert tuple(piece.shape[kind.dim] for piece in pieces) == kind.sizes
        return torch.cat(pieces, kind.dim)
    if kind is V:
        return torch.stack(pieces)
    if kind is P:
        return torch.stack(pieces).sum(0)
    assert kind in (R, I)
    assert all(same(piece, pieces[0]) for piece in pieces), f"ranks of {axis} differ where {kind} says equal"
    return pieces[0]


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, as far as values go; what is no number is the same as itself."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def paired(layout: Layout, xs: Sequence[Tensor], gradients: Sequence[Tensor], dims: ParallelismDims) -> float:
    """<x, gradient>, of a tensor of `layout` with a gradient of the dual layout."""
    x, gradient = denoted(layout, xs, dims), denoted(SpmdLayout(layout).dual, gradients, dims)
    assert x.shape == gradient.shape
    return math.fsum((x * gradient).flatten().tolist())
