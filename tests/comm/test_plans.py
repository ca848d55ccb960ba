"""Plans over two axes, carried out on a grid of ranks: they keep what the tensor denotes, forward and backward."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import current_mesh, set_current_mesh
from meshwright.comm.shapes import shape_view
from meshwright.comm.steps import BoundStep
from meshwright.comm.threads import run_ranks
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import plan
from tests.denotation import denoted, local, paired, sample
from tests.sampling import layouts

GRIDS = {
    "2x2": (ParallelismDims(dp_shard=2, tp=2), ("dp", "tp"), (8, 8)),
    "2x3": (ParallelismDims(dp_shard=2, tp=3), ("dp", "tp"), (12, 12)),
    "2x2x3": (ParallelismDims(dp_shard=2, cp=2, tp=3), ("dp", "cp", "tp"), (12, 12)),
}
"""Degrees, the axes that are on, and a shape that divides over them however they are nested."""


def carry(x, src, dst):
    view = current_mesh()
    for step in plan(src, dst, view.degree):
        x = BoundStep(step, view.joined(step.axes))(x)
    return x


def reachable(src, dst):
    return not any((src[name], dst[name]) == (R, I) for name in src)


def check_plans(grid, pairs):
    dims, _, shape = GRIDS[grid]
    pairs = [(src, dst) for src, dst in pairs if reachable(src, dst)]
    whole, seed = sample(shape, 1), sample(shape, 2)

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
        assert torch.equal(denoted(src.dual, gradients, dims), seed), f"{src} -> {dst}"
        assert paired(dst, ys, gs, dims) == paired(src, xs, gradients, dims), f"{src} -> {dst}"


@pytest.mark.parametrize("grid", GRIDS)
@settings(max_examples=10)
@given(data=st.data())
def test_a_plan_keeps_the_value_and_its_backward_is_its_adjoint(grid, data):
    drawn = layouts(GRIDS[grid][1], dims=2, unsharded=(R, I, P))
    check_plans(grid, data.draw(st.lists(st.tuples(drawn, drawn), min_size=10, max_size=30)))


def test_every_change_of_shard_order_on_a_grid():
    orders = [
        SpmdLayout({outer: S(i), inner: S(j)})
        for (outer, inner) in (("dp", "tp"), ("tp", "dp"))
        for i in range(2)
        for j in range(2)
    ]
    check_plans("2x3", list(itertools.product(orders, repeat=2)))


NESTINGS = [SpmdLayout(dict.fromkeys(order, S(0))) for order in itertools.permutations(("dp", "cp", "tp"))]
WHOLES = [SpmdLayout(dict.fromkeys(("dp", "cp", "tp"), kind)) for kind in (R, I, P)]


def test_three_axes_as_one_in_any_order():
    """Cut, gathered, summed and turned around, always in one step."""
    pairs = [
        pair
        for pair in (*itertools.product(WHOLES, NESTINGS), *itertools.product(NESTINGS, [*WHOLES, *NESTINGS]))
        if pair[0] is not pair[1]
    ]
    dims = GRIDS["2x2x3"][0]
    assert all(len(plan(src, dst, dims.degrees())) == 1 for src, dst in pairs)
    check_plans("2x2x3", pairs)


def test_ranks_hold_different_pieces_where_the_order_differs():
    dims = GRIDS["2x3"][0]
    whole = torch.arange(12.0).double()
    nested = SpmdLayout({"dp": S(0), "tp": S(0)}), SpmdLayout({"tp": S(0), "dp": S(0)})

    def pieces(rank):
        return carry(local(nested[0], whole, dims, rank), *nested)

    found = run_ranks(dims, pieces)
    assert [piece.tolist() for piece in found] == [[0, 1], [4, 5], [8, 9], [2, 3], [6, 7], [10, 11]]
    assert torch.equal(denoted(nested[1], found, dims), whole)


@pytest.mark.parametrize("pair", list(itertools.product(NESTINGS[:2], [*WHOLES, *NESTINGS[2:4]])))
def test_shapes_are_those_of_a_run(pair):
    """Checked on one process, without anybody to talk to."""
    dims, _, shape = GRIDS["2x2x3"]
    src, dst = pair
    for rank in range(dims.world):
        with set_current_mesh(shape_view(dims, rank)):
            x = torch.empty(src.local_shape(shape, dims.degrees(), dims.index(rank)), device="meta")
            assert carry(x, src, dst).shape == dst.local_shape(shape, dims.degrees(), dims.index(rank))


def test_the_derivative_of_an_exchange_is_taken_twice():
    dims = GRIDS["2x3"][0]
    src, dst = SpmdLayout({"dp": S(0), "tp": S(1)}), SpmdLayout({"tp": S(0), "dp": S(1)})
    whole = sample((12, 12), 3)

    def hessian_times(rank):
        x = local(src, whole, dims, rank).requires_grad_()
        (gradient,) = torch.autograd.grad((carry(x, src, dst) ** 3).sum(), x, create_graph=True)
        (product,) = torch.autograd.grad(gradient, x, torch.ones_like(x))
        return product

    assert torch.equal(denoted(src, run_ranks(dims, hessian_times), dims), 6 * whole)


def test_a_dim_that_does_not_divide_is_refused():
    src, dst = SpmdLayout({"dp": S(0), "tp": R}), SpmdLayout({"tp": S(1), "dp": S(1)})
    with pytest.raises(SpmdTypeError, match="does not split evenly over 3 ranks"):
        run_ranks(GRIDS["2x3"][0], lambda rank: carry(torch.ones(2, 4), src, dst))
