"""A tensor at rest as a DTensor on the whole mesh: what it is outside of any one layout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Size, Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from meshwright.backends.placements import placements, unplaced
from meshwright.errors import ConfigError, Problem
from meshwright.types.kinds import P
from meshwright.types.layout import SpmdLayout


def on_mesh(value: Tensor, shape: Sequence[int], layout: SpmdLayout, mesh: DeviceMesh | None, name: str) -> Tensor:
    """The state `name` of global `shape` as a DTensor that shares the memory of `value`.

    value: this rank's part, or a DTensor already; layout: of it, on the base axes. Without a mesh, or on a mesh of one
    rank, the value is the whole tensor and stays plain.

    Errors: `ConfigError` for a layout that no DTensor has, where the value is none yet: one that differs by rank, a
    pending sum, pieces that are uneven on purpose, axes that cut a dim in another order than the mesh has.
    """
    if isinstance(value, DTensor) or mesh is None or mesh.size() == 1:
        return value.detach()
    own = {axis: (axis,) for axis in mesh.mesh_dim_names or ()}
    held = layout.only(own.__contains__)
    problems = [*_sums(held, name), *unplaced(held, own, name)]
    if problems:
        raise ConfigError(problems)
    placed = placements(held, own, mesh)
    return DTensor.from_local(
        value.detach(), mesh, placed, run_check=False, shape=Size(shape), stride=_contiguous(shape)
    )


def _sums(layout: SpmdLayout, name: str) -> list[Problem]:
    return [
        Problem(
            where=name,
            what=f"{kind!r} on {axis!r} cannot be kept",
            why="what is kept is one value, whole on every rank or cut in equal pieces",
            fix=f"{axis!r}: R, or S(dim) in its state_shardings",
        )
        for axis, kind in layout.items()
        if kind is P
    ]


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, stride = [], 1
    for length in reversed(shape):
        strides.append(stride)
        stride *= max(1, length)
    return tuple(reversed(strides))
