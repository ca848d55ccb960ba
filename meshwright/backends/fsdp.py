"""FSDP2 storage: DTensors on the full mesh at rest, plain tensors in compute.

The one file that touches private names of `torch.distributed.fsdp`; tests/backends/test_fsdp_names.py holds each.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import DataParallelMeshDims
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.fsdp._fully_shard._fsdp_init import _get_mesh_info_from_named_dims
from torch.distributed.tensor import DTensor, Shard

from meshwright.backends.placements import placements, unplaced
from meshwright.backends.storage import PLAIN, Family, Storage, StoragePolicy, family
from meshwright.comm.grid import Axes, ParallelismDims, lower
from meshwright.errors import Problem
from meshwright.types.axes import DP, DP_REPLICATE, DP_SHARD, EFSDP
from meshwright.types.kinds import S
from meshwright.types.layout import SpmdLayout


class Fsdp(Storage):
    """Shards over dp_shard, experts over efsdp, replicates over dp_replicate; gradients are summed, never averaged.

    mesh: the base axes of a pipeline stage that are on, with dp_shard also where it has one rank.
    """

    owned = frozenset({DP, DP_REPLICATE, EFSDP})
    mesh: DeviceMesh

    def __init__(
        self,
        dims: ParallelismDims,
        rank: int,
        mesh: DeviceMesh,
        policy: StoragePolicy = PLAIN,
    ) -> None:
        super().__init__(dims, rank)
        self.mesh, self.policy = mesh, policy

    def state(self, value: Tensor, layout: SpmdLayout, axes: Axes) -> Tensor:
        base = lower(layout, axes)
        placed = placements(layout, axes, self.mesh)
        local = value.new_empty(base.local_shape(tuple(value.shape), self.degree, self.index))
        return DTensor.from_local(local, self.mesh, placed, run_check=False, shape=value.shape, stride=value.stride())

    def problems(self, name: str, layout: SpmdLayout) -> list[Problem]:
        return [*super().problems(name, layout), *unplaced(layout, self.dims.compute, name)]

    def store(self, model: nn.Module, blocks: Sequence[Sequence[nn.Module]], layouts: Mapping[str, SpmdLayout]) -> None:
        policy = self.policy
        common: dict[str, Any] = {
            "mesh": self.mesh,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=policy.precision, reduce_dtype=policy.reduce_precision, cast_forward_inputs=False
            ),
            "offload_policy": CPUOffloadPolicy(pin_memory=self.mesh.device_type != "cpu")
            if policy.offload
            else OffloadPolicy(),
        }
        families = {param: family(layouts[name], self.dims) for name, param in model.named_parameters()}
        placed = self._placement(families)
        for block in blocks[:-1]:
            fully_shard(list(block), **common, **placed, reshard_after_forward=policy.frees)
        if blocks:  # backward begins with the last block: gathering it anew would be wasted
            fully_shard(list(blocks[-1]), **common, **placed, reshard_after_forward=policy.frees_last)
        fully_shard(model, **common, **placed)
        # a row that a rank has alone is gathered as a view: harmless, as nothing is written into it in place
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        for module in _fsdp_modules(model):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum
            module.set_reduce_scatter_unused_params(True)  # a parameter unused on one rank joins with zeros
        for param in _fsdp_params(model):
            param._unsharded_dtensor_spec = None
            param.is_dtensor = False  # compute sees plain tensors; _sharding_spec keeps the full mesh at rest

    def _placement(self, families: Mapping[nn.Parameter, Family]) -> dict[str, Any]:
        """The arguments of `fully_shard` that say over which ranks each parameter is stored, and along which dim.

        What of a block is of another family is gathered beside it, before the block's forward: inside of that, torch
        would gather it between ops that are recomputed, and while a dispatch waits for the host.
        """
        dense = family({}, self.dims)
        own_mesh = {
            own: cast(FSDPMeshInfo, _get_mesh_info_from_named_dims(self.mesh, self._data_axes(own)))
            for own in dict.fromkeys(families.values())
            if own != dense
        }

        def place(param: nn.Parameter) -> Shard | ShardPlacementResult:
            own = families[param]
            cut = Shard(own.cut(param.to_local().shape, self.degree))  # type: ignore[attr-defined]  # a DTensor
            return cut if own == dense else ShardPlacementResult(cut, own_mesh[own])

        axes = self._data_axes(dense)
        return {"dp_mesh_dims": axes, **({"shard_placement_fn": place} if axes.shard else {})}

    def _data_axes(self, own: Family) -> DataParallelMeshDims:
        """Where a family has no ranks to be cut over it is stored over dp_shard, if the mesh has that with one rank."""
        alone = (DP_SHARD,) if DP_SHARD in (self.mesh.mesh_dim_names or ()) else ()
        shard = own.shard or alone
        return DataParallelMeshDims(
            shard=(shard if len(shard) > 1 else shard[0]) if shard else None,
            replicate=own.replicate[0] if own.replicate else None,
        )

    def rest(self, layout: SpmdLayout, axes: Axes, shape: tuple[int, ...]) -> SpmdLayout:
        own, base = family(layout, self.dims), lower(layout, axes)
        dim = own.cut(base.local_shape(shape, self.degree, self.index), self.degree)
        kept = base.only(lambda axis: axis not in own.shard)
        return kept.replace(**{own.joint: S(dim)}) if own.shard else base

    def empty(self, value: Tensor, device: torch.device) -> Tensor:
        """On the host, where it lies there at rest: a DTensor's part may lie elsewhere than its mesh."""
        return torch.empty_like(value, device=torch.device("cpu") if self.policy.offload else device)

    def local(self, value: Tensor) -> Tensor:
        if type(value) is not DTensor:  # its isinstance goes through a metaclass, and this runs for every gradient
            return value.detach()
        if not torch.is_grad_enabled():
            return value.to_local()
        with torch.no_grad():  # entered only where it changes something: this is called for every gradient of a step
            return value.to_local()

    @contextmanager
    def held(self, model: nn.Module) -> Iterator[None]:
        assert isinstance(model, FSDPModule)
        _finish_backward(model, False)
        try:
            yield
        finally:
            _finish_backward(model, True)
        for group in _fsdp_groups(model):
            group.post_backward()
        model._get_fsdp_state()._root_post_backward_final_callback()

    def accumulate(self, model: nn.Module, last: bool) -> None:
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(last)


def _finish_backward(model: FSDPModule, last: bool) -> None:
    """Whether a backward is the last of its step, and so sums gradients and frees parameters."""
    model.set_is_last_backward(last)
    model.set_reshard_after_backward(last)
    model.set_requires_gradient_sync(last)


def _fsdp_modules(model: nn.Module) -> Iterator[FSDPModule]:
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def _fsdp_groups(model: nn.Module) -> list[Any]:
    """Each once: modules that are gathered together share theirs."""
    groups = (group for module in _fsdp_modules(model) for group in module._get_fsdp_state()._fsdp_param_groups)
    return list(dict.fromkeys(groups))


def _fsdp_params(model: nn.Module) -> Iterator[Any]:
    for group in _fsdp_groups(model):
        yield from group.fsdp_params
