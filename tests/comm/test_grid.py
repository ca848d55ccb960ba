"""Who is where: arithmetic on ranks, axes and views."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.comm.grid import BASE, DENSE, LOSS, STORAGE, WORLD, ParallelismDims, lower, unknown_axis
from meshwright.comm.mesh_axis import MeshAxis
from meshwright.errors import ConfigError
from meshwright.types.kinds import P, R, S
from meshwright.types.layout import SpmdLayout

degree = st.integers(1, 3)
grids = st.builds(
    lambda tp_kv, tp_copy, **others: ParallelismDims(tp=tp_kv * tp_copy, tp_copy=tp_copy, **others),
    tp_kv=degree,
    tp_copy=degree,
    dp_replicate=degree,
    dp_shard=degree,
    cp=degree,
    pp=degree,
)


def test_ranks_run_fastest_over_the_last_axis():
    dims = ParallelismDims(pp=2, dp_replicate=2, dp_shard=2, cp=2, tp=4, tp_copy=2)
    assert dims.world == 64
    places = [tuple(dims.index(rank, {axis: (axis,) for axis in BASE}).values()) for rank in range(64)]
    assert places == list(itertools.product(*map(range, dims.base.values())))


@given(dims=grids)
def test_a_view_flattens_base_axes_outermost_first(dims):
    for rank in range(dims.world):
        base = dims.index(rank, {axis: (axis,) for axis in BASE})
        dense = dims.index(rank)
        assert (
            dense["dp"]
            == base["dp_replicate"] * dims.dp_shard + base["dp_shard"] * dims.dp_shard_ep + base["dp_shard_ep"]
        )
        assert dense["tp"] == base["tp_kv"] * dims.tp_copy + base["tp_copy"]
        assert dense["cp"] == base["cp"]
        assert dims.index(rank, WORLD) == {"world": rank}


@given(dims=grids, axis=st.sampled_from(tuple(DENSE)), data=st.data())
def test_peers_differ_on_one_axis_only_and_stand_in_its_order(dims, axis, data):
    rank, parts = data.draw(st.integers(0, dims.world - 1)), DENSE[axis]
    peers = dims.peers(rank, parts)
    assert rank in peers
    assert [dims.index(peer)[axis] for peer in peers] == list(range(dims.degrees()[axis]))
    assert all(dims.peers(peer, parts) == peers for peer in peers)
    alike = {place: (place,) for place in BASE if place not in parts}
    assert all(dims.index(peer, alike) == dims.index(rank, alike) for peer in peers)


@given(dims=grids)
def test_degrees_multiply_to_the_world(dims):
    degrees = dims.degrees()
    assert degrees["dp"] * degrees["cp"] * degrees["tp"] * dims.pp == dims.world
    assert degrees["tp_kv"] * degrees["tp_copy"] == degrees["tp"] == dims.tp
    assert math.prod(dims.base.values()) == dims.world
    assert dims.active() == {axis for axis, size in degrees.items() if size > 1}
    assert dims.peers(0, WORLD["world"]) == tuple(range(dims.world))


def test_neighbours_share_key_value_heads():
    dims = ParallelismDims(tp=4, tp_copy=2)
    assert [dims.index(rank)["tp_kv"] for rank in range(4)] == [0, 0, 1, 1]
    assert dims.peers(2, DENSE["tp_copy"]) == (2, 3)


def test_a_layout_on_a_view_is_lowered_to_base_axes():
    layout = SpmdLayout({"dp": S(0), "cp": R, "tp": P})
    assert lower(layout, DENSE) == {
        "dp_replicate": S(0),
        "dp_shard": S(0),
        "dp_shard_ep": S(0),
        "cp": R,
        "tp_kv": P,
        "tp_copy": P,
    }
    assert lower(layout, DENSE).sharding(0) == ("dp_replicate", "dp_shard", "dp_shard_ep")


def test_all_wrong_degrees_are_reported_together():
    with pytest.raises(ConfigError) as error:
        ParallelismDims(dp_shard=0, cp=-2, tp=3)
    assert [problem.where for problem in error.value.problems] == ["parallel.dp_shard", "parallel.cp"]


def test_neighbours_that_share_heads_divide_tp():
    with pytest.raises(ConfigError, match=r"parallel\.tp: 3 ranks cannot form groups of 2"):
        ParallelismDims(tp=3, tp_copy=2)


@pytest.mark.parametrize(
    ("dims", "world", "fix"),
    [
        (ParallelismDims(dp_shard=2, tp=2), 8, "--parallel.dp-shard 4"),
        (ParallelismDims(dp_shard=2, tp=3), 8, "start 6 processes"),
    ],
)
def test_degrees_that_do_not_multiply_to_the_world(dims, world, fix):
    dims.check_world(dims.world, "launch")
    with pytest.raises(ConfigError) as error:
        dims.check_world(world, "launch")
    (problem,) = error.value.problems
    assert f"= {dims.world} ranks, but the world has {world}" in problem.what
    assert str(dims) in problem.what
    assert fix in problem.fix


def test_grids_print_the_axes_that_are_on():
    assert str(ParallelismDims(dp_shard=2, tp=4)) == "dp_shard 2 x tp 4"
    assert str(ParallelismDims()) == "one rank"


def test_an_unknown_axis_lists_the_valid_ones_and_the_nearest():
    problem = unknown_axis("tpp", ("dp", "cp", "tp"))
    assert "did you mean 'tp'" in problem.what
    assert problem.fix == "one of 'dp', 'cp', 'tp'"


EXPERTS = [
    (ParallelismDims(dp_replicate=2, dp_shard=4, cp=2, tp=2, ep=8), {"dp_replicate": 2, "efsdp": 2, "ep": 8}),
    (ParallelismDims(dp_shard=4, cp=2, tp=2, ep=4), {"dp_replicate": 1, "efsdp": 4, "ep": 4}),
    (ParallelismDims(dp_shard=2, cp=2, tp=4, tp_copy=2, ep=4), {"dp_replicate": 1, "efsdp": 4, "ep": 4}),
    (ParallelismDims(dp_shard=4, ep=4), {"dp_replicate": 1, "efsdp": 1, "ep": 4}),
    (ParallelismDims(dp_shard=4, tp=2), {"dp_replicate": 1, "efsdp": 8, "ep": 1}),
]


@pytest.mark.parametrize(("dims", "degrees"), EXPERTS)
def test_ep_takes_the_inner_axes_and_efsdp_what_is_left(dims, degrees):
    sparse = dims.sparse()
    assert dims.degrees(sparse) == degrees
    for rank in range(dims.world):
        place = dims.index(rank, sparse)
        assert (place["dp_replicate"] * degrees["efsdp"] + place["efsdp"]) * degrees["ep"] + place["ep"] == rank


@pytest.mark.parametrize(("dims", "degrees"), EXPERTS)
def test_experts_change_nothing_of_the_dense_view(dims, degrees):
    assert dims.degrees() == replace(dims, ep=1).degrees()
    assert all(dims.index(rank) == replace(dims, ep=1).index(rank) for rank in range(dims.world))


def test_layouts_name_the_axes_of_experts_where_those_are_spread():
    assert ParallelismDims(dp_shard=2, tp=2).compute == DENSE
    spread = ParallelismDims(dp_shard=2, tp=2, ep=2)
    assert spread.compute == {**DENSE, **spread.sparse()}
    assert spread.view_of({"ep": 0, "efsdp": 0}) == spread.sparse()
    assert spread.view_of({"dp": 0, "tp": 0}) is DENSE


@pytest.mark.parametrize(
    ("degrees", "legal"), [({"tp": 2}, [1, 2]), ({"cp": 2, "tp": 2, "dp_shard": 6}, [1, 2, 4, 8, 12, 24]), ({}, [1])]
)
def test_the_numbers_of_ranks_over_which_experts_are_spread(degrees, legal):
    assert ParallelismDims(**degrees).expert_degrees == legal
    for ep in legal:
        assert ParallelismDims(**degrees, ep=ep).degrees(ParallelismDims(**degrees, ep=ep).sparse())["ep"] == ep


def test_a_person_sees_over_how_many_ranks_experts_are_spread():
    assert ParallelismDims(dp_shard=2, tp=2, ep=4).shown == "dp_shard 2 x tp 2 = 4 ranks, ep 4"
    assert ParallelismDims(dp_shard=2).shown == "dp_shard 2 = 2 ranks"
    assert ParallelismDims().shown == "one rank"


def test_ep_takes_no_part_of_tp_or_cp():
    with pytest.raises(ConfigError, match=r"parallel.ep: 6 ranks[\s\S]*--parallel\.ep 1, 2, 4, 8 or 16"):
        ParallelismDims(dp_shard=4, cp=2, tp=2, ep=6)


@given(dims=grids, axes=st.sampled_from((DENSE, STORAGE, LOSS, WORLD)), data=st.data())
def test_a_pattern_of_ranks_is_that_of_the_axis(dims, axes, data):
    name = data.draw(st.sampled_from(tuple(axes)))
    rank = data.draw(st.integers(0, dims.world - 1))
    pattern = dims.mesh_axis(axes[name], name)
    assert pattern.ranks(rank) == dims.peers(rank, axes[name])
    assert pattern.index(rank) == dims.index(rank, axes)[name]
    assert pattern == MeshAxis.over(dims.peers(rank, axes[name]))


def test_the_loss_is_summed_over_all_ranks_with_different_tokens():
    dims = ParallelismDims(dp_replicate=2, dp_shard=4, cp=2, tp=2, ep=8)
    assert dims.degrees(LOSS) == {"loss": 16}
    assert dims.degrees(STORAGE) == {"dp_replicate": 2, "dp_shard": 4, "cp": 2, "tp": 2}
