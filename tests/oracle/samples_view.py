"""Samples of ops that move positions, take them out, and put them together."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from tests.oracle.sample import Input, Sample, cplx, mask, of_list, places, real, sample

X, Z, SQ, CUBE = (12, 12), (4, 12, 6), (6, 12, 12), (4, 6, 6)


def heads(x):
    """[B, L, features] -> [B, L, heads, 2], by the lengths on this rank."""
    return x.view(*x.shape[:2], -1, 2)


def zeros(length, like):
    """A sum that nothing was added to."""
    return torch.zeros(length, dtype=like.dtype)


def written(index, value=None):
    """`x[index(i)] = value`, into a copy; the last operand is the value where none is given."""

    def call(x, i, y=value):
        x = x.clone()
        x[index(i)] = y
        return x

    return call


def rising_places(count):
    """Places of which no two are one, so that the order of writes does not matter."""
    return Input((count,), lambda x: x.argsort(), torch.int64, False)


def in_one_vector(x):
    """Some of what came back of a vector with all values of two tensors."""
    both = [x, x * 3.0]
    return _unflatten_dense_tensors(_flatten_dense_tensors(both) * 2.0, both)


VIEW: list[Sample] = [
    sample("permute", lambda x: x.permute(2, 0, 1), Z),
    sample("transpose", lambda x: x.transpose(0, -1), Z),
    sample("swapaxes", lambda x: x.swapaxes(0, 1), Z),
    sample("swapdims", lambda x: x.swapdims(0, 1), Z),
    sample("movedim", lambda x: torch.movedim(x, 0, -1), Z),
    sample("movedim", lambda x: torch.movedim(x, (0, 1), (1, 2)), Z),
    sample("moveaxis", lambda x: torch.moveaxis(x, 2, 0), Z),
    sample("t", torch.t, X),
    sample("T", lambda x: x.T, X),
    sample("mT", lambda x: x.mT, Z),
    sample("H", lambda x: x.H.resolve_conj(), cplx(*X)),
    sample("mH", lambda x: x.mH.resolve_conj(), cplx(*X)),
    sample("data", lambda x: x.data, X),
    sample("unsqueeze", lambda x: x.unsqueeze(-1), X),
    sample("squeeze", lambda x: x.squeeze(1), (12, 1, 6)),
    sample("squeeze", lambda x: x.squeeze(1), Z),
    sample("expand", lambda x: x.expand(4, -1, -1), (1, 12, 6)),
    sample("expand", lambda x: x.expand(2, *x.shape), X),
    sample("expand_as", lambda x, y: x.expand_as(y), (12,), X, mixed=False),
    sample("broadcast_to", lambda x: torch.broadcast_to(x, (3, *x.shape)), X),
    sample("broadcast_tensors", lambda x, y: torch.broadcast_tensors(x, y), X, (12,), mixed=False),
    sample("view", heads, Z),
    sample("view_as", lambda x, y: x.view_as(y), X, X, mixed=False),
    sample("reshape_as", lambda x, y: x.reshape_as(y), X, X, mixed=False),
    sample("flatten", lambda x: heads(x).flatten(-2), Z),
    sample("ravel", torch.ravel, Z),
    sample("unflatten", lambda x: x.unflatten(-1, (-1, 2)), (4, 12)),
    sample("reshape", lambda x: x.reshape(-1, x.shape[-1]), Z),
    sample("view", lambda x: x.view(-1, 2, x.shape[-1]), X),
    sample("atleast_1d", torch.atleast_1d, X),
    sample("atleast_2d", torch.atleast_2d, (12,)),
    sample("atleast_3d", torch.atleast_3d, X),
    sample("narrow", lambda x: x.narrow(0, 0, 2), X),
    sample("split", lambda x: x.split(3, 1), X),
    sample("split_with_sizes", lambda x: x.split_with_sizes([3, 9], 1), X),
    sample("tensor_split", lambda x: x.tensor_split(3, 1), X),
    sample("tensor_split", lambda x: x.tensor_split((3, 5), 1), X),
    sample("hsplit", lambda x: torch.hsplit(x, 2), X),
    sample("vsplit", lambda x: torch.vsplit(x, 2), X),
    sample("chunk", lambda x: x.chunk(2, -1), X),
    sample("unbind", lambda x: x.unbind(1), (12, 4)),
    sample("select", lambda x: x.select(0, 1), X),
    sample("__getitem__", lambda x: x[:, 1:3], X),
    sample("__getitem__", lambda x: x[..., None, -1], X),
    sample("__getitem__", lambda x, i: x[:, i], X, places(12, 6)),
    *[
        sample("__getitem__", call, CUBE, places(4, 6), places(6, 6))
        for call in (
            lambda x, i, j: x[i, j],
            lambda x, i, j: x[i, :, j],
            lambda x, i, j: x[:, i % 3, j],
            lambda x, i, j: x[..., i[:, None], j],
        )
    ],
    *[
        sample("__getitem__", call, CUBE, places(4, 6))
        for call in (lambda x, i: x[1, i], lambda x, i: x[0, :, i], lambda x, i: x[i, None, 1:3])
    ],
    sample("__getitem__", lambda x, m: x[m], X, mask(*X), mixed=False),
    sample("__getitem__", lambda x, m: x[m], X, mask(12), mixed=False),
    sample("__getitem__", lambda x, m: x[:, m], X, mask(12), mixed=False),
    sample("slice", lambda x: torch.ops.aten.slice.Tensor(x, 1, 1, 3), X),
    sample("slice", lambda x: torch.ops.aten.slice.Tensor(x, 0), X),
    sample("index", lambda x, i: torch.ops.aten.index.Tensor(x, [None, i]), X, places(12, 6)),
    sample("index", lambda x, i, j: torch.ops.aten.index.Tensor(x, [i, j]), X, places(12, 6), places(12, 6)),
    *[
        sample("__setitem__", written(lambda m: m), X, mask(*mine), y)
        for mine in (X, (12,))
        for y in ((), (12,) if mine == (12,) else ())
    ],
    sample("__setitem__", written(lambda m: m, 0.0), X, mask(*X)),
    sample("__setitem__", written(lambda m: m, 1.0), X, mask(12)),
    sample("__setitem__", written(lambda i: i), X, rising_places(6), (6, 12)),
    sample("__setitem__", written(lambda i: (slice(None), i)), X, rising_places(6), (12, 6)),
    sample("__setitem__", written(lambda i: (i, i)), X, rising_places(6), (6,)),
    sample("__setitem__", written(lambda i: (i, slice(1, 4))), X, rising_places(6), ()),
    sample("unfold", lambda x: x.unfold(0, 4, 2), X),
    sample("diagonal", torch.diagonal, SQ),
    sample("linalg_diagonal", lambda x: torch.linalg.diagonal(x), SQ),
    sample("diagonal", lambda x: x.diagonal(0, -2, -1), SQ),
    sample("diag", torch.diag, X),
    sample("diag", torch.diag, (12,)),
    sample("diag_embed", torch.diag_embed, X),
    sample("diagflat", torch.diagflat, (12,)),
    sample("cat", lambda x, y: torch.cat([x, y], 1), X, (12, 6)),
    sample("concat", lambda x, y: torch.concat([x, y], 0), X, X),
    sample("concatenate", lambda x, y: torch.concatenate([x, y], 1), X, X),
    sample("stack", lambda x, y: torch.stack([x, y], 1), X, X),
    *(
        sample(name, of_list(getattr(torch, name)), X, X)
        for name in ["hstack", "vstack", "dstack", "column_stack", "row_stack"]
        if hasattr(torch, name)
    ),
    sample("flatten_dense_tensors", in_one_vector, X),
    sample(
        "unflatten_dense_tensors", lambda x: _unflatten_dense_tensors(x, [torch.empty(6, 4), torch.empty(12)])[0], (36,)
    ),
    sample("block_diag", torch.block_diag, X, (4, 6)),
    sample("block_diag", torch.block_diag, (12,), (6, 4), ()),
    sample("pad", lambda x: F.pad(x, (1, 2)), X),
    sample("pad", lambda x: F.pad(x, (1, 2), value=1.0), X),
    *(
        sample("pad", lambda x, mode=mode: F.pad(x, (1, 2), mode=mode), Z)
        for mode in ["reflect", "replicate", "circular"]
    ),
    sample("roll", lambda x: torch.roll(x, 1, 1), X),
    sample("flip", lambda x: torch.flip(x, (0,)), X),
    sample("fliplr", torch.fliplr, X),
    sample("flipud", torch.flipud, X),
    sample("rot90", lambda x: torch.rot90(x, 1, (0, 1)), SQ),
    sample("tril", torch.tril, SQ),
    sample("triu", lambda x: x.triu(1), SQ),
    sample("repeat", lambda x: x.repeat(1, 2), X),
    sample("repeat", lambda x: x.repeat(3, 1, 2), X),
    sample("tile", lambda x: torch.tile(x, (2,)), X),
    sample("repeat_interleave", lambda x: x.repeat_interleave(2, 1), X),
    sample("repeat_interleave", lambda x: x.repeat_interleave(2, dim=0, output_size=2 * x.shape[0]), X),
    sample("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), (12,), (6,), mixed=False),
    sample("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="xy"), (12,), (6,), mixed=False),
    # by position
    sample("index_select", lambda x, i: x.index_select(1, i), X, places(12, 6)),
    sample("gather", lambda x, i: x.gather(1, i), X, places(12, 12, 6)),
    sample("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), X, places(12, 12, 6)),
    sample("take", torch.take, X, places(12, 6)),
    sample("scatter", lambda x, i, y: x.scatter(1, i, y), X, places(12, 12, 4), (12, 4)),
    sample("scatter", lambda x, i: x.scatter(1, i, 2.0), X, places(12, 12, 4)),
    sample("scatter", lambda x, i: x.scatter(1, i, 2.0), X, places(12, 1, 4)),
    sample("scatter", lambda x, i, y: x.scatter(1, i, y), X, places(12, 6, 4), real(*X, wants=False)),
    sample("scatter_add", lambda x, i, y: x.scatter_add(1, i, y), X, places(12, 6, 4), real(12, 4, wants=False)),
    sample("gather", lambda x, i: x.gather(1, i), X, places(12, 1, 4)),
    sample("gather", lambda x, i: x.gather(1, i), X, places(12, 6, 4)),
    sample("scatter", lambda x, i: x.scatter(1, i, 0.0), X, places(12, 12, 4)),
    sample("scatter_add", lambda x, i, y: x.scatter_add(1, i, y), X, places(12, 12, 4), (12, 4)),
    sample("scatter_add_", lambda x, i, y: (x * 1).scatter_add_(1, i, y), X, places(12, 12, 4), (12, 4), mixed=False),
    *(
        sample(
            "scatter_reduce",
            lambda x, i, y, r=r: x.scatter_reduce(1, i, y, r),
            X,
            places(12, 12, 4),
            (12, 4),
        )
        for r in ("sum", "amax", "mean")
    ),
    sample("scatter_add", lambda i, y: torch.zeros(12, dtype=y.dtype).scatter_add(0, i, y), places(12, 24), (24,)),
    sample("scatter_add", lambda i, y: zeros(12, y).scatter_add_(0, i, y), places(12, 24), (24,)),
    sample("scatter_reduce", lambda i, y: zeros(12, y).scatter_reduce(0, i, y, "sum"), places(12, 24), (24,)),
    sample("index_add", lambda i, y: zeros(12, y).index_add_(0, i, y), places(12, 24), (24,)),
    sample("index_put", lambda i, y: zeros(12, y).index_put_((i,), y, accumulate=True), places(12, 24), (24,)),
    sample("index_put", lambda i, y: zeros(12, y).index_put((i,), y), places(12, 24), (24,)),
    sample("index_add", lambda x, i, y: x.index_add(0, i, y), X, places(12, 6), (6, 12)),
    sample("index_copy", lambda x, i, y: x.index_copy(0, i % 12, y), X, places(12, 6), (6, 12)),
    sample("index_reduce", lambda x, i, y: x.index_reduce(0, i, y, "amax"), X, places(12, 6), (6, 12)),
    sample("index_fill", lambda x, i: x.index_fill(0, i, 0.0), X, places(12, 6)),
    sample("index_fill", lambda x, i: x.index_fill(0, i, 2.0), X, places(12, 6)),
    sample("index_put", lambda x, i, y: x.index_put((i,), y, accumulate=True), X, places(12, 6), (6, 12)),
    sample("index_put", lambda x, i, j, y: x.index_put((i, j), y), X, places(12, 6), places(12, 6), (6,)),
    sample("masked_select", torch.masked_select, X, mask(*X), mixed=False),
    sample("masked_select", torch.masked_select, real(*X, wants=False), mask(*X), mixed=False),
    sample("masked_scatter", torch.masked_scatter, X, mask(*X), (144,)),
    sample("select_scatter", lambda x, y: x.select_scatter(y, 1, 2), X, (12,)),
    sample("slice_scatter", lambda x, y: x.slice_scatter(y, 1, 2, 5), X, (12, 3)),
    sample("diagonal_scatter", lambda x, y: x.diagonal_scatter(y, 0, 1, 2), SQ, (6, 12)),
]
