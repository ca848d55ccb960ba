"""A spec says its axes by name or by their ranks, as every other statement does."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import meshwright.spmd as spmd
from meshwright.errors import SpmdTypeError


@pytest.fixture
def device_mesh():
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


def test_an_axis_is_a_name_a_group_a_mesh_or_a_pattern(device_mesh):
    dp, tp = (device_mesh.get_group(name) for name in ("dp", "tp"))
    with spmd.set_current_mesh(device_mesh), spmd.typecheck():
        for spec in (
            spmd.PartitionSpec("dp", None, ("tp",)),
            spmd.PartitionSpec(dp, None, (tp,)),
            spmd.PartitionSpec(device_mesh["dp"], None, tp),
            spmd.PartitionSpec(spmd.MeshAxis.of(dp), None, spmd.MeshAxis.of(tp)),
        ):
            x = spmd.assert_type(torch.randn(2, 3, 4), spec)
            assert spmd.layout_of(x) == {"dp": spmd.S(0), "tp": spmd.S(2)}
            assert spmd.get_partition_spec(x) == spmd.PartitionSpec("dp", None, "tp")
            assert "0x" not in repr(spec)


def test_a_region_takes_it(device_mesh):
    dp = device_mesh.get_group("dp")
    with spmd.set_current_mesh(device_mesh), spmd.typecheck():
        spec = spmd.PartitionSpec(dp, None)
        region = spmd.local_map(in_types=(spec,), out_types=spec)(lambda x: x * 2)
        x = region(spmd.assert_type(torch.randn(2, 3), spec))
        assert spmd.layout_of(x)["dp"] is spmd.S(0)


def test_two_that_join_the_same_ranks_are_one(device_mesh):
    dp = device_mesh.get_group("dp")
    with spmd.set_current_mesh(device_mesh), pytest.raises(SpmdTypeError, match="axis 'dp': it is named twice"):
        spmd.PartitionSpec("dp", dp).layout()
    with pytest.raises(SpmdTypeError, match="axis a ProcessGroup: it is named twice"):
        spmd.PartitionSpec(dp, dp)


def test_ranks_that_no_axis_joins_are_told(device_mesh):
    with (
        spmd.set_current_mesh({"dp": device_mesh.get_group("dp")}),
        pytest.raises(SpmdTypeError, match="no axis of the current mesh joins"),
    ):
        spmd.PartitionSpec(device_mesh.get_group("tp")).layout()
