"""Layouts as DTensor placements, and the two ways between a plain tensor and a DTensor.

A layout names axes of compute; a DTensor's mesh has the base axes that they flatten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.distributed.tensor import Shard as DTensorShard

from meshwright.comm.grid import BASE, Axes, lower
from meshwright.errors import Problem, SpmdTypeError
from meshwright.types.kinds import I, P, R, Shard, SpmdType, V
from meshwright.types.layout import SpmdLayout

Placements = tuple[Placement, ...]

_WHOLE: Final = {R: Replicate(), I: Replicate(), P: Partial()}


def unplaced(layout: SpmdLayout, axes: Axes, where: str) -> list[Problem]:
    """Why a DTensor cannot lie so: a list V, stated lengths, a dim that an inner axis of the mesh cuts before an outer
    one. axes: what the axes of the layout flatten; where: how a problem names the layout."""
    base = lower(layout, axes)
    found = [
        _problem(where, f"{kind!r} on {axis!r} has no placement", "a DTensor is replicated, partial or evenly sharded")
        for axis, kind in layout.items()
        if kind is V or (isinstance(kind, Shard) and kind.sizes is not None)
    ]
    for dim in sorted({kind.dim for kind in base.values() if isinstance(kind, Shard)}):
        over = base.sharding(dim)
        if list(over) != sorted(over, key=BASE.index):
            found.append(_problem(where, f"dim {dim} is cut over {', '.join(over)} in this order", _ORDER))
    return found


def _problem(where: str, what: str, why: str) -> Problem:
    return Problem(where=where, what=what, why=why, fix="--parallel.backend spmd_types, or another layout")


def placements(layout: SpmdLayout, axes: Axes, mesh: DeviceMesh) -> Placements:
    """One placement per dim of the mesh; R and I are both `Replicate`.

    Errors: `SpmdTypeError` where a DTensor cannot lie so.
    """
    problems = unplaced(layout, axes, str(layout))
    if problems:
        raise SpmdTypeError(problems)
    base = lower(layout, axes)
    return tuple(_placement(base.get(axis, R)) for axis in mesh.mesh_dim_names or ())


def _placement(kind: SpmdType) -> Placement:
    return DTensorShard(kind.dim) if isinstance(kind, Shard) else _WHOLE[kind]


_ORDER: Final = "a DTensor cuts a dim over the axes of its mesh from the outermost to the innermost"


def wrap(x: Tensor, mesh: DeviceMesh, forth: Placements, back: Placements, what: str) -> Tensor:
    """A plain local tensor as a DTensor. Its gradient must come back with the placements `back`; it moves nothing.

    While compiling DTensor's own functions stand in, which a compiler knows; what they are handed is not looked at.
    """
    if torch.compiler.is_compiling():
        return DTensor.from_local(x, mesh, forth, run_check=False, grad_placements=back)
    return _Wrap.apply(x, mesh, forth, back, what)


def unwrap(x: Any, back: Placements) -> Tensor:
    """A DTensor's local tensor. Its gradient becomes a DTensor with the placements `back`; it moves nothing."""
    return x.to_local(grad_placements=back) if torch.compiler.is_compiling() else _Unwrap.apply(x, back)


def redistribute(x: Any, forth: Placements, arrives: Placements, back: Placements, what: str) -> Tensor:
    """A DTensor moved to the placements `forth`, its gradient, which must come with `arrives`, to `back`."""
    if torch.compiler.is_compiling():
        return x.redistribute(placements=forth)
    return _Redistribute.apply(x, forth, arrives, back, what)


class _Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh, forth: Placements, back: Placements, what: str) -> Tensor:
        ctx.back, ctx.what = back, what
        return DTensor.from_local(x, mesh, forth, run_check=False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None, None]:
        return demand_placed(grads[0], ctx.back, f"the gradient of {ctx.what}").to_local(), None, None, None, None


class _Unwrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, back: Placements) -> Tensor:
        ctx.mesh, ctx.back, ctx.shape, ctx.stride = x.device_mesh, back, x.shape, x.stride()
        return x.to_local()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return (
            DTensor.from_local(grads[0], ctx.mesh, ctx.back, run_check=False, shape=ctx.shape, stride=ctx.stride),
            None,
        )


class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, forth: Placements, arrives: Placements, back: Placements, what: str) -> Tensor:
        ctx.arrives, ctx.back, ctx.what = arrives, back, what
        return x.redistribute(placements=forth)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None, None]:
        grad = demand_placed(grads[0], ctx.arrives, f"the gradient of {ctx.what}")
        return grad.redistribute(placements=ctx.back), None, None, None, None


def demand_placed(x: Any, wanted: Placements, what: str) -> Any:
    """`x`, a DTensor with the placements `wanted`; not looked at while compiling. what: how the error names it.

    Errors: `SpmdTypeError` for a plain tensor and for other placements.
    """
    if torch.compiler.is_compiling():
        return x
    if not isinstance(x, DTensor):
        raise SpmdTypeError(
            Problem(
                where=what,
                what=f"a plain tensor {list(x.shape)}, where a DTensor {_written(wanted)} is declared",
                why="plain tensors and DTensors do not mix: nobody could say what the plain one is a part of",
                fix="make it from tensors of the model, bring it in with `Backend.enter(x, layout)`, or compute it in a"
                " module with local_map",
            )
        )
    if x.placements != wanted:
        raise SpmdTypeError(
            Problem(
                where=what,
                what=f"a DTensor {_written(x.placements)}, where {_written(wanted)} is declared",
                why="DTensor worked out its own placements, and they are not the declared ones",
                fix="`meshwright check` on the recipe names the op; or declare what is computed",
            )
        )
    return x


def _written(found: Sequence[Placement]) -> str:
    return f"({', '.join(map(str, found))})"
