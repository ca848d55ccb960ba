"""From the dense mesh to that of experts and back: the ranks keep their order; an unknown axis lists the valid ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import meshwright.spmd as spmd
from meshwright.check import typecheck
from meshwright.comm.grid import DENSE, LOSS, STORAGE, ParallelismDims
from meshwright.comm.scope import set_current_mesh
from meshwright.comm.shapes import shape_view
from meshwright.comm.threads import run_ranks
from meshwright.errors import SpmdTypeError
from tests.audit.expert_recipes import states, with_region
from tests.audit.recipes import judged as checked
from tests.cases.mixtures import EXPERTS, SPREAD, mixtures, planted
from tests.denotation import local, sample
from tests.parity.harness import assert_same, global_batch, on_threads, one_device

R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S


@st.composite
def grids(draw):
    """Degrees of which ep takes whole inner axes."""
    degrees = {axis: draw(st.integers(1, 3)) for axis in ("dp_replicate", "dp_shard", "cp", "tp")}
    inner = degrees["cp"] * degrees["tp"]
    parts = [inner * n for n in range(1, degrees["dp_shard"] + 1) if degrees["dp_shard"] % n == 0]
    return ParallelismDims(**degrees, ep=draw(st.sampled_from(sorted({1, degrees["tp"], *parts}))))


VIEWS = {
    "dense": lambda dims: {axis: DENSE[axis] for axis in ("dp", "cp", "tp")},
    "sparse": lambda dims: dims.sparse(),
    "storage": lambda dims: STORAGE,
    "loss": lambda dims: {**LOSS, "tp": DENSE["tp"]},
}


def order(dims, axes):
    """Rank by place, the axes of the view in order."""
    places = {tuple(dims.index(rank, axes)[axis] for axis in axes): rank for rank in range(dims.world)}
    assert len(places) == dims.world, "no two ranks have one place"
    return [places[place] for place in sorted(places)]


@settings(max_examples=30)
@given(dims=grids())
def test_each_view_has_all_ranks_in_their_order(dims):
    for axes in VIEWS.values():
        assert order(dims, axes(dims)) == list(range(dims.world))


@settings(max_examples=20)
@given(dims=grids(), kinds=st.sampled_from([(S(0), S(0)), (P, P), (R, R), (I, I), (V, V)]))
def test_a_type_goes_to_the_experts_and_comes_back(dims, kinds):
    """What every rank holds stays; only the names of the axes change."""
    first, second = (VIEWS[name](dims) for name in ("dense", "sparse"))
    kind = kinds[0]
    for rank in {0, dims.world - 1}:
        dense, sparse = shape_view(dims, rank, first), shape_view(dims, rank, second)
        with set_current_mesh(dense), typecheck():
            x = spmd.assert_type(torch.ones(2), dict.fromkeys(first, kind))
            with set_current_mesh(sparse):
                y = spmd.reinterpret_mesh(x, sparse)
                on = {axis for axis, group in sparse.items() if group.size > 1}
                assert {axis: kind for axis, kind in spmd.layout_of(y).items() if axis in on} == dict.fromkeys(on, kind)
                with set_current_mesh(dense):
                    back = spmd.reinterpret_mesh(y, dense)
            assert back.data_ptr() == x.data_ptr()
            on = {axis for axis, group in dense.items() if group.size > 1}
            assert {axis: each for axis, each in spmd.layout_of(back).items() if axis in on} == dict.fromkeys(on, kind)


@settings(max_examples=10)
@given(dims=grids(), seed=st.integers(0, 99))
def test_tokens_are_gathered_in_the_same_order_on_either_mesh(dims, seed):
    """All tokens put together by the dense axes, and by the sparse ones: the same."""
    assume(dims.world <= 12)
    dense, sparse = VIEWS["dense"](dims), dims.sparse()
    layouts = {"dense": {axis: S(0) for axis in ("dp", "cp", "tp")}, "sparse": {axis: S(0) for axis in sparse}}
    whole = sample((2 * dims.world,), seed)

    def gathered(name, axes):
        def program(rank):
            with typecheck():
                x = spmd.assert_type(whole[2 * rank : 2 * rank + 2].clone(), layouts[name])
                for axis in reversed(list(layouts[name])):
                    x = spmd.all_gather(x, axis, src=S(0), dst=R)
                return x

        return run_ranks(dims, program, axes)

    for name, axes in (("dense", dense), ("sparse", sparse)):
        for found in gathered(name, axes):
            assert torch.equal(found, whole)


def test_a_typed_tensor_is_used_under_the_other_mesh_without_a_word():
    dims = ParallelismDims(dp_shard=2, tp=2, ep=4)
    dense, sparse = shape_view(dims, 0, VIEWS["dense"](dims)), shape_view(dims, 0, dims.sparse())
    with set_current_mesh(dense), typecheck():
        x = spmd.assert_type(torch.ones(3), {"dp": S(0), "tp": S(0)})
        with set_current_mesh(sparse):
            expert = spmd.assert_type(torch.ones(3), {"ep": S(0)})
            y = x * expert
            assert spmd.layout_of(y)["ep"] is S(0)
        assert spmd.layout_of(y * x) == {"dp": S(0), "tp": S(0)}


@pytest.mark.parametrize(
    "layout", [{"dp": S(0), "tp": R}, {"dp": P, "tp": R}, {"dp": R, "tp": S(0)}, {"dp": S(0), "tp": S(1)}]
)
def test_what_has_no_one_type_on_an_axis_there_is_refused(layout):
    dims = ParallelismDims(dp_shard=2, tp=2, ep=4)
    dense, sparse = shape_view(dims, 0, VIEWS["dense"](dims)), shape_view(dims, 0, dims.sparse())
    with set_current_mesh(dense), typecheck():
        x = spmd.assert_type(torch.ones(2, 2), layout)
        for use in (lambda: spmd.reinterpret_mesh(x, sparse), lambda: x * 2):
            with set_current_mesh(sparse), pytest.raises(SpmdTypeError, match=r"ep|dp|tp"):
                use()


def test_a_cut_in_another_order_is_refused():
    dims = ParallelismDims(dp_shard=2, tp=2, ep=4)
    dense, sparse = shape_view(dims, 0, VIEWS["dense"](dims)), shape_view(dims, 0, dims.sparse())
    with set_current_mesh(dense), typecheck():
        x = spmd.assert_type(torch.ones(2), {"tp": S(0), "dp": S(0)})
        with set_current_mesh(sparse), pytest.raises(SpmdTypeError):
            spmd.reinterpret_mesh(x, sparse)


UNKNOWN = {
    "assert_type": lambda name: spmd.assert_type(torch.ones(2), {name: R}),
    "all_reduce": lambda name: spmd.all_reduce(torch.ones(2), name, src=P, dst=R),
    "convert": lambda name: spmd.convert(torch.ones(2), name, src=R, dst=S(0)),
    "axis_index": lambda name: spmd.axis_index(name),
    "axis_size": lambda name: spmd.axis_size(name),
    "reinterpret_mesh": lambda name: spmd.reinterpret_mesh(torch.ones(2), {name: R}),
}


@pytest.mark.parametrize("call", UNKNOWN)
@pytest.mark.parametrize(
    ("view", "name", "nearest"), [("sparse", "epp", "ep"), ("dense", "ttp", "tp"), ("storage", "dp_shrad", "dp_shard")]
)
def test_an_unknown_axis_lists_the_valid_ones(call, view, name, nearest):
    dims = ParallelismDims(dp_shard=2, tp=2, ep=4)
    axes = VIEWS[view](dims)
    with set_current_mesh(shape_view(dims, 0, axes)), typecheck(), pytest.raises(SpmdTypeError) as error:
        UNKNOWN[call](name)
    (problem,) = error.value.problems
    assert name in problem.where + problem.what
    assert f"did you mean {nearest!r}" in problem.what
    assert all(repr(axis) in problem.fix for axis in axes)


def test_an_axis_of_the_dense_mesh_is_none_of_the_sparse_one():
    dims = ParallelismDims(dp_shard=2, tp=2, ep=4)
    with set_current_mesh(shape_view(dims, 0, dims.sparse())), typecheck(), pytest.raises(SpmdTypeError) as error:
        spmd.all_reduce(torch.ones(2), "tp", src=P, dst=R)
    assert "'efsdp', 'ep'" in error.value.problems[0].fix


def test_tokens_go_to_the_experts_and_come_back():
    """Dense tokens go to the experts of the sparse mesh and come back to where they were."""
    dims = ParallelismDims(dp_shard=2, tp=2, ep=4)
    whole = sample((16, 2), 1)
    layout = {"dp": S(0), "cp": R, "tp": S(0)}

    def program(rank):
        with typecheck():
            mine = spmd.assert_type(
                local(layout, whole, dims, rank).clone(), {"dp_replicate": R, "efsdp": R, "ep": S(0)}
            )
            there = spmd.all_gather(mine * 2.0, "ep", src=S(0), dst=R)
            return spmd.convert(there, "ep", src=R, dst=S(0))

    found = run_ranks(dims, program, dims.sparse())
    assert torch.equal(torch.cat(found), whole * 2)


@settings(max_examples=10)
@given(
    config=mixtures([*SPREAD, {"dp_replicate": 2, "cp": 2, "ep": 2}, {"dp_shard": 2, "cp": 2, "ep": 4}]),
    seed=st.integers(0, 99),
)
def test_every_token_of_a_model_comes_back_to_its_place(config, seed):
    """Each token has experts and a gradient of its own: in another order nothing would be as on one device."""
    batches = [global_batch(config, seed)]
    assert_same(on_threads(config, batches), one_device(config, batches))


@settings(max_examples=6)
@given(config=mixtures(SPREAD), axis=st.sampled_from(["epp", "efspd", "dp_replica"]))
def test_an_unknown_axis_of_an_experts_weight_lists_the_valid_ones(config, axis):
    wrong = {"dp_replicate": R, "efsdp": R, "ep": S(0), axis: R}
    (problem,) = checked(planted(config, states(EXPERTS, w1=wrong))).problems
    assert problem.where == f"{EXPERTS}.sharding_config.state_shardings['w1']"
    assert axis in problem.what
    assert all(name in problem.what + problem.fix for name in ("dp_replicate", "efsdp", "ep"))


@settings(max_examples=6)
@given(config=mixtures(SPREAD))
def test_experts_that_stay_on_the_dense_mesh_are_refused(config):
    problem = checked(planted(config, with_region(EXPERTS, mesh="dense"))).problems[0]
    assert problem.where.startswith(f"{EXPERTS}.")
    assert problem.fix
