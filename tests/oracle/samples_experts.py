"""Samples of what layers of experts are made of: groups of rows, counts, choices, and constants as long as a part."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import meshwright.models.grouped  # noqa: F401  the operator
from tests.oracle.sample import F64, Input, Sample, ends, mask, numbers, places, rare, real, sample

X = (12, 12)
OPS = torch.ops.meshwright


def fixed(*shape):
    return real(*shape, wants=False)


def single(*shape):
    return real(*shape, dtype=torch.float32)


def repeats(*shape):
    """Counts from 0 to 2, which add up to the number of positions."""
    return Input(shape, lambda x: torch.arange(x.numel()).view(shape) % 3, torch.int64, False)


def orders(length):
    """Each place once."""
    return Input((length,), lambda x: x.double().argsort(stable=True), torch.int64, False)


def buffer(i, y):
    """Rows put back in their order, into memory that has no type yet."""
    into = torch.empty(y.shape, dtype=y.dtype)
    into[i] = y
    return into


def ones(like):
    """As long as the part of a rank."""
    return torch.ones(like.shape, dtype=F64)


def rows_of(i):
    """Zeros in as many rows as a rank has."""
    return torch.zeros(i.shape[0], 12, dtype=F64)


EXPERTS: list[Sample] = [
    sample("grouped_linear", lambda x, w, e: OPS.grouped_linear(x, w, e, False), (12, 6), (4, 12, 6), ends(4, 12)),
    sample("grouped_linear_weights", OPS.grouped_linear_weights, fixed(12, 6), fixed(12, 4), ends(4, 12)),
    sample("grouped_mm", lambda x, w, e: F.grouped_mm(x, w, offs=e), single(2, 8, 16), single(16, 24), ends(2, 24)),
    sample("bincount", lambda x: torch.bincount(x, minlength=12), places(12, 24)),
    sample("bincount", torch.bincount, places(12, 24)),
    sample("bincount", lambda x, w: torch.bincount(x, w, 12), places(12, 24), real(24, wants=False)),
    sample("nonzero", torch.nonzero, rare(*X), mixed=False),
    sample("nonzero", lambda x: torch.nonzero(x, as_tuple=True), numbers(*X), mixed=False),
    sample("argwhere", torch.argwhere, rare(*X), mixed=False),
    sample("where", torch.where, rare(*X), mixed=False),
    sample("where", lambda m, x: torch.where(m, x, ones(x)), mask(*X), X),
    sample("where", lambda m: torch.where(m, ones(m), torch.zeros(m.shape, dtype=F64)), mask(*X)),
    sample("repeat_interleave", lambda x, c: x.repeat_interleave(c, 0, output_size=12), X, repeats(12)),
    sample("repeat_interleave", lambda x, c: x.repeat_interleave(c, 1), X, repeats(12)),
    sample("repeat_interleave", lambda c: torch.repeat_interleave(c, output_size=12), repeats(12)),
    sample("repeat_interleave", lambda c: torch.arange(12).repeat_interleave(c, output_size=12), repeats(12)),
    sample("index_put", lambda x, m, y: x.index_put((m,), y), X, mask(*X), ()),
    sample("index_put", lambda x, m, y: x.index_put((m,), y), X, mask(12), (12,)),
    sample("index_put", lambda x, m, y: x.index_put((m,), y, accumulate=True), X, mask(12), ()),
    sample("index_put", lambda i: torch.zeros(12, dtype=F64).index_put((i,), ones(i), accumulate=True), places(12, 24)),
    sample("scatter_add", lambda i: torch.zeros(12, dtype=F64).scatter_add(0, i, ones(i)), places(12, 24)),
    sample("scatter_add", lambda i, y: torch.zeros(12, dtype=F64).scatter_add(0, i, y), places(12, 12), fixed(24)),
    sample("scatter", lambda i: torch.zeros(i.shape[0], 12).scatter(1, i, 1.0), places(12, 12, 4)),
    sample("scatter_add", lambda i, y: rows_of(i).scatter_add(1, i, y), places(12, 12, 4), (12, 4)),
    sample("scatter_add", lambda i: rows_of(i).scatter_add(1, i, ones(i)), places(12, 12, 4)),
    sample("__setitem__", buffer, orders(12), X),
    sample("__setitem__", buffer, orders(12), (12,)),
    sample("mul", lambda x: x * ones(x), X),
    sample("mul", lambda x: x.flatten() * ones(x.flatten()), X),
    sample("matmul", lambda x: x @ torch.ones(x.shape[1], dtype=F64), X),
    sample("add", lambda x: x + torch.full(x.shape, 3.0, dtype=F64), X),
    sample("diff", lambda x, y: torch.diff(x, prepend=y), X, (12, 4)),
    sample("diff", lambda x, y: torch.diff(x, 2, 0, y, y), X, (4, 12)),
    sample("diff", lambda x: torch.diff(x, n=0, dim=9), X),
    sample("to", lambda x: x.to(torch.int32), numbers(12)),
]
