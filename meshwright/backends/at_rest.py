"""A tensor at rest as a DTensor on the whole mesh: what it is outside of any one layout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Size, Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor import Shard as DTensorShard

from meshwright.errors import ConfigError, Problem
from meshwright.types.kinds import I, R, Shard
from meshwright.types.layout import SpmdLayout


def on_mesh(value: Tensor, shape: Sequence[int], layout: SpmdLayout, mesh: DeviceMesh | None, name: str) -> Tensor:
    """The state `name` of global `shape` as a DTensor that shares the memory of `value`.

    value: this rank's part, or a DTensor already; layout: of it, on the base axes. Without a mesh, or on a mesh of one
    rank, the value is the whole tensor and stays plain.

    Errors: `ConfigError` for a layout that no DTensor has: one that differs by rank, a pending sum, pieces that are
    uneven on purpose, axes that cut a dim in another order than the mesh has.
    """
    if isinstance(value, DTensor) or mesh is None or mesh.size() == 1:
        return value.detach()
    axes = mesh.mesh_dim_names or ()
    problems = _unfit(layout, axes, name)
    if problems:
        raise ConfigError(problems)
    placements: list[Placement] = [
        DTensorShard(kind.dim) if isinstance(kind := layout.get(axis, R), Shard) else Replicate() for axis in axes
    ]
    return DTensor.from_local(
        value.detach(), mesh, placements, run_check=False, shape=Size(shape), stride=_contiguous(shape)
    )


def _unfit(layout: SpmdLayout, axes: Sequence[str], name: str) -> list[Problem]:
    on = {axis: kind for axis, kind in layout.items() if axis in axes}
    problems = [
        Problem(
            where=name,
            what=f"{kind!r} on {axis!r} cannot be kept",
            why="what is kept is one value, whole on every rank or cut in equal pieces",
            fix=f"{axis!r}: R, or S(dim) in its state_shardings",
        )
        for axis, kind in on.items()
        if not (kind in (R, I) or (isinstance(kind, Shard) and kind.sizes is None))
    ]
    for dim in {kind.dim for kind in on.values() if isinstance(kind, Shard)}:
        order = [axis for axis in layout.sharding(dim) if axis in axes]
        if order != sorted(order, key=axes.index):
            problems.append(
                Problem(
                    where=name,
                    what=f"dim {dim} is cut over {', '.join(order)}, in this order",
                    why=f"the mesh has them as {', '.join(axes)}",
                    fix="the order of the mesh in its state_shardings",
                )
            )
    return problems


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, stride = [], 1
    for length in reversed(shape):
        strides.append(stride)
        stride *= max(1, length)
    return tuple(reversed(strides))
