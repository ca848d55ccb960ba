"""The transport of real runs: one torch process group per axis, over NCCL or gloo.

It calls the functional collectives by group name: they trace into compiled graphs, and cost less than the wrappers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, partial
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from meshwright.comm.grid import BASE, DENSE, Axes, ParallelismDims
from meshwright.comm.transport import Alone, Reduction, Reordered, Transport
from meshwright.comm.view import View
from meshwright.types.axes import DP_SHARD, PP

_ops = torch.ops._c10d_functional
_all_reduce: Final = _ops.all_reduce.default
_all_gather: Final = _ops.all_gather_into_tensor.default
_reduce_scatter: Final = _ops.reduce_scatter_tensor.default
_all_to_all: Final = _ops.all_to_all_single.default
_wait: Final = _ops.wait_tensor.default


class ProcessGroup(Transport):
    """The ranks of one axis as a torch process group."""

    def __init__(self, name: str, group: dist.ProcessGroup, axes: Mapping[str, int] | None = None) -> None:
        super().__init__(name, group.size(), group.rank(), axes)
        self.group = group
        self.group_name = group.group_name

    def all_reduce(self, x: Tensor, reduction: Reduction = "sum") -> Tensor:
        return _wait(_all_reduce(x, reduction, self.group_name))  # type: ignore[no-any-return]

    def all_gather(self, x: Tensor) -> Tensor:
        return _wait(_all_gather(x.contiguous(), self.size, self.group_name))  # type: ignore[no-any-return]

    def reduce_scatter(self, x: Tensor) -> Tensor:
        return _wait(_reduce_scatter(x.contiguous(), "sum", self.size, self.group_name))  # type: ignore[no-any-return]

    def all_to_all(self, x: Tensor, receive: list[int], send: list[int]) -> Tensor:
        return _wait(_all_to_all(x.contiguous(), receive, send, self.group_name))  # type: ignore[no-any-return]

    def send(self, x: Tensor, to: int) -> None:
        dist.send(x.contiguous(), group=self.group, group_dst=to)

    def recv(self, like: Tensor, source: int) -> Tensor:
        out = torch.empty_like(like)
        dist.recv(out, group=self.group, group_src=source)
        return out


@cache
def _mesh(world: dist.ProcessGroup, device_type: str, degrees: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """One mesh for equal degrees: DTensor swaps equal meshes for one another, and FSDP asks for identity."""
    return init_device_mesh(device_type, degrees, mesh_dim_names=names)


@cache
def _without(axis: str, mesh: DeviceMesh) -> DeviceMesh | None:
    """The part of a mesh that has the same place on `axis`; one object for one mesh, as in `_mesh`."""
    names = mesh.mesh_dim_names or ()
    kept = tuple(name for name in names if name != axis)
    return mesh if kept == names else mesh[kept] if kept else None


class ProcessGroups:
    """All groups of a run: a device mesh over the base axes that are on, and its views. Make one a run, on every rank.

    stored: parameters are stored over the data axes, also where those have one rank, or one that holds an expert.
    stage_mesh: that mesh without pp, the ranks that hold one pipeline stage; None for a stage of one rank.
    Wants an initialised default process group of `dims.world` ranks.
    """

    def __init__(self, dims: ParallelismDims, device_type: str, *, stored: bool = False) -> None:
        self.dims = dims
        kept = {DP_SHARD} if stored and (dims.dp_replicate == 1 or dims.ep > 1) else set()
        on = tuple(axis for axis, degree in dims.base.items() if degree > 1 or axis in kept) or (DP_SHARD,)
        self.mesh = _mesh(dist.group.WORLD, device_type, tuple(dims.base[axis] for axis in on), on)
        self.stage_mesh = _without(PP, self.mesh)
        self._transports: dict[tuple[str, ...], dist.ProcessGroup] = {}

    def view(self, axes: Axes = DENSE) -> View:
        """The axes of a view, each with its transport."""
        degrees = self.dims.degrees(axes)
        transports = {
            axis: self._transport(axis, parts) if degrees[axis] > 1 else Alone(axis) for axis, parts in axes.items()
        }
        for axis, found in transports.items():
            found.mesh_axis = self.dims.mesh_axis(axes[axis], axis)
        return View(transports, partial(self._joined, axes))

    def _joined(self, axes: Axes, names: tuple[str, ...]) -> Transport:
        """A flattened mesh has its ranks in the order of the mesh; where another is asked for, pieces change places."""
        degrees = self.dims.degrees(axes)
        outermost_first = tuple(sorted(names, key=lambda name: [BASE.index(part) for part in axes[name]]))
        parts = tuple(part for name in outermost_first for part in axes[name])
        group = self._transport(",".join(names), parts, {name: degrees[name] for name in outermost_first})
        if names == outermost_first:
            return group
        return Reordered(group.name, group, _order(group.axes, names), {name: degrees[name] for name in names})

    def _transport(self, axis: str, parts: tuple[str, ...], axes: Mapping[str, int] | None = None) -> Transport:
        on = tuple(part for part in parts if self.dims.base[part] > 1)
        if on not in self._transports:
            mesh = self.mesh[on[0]] if len(on) == 1 else self.mesh[on]._flatten("_".join(on))
            self._transports[on] = mesh.get_group()
        return ProcessGroup(axis, self._transports[on], axes)


def _order(degree: Mapping[str, int], names: tuple[str, ...]) -> tuple[int, ...]:
    """For each place of the axes flattened in the order of `names`: its place where they are flattened as `degree`."""
    places = torch.arange(math.prod(degree.values())).reshape(tuple(degree.values()))
    return tuple(places.permute([tuple(degree).index(name) for name in names]).flatten().tolist())
