"""Layers of experts, as people write them, are accepted, and compute what one device does, values and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meshwright.spmd as spmd
from meshwright.comm.grid import ParallelismDims
from tests.check import moe
from tests.check.moe import ACTIVE, BATCH, EXPERTS, LENGTH, WIDTH, I, P, R, S, V
from tests.denotation import sample

GRIDS = {
    "experts over tp": ParallelismDims(dp_shard=2, tp=2, ep=2),
    "experts over all": ParallelismDims(dp_shard=2, tp=2, ep=4),
    "two by three": ParallelismDims(dp_shard=2, tp=3, ep=1),
    "each expert everywhere": ParallelismDims(dp_shard=2, tp=2),
}
ROUTES = {"softmax": moe.softmax, "in groups": moe.in_groups}


def dispatched(x, share, chosen, up, down):
    """Tokens go to the ranks of their experts, by number, and come back; a region of the sparse mesh."""
    ranks = spmd.axis_size("ep")
    tokens, places = x.flatten(0, 1), chosen.flatten()
    order = torch.argsort(places, stable=True)
    counts = moe.counted(chosen).view(ranks, -1)
    theirs = spmd.all_to_all(counts, "ep", src=V, dst=V)
    send, receive = counts.sum(1).tolist(), theirs.sum(1).tolist()
    rows = tokens.index_select(0, order // ACTIVE)
    rows = spmd.all_to_all(rows, "ep", src=V, dst=V, input_split_sizes=send, output_split_sizes=receive)
    expert = torch.arange(EXPERTS // ranks).repeat(ranks).repeat_interleave(theirs.flatten(), output_size=sum(receive))
    by_expert = expert.argsort(stable=True)
    y = moe.experts(rows[by_expert], up, down, moe.ends(theirs.sum(0)))
    back = torch.empty_like(by_expert)
    back[by_expert] = torch.arange(by_expert.shape[0])
    y = spmd.all_to_all(y[back], "ep", src=V, dst=V, input_split_sizes=receive, output_split_sizes=send)
    y = torch.zeros_like(y).index_copy(0, order, y).unflatten(0, (-1, ACTIVE))
    return (y * share.flatten(0, 1).unsqueeze(-1)).sum(1).view(x.shape)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("grid", GRIDS)
def test_tokens_are_dispatched_to_experts(grid, route):
    dims, choose = GRIDS[grid], ROUTES[route]
    x, weights, seed = sample((BATCH, LENGTH, WIDTH), 7), moe.Weights.drawn(), sample((BATCH, LENGTH, WIDTH), 8)
    whole = [each.clone().requires_grad_() for each in (x, *weights[:3])]
    expected = moe.on_one_device(whole[0], moe.Weights(*whole[1:], weights.bias), choose)
    (expected * seed).sum().backward()

    def program(rank):
        mine, held = moe.part(dims, rank, x, weights)
        dense, sparse = moe.meshes()
        with spmd.set_current_mesh(dense):
            share, chosen = choose(F.linear(mine, held.gate), held.bias)
            assert spmd.layout_of(chosen) == moe.TOKENS
        with spmd.set_current_mesh(sparse), spmd.local():
            y = dispatched(mine, share, chosen, held.up, held.down)
            assert spmd.layout_of(y) == {"efsdp": V, "ep": V}
        with spmd.set_current_mesh(dense):
            y = spmd.assert_type(y, moe.TOKENS)
            loss = (y * moe.held(seed, moe.TOKENS, dims, rank, wants=False)).sum()
            assert spmd.layout_of(loss) == {"dp": P, "tp": P}
            loss.backward()
            gate = moe.summed(held.gate.grad, ("dp", "tp"))
        with spmd.set_current_mesh(sparse):
            assert spmd.layout_of(held.up.grad) == {"efsdp": P, "ep": S(0)}
            return y, mine.grad, gate, *(moe.summed(each.grad, ("efsdp",)) for each in (held.up, held.down))

    layouts = (moe.TOKENS, moe.TOKENS, moe.BOTH, moe.HELD, moe.HELD)
    for rank, found in enumerate(moe.on_ranks(dims, program)):
        for layout, mine, one in zip(layouts, found, (expected, *(each.grad for each in whole)), strict=True):
            torch.testing.assert_close(mine, moe.cut(one, layout, dims, rank))
