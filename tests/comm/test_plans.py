"""Plans over two axes, carried out on a grid of ranks: they keep what the tensor denotes, forward and backward."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import axis
from meshwright.comm.steps import BoundStep
from meshwright.comm.threads import run_ranks
from meshwright.types.kinds import I, P, R, S
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import plan
from tests.denotation import denoted, local, paired, sample
from tests.sampling import layouts

GRIDS = {"2x2": ParallelismDims(dp_shard=2, tp=2), "2x3": ParallelismDims(dp_shard=2, tp=3)}
SHAPE = (12, 12)  # divides over both axes, nested in any order

drawn = layouts(("dp", "tp"), dims=2, unsharded=(R, I, P))


def carry(x, src, dst):
    for step in plan(src, dst):
        x = BoundStep(step, axis(step.axis))(x)
    return x


def reachable(src, dst):
    return not any((src[name], dst[name]) in ((R, I), (I, P)) for name in src)


def check_plans(dims, pairs):
    pairs = [(src, dst) for src, dst in pairs if reachable(src, dst)]
    whole, seed = sample(SHAPE, 1), sample(SHAPE, 2)

    def both_ways(rank):
        results = []
        for src, dst in pairs:
            x = local(src, whole, dims, rank).requires_grad_()
            g = local(dst.dual, seed, dims, rank)
            y = carry(x, src, dst)
            (gradient,) = torch.autograd.grad(y, x, g)
            results.append((x.detach(), y.detach(), g, gradient))
        return results

    for (src, dst), result in zip(pairs, zip(*run_ranks(dims, both_ways), strict=True), strict=True):
        xs, ys, gs, gradients = zip(*result, strict=True)
        assert torch.equal(denoted(dst, ys, dims), whole), f"{src} -> {dst}"
        assert paired(dst, ys, gs, dims) == paired(src, xs, gradients, dims), f"{src} -> {dst}"


@pytest.mark.parametrize("grid", GRIDS)
@settings(max_examples=10)
@given(pairs=st.lists(st.tuples(drawn, drawn), min_size=10, max_size=30))
def test_a_plan_keeps_the_value_and_its_backward_is_its_adjoint(grid, pairs):
    check_plans(GRIDS[grid], pairs)


def test_every_change_of_shard_order_on_a_grid():
    orders = [
        SpmdLayout({outer: S(i), inner: S(j)})
        for (outer, inner) in (("dp", "tp"), ("tp", "dp"))
        for i in range(2)
        for j in range(2)
    ]
    check_plans(GRIDS["2x3"], list(itertools.product(orders, repeat=2)))


def test_ranks_hold_different_pieces_where_the_order_differs():
    dims = GRIDS["2x3"]
    whole = torch.arange(12.0).double()
    nested = SpmdLayout({"dp": S(0), "tp": S(0)}), SpmdLayout({"tp": S(0), "dp": S(0)})

    def pieces(rank):
        return carry(local(nested[0], whole, dims, rank), *nested)

    found = run_ranks(dims, pieces)
    assert [piece.tolist() for piece in found] == [[0, 1], [4, 5], [8, 9], [2, 3], [6, 7], [10, 11]]
    assert torch.equal(denoted(nested[1], found, dims), whole)
