"""A step starts from what the tensor is, and leads to what it says; a stated type is noted or verified."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.check import layout_of
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.scope import joined
from meshwright.comm.steps import BoundStep
from meshwright.types.layout import SpmdLayout
from meshwright.types.planner import plan
from meshwright.types.transition import CHANGES
from tests.check.judged import judged, on, refusal, says
from tests.denotation import denoted, local, sample
from tests.sampling import layouts

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S
TWO, GRID = on("tp", 2), ParallelismDims(dp_shard=2, tp=2)
KIND = {"R": R, "I": I, "V": V, "P": P, "S": S(0)}


def stated(kind, *shape, wants=True):
    return spmd.assert_type(torch.ones(*shape).requires_grad_(wants), {"tp": kind})


@pytest.mark.parametrize("pair", CHANGES)
def test_every_step_leads_to_its_destination(pair):
    src, dst = KIND[pair[0]], S(1) if pair == "S S" else KIND[pair[-1]]

    def program(rank):
        x = stated(src, *((2, 2) if src is not V else (2,)))
        return dict(layout_of(spmd.redistribute(x, "tp", src=src, dst=dst, expert_mode=True)))

    assert judged(program, TWO) == [{"tp": dst}] * 2


@pytest.mark.parametrize(
    ("known", "src"), [(a, b) for a, b in itertools.product((R, I, V, P, S(0), S(1)), repeat=2) if a is not b]
)
def test_a_step_does_not_start_from_another_type(known, src):
    def program(rank):
        return spmd.redistribute(stated(known, 2, 2), "tp", src=src, dst=R if src is not R else P)

    says(refusal(program, TWO), "tp", f"{known!r}, {src!r}")


@pytest.mark.parametrize(("known", "said"), [(R, I), (I, R)])
def test_without_a_gradient_replicated_and_invariant_are_one(known, said):
    def program(rank):
        return dict(layout_of(spmd.redistribute(stated(known, 2, wants=False), "tp", src=said, dst=S(0))))

    assert judged(program, TWO) == [{"tp": S(0)}] * 2


def test_no_change_verifies_too():
    says(refusal(lambda rank: spmd.redistribute(stated(P, 2), "tp", src=R, dst=R), TWO), "tp", "P, R")


def test_the_source_of_a_step_types_a_tensor_of_which_nothing_is_known():
    def program(rank):
        return dict(layout_of(spmd.all_reduce(torch.randn(2), "tp", src=P, dst=R)))

    assert judged(program, TWO) == [{"tp": R}] * 2


@pytest.mark.parametrize(("src", "dst"), [(V, P), (R, V)])
def test_a_claim_is_taken(src, dst):
    assert (
        judged(lambda rank: dict(layout_of(spmd.reinterpret(stated(src, 2), "tp", src=src, dst=dst))), TWO)
        == [{"tp": dst}] * 2
    )


@settings(max_examples=40)
@given(src=layouts(("dp", "tp"), dims=2, unsharded=(R, I, P)), dst=layouts(("dp", "tp"), dims=2, unsharded=(R, I, P)))
def test_a_plan_is_followed_on_several_axes(src, dst):
    if any((src[name], dst[name]) in ((R, I), (I, P)) for name in src):
        return
    whole = sample((4, 4), seed=1)

    def program(rank):
        x = spmd.assert_type(local(src, whole, GRID, rank), src)
        for step in plan(src, dst):
            x = BoundStep(step, joined(step.axes))(x)
        assert layout_of(x) is dst
        return x

    assert torch.equal(denoted(dst, judged(program, GRID), GRID), whole)


def test_only_the_innermost_axis_leaves_a_dim():
    nested = SpmdLayout({"dp": S(0), "tp": S(0)})

    def program(rank):
        x = spmd.assert_type(torch.ones(2), nested)
        return spmd.all_gather(x, "dp", src=S(0), dst=R)

    problem = refusal(program, GRID)
    assert "'dp' is not the innermost" in problem.what
    assert "all_gather(x, 'tp', src=S(0), dst=R) first" in problem.fix


def test_a_list_that_becomes_whole_moves_the_dims_of_other_axes():
    def program(rank):
        x = spmd.assert_type(torch.ones(2, 3), {"tp": V, "dp": S(0)})
        whole = spmd.all_gather(x, "tp", src=V, dst=R)
        back = spmd.convert(whole, "tp", src=R, dst=V)
        return dict(layout_of(whole)), dict(layout_of(back)), tuple(whole.shape)

    assert judged(program, GRID) == [({"tp": R, "dp": S(1)}, {"tp": V, "dp": S(0)}, (2, 2, 3))] * 4


def test_a_dim_that_is_cut_is_not_taken_apart_as_a_list():
    def program(rank):
        x = spmd.assert_type(torch.ones(2, 3), {"tp": R, "dp": S(0)})
        return spmd.convert(x, "tp", src=R, dst=V)

    says(refusal(program, GRID), "dp", "S(0)", "S(0) -> R: all_gather(x, 'dp', src=S(0), dst=R) first")


@given(layout=layouts(("dp", "tp"), dims=2))
@settings(max_examples=10)
def test_a_stated_type_is_noted_where_nothing_is_known(layout):
    assert judged(lambda rank: layout_of(spmd.assert_type(torch.randn(2, 2), layout)) is layout, GRID) == [True] * 4


def test_a_type_is_stated_axis_by_axis():
    def program(rank):
        x = spmd.assert_type(torch.randn(2, 2), {"dp": S(0)})
        return layout_of(spmd.assert_type(x, {"tp": P})) == {"dp": S(0), "tp": P}

    assert judged(program, GRID) == [True] * 4


_REFINES = ((V, S(0)), (S(0), V))


@pytest.mark.parametrize(
    ("known", "said"), [pair for pair in itertools.permutations((R, I, V, P, S(0)), 2) if pair not in _REFINES]
)
def test_a_stated_type_is_verified_where_one_is_known(known, said):
    problem = refusal(lambda rank: spmd.assert_type(stated(known, 2), {"tp": said}), TWO)
    says(problem, "tp", f"{known!r}, {said!r}", f"state {known!r}")


def test_which_dim_of_a_list_is_cut_may_be_stated_and_stays_known():
    def program(rank):
        x = spmd.assert_type(stated(V, 2), {"tp": S(0)})
        return dict(layout_of(spmd.assert_type(x, {"tp": V})))

    assert judged(program, TWO) == [{"tp": S(0)}] * 2


def test_a_stated_order_is_verified():
    def program(rank):
        x = spmd.assert_type(torch.ones(2), SpmdLayout({"dp": S(0), "tp": S(0)}))
        spmd.assert_type(x, SpmdLayout({"tp": S(0), "dp": S(0)}))

    assert "cut over (dp, tp) and the stated type over (tp, dp)" in refusal(program, GRID).what


def test_an_unknown_axis_lists_the_valid_ones():
    from meshwright.check import typecheck
    from meshwright.comm.threads import run_ranks

    def program(rank):
        with typecheck():
            spmd.assert_type(torch.ones(2), {"tpp": R})

    with pytest.raises(spmd.SpmdTypeError, match=r"axis 'tpp'[\s\S]*one of 'dp', 'cp', 'tp'"):
        run_ranks(TWO, program)


@pytest.mark.parametrize(("kind", "shape"), [(S(2), (2, 2)), (S(0), ()), (S(0, (3, 2)), (4,)), (S(0, (1, 2, 3)), (1,))])
def test_a_type_that_does_not_fit_the_shape_is_refused(kind, shape):
    problem = refusal(lambda rank: spmd.assert_type(torch.ones(shape), {"tp": kind}), TWO)
    assert f"{kind!r} on axis 'tp'" in problem.what


@settings(max_examples=10)
@given(sizes=st.tuples(st.integers(0, 3), st.integers(0, 3)), columns=st.integers(0, 2))
def test_uneven_shards_go_through_sums_and_back(sizes, columns):
    kind, whole = S(0, sizes), sample((sum(sizes), columns), seed=1)

    def program(rank):
        x = spmd.assert_type(local({"tp": kind}, whole, TWO, rank), {"tp": kind})
        y = x * 2 + x
        assert layout_of(y) == {"tp": kind}
        assert layout_of(y.sum(0)) == {"tp": P}
        return spmd.all_gather(y, "tp", src=kind, dst=R), spmd.all_reduce(y.sum(0), "tp", src=P, dst=R)

    for again, total in judged(program, TWO):
        assert torch.equal(again, 3 * whole)
        assert torch.equal(total, (3 * whole).sum(0))
