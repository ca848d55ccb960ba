"""The arguments of the public calls: whole layouts, dims of lists, lengths, reinterpretations, aliases."""

from __future__ import annotations

import pytest
import torch

from meshwright.check import layout_of, typecheck
from meshwright.comm.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    convert,
    invariant_to_replicate,
    redistribute,
    reduce_scatter,
    reinterpret,
    shard,
    unshard,
)
from meshwright.comm.declare import assert_type
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import set_current_mesh
from meshwright.comm.shapes import mesh
from meshwright.comm.threads import run_ranks
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, V
from tests.denotation import denoted, local, paired, sample

CALLS = {"reduce_scatter": reduce_scatter, "all_reduce": all_reduce, "all_gather": all_gather}


@pytest.mark.parametrize(
    ("name", "src", "dst", "does", "mended"),
    [
        ("reduce_scatter", S(0), P, "puts zeros around this rank's piece", "src=P, dst=S(0)"),
        ("reduce_scatter", V, P, "puts zeros around this rank's piece", "src=P, dst=V"),
        ("all_reduce", R, P, "keeps the value on the first rank", "src=P, dst=R"),
        ("all_gather", R, S(0), "keeps this rank's piece of what all have", "src=S(0), dst=R"),
        ("all_gather", I, S(1), "keeps this rank's piece of what all have", "src=S(1), dst=I"),
    ],
)
def test_a_source_and_a_destination_that_were_swapped_are_told(name, src, dst, does, mended):
    with set_current_mesh(mesh(tp=2)), pytest.raises(SpmdTypeError) as error:
        CALLS[name](torch.randn(4, 4), "tp", src=src, dst=dst)
    (problem,) = error.value.problems
    assert problem.what.startswith(f"{src!r} -> {dst!r} is no {name}: ")
    assert does in problem.what
    assert problem.fix == f"{name}(x, 'tp', {mended})"
    assert f"{name} goes from " in problem.why


def test_the_class_where_a_shard_belongs():
    with set_current_mesh(mesh(tp=2)), typecheck():
        for call in (
            lambda x: assert_type(x, {"tp": S}),
            lambda x: redistribute(x, "tp", src=S, dst=R),
        ):
            with pytest.raises(SpmdTypeError, match=r"S itself(.|\n)*fix: S\(0\) where dim 0 is cut, S\(dim\) where"):
                call(torch.randn(4, 4))


TWO = ParallelismDims(tp=2)
GRID = ParallelismDims(dp_shard=2, tp=2)
WHOLE = sample((4, 6), seed=5)


def both_ways(dims, src, dst, call, whole=WHOLE, result=None):
    """What all ranks hold before and after `call`, a gradient of the result, and the one of the source."""
    seed = sample(whole.shape if result is None else result, seed=6)

    def program(rank):
        x = local(src, whole, dims, rank).requires_grad_()
        y = call(x)
        g = local({axis: kind.dual for axis, kind in dst.items()}, seed, dims, rank)
        (gradient,) = torch.autograd.grad(y, x, g)
        return x.detach(), y.detach(), g, gradient

    return [list(parts) for parts in zip(*run_ranks(dims, program), strict=True)]


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ({"dp": P, "tp": P}, {"dp": R, "tp": R}),
        ({"dp": S(0), "tp": S(0)}, {"tp": S(0), "dp": S(0)}),
        ({"dp": S(0), "tp": S(1)}, {"dp": R, "tp": I}),
        ({"dp": R, "tp": P}, {"dp": S(0), "tp": S(0)}),
        ({"tp": S(1)}, {"tp": R}),
    ],
)
def test_a_whole_layout_is_redistributed_by_the_plan(src, dst):
    dims = GRID if len(src) == 2 else TWO
    xs, ys, gs, gradients = both_ways(dims, src, dst, lambda x: redistribute(x, src=src, dst=dst))
    assert torch.equal(denoted(dst, ys, dims), WHOLE)
    assert paired(dst, ys, gs, dims) == paired(src, xs, gradients, dims)


def test_a_layout_that_stays_is_the_tensor_itself():
    x = torch.ones(2)
    assert (
        run_ranks(GRID, lambda rank: redistribute(x, src={"dp": R, "tp": P}, dst={"tp": P, "dp": R}) is x) == [True] * 4
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"src": R, "dst": P}, "src=R without an axis"),
        ({"src": {"tp": R}, "dst": P}, "dst=P without an axis"),
        ({"src": {"tpp": R}, "dst": {"tpp": P}}, "axis 'tpp': no such axis"),
        ({"src": {"tpp": R}, "dst": {"tpp": R}}, "axis 'tpp': no such axis"),
    ],
)
def test_without_an_axis_src_and_dst_are_layouts_of_the_mesh(arguments, told):
    with pytest.raises(SpmdTypeError, match=told):
        run_ranks(TWO, lambda rank: redistribute(torch.ones(2), **arguments))


@pytest.mark.parametrize("dst", [R, I])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_list_is_stacked_along_the_dim_that_is_named(dim, dst):
    whole = sample((2, 3, 4), seed=1)

    def call(x):
        return all_gather(x, "tp", dst=dst, gather_dim=dim)

    stacked = whole.movedim(0, dim)
    _, ys, gs, gradients = both_ways(TWO, {"tp": V}, {"tp": dst}, call, whole, stacked.shape)
    assert all(torch.equal(y, stacked) for y in ys)
    seed = denoted({"tp": dst.dual}, gs, TWO)
    assert torch.equal(denoted({"tp": V}, gradients, TWO), seed.movedim(dim, 0))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_sum_is_scattered_along_the_dim_that_is_named(dim):
    shape = [3, 4]
    shape.insert(dim, 2)
    whole = sample(shape, seed=1)

    def call(x):
        return reduce_scatter(x, "tp", scatter_dim=dim)

    _, ys, gs, gradients = both_ways(TWO, {"tp": P}, {"tp": V}, call, whole, (2, 3, 4))
    assert torch.equal(denoted({"tp": V}, ys, TWO), whole.movedim(dim, 0))
    assert torch.equal(denoted({"tp": R}, gradients, TWO), denoted({"tp": V}, gs, TWO).movedim(0, dim))


@pytest.mark.parametrize(("split", "concat"), [(0, 0), (1, 0), (0, 2), (2, 1)])
def test_a_list_and_a_dim_of_its_entries_change_places(split, concat):
    shape = [3, 4]
    shape.insert(split, 2)
    whole = sample((2, *shape), seed=1)
    after = whole.movedim(split + 1, 1).transpose(0, 1).movedim(1, concat + 1)

    def call(x):
        return all_to_all(x, "tp", split_dim=split, concat_dim=concat)

    xs, ys, gs, gradients = both_ways(TWO, {"tp": V}, {"tp": V}, call, whole, after.shape)
    assert torch.equal(torch.stack(ys), after)
    assert paired({"tp": V}, ys, gs, TWO) == paired({"tp": V}, xs, gradients, TWO)


@pytest.mark.parametrize("kind", [S(0), V])
def test_rows_are_dealt_out_by_number(kind):
    send, receive = [[3, 1], [0, 2]], [[3, 0], [1, 2]]

    def program(rank):
        x = (torch.arange(4.0)[: sum(send[rank])] + 10 * rank).requires_grad_()
        sizes = {"input_split_sizes": send[rank], "output_split_sizes": receive[rank]}
        y = all_to_all(x, "tp", src=kind, dst=kind, **sizes)
        (gradient,) = torch.autograd.grad(y, x, y.detach())
        return y.tolist(), torch.equal(gradient, x)

    assert run_ranks(TWO, program) == [([0.0, 1.0, 2.0], True), ([3.0, 10.0, 11.0], True)]


def test_rows_of_a_list_lie_along_any_dim():
    def program(rank):
        x = torch.full((2, 3), float(rank)).requires_grad_()
        sizes = {"input_split_sizes": [[1, 2], [3, 0]][rank], "output_split_sizes": [[1, 3], [2, 0]][rank]}
        y = all_to_all(x, "tp", split_dim=1, concat_dim=0, **sizes)
        (gradient,) = torch.autograd.grad(y, x, y.detach())
        return y.tolist(), torch.equal(gradient, x)

    assert run_ranks(TWO, program) == [([[0.0] * 2] + [[1.0] * 2] * 3, True), ([[0.0] * 2] * 2, True)]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda x: all_gather(x, "tp", src=S(0), dst=R, gather_dim=1), "gather_dim=1 with S"),
        (lambda x: all_gather(x, "tp", dst=R, gather_dim=-1), "counted from the front"),
        (lambda x: all_gather(x, "tp", dst=R, split_sizes=[1, 3]), "split_sizes=.* with V"),
        (lambda x: all_gather(x, "tp", src=S(0, (2, 2)), dst=R, split_sizes=[1, 3]), "split_sizes=.* with S"),
        (lambda x: reduce_scatter(x, "tp", dst=S(0), scatter_dim=1), "scatter_dim=1 with S"),
        (lambda x: all_to_all(x, "tp", src=S(0), dst=S(1), split_dim=1), "split_dim=1 with S"),
        (lambda x: all_to_all(x, "tp", src=S(0), input_split_sizes=[1, 3]), "rows are dealt out by number"),
        (lambda x: all_to_all(x, "tp", input_split_sizes=[1, 2]), "add up to 4"),
        (lambda x: all_to_all(x, "tp", src=S(0), dst=S(0), input_split_sizes=[1, 1]), "add up to 4"),
        (lambda x: all_to_all(x, "tp", src=S(0), dst=S(0), output_split_sizes=[1]), "2 numbers"),
        (lambda x: shard(x, "tp", src=R, dst=P), "shard with dst=P"),
        (lambda x: unshard(x, "tp", src=V, dst=R), "unshard with src=V"),
        (lambda x: all_reduce(x, "tp", dst=R, async_op=True), "async_op=True"),
        (lambda x: all_reduce(x, "tp", dst=R, backward_options={"dtype": torch.half}), "has no 'dtype'"),
    ],
)
def test_arguments_that_say_something_else_than_the_types_are_refused(call, told):
    with pytest.raises(SpmdTypeError, match=rf"axis 'tp': .*{told}|axis 'tp'[\s\S]*{told}"):
        run_ranks(TWO, lambda rank: call(torch.ones(4, 4)))


def test_lengths_that_are_named_are_those_of_the_shard():
    odd = sample((5, 3), seed=4)

    def program(rank):
        piece = reduce_scatter(odd * rank, "tp", dst=S(0), split_sizes=[3, 2])
        return all_gather(piece, "tp", src=S(0), dst=R, split_sizes=[3, 2])

    assert all(torch.equal(whole, odd) for whole in run_ranks(TWO, program))


def test_a_sum_takes_the_place_of_its_input():
    def program(rank):
        x = torch.full((2,), rank + 1.0)
        y = all_reduce(x, "tp", dst=R, inplace=True)
        leaf = torch.ones(2, requires_grad=True)
        z = leaf * (rank + 1)
        (gradient,) = torch.autograd.grad(all_reduce(z, "tp", dst=I, inplace=True).sum(), leaf)
        return y is x, x.tolist(), z.tolist(), gradient.tolist()

    assert run_ranks(TWO, program) == [(True, [3.0] * 2, [3.0] * 2, [rank + 1.0] * 2) for rank in range(2)]


READINGS = [(V, P), (R, V), (R, P), (I, R), (I, V), (I, P), (R, I)]


@pytest.mark.parametrize(("src", "dst"), READINGS)
def test_a_reinterpretation_keeps_the_local_value(src, dst):
    def program(rank):
        x = torch.arange(3.0) + (rank if src is V else 0)
        return torch.equal(reinterpret(x, "tp", src=src, dst=dst, expert_mode=True), x)

    assert all(run_ranks(TWO, program))


@pytest.mark.parametrize(("src", "dst"), READINGS)
def test_its_gradient_is_that_of_what_it_denotes(src, dst):
    """x is one value, read as the list [x, x] or as the sum x + x; or a list read as its sum."""
    number = {R: 1, I: 1, V: 2, P: 2}[dst] if src is not V else 1
    whole = sample((2, 3) if src is V else (3,), seed=1)
    result = (2, 3) if dst is V else (3,)

    def call(x):
        return reinterpret(x, "tp", src=src, dst=dst, expert_mode=True)

    _, _, gs, gradients = both_ways(TWO, {"tp": src}, {"tp": dst}, call, whole, result)
    g = denoted({"tp": dst.dual}, gs, TWO)
    if src is V:
        expected = torch.stack([g, g])
    else:
        expected = g.sum(0) if dst is V else number * g
    if (src, dst) == (R, I):  # each rank's gradient is the whole one already, and counts once
        assert torch.equal(gradients[0], g)
    assert torch.equal(denoted({"tp": src.dual}, gradients, TWO), expected)


def test_r_as_i_is_for_experts():
    with pytest.raises(SpmdTypeError, match="expert_mode=True"):
        run_ranks(TWO, lambda rank: reinterpret(torch.ones(2), "tp", src=R, dst=I))


@pytest.mark.parametrize(
    ("alias", "call", "src", "dst"),
    [
        (shard, convert, R, S(0)),
        (shard, convert, I, S(1)),
        (unshard, all_gather, S(1), R),
        (unshard, all_gather, S(0), I),
    ],
)
def test_an_alias_is_the_call_that_it_names(alias, call, src, dst):
    def results(which):
        return both_ways(TWO, {"tp": src}, {"tp": dst}, lambda x: which(x, "tp", src=src, dst=dst))

    for mine, other in zip(results(alias), results(call), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def test_invariant_to_replicate_sums_the_gradients():
    _, ys, gs, gradients = both_ways(TWO, {"tp": I}, {"tp": R}, lambda x: invariant_to_replicate(x, "tp"))
    assert torch.equal(ys[0], WHOLE)
    assert torch.equal(gradients[0], gs[0] + gs[1])
    assert torch.equal(gradients[1], gs[0] + gs[1])


@pytest.mark.parametrize(
    ("call", "before", "after"),
    [
        (lambda x: all_gather(x, "tp", dst=R, gather_dim=1), {"tp": V, "dp": S(0)}, {"tp": R, "dp": S(0)}),
        (lambda x: all_gather(x, "tp", dst=R, gather_dim=0), {"tp": V, "dp": S(0)}, {"tp": R, "dp": S(1)}),
        (lambda x: reduce_scatter(x, "tp", scatter_dim=1), {"tp": P, "dp": S(2)}, {"tp": V, "dp": S(1)}),
        (lambda x: all_to_all(x, "tp", concat_dim=2), {"tp": V, "dp": S(1)}, {"tp": V, "dp": S(0)}),
        (lambda x: all_to_all(x, "tp"), {"tp": V, "dp": S(1)}, {"tp": V, "dp": S(1)}),
    ],
)
def test_the_checker_follows_the_dims_of_lists(call, before, after):
    with set_current_mesh(mesh(dp=2, tp=2)), typecheck():
        assert layout_of(call(assert_type(torch.ones(2, 2, 2), before))) == after
