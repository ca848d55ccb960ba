"""The explicit, differentiable collectives on plain tensors. Axes are looked up in the current mesh.

Each takes the type before and after; the pair fixes the step, and the step its backward (`types/transition.py`).
All take, beside what is theirs:

    axis              a name, a MeshAxis, a process group or a device mesh of one dim
    op_dtype          the dtype in which the step is done; out_dtype: of the result, `op_dtype` unless it is said
    backward_options  {"op_dtype": ..., "out_dtype": ...} of the gradient, which comes back in the dtype of the input
    async_op          only False

A step whose backward sums is refused in low precision unless `backward_options` says in which dtype it sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from meshwright.comm.calls import CLAIM, QUIET, along, apply, dealt, demand_shard, planned, sized, stacked
from meshwright.comm.options import dtypes, in_place
from meshwright.comm.view import Axis
from meshwright.types.kinds import I, P, R, SpmdType, V
from meshwright.types.transition import Op

Dtype = torch.dtype | None
Back = Mapping[str, Any] | None


def redistribute(
    x: Tensor,
    axis: Axis | None = None,
    *,
    src: SpmdType | Mapping[str, SpmdType],
    dst: SpmdType | Mapping[str, SpmdType],
    op_dtype: Dtype = None,
    out_dtype: Dtype = None,
    async_op: bool = False,
    backward_options: Back = None,
    expert_mode: bool = False,
) -> Tensor:
    """`x` of type `src` on `axis` as the same tensor of type `dst`, by whatever step leads there.

    Without `axis`, src and dst are layouts, {axis: type}, and the plan with the fewest bytes leads there.

    Errors: `SpmdTypeError` where no step leads there.
    """
    options = dtypes(axis, op_dtype, out_dtype, backward_options, async_op)
    if axis is None:
        return planned(x, src, dst, options, expert_mode)
    return apply(x, axis, src, dst, None, options, expert_mode)


def all_gather(
    x: Tensor,
    axis: Axis,
    *,
    src: SpmdType = V,
    dst: SpmdType,
    gather_dim: int | None = None,
    split_sizes: Sequence[int] | None = None,
    op_dtype: Dtype = None,
    out_dtype: Dtype = None,
    async_op: bool = False,
    backward_options: Back = None,
) -> Tensor:
    """S(i) or V -> R or I. Backward: to R a reduce_scatter, to I a slice.

    gather_dim: of V, the new dim along which the ranks' tensors are stacked, 0 unless it is said; of S(i) it is i.
    split_sizes: the ranks' lengths along dim i, S(i, split_sizes).
    """
    options = dtypes(axis, op_dtype, out_dtype, backward_options, async_op)
    src = sized(axis, "split_sizes", along(axis, "gather_dim", src, gather_dim), split_sizes)
    return apply(x, axis, src, dst, Op.ALL_GATHER, stacked(options, src, gather_dim))


def all_reduce(
    x: Tensor,
    axis: Axis,
    *,
    src: SpmdType = P,
    dst: SpmdType,
    inplace: bool = False,
    op_dtype: Dtype = None,
    out_dtype: Dtype = None,
    async_op: bool = False,
    backward_options: Back = None,
) -> Tensor:
    """P -> R or I, the sum over the ranks. Backward: from R an all_reduce, from I nothing.

    inplace: the sum takes the place of `x`, which keeps its dtype.
    """
    options = dtypes(axis, op_dtype, out_dtype, backward_options, async_op)
    return apply(x, axis, src, dst, Op.ALL_REDUCE, options if inplace is False else in_place(axis, options, inplace))


def reduce_scatter(
    x: Tensor,
    axis: Axis,
    *,
    src: SpmdType = P,
    dst: SpmdType = V,
    scatter_dim: int | None = None,
    split_sizes: Sequence[int] | None = None,
    op_dtype: Dtype = None,
    out_dtype: Dtype = None,
    async_op: bool = False,
    backward_options: Back = None,
) -> Tensor:
    """P -> S(i) or V, this rank's part of the sum. Backward: an all_gather.

    scatter_dim: to V, the dim with one entry for each rank, 0 unless it is said; to S(i) it is i.
    split_sizes: the ranks' lengths along dim i, S(i, split_sizes).
    """
    options = dtypes(axis, op_dtype, out_dtype, backward_options, async_op)
    dst = sized(axis, "split_sizes", along(axis, "scatter_dim", dst, scatter_dim), split_sizes)
    return apply(x, axis, src, dst, Op.REDUCE_SCATTER, stacked(options, dst, scatter_dim))


def all_to_all(
    x: Tensor,
    axis: Axis,
    *,
    src: SpmdType = V,
    dst: SpmdType = V,
    split_dim: int | None = None,
    concat_dim: int | None = None,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    op_dtype: Dtype = None,
    out_dtype: Dtype = None,
    async_op: bool = False,
    backward_options: Back = None,
) -> Tensor:
    """S(i) -> S(j): another dim is sharded. V -> V: the list and a dim of its entries change places. Backward: back.

    split_dim, concat_dim: of V, the dim that is dealt out and the one along which the ranks' pieces are stacked, both 0
    unless they are said; of S(i) -> S(j) they are i and j.
    input_split_sizes, output_split_sizes: how many rows go to each rank and come from each; of S(0) -> S(0), and of
    V -> V, where every rank has rows of its own along split_dim.
    """
    options = dtypes(axis, op_dtype, out_dtype, backward_options, async_op)
    src, dst = along(axis, "split_dim", src, split_dim), along(axis, "concat_dim", dst, concat_dim)
    if src is V and dst is V and (split_dim or concat_dim):
        options = replace(options, dims=(split_dim or 0, concat_dim or 0))
    if input_split_sizes is not None or output_split_sizes is not None:
        return dealt(x, axis, src, dst, input_split_sizes, output_split_sizes, options)
    return apply(x, axis, src, dst, Op.ALL_TO_ALL, options)


def convert(
    x: Tensor,
    axis: Axis,
    *,
    src: SpmdType,
    dst: SpmdType,
    expert_mode: bool = False,
    op_dtype: Dtype = None,
    out_dtype: Dtype = None,
    async_op: bool = False,
    backward_options: Back = None,
) -> Tensor:
    """The same tensor as another type, by a step that moves nothing between ranks: slice, pad, mask or retag.

    Errors: `SpmdTypeError` where only a collective leads there.
    """
    options = dtypes(axis, op_dtype, out_dtype, backward_options, async_op)
    return apply(x, axis, src, dst, QUIET, options, expert_mode)


def reinterpret(
    x: Tensor,
    axis: Axis,
    *,
    src: SpmdType,
    dst: SpmdType,
    expert_mode: bool = False,
    op_dtype: Dtype = None,
    out_dtype: Dtype = None,
    async_op: bool = False,
    backward_options: Back = None,
) -> Tensor:
    """The local value read as another type, which changes what it denotes: V -> P; R or I -> R, I, V, P.

    R -> P counts the value once for each rank; so does its backward with the gradient.
    """
    options = dtypes(axis, op_dtype, out_dtype, backward_options, async_op)
    return apply(x, axis, src, dst, CLAIM, options, expert_mode)


def shard(
    x: Tensor,
    axis: Axis,
    *,
    src: SpmdType,
    dst: SpmdType,
    op_dtype: Dtype = None,
    out_dtype: Dtype = None,
    async_op: bool = False,
    backward_options: Back = None,
) -> Tensor:
    """R or I -> S(i): `convert` to a shard."""
    options = dtypes(axis, op_dtype, out_dtype, backward_options, async_op)
    demand_shard(axis, "shard", "dst", dst)
    return apply(x, axis, src, dst, QUIET, options)


def unshard(
    x: Tensor,
    axis: Axis,
    *,
    src: SpmdType,
    dst: SpmdType,
    op_dtype: Dtype = None,
    out_dtype: Dtype = None,
    async_op: bool = False,
    backward_options: Back = None,
) -> Tensor:
    """S(i) -> R or I: `all_gather` of a shard."""
    options = dtypes(axis, op_dtype, out_dtype, backward_options, async_op)
    demand_shard(axis, "unshard", "src", src)
    return apply(x, axis, src, dst, Op.ALL_GATHER, options)


def invariant_to_replicate(
    x: Tensor,
    axis: Axis,
    *,
    op_dtype: Dtype = None,
    out_dtype: Dtype = None,
    async_op: bool = False,
    backward_options: Back = None,
) -> Tensor:
    """I -> R: ranks may use the value differently from here on. Backward: an all_reduce."""
    options = dtypes(axis, op_dtype, out_dtype, backward_options, async_op)
    return apply(x, axis, I, R, QUIET, options)
