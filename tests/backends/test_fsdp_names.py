"""Each private name of torch that FSDP storage leans on is there, and does what it is used for."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from meshwright.backends import fsdp


@pytest.fixture(scope="module")
def mesh():
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp_shard", "tp_kv"))
    dist.destroy_process_group()


@pytest.fixture
def model(mesh):
    """A layer whose parameters are DTensors on the whole mesh, stored over dp_shard."""
    layer = nn.Linear(3, 2, bias=False)
    whole = distribute_tensor(layer.weight.detach(), mesh, [Replicate(), Replicate()])
    layer.weight = nn.Parameter(whole)
    fully_shard(layer, mesh=mesh, dp_mesh_dims=fsdp.DataParallelMeshDims(shard="dp_shard"))
    return layer


def params_of(model):
    (group,) = model._get_fsdp_state()._fsdp_param_groups
    return group.fsdp_params


def test_DataParallelMeshDims_of__fully_shard_name_the_axes_of_storage():
    dims = fsdp.DataParallelMeshDims(shard="dp_shard", replicate="dp_replicate")
    assert (dims.shard, dims.replicate) == ("dp_shard", "dp_replicate")
    assert "dp_mesh_dims" in inspect.signature(fully_shard).parameters


def test__get_fsdp_state_leads_to__fsdp_param_groups_and_they_to_fsdp_params(model):
    assert isinstance(model, FSDPModule)
    (param,) = params_of(model)
    assert param.sharded_param is model.weight


def test__unsharded_dtensor_spec_and_is_dtensor_decide_what_compute_sees(model):
    (param,) = params_of(model)
    assert param._unsharded_dtensor_spec is not None
    assert param.is_dtensor is True
    seen = []
    model.register_forward_pre_hook(lambda module, args: seen.append(module.weight))
    param._unsharded_dtensor_spec, param.is_dtensor = None, False
    model(torch.ones(1, 3)).sum().backward()
    assert type(seen[0]) is nn.Parameter
    assert not isinstance(seen[0], DTensor)


def test__sharding_spec_keeps_the_whole_mesh_at_rest(model, mesh):
    (param,) = params_of(model)
    assert param._sharding_spec.mesh == mesh
    param._unsharded_dtensor_spec, param.is_dtensor = None, False
    model(torch.ones(1, 3)).sum().backward()
    assert model.weight.device_mesh == mesh
    assert isinstance(model.weight.grad, DTensor)
    assert model.weight.grad.device_mesh == mesh


@pytest.mark.parametrize(
    "name",
    [
        "set_gradient_divide_factor",
        "set_force_sum_reduction_for_comms",
        "set_reduce_scatter_unused_params",
        "set_requires_gradient_sync",
    ],
)
def test_settings_of_an_fsdp_module(name, model):
    assert list(inspect.signature(getattr(model, name)).parameters)


@pytest.mark.parametrize("name", ["set_is_last_backward", "set_reshard_after_backward"])
def test_settings_of_passes_in_any_order(name, model):
    assert list(inspect.signature(getattr(model, name)).parameters)


def test_post_backward_and__root_post_backward_final_callback_sum_what_earlier_passes_left(model):
    (param,) = params_of(model)
    param._unsharded_dtensor_spec, param.is_dtensor = None, False
    for setting in (model.set_is_last_backward, model.set_reshard_after_backward, model.set_requires_gradient_sync):
        setting(False)
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        assert param.sharded_param.grad is None
    for setting in (model.set_is_last_backward, model.set_reshard_after_backward, model.set_requires_gradient_sync):
        setting(True)
    state = model._get_fsdp_state()
    for group in state._fsdp_param_groups:
        group.post_backward()
    state._root_post_backward_final_callback()
    assert torch.equal(model.weight.grad.full_tensor(), torch.full((2, 3), 2.0))


def test_ShardPlacementResult_of__fsdp_common_and__get_mesh_info_from_named_dims_of__fsdp_init_keep_families_apart(
    mesh,
):
    """Both are gathered before the block's forward, each over its own ranks."""
    block = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 4, bias=False))
    for layer in block:
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [Replicate(), Replicate()]))
    axes = fsdp.DataParallelMeshDims(shard="dp_shard", replicate="tp_kv")
    other = fsdp._get_mesh_info_from_named_dims(mesh, axes)
    second = block[1].weight

    def place(param):
        return fsdp.ShardPlacementResult(Shard(1), other) if param is second else Shard(0)

    fully_shard(block, mesh=mesh, dp_mesh_dims=fsdp.DataParallelMeshDims(shard="dp_shard"), shard_placement_fn=place)
    groups = block._get_fsdp_state()._fsdp_param_groups
    assert [group.mesh_info.shard_process_group.size() for group in groups] == [1, 1]
    assert groups[1].mesh_info is other
    assert [param.fsdp_placement for group in groups for param in group.fsdp_params] == [Shard(0), Shard(1)]
    seen = []
    block[0].register_forward_pre_hook(lambda module, args: seen.append(block[1].weight.shape))
    for group in groups:
        for param in group.fsdp_params:
            param._unsharded_dtensor_spec = None
            param.is_dtensor = False
    block(torch.ones(1, 3)).sum().backward()
    assert seen == [torch.Size([4, 2])]


def test_a_row_of_one_rank_alone_warns_of_a_view(model):
    """The message that is filtered is the one that torch has."""
    import torch.distributed.fsdp as package

    folder = Path(inspect.getfile(package)).parent / "_fully_shard"
    assert any("returned a view tensor" in file.read_text() for file in folder.glob("*.py"))


_IMPORTED = {"DataParallelMeshDims", "ShardPlacementResult", "_get_mesh_info_from_named_dims"}


def test_every_private_name_of_the_file_has_a_test_of_its_name():
    """A name with an underscore behind a dot, other than self's own."""
    private = set(re.findall(r"(?<!self)\.(_[a-z]\w+)", inspect.getsource(fsdp)))
    assert private >= {"_fully_shard", "_get_fsdp_state", "_fsdp_param_groups", "_unsharded_dtensor_spec"}
    tests = " ".join(name for name in globals() if name.startswith("test_"))
    assert [name for name in sorted(private | _IMPORTED | {"is_dtensor"}) if name not in tests] == []
