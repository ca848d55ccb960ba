"""What can be made the current mesh on one process, without anybody to talk to."""

from __future__ import annotations

import pytest
import torch

from meshwright.comm.collectives import all_gather, all_reduce, redistribute
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.mesh_axis import MeshAxis
from meshwright.comm.scope import axis, current_mesh, set_current_mesh
from meshwright.comm.shapes import mesh, shape_view
from meshwright.comm.threads import run_ranks
from meshwright.comm.transport import Alone
from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import P, R, S


def test_the_first_axis_is_the_outermost():
    view = mesh(dp=2, tp=4, rank=6)
    assert (view.degree, view.index) == ({"dp": 2, "tp": 4}, {"dp": 1, "tp": 2})
    assert view["dp"].mesh_axis == MeshAxis.of(2, 4)
    joined = view.joined(("tp", "dp"))
    assert (joined.size, joined.index, joined.axes) == (8, 5, {"tp": 4, "dp": 2})


def test_it_is_the_view_of_a_run_with_the_same_degrees():
    dims = ParallelismDims(dp_shard=2, cp=3, tp=2)
    for rank in range(dims.world):
        ours, theirs = mesh(dp=2, cp=3, tp=2, rank=rank), shape_view(dims, rank)
        assert ours.index == {name: theirs.index[name] for name in ours}
        assert all(ours[name].mesh_axis == theirs[name].mesh_axis for name in ours)


@pytest.mark.parametrize(
    ("degrees", "told"), [({"tp": 0}, "axis 'tp': 0 ranks"), ({"tp": 2, "rank": 2}, "rank 2 of 2")]
)
def test_a_mesh_has_ranks(degrees, told):
    with pytest.raises(SpmdTypeError, match=told):
        mesh(**degrees)


def test_shapes_are_known_without_a_run():
    with set_current_mesh(mesh(dp=2, tp=4)):
        x = torch.empty(3, 8, device="meta")
        assert all_gather(x, "dp", src=S(0), dst=R).shape == (6, 8)
        assert redistribute(x, src={"dp": S(0), "tp": P}, dst={"dp": R, "tp": S(1)}).shape == (6, 2)


def test_a_pattern_of_ranks_becomes_an_axis_that_knows_shapes():
    with set_current_mesh({"dp": MeshAxis.of(2, 4), "tp": MeshAxis.of(4, 1), "pp": MeshAxis.of(1)}) as view:
        assert (view.degree, view.index) == ({"dp": 2, "tp": 4}, {"dp": 0, "tp": 0})
        x = torch.empty(3, device="meta")
        assert all_gather(x, MeshAxis.of(4, 1), src=S(0), dst=R).shape == (12,)
        assert redistribute(x, src={"dp": S(0), "tp": S(0)}, dst={"dp": R, "tp": R}).shape == (24,)


def test_an_axis_is_found_by_its_ranks():
    dims = ParallelismDims(dp_shard=2, tp=2)

    def program(rank):
        return all_reduce(torch.tensor([float(rank)]), dims.mesh_axis(("tp_kv", "tp_copy")), dst=R).item()

    assert run_ranks(dims, program) == [1.0, 1.0, 5.0, 5.0]


def test_axes_of_other_meshes_can_be_named_anew():
    source = mesh(dp=2, tp=4, rank=5)
    with set_current_mesh({"data": source["dp"], "model": source["tp"], "alone": Alone("x")}) as view:
        assert [(name, each.name, each.size, each.index) for name, each in view.items()] == [
            ("data", "data", 2, 1),
            ("model", "model", 4, 1),
            ("alone", "alone", 1, 0),
        ]
        assert axis("model").axes == {"model": 4}
        assert view.joined(("data", "model")).index == 5
    assert source["dp"].name == "dp"


def test_ranks_that_no_axis_joins_are_refused_with_those_that_there_are():
    with set_current_mesh(mesh(dp=2, tp=4)), pytest.raises(SpmdTypeError) as error:
        all_reduce(torch.ones(1), MeshAxis.of(4, 2), dst=R)
    assert error.value.problems[0].fix == "one of 'dp' MeshAxis(dp 2:4), 'tp' MeshAxis(tp 4:1)"


@pytest.mark.parametrize("given", [3, "tp", {"tp": 4}, [3]])
def test_what_is_no_mesh_is_refused(given):
    with pytest.raises(SpmdTypeError, match="is no mesh"), set_current_mesh(given):
        pass
    assert current_mesh() is None


def test_axes_of_different_kinds_have_no_group_together():
    def program(rank):
        with set_current_mesh({"tp": axis("tp"), "dp": mesh(dp=2)["dp"]}):
            redistribute(torch.ones(2), src={"dp": P, "tp": P}, dst={"dp": R, "tp": R})

    with pytest.raises(SpmdTypeError, match="have no group over all their ranks"):
        run_ranks(ParallelismDims(tp=2), program)
