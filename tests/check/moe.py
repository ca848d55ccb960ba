"""A layer of experts, as for one device and spread over ranks: what the programs and the planted faults share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import meshwright.spmd as spmd
from meshwright.check import typecheck
from meshwright.comm.grid import DENSE, ParallelismDims
from meshwright.comm.scope import View
from meshwright.comm.threads import run_ranks
from meshwright.models.grouped import grouped_linear
from meshwright.types.kinds import Shard
from tests.denotation import sample

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S

EXPERTS, ACTIVE, WIDTH, HIDDEN, BATCH, LENGTH = 8, 2, 4, 6, 2, 6
TOKENS = {"dp": S(0), "tp": S(1)}
BOTH = {"dp": R, "tp": R}
HELD = {"efsdp": R, "ep": S(0)}

Routes = tuple[Tensor, Tensor]
"""weights[B, L, k] and chosen[B, L, k]."""


class Weights(NamedTuple):
    """gate [E, D], up [E, H, D], down [E, D, H], bias [E] of the choice."""

    gate: Tensor
    up: Tensor
    down: Tensor
    bias: Tensor

    @staticmethod
    def drawn() -> Weights:
        shapes = (EXPERTS, WIDTH), (EXPERTS, HIDDEN, WIDTH), (EXPERTS, WIDTH, HIDDEN), (EXPERTS,)
        return Weights(*(sample(shape, seed) / 3 for seed, shape in enumerate(shapes)))


def softmax(logits: Tensor, bias: Tensor) -> Routes:
    """The largest probabilities, which then add up to 1."""
    weights, chosen = torch.softmax(logits, -1, dtype=torch.float64).topk(ACTIVE, dim=-1)
    return weights / weights.sum(-1, keepdim=True), chosen


def in_groups(logits: Tensor, bias: Tensor) -> Routes:
    """The best experts of the best group, chosen by scores with a bias, and weighted by the scores without it."""
    scores = logits.sigmoid()
    choice = scores + bias
    groups = choice.unflatten(-1, (2, -1))
    best = groups.topk(2, dim=-1)[0].sum(-1).topk(1, dim=-1)[1]
    allowed = torch.zeros_like(groups[..., 0]).scatter(-1, best, 1.0).unsqueeze(-1).expand_as(groups).flatten(-2)
    chosen = choice.masked_fill(allowed == 0, float("-inf")).topk(ACTIVE, dim=-1)[1]
    weights = scores.gather(-1, chosen)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5, chosen


def experts(rows: Tensor, up: Tensor, down: Tensor, ends: Tensor) -> Tensor:
    """rows[N, D] in groups that end at `ends` -> [N, D]."""
    return grouped_linear(F.silu(grouped_linear(rows, up, ends)), down, ends)


def counted(chosen: Tensor) -> Tensor:
    """How many tokens each expert gets, [E]."""
    places = chosen.flatten()
    return torch.zeros(EXPERTS, dtype=torch.int64).scatter_add(0, places, torch.ones_like(places))


def ends(counts: Tensor) -> Tensor:
    """counts[groups] -> where each group of rows ends."""
    return counts.cumsum(0).to(torch.int32)


def on_one_device(x: Tensor, weights: Weights, route: Callable[[Tensor, Tensor], Routes]) -> Tensor:
    """x[B, L, D] -> [B, L, D]: every token through every expert that it chose."""
    share, chosen = route(F.linear(x, weights.gate), weights.bias)
    y = torch.zeros_like(x)
    for expert in range(EXPERTS):
        mine = (share * (chosen == expert)).sum(-1, keepdim=True)
        y = y + mine * F.linear(F.silu(F.linear(x, weights.up[expert])), weights.down[expert])
    return y


def meshes() -> tuple[View, View]:
    """The dense and the sparse view of the ranks of `on_ranks`."""
    every = spmd.current_mesh()
    assert every is not None
    dense, sparse = ({axis: every[axis] for axis in axes} for axes in (("dp", "tp"), ("efsdp", "ep")))
    return View(dense), View(sparse)


def held(whole: Tensor, layout: Mapping[str, Any], dims: ParallelismDims, rank: int, *, wants: bool = True) -> Tensor:
    """What a rank holds of an operand, typed."""
    return spmd.assert_type(cut(whole, layout, dims, rank).requires_grad_(wants), layout)


def cut(whole: Tensor, layout: Mapping[str, Any], dims: ParallelismDims, rank: int) -> Tensor:
    """The rank's part of what is sharded, on the axes of either view."""
    axes = {**DENSE, **dims.sparse()}
    degree, index = dims.degrees(axes), dims.index(rank, axes)
    for axis, kind in layout.items():
        if isinstance(kind, Shard):
            whole = whole.chunk(degree[axis], kind.dim)[index[axis]]
    return whole.clone()


class Part(NamedTuple):
    """What a rank holds: its tokens and its weights."""

    x: Tensor
    weights: Weights


def part(dims: ParallelismDims, rank: int, x: Tensor, weights: Weights) -> Part:
    """Tokens cut over dp and tp, experts over ep, all else on every rank."""
    dense, sparse = meshes()
    with spmd.set_current_mesh(dense):
        mine = held(x, TOKENS, dims, rank)
        gate, bias = held(weights.gate, BOTH, dims, rank), held(weights.bias, BOTH, dims, rank, wants=False)
    with spmd.set_current_mesh(sparse):
        up, down = (held(each, HELD, dims, rank) for each in (weights.up, weights.down))
    return Part(mine, Weights(gate, up, down, bias))


def on_ranks(dims: ParallelismDims, program: Callable[[int], Any]) -> list[Any]:
    """`program(rank)` under the checker, on a mesh that has the axes of both views."""

    def checked(rank: int) -> Any:
        with typecheck():
            return program(rank)

    return run_ranks(dims, checked, {**{axis: DENSE[axis] for axis in ("dp", "tp")}, **dims.sparse()})


def summed(x: Tensor, axes: Sequence[str]) -> Tensor:
    """P -> R on each axis."""
    for axis in axes:
        x = spmd.all_reduce(x, axis, src=P, dst=R)
    return x
