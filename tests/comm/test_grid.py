"""Who is where: arithmetic on ranks, axes and views."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.comm.grid import BASE, DENSE, WORLD, ParallelismDims, lower, unknown_axis
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
    assert places == list(itertools.product(range(2), repeat=6))


@given(dims=grids)
def test_a_view_flattens_base_axes_outermost_first(dims):
    for rank in range(dims.world):
        base = dims.index(rank, {axis: (axis,) for axis in BASE})
        dense = dims.index(rank)
        assert dense["dp"] == base["dp_replicate"] * dims.dp_shard + base["dp_shard"]
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
        "cp": R,
        "tp_kv": P,
        "tp_copy": P,
    }
    assert lower(layout, DENSE).sharding(0) == ("dp_replicate", "dp_shard")


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
        (ParallelismDims(dp_shard=2, tp=2), 8, "parallel.dp_shard = 4"),
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
