"""Every other rule, on sampled layouts, against one device."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from meshwright.errors import SpmdTypeError
from tests.check.oracle import verdict
from tests.check.programs import Program, operands

X, Y, Z = (4, 8), (8, 4), (4, 4, 8)

CONTRACTIONS = [
    Program("matmul", torch.matmul, [X, Y]),
    Program("matmul batched", torch.matmul, [Z, (4, 8, 4)]),
    Program("matmul broadcast", torch.matmul, [Z, (8, 4)]),
    Program("matmul vector", torch.matmul, [X, (8,)]),
    Program("vector matmul", torch.matmul, [(4,), X]),
    Program("@", lambda x, y: x @ y, [X, Y]),
    Program("rmatmul", lambda x, y: torch.Tensor.__rmatmul__(x, y), [Y, X]),
    Program("mm", torch.mm, [X, Y]),
    Program("bmm", torch.bmm, [Z, (4, 8, 4)]),
    Program("mv", torch.mv, [X, (8,)]),
    Program("dot", torch.dot, [(8,), (8,)]),
    Program("linear", F.linear, [Z, (4, 8)]),
    Program("linear with bias", F.linear, [X, (4, 8), (4,)]),
    Program("linear with vector", F.linear, [X, (8,)]),
    Program("addmm", torch.addmm, [(4, 4), X, Y]),
    Program("addmm row", lambda b, x, y: torch.addmm(b, x, y, beta=2, alpha=3), [(4,), X, Y]),
    Program("baddbmm", torch.baddbmm, [(4, 4, 4), Z, (4, 8, 4)]),
    Program("outer", torch.outer, [(4,), (8,)]),
    Program("einsum", lambda x, y: torch.einsum("bik,bkj->bij", x, y), [Z, (4, 8, 4)]),
    Program("einsum sum", lambda x, y: torch.einsum("ij,kj", x, y), [X, (4, 8)]),
    Program("einsum of three", lambda x, y, z: torch.einsum("ij,jk,k->i", x, y, z), [X, Y, (4,)]),
    Program("embedding", lambda w: F.embedding(torch.tensor([[0, 3], [1, 3]]), w), [X]),
    Program(
        "attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(4, 4, 4), (4, 4, 4), (4, 4, 4)],
    ),
    Program(
        "attention with mask",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m.detach() * 0.1),
        [(4, 4, 8), (4, 4, 8), (4, 4, 8), (4, 4, 4)],
    ),
    Program(
        "attention with shared keys",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [(1, 8, 4, 4), (1, 4, 4, 4), (1, 4, 4, 4)],
    ),
]

REDUCTIONS = [
    *(Program(f"sum {dim}", lambda x, dim=dim: x.sum(dim), [Z]) for dim in (0, -1, (0, 2))),
    Program("sum of all", torch.sum, [Z]),
    Program("sum keepdim", lambda x: x.sum(1, keepdim=True), [Z]),
    Program("sum in double", lambda x: x.sum(1, dtype=torch.float64), [Z]),
    Program("mean", torch.mean, [X]),
    Program("mean of rows", lambda x: x.mean(-1, keepdim=True), [X]),
    *(
        Program(f"{name} {dim}", lambda x, name=name, dim=dim: getattr(torch, name)(x, dim), [X])
        for name in ("amax", "amin", "prod", "std", "var", "logsumexp", "nansum", "argmax", "argmin", "all", "any")
        for dim in (0, 1)
    ),
    *(
        Program(f"{name} {dim}", lambda x, name=name, dim=dim: getattr(torch, name)(x * 0.5, dim), [X])
        for name in ("softmax", "log_softmax", "cumsum", "argsort")
        for dim in (0, 1)
    ),
    Program("max", torch.max, [X]),
    Program("max along", lambda x: torch.max(x, 1), [X]),
    Program("max of two", torch.max, [X, X]),
    Program("norm", lambda x: torch.linalg.vector_norm(x), [X]),
    Program("norm along", lambda x: x.norm(dim=-1), [X]),
    Program("sort", lambda x: torch.sort(x + torch.arange(8) * 0.1, 1), [X]),
    Program("topk", lambda x: torch.topk(x, 4, -1), [X]),
    Program("layer_norm", lambda x, w, b: F.layer_norm(x, (8,), w, b), [X, (8,), (8,)]),
    Program("rms_norm", lambda x, w: F.rms_norm(x, (8,), w), [X, (8,)]),
    Program("rms_norm without weight", lambda x: F.rms_norm(x, x.shape[-1:]), [X]),
    *(
        Program(f"cross_entropy {r}", lambda x, r=r: F.cross_entropy(x, torch.tensor([1, 0, 7, 7]), reduction=r), [X])
        for r in ("mean", "sum", "none")
    ),
    *(
        Program(f"mse_loss {r}", lambda x, y, r=r: F.mse_loss(x, y, reduction=r), [X, X])
        for r in ("mean", "sum", "none")
    ),
]


def heads(x):
    """[B, L, features] -> [B, L, heads, 2], by the lengths on this rank."""
    return x.view(*x.shape[:2], -1, 2)


VIEWS = [
    Program("permute", lambda x: x.permute(2, 0, 1), [Z]),
    Program("transpose", lambda x: x.transpose(0, -1), [Z]),
    Program("t", torch.t, [X]),
    Program("T", lambda x: x.T, [X]),
    Program("mT", lambda x: x.mT, [Z]),
    Program("unsqueeze", lambda x: x.unsqueeze(-1), [X]),
    Program("squeeze", lambda x: x.squeeze(1), [(4, 1, 8)]),
    Program("squeeze of a longer dim", lambda x: x.squeeze(1), [Z]),
    Program("squeeze all", lambda x: x.squeeze(), [(4, 1, 8)]),
    Program("expand", lambda x: x.expand(4, -1, -1), [(1, 4, 8)]),
    Program("expand new", lambda x: x.expand(2, *x.shape), [X]),
    Program("split heads", heads, [Z]),
    Program("merge heads", lambda x: heads(x).flatten(-2), [Z]),
    Program("unflatten", lambda x: x.unflatten(-1, (-1, 2)), [Z]),
    Program("split the first", lambda x: x.view(-1, 2, x.shape[-1]), [X]),
    Program("merge the first two", lambda x: x.reshape(-1, x.shape[-1]), [Z]),
    Program("merge all", lambda x: x.flatten(), [Z]),
    Program("view to itself", lambda x: x.view(x.shape), [Z]),
    Program("view with ones", lambda x: x.view(x.shape[0], 1, -1, 1), [X]),
    Program("regroup", lambda x: x.reshape(-1, 2), [X]),
    Program("narrow", lambda x: x.narrow(0, 0, 2), [X]),
    Program("split", lambda x: x.split(x.shape[0] // 2), [X]),
    Program("split sizes", lambda x: x.split([1, x.shape[1] - 1], 1), [X]),
    Program("chunk", lambda x: x.chunk(2, -1), [X]),
    Program("unbind", lambda x: x.unbind(1), [(4, 4)]),
    Program("select", lambda x: x.select(0, 1), [X]),
    Program("cat", lambda x, y: torch.cat([x, y], 1), [X, (4, 4)]),
    Program("stack", lambda x, y: torch.stack([x, y], 1), [X, X]),
    Program("pad", lambda x: F.pad(x, (1, 2)), [X]),
    Program("pad with ones", lambda x: F.pad(x, (1, 2), value=1.0), [X]),
    Program("pad nothing", lambda x: F.pad(x, (0, 0, 1, 0)), [X]),
    Program("roll", lambda x: torch.roll(x, 1, 1), [X]),
    Program("roll all", lambda x: torch.roll(x, 1), [X]),
    Program("flip", lambda x: torch.flip(x, (0,)), [X]),
    Program("tril", torch.tril, [(4, 4, 4)]),
    Program("index int", lambda x: x[1], [Z]),
    Program("index slices", lambda x: x[:, 1:3], [Z]),
    Program("index full", lambda x: x[:, None, ..., :], [Z]),
    Program("index last", lambda x: x[..., -1], [Z]),
    Program("index by places", lambda x: x[:, torch.tensor([0, 1, 1])], [Z]),
    Program("index_select", lambda x: x.index_select(1, torch.tensor([1, 0])), [Z]),
    Program("gather", lambda x, y: x.gather(1, y.detach().argsort(1)), [X, X]),
    Program("contiguous", lambda x: x.T.contiguous(), [X]),
    Program("data", lambda x: x.data, [X]),
    Program("to", lambda x: x.float().to(torch.float64), [X]),
    Program("type_as", lambda x, y: x.type_as(y), [X, X], lists=False),
    Program("iteration", lambda x: list(x), [(4, 4)]),
    Program("ones_like", lambda x: x + torch.ones_like(x), [X]),
    Program("full_like", lambda x: x * torch.full_like(x, 3.0), [X]),
    Program("zeros_like", lambda x: x + torch.zeros_like(x), [X]),
]


def into_slice(x, y):
    x = x * 1
    x[:, 1:3] = y
    return x


def accumulated(x, y):
    total = torch.zeros_like(x)
    total += x
    total += 2 * y
    return total


def collected(x, y):
    rows = torch.zeros(2, *x.shape)
    rows = rows.to(x.dtype)
    rows[0] = x
    rows[1] = y
    return rows


WRITES = [
    Program("add_", lambda x, y: (x * 1).add_(y), [X, X]),
    Program("+=", lambda x, y: x.clone().__iadd__(y), [X, (8,)]),
    Program("mul_", lambda x, y: (x * 1).mul_(y), [X, X]),
    Program("mul_ by a number", lambda x: (x * 1).mul_(3), [X]),
    Program("relu_", lambda x: (x * 1).relu_(), [X]),
    Program("copy_", lambda x, y: (x * 1).copy_(y), [X, X]),
    Program("fill_", lambda x: (x * 1).fill_(2), [X]),
    Program("zero_", lambda x: (x * 1).zero_(), [X]),
    Program("masked_fill_", lambda x, y: (x * 1).masked_fill_(y > 4, 0), [X, X]),
    Program("write into a slice", into_slice, [X, (4, 2)]),
    Program("accumulate", accumulated, [X, X]),
    Program("collect", collected, [X, X]),
    Program("addcmul_", lambda x, y, z: (x * 1).addcmul_(y, z, value=2), [X, X, X]),
    Program("lerp_", lambda x, y: (x * 1).lerp_(y, 0.25), [X, X]),
    Program("foreach", lambda x, y: torch._foreach_mul([x, y], 2.0), [X, Y], lists=False),
]

ALL = [*CONTRACTIONS, *REDUCTIONS, *VIEWS, *WRITES]


@pytest.mark.parametrize("program", ALL, ids=str)
def test_an_accepted_call_agrees_with_one_device(program):
    accepted = 0

    @settings(max_examples=12 * len(program.shapes))
    @given(drawn=operands(program))
    def sampled(drawn):
        nonlocal accepted
        accepted += not isinstance(verdict(program.run, *drawn), SpmdTypeError)

    sampled()
    assert accepted > 0


def test_names_are_unique():
    assert len({program.name for program in ALL}) == len(ALL)
    assert math.prod(X) == math.prod(Y)
