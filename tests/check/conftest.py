"""A process group of four ranks without processes."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import meshwright.spmd as spmd


@pytest.fixture(scope="module")
def mesh():
    """Of dp 2 x tp 2."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


@pytest.fixture
def tp(mesh):
    """The group of tp, under the checker."""
    with spmd.set_current_mesh(mesh), spmd.typecheck():
        yield mesh.get_group("tp")
